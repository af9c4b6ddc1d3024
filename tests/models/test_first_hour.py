"""What somebody meets who uses the package for the first time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import deqbook
from deqbook.activations import tanh
from deqbook.bounds import monotone, vanilla
from deqbook.implicit import IFT, equilibrium
from deqbook.kernels import empirical_ntk, gram_parts, jacobian_ntk, tangents
from deqbook.models import MonDEQ, OptEq, ReLUImplicit, VanillaDEQ, active, gradient
from deqbook.regularize import HalfSquaredNorm, HiddenObjective, RankOne
from deqbook.runtime import generator, normal, sphere
from deqbook.solvers import Anderson, NotConverged, Picard, fixed_point
from deqbook.splitting import ForwardBackward, MonotoneProblem, PeacemanRachford, split
from deqbook.wellposed import Affine, Tied, certificates, certify


def inputs(n: int = 5, d: int = 3) -> Tensor:
    return normal(n, d, g=generator(1))


def error_of_gradient(model: MonDEQ | VanillaDEQ, **options: object) -> float:
    """Return how far backward is from the closed form solved to rounding."""
    X, y = inputs(), torch.zeros(5, dtype=torch.float64)
    exact = gradient(model, X, y, tol=1e-14).grads
    model.zero_grad()
    (0.5 * model(X, **options).pow(2).sum()).backward()
    return max(float((p.grad - exact[k]).norm()) for k, p in model.named_parameters())


# --- tolerances and solvers ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MonDEQ, VanillaDEQ])
def test_tol_of_a_model_governs_its_gradient(kind: type[MonDEQ] | type[VanillaDEQ]) -> None:
    model = kind.init(8, 3, seed=0)
    loose, tight = error_of_gradient(model, tol=1e-4), error_of_gradient(model, tol=1e-13)
    assert tight < 1e-11 < 1e-8 < loose
    if kind is VanillaDEQ:  # a tolerance of the adjoint's own goes before the model's
        assert error_of_gradient(model, tol=1e-13, adjoint=IFT(tol=1e-4)) > 1e-8


def test_tol_of_an_equilibrium_governs_its_gradient() -> None:
    W = 0.5 * torch.linalg.qr(normal(4, 4, g=generator(0)))[0]
    q, start = inputs(5, 4), torch.zeros(5, 4, dtype=torch.float64)

    def slope(tol: float) -> Tensor:
        w = W.clone().requires_grad_()
        z = equilibrium(lambda z, w: torch.tanh(z @ w.mT + q), start, w, tol=tol)
        return torch.autograd.grad(z.pow(2).sum(), w)[0]

    exact = slope(1e-14)
    assert float((slope(1e-12) - exact).norm()) < 1e-10 < float((slope(1e-3) - exact).norm())


def test_an_adjoint_without_a_solver_keeps_the_models_own() -> None:
    g = generator(3)
    A, B, U, a = (normal(*s, g=g) for s in ((6, 6), (6, 6), (6, 3), (6,)))
    model = MonDEQ(0.3 * A, 3 * B, U, a, 0.5)  # far from a contraction: iterating would diverge
    assert error_of_gradient(model, tol=1e-13, adjoint=IFT(tol=1e-13)) < 1e-9
    with pytest.raises(NotConverged, match="the adjoint equation: Anderson"):
        error_of_gradient(model, tol=1e-13, adjoint=IFT(Anderson(), tol=1e-13, max_steps=20))
    assert model.adjoint().solver == MonDEQ.default_adjoint.solver


def test_a_splitting_is_a_solver_like_the_others() -> None:
    model = MonDEQ.init(6, 3, seed=0)
    q = model.inject(inputs()).detach()
    problem, start = MonotoneProblem(model.W.detach(), q), torch.zeros_like(q)
    wanted = model.solve(inputs(), tol=1e-12).z
    for solver in (PeacemanRachford(), ForwardBackward(), Anderson()):
        found = fixed_point(problem, start, solver=solver, tol=1e-10, max_steps=5000)
        assert torch.allclose(found.z, wanted, atol=1e-8)
    assert torch.equal(
        fixed_point(problem, start, solver=PeacemanRachford(), tol=1e-10, max_steps=5000).z,
        split(problem, tol=1e-10).z,
    )
    with pytest.raises(ValueError, match="PeacemanRachford needs a cell σ"):
        fixed_point(lambda z: 0.5 * z, start, solver=PeacemanRachford())


@pytest.mark.parametrize("wrong", ["anderson", Anderson, None.__class__])
def test_a_solver_is_a_solver(wrong: object) -> None:
    hint = r"; write Anderson\(\)" if wrong is Anderson else ""
    with pytest.raises(TypeError, match=rf"solver must be a Solver.*got .*{hint}"):
        fixed_point(lambda z: 0.5 * z, torch.ones(1, 1), solver=wrong)


# --- names, lists and arrays ------------------------------------------------------------------


def test_activations_go_by_name_everywhere() -> None:
    W, q = 0.1 * torch.eye(3).double(), torch.ones(1, 3).double()
    assert MonotoneProblem(W, q, "tanh").sigma.name == "tanh"
    assert certify(Affine(W, "tanh")).holds
    assert HiddenObjective(W, q[0], sigma="tanh").sigma.name == "tanh"
    for make in (lambda: MonotoneProblem(W, q, "swish"), lambda: Affine(W, "swish")):
        with pytest.raises(ValueError, match="unknown activation 'swish'; choose one of"):
            make()


@pytest.mark.parametrize("form", [np.eye(2), [[1.0, 0.0], [0.0, 1.0]]], ids=["array", "list"])
def test_lists_and_arrays_are_refused_with_a_sentence(form: object) -> None:
    I2, one = torch.eye(2).double(), torch.ones(2).double()
    sentence = r"must be a floating-point tensor, got (ndarray|list); write torch.as_tensor\("
    calls = [
        lambda: VanillaDEQ(form, I2, one),
        lambda: MonotoneProblem(form, I2),
        lambda: Affine(form),
        lambda: VanillaDEQ(0.1 * I2, I2, one).solve(form),
        lambda: gradient(VanillaDEQ(0.1 * I2, I2, one), I2, form),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=sentence):
            call()
    with pytest.raises(TypeError, match=r"must be a floating-point tensor, got dtype torch.int64"):
        Affine(torch.eye(2, dtype=torch.int64))


# --- biases, tau, no input -------------------------------------------------------------------


def test_a_bias_is_a_constant_input() -> None:
    base, b = VanillaDEQ.init(6, 3, seed=0), normal(6, g=generator(2))
    X = inputs()
    biased = VanillaDEQ(base.W.detach(), base.U.detach(), base.a.detach(), b=b)
    wide = VanillaDEQ(
        base.W.detach(), torch.cat([base.U.detach(), b[:, None]], dim=1), base.a.detach()
    )
    both = torch.cat([X, torch.ones(5, 1, dtype=torch.float64)], dim=1)
    assert torch.allclose(biased(X, tol=1e-12), wide(both, tol=1e-12), atol=1e-11)
    assert [k for k, _ in base.named_parameters()] == ["W", "U", "a"]  # none unless asked for


def test_tau_divides_the_layer() -> None:
    X, g = inputs(), generator(0)
    W, U, b, V = (normal(*s, g=g) for s in ((6, 5), (6, 3), (6,), (2, 5)))
    W = 1.2 * W / torch.linalg.matrix_norm(W, 2)
    model = OptEq(W, U, b, V, alpha=0.8, tau=2.0)
    z = model.solve(X, tol=1e-13).z
    layer = torch.relu(z @ W.mT + X @ U.mT + b) @ W / 2
    assert torch.allclose(layer, z, atol=1e-11)
    certificate = certify(model)
    assert certificate.holds
    assert certificate.constant == pytest.approx(0.8 * 1.44 / 2 + 0.2)
    assert not certify(OptEq(W, U, b, V)).holds
    assert torch.allclose(
        empirical_ntk(model, X, tol=1e-13), jacobian_ntk(model, X, tol=1e-13), rtol=1e-8
    )
    phi = HiddenObjective(W, (X @ U.mT + b)[0], tau=2.0)
    assert torch.allclose(phi.minimiser().z, z[0], atol=1e-7)
    with pytest.raises(ValueError, match="tau divides the layer and must be positive, got 0"):
        OptEq(W, U, b, V, tau=0.0)


def test_a_network_without_input_and_the_states_between_layers() -> None:
    g = generator(1)
    W, b, V = normal(4, 4, g=g), normal(4, g=g), torch.eye(4).double()
    W = 0.9 * W / torch.linalg.matrix_norm(W, 2)
    none = torch.zeros(4, 0, dtype=torch.float64)
    model, x = OptEq(W, none, b, V), torch.zeros(1, 0, dtype=torch.float64)
    z = model.solve(x, tol=1e-13).z
    assert torch.allclose(torch.relu(z @ W.mT + b) @ W, z, atol=1e-11)
    (layer,) = model.layers(z, model.inject(x))
    assert torch.equal(layer.z, z)
    assert torch.allclose(layer.h @ W, z, atol=1e-11)


# --- which units are on ----------------------------------------------------------------------


def test_units_that_are_off_are_off_whatever_the_solver_left_there() -> None:
    model, X = ReLUImplicit.init(60, 3, gamma=0.5, seed=0), sphere(8, 3, 0)
    patterns = [
        active(model, X, model.solve(X, solver=solver, tol=1e-12).z)
        for solver in (Anderson(), Picard())
    ]
    assert torch.equal(*patterns)
    nudged = model.solve(X, tol=1e-12).z + 1e-13  # what an accelerated solver may leave
    assert torch.equal(active(model, X, nudged), patterns[0])
    assert not torch.equal(nudged > 0, patterns[0])


# --- at a prompt -----------------------------------------------------------------------------


def test_the_public_names_are_offered_lazily() -> None:
    code = (
        "import sys, deqbook\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'fixed_point' in dir(deqbook)\n"
        "assert deqbook.fixed_point.__module__ == 'deqbook.solvers'\n"
        "assert deqbook.models.MonDEQ is deqbook.MonDEQ\n"
        "assert 'deqbook.dynamics' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(set(deqbook.__all__)))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(deqbook, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="fixed_points"):
        deqbook.fixed_points  # noqa: B018


# --- nothing is swallowed --------------------------------------------------------------------


def test_a_bias_is_not_ignored_by_theorems_that_have_none() -> None:
    one, y = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    vanilla_deq = VanillaDEQ(0.5 * one, one, one[0], b=one[0])
    with pytest.raises(ValueError, match="networks without bias, and b has length 1; append"):
        vanilla.condition_one(vanilla_deq, one, y, 0.1)
    monotone_deq = MonDEQ(0 * one, 0 * one, one, one[0], 1.0, b=one[0])
    with pytest.raises(ValueError, match="networks without bias, and b has length 1; append"):
        monotone.scales(monotone_deq, one, y, monotone.Radii(0.1, 0.1, 0.1, 0.1))


def test_a_certificate_says_the_true_reason() -> None:
    steep = replace(tanh, name="steep", lipschitz=3.0)
    why = certificates(Affine(0.6 * torch.eye(2).double(), steep))[-1].why
    assert "μ = 0.4, but σ is no proximal map: L_σ = 3 > 1" in why
    Q = torch.linalg.qr(normal(20, 20, g=generator(0)))[0]
    for dtype in (torch.float64, torch.float32):
        assert certify(Tied((Q.to(dtype),))).kind == "nonexpansive"
    with pytest.raises(ValueError, match="at least one matrix"):
        Tied(())


def test_solvers_are_checked_wherever_they_are_taken() -> None:
    start, t = torch.zeros(1, 1), torch.tensor([0.5])
    with pytest.raises(TypeError, match=r"got .*Anderson.*; write Anderson\(\)"):
        equilibrium(lambda z, t: t * z + 1, start, t, solver=Anderson)

    def find(f, z0):
        return fixed_point(f, z0)

    with pytest.raises(ValueError, match="solver is a function: give tol and max_steps to it"):
        equilibrium(lambda z, t: t * z + 1, start, t, solver=find, max_steps=3)
    with pytest.raises(ValueError, match=r"relax must be in \(0, 1\], got 0"):
        PeacemanRachford(relax=0.0)


def test_options_that_have_no_effect_are_refused() -> None:
    X, y = inputs(), torch.zeros(5, dtype=torch.float64)
    drawn = ReLUImplicit.init(4, 3, gamma=0.1, seed=0)
    with pytest.raises(ValueError, match=r"train names \['w'\]; the weights are W, U, a and c"):
        ReLUImplicit(drawn.W, drawn.U, drawn.a, drawn.c, 0.1, train=("w",))
    states = drawn.solve(X).z
    with pytest.raises(ValueError, match="v belongs to states: give z as well"):
        tangents(drawn, X, v=states)
    optimal = OptEq.init(4, 3, seed=0)
    found = gradient(optimal, X, y)
    with pytest.raises(ValueError, match="serve closed forms, and OptEq has none"):
        gradient(optimal, X, y, last=found, before=found)
    with pytest.raises(TypeError, match="x must be a tensor of the weights' dtype"):
        gradient(optimal, X.float(), y)
    for p in drawn.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        gram_parts(drawn, X)


@pytest.mark.parametrize("regulariser", [HalfSquaredNorm(), RankOne(torch.ones(3).double())])
def test_a_proximal_step_is_positive(regulariser: HalfSquaredNorm | RankOne) -> None:
    for step in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="a proximal step must be positive and finite"):
            regulariser.prox(inputs(), step)
