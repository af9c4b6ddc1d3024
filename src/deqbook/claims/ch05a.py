"""Chapter 5a, the hidden objective: thirteen claims of xie2022.

What is compared is always computed twice: by the network, and by a solver that is given the
objective and nothing else. Subgradient inequalities are tested with φ evaluated from its
definition, a minimum over codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from deqbook.activations import Activation, identity, relu, tanh
from deqbook.claims import feedforward_units  # noqa: F401  (registers Lemmas 1, 2 and 4)
from deqbook.claims.hidden_objective import (
    SAME,
    Deep,
    bounded_quadratic,
    conditioned_layer,
    cyclic_sums,
    deep,
    firm_excess,
    joint_blocks,
    joint_wide,
    minimise_in_state,
    nnls_minimum,
    off,
    subgradient_violation,
    unit_layer,
    wide,
)
from deqbook.claims.instances import segment_instance
from deqbook.claims.registry import (
    Measurement,
    Trial,
    at_least,
    at_most,
    claim,
    equal,
    given,
    named,
    within,
)
from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq
from deqbook.regularize import (
    HiddenObjective,
    block_minimiser,
    cyclic_shift,
    inclusion_residual,
    potential,
)
from deqbook.runtime import generator, normal
from deqbook.solvers import Anderson, fixed_point

CHAPTER = "05a_hidden_objective"
SOLVED = 1e-6  # an iterative solver of SciPy against an exact route
Rows = Callable[[Tensor], Tensor]


def _equilibrium(f: Rows, m: int) -> Tensor:
    """Return the fixed point of a map on rows, by Anderson's method from 0."""
    return fixed_point(f, torch.zeros(1, m, dtype=torch.float64), tol=1e-13, max_steps=3000).z[0]


# --- Assumption 1: an activation is a proximal map ---------------------------------------------


def _secants(acts: Sequence[Activation], g: torch.Generator) -> Iterator[Measurement]:
    a, b = 3 * normal(2, 4000, g=g)
    b[:2000] = a[:2000] + 0.01 * b[:2000]  # near pairs see the derivative
    slopes = [(f(a) - f(b)) / (a - b) for f in acts]
    yield at_least("least secant slope", min(float(s.min()) for s in slopes), 0.0)
    steepest = max(float(s.max()) / f.lipschitz for s, f in zip(slopes, acts))
    yield at_most("largest secant slope ÷ L_σ", steepest, 1 + 1e-9)


def _scalar_prox(g: torch.Generator, *, subtract: bool = True) -> Measurement:
    """Compare σ(t) with the minimiser of σ̃*(u) - ½u² + ½(u-t)², found by Brent's method."""
    gaps = []
    for f, (low, high) in ((relu, (0.0, 9.0)), (tanh, (-1.0, 1.0))):
        for t in 2 * normal(6, g=g):

            def cost(u: float, t: Tensor = t, f: Activation = f) -> float:
                u_ = torch.tensor(u, dtype=torch.float64)
                hidden = potential(f).conjugate(u_) - (u_**2 / 2 if subtract else 0.0)
                return float(hidden + (u_ - t) ** 2 / 2)

            found = scipy.optimize.minimize_scalar(
                cost, bounds=(low, high), method="bounded", options={"xatol": 1e-9}
            )
            gaps.append(abs(found.x - float(f(t))))
    return within("σ(t) vs minimiser of f(u) + ½(u-t)², f = σ̃* - ½u²", max(gaps), SOLVED)


@claim(
    "xie2022.assumption1",
    title="Secant slopes of an activation lie in [0, L_σ]; for L_σ = 1 it is a proximal map",
    chapter=CHAPTER,
    ref="asm-activation",
)
def activations(trial: Trial) -> Iterable[Measurement]:
    """Look at ReLU, tanh, the identity and 3 tanh (L_σ = 3)."""
    triple = Activation("3 tanh", lambda t: 3 * torch.tanh(t), torch.ones_like, tanh.prox, 3.0)
    yield from _secants([relu, tanh, identity, triple], trial.g)
    yield _scalar_prox(trial.g)


@activations.control("swish, t ÷ (1 + e⁻ᵗ), is not monotone")
def swish(trial: Trial) -> Iterable[Measurement]:
    """It falls below -1.28 before it rises."""
    f = Activation("swish", lambda t: t * torch.sigmoid(t), torch.ones_like, tanh.prox, 1.1)
    return named(_secants([f], trial.g), "least")


@activations.control("2 ReLU, said to be 1-Lipschitz")
def double_relu(trial: Trial) -> Iterable[Measurement]:
    """Its slope is 2."""
    f = Activation("2 relu", lambda t: 2 * torch.relu(t), torch.ones_like, relu.prox)
    return named(_secants([f], trial.g), "largest")


@activations.control("½u² not subtracted from the conjugate")
def not_subtracted(trial: Trial) -> Iterable[Measurement]:
    """The proximal map of σ̃* itself is another function: t/2 for ReLU, t > 0."""
    yield _scalar_prox(trial.g, subtract=False)


# --- Lemma 5: which maps are proximal ----------------------------------------------------------


def _loops(count: int, m: int, g: torch.Generator) -> Tensor:
    """Return closed polygons of 8 corners: at random, and regular ones both ways round.

    A rotation by θ passes the test on every polygon of N corners as long as θ ≤ π/N.
    """
    rough = 2 * normal(count, 8, m, g=g)
    plane = torch.linalg.qr(normal(count, m, 2, g=g))[0]
    angle = torch.arange(8, dtype=torch.float64) * (math.pi / 4)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    radius = torch.rand(count, 1, 1, generator=g, dtype=torch.float64)
    regular = radius * (circle @ plane.mT)
    return torch.cat([rough, rough[:, :1] + regular, rough[:, :1] + regular.flip(1)])


def _proximal_tests(f: Rows, m: int, g: torch.Generator, name: str) -> Iterator[Measurement]:
    a, b = 2 * normal(2, 2000, m, g=g)
    yield at_most(f"{name}: largest firm excess", firm_excess(a, b, f(a), f(b)), 1e-12)
    x = _loops(1000, m, g)
    yield at_most(f"{name}: largest cyclic sum", float(cyclic_sums(x, f(x)).max()), 1e-12)
    J = torch.stack([torch.autograd.functional.jacobian(f, z) for z in a[:50]])
    spectrum = torch.linalg.eigvalsh((J + J.mT) / 2)
    yield within(f"{name}: asymmetry of the Jacobian", float((J - J.mT).abs().max()), SAME)
    yield at_most(f"{name}: largest eigenvalue of the Jacobian", float(spectrum.max()), 1 + 1e-12)
    yield at_least(f"{name}: least eigenvalue of the Jacobian", float(spectrum.min()), -1e-12)


def _subgradient(phi: HiddenObjective, g: torch.Generator) -> float:
    """Return the violation of z - f(z) ∈ ∂φ(f(z)), tested at random points of the domain."""
    m = phi.W.shape[1]
    z, far = normal(16, m, g=g), 3 * normal(16, m, g=g)
    far[8:] = z[8:] + 0.03 * far[8:]  # half of the points are near
    fz, u = phi.layer(z), phi.layer(far)
    return subgradient_violation(phi.value(fz), phi.value(u), fz, u, z - fz)


@claim(
    "xie2022.lemma5",
    title="A map is proximal iff it is nonexpansive and the gradient of a convex function",
    chapter=CHAPTER,
    ref="lem-which-proximal",
)
def which_are_proximal(trial: Trial) -> Iterable[Measurement]:
    """Test two tied layers, ReLU of norm 1 with more units than states and tanh, both ways."""
    wide_relu = unit_layer(trial.g, 8, 4, norm=1.0)
    yield from _proximal_tests(wide_relu.layer, 4, trial.g, "ReLU")
    yield within("ReLU: violation of z - f(z) ∈ ∂φ(f(z))", _subgradient(wide_relu, trial.g), SAME)
    smooth = unit_layer(trial.g, 4, 4, norm=1.0, sigma=tanh)
    yield from _proximal_tests(smooth.layer, 4, trial.g, "tanh")
    yield within("tanh: violation of z - f(z) ∈ ∂φ(f(z))", _subgradient(smooth, trial.g), SAME)


@which_are_proximal.control("untied weights, σ(Wz + q) with ‖W‖ = 0.9")
def untied(trial: Trial) -> Iterable[Measurement]:
    """Nonexpansive, but no gradient: the Jacobian DW is not symmetric."""
    layer = unit_layer(trial.g, 4, 4)
    found = _proximal_tests(lambda z: torch.relu(z @ layer.W.mT + layer.q), 4, trial.g, "ReLU")
    return named(found, "ReLU: largest cyclic", "ReLU: asymmetry", "ReLU: largest firm")


@which_are_proximal.control("a rotation by 0.7, times 0.95")
def rotation(trial: Trial) -> Iterable[Measurement]:
    """Nonexpansive and monotone, but not a gradient."""
    c, s = 0.95 * math.cos(0.7), 0.95 * math.sin(0.7)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    found = _proximal_tests(lambda z: z @ turn.mT, 2, trial.g, "ReLU")
    return named(found, "ReLU: largest firm", "ReLU: largest cyclic", "ReLU: asymmetry")


@which_are_proximal.control("‖W‖ = 1.5: a gradient, but it expands")
def expands(trial: Trial) -> Iterable[Measurement]:
    """Tied weights make a gradient; only norm at most 1 makes it nonexpansive."""
    layer = unit_layer(trial.g, 8, 4, norm=1.5)
    tests = named(_proximal_tests(layer.layer, 4, trial.g, "ReLU"), "ReLU: largest firm")
    grown = HiddenObjective(layer.W, layer.q + 3)
    yield from tests
    found = _subgradient(grown, trial.g)
    yield within("ReLU: violation of z - f(z) ∈ ∂φ(f(z))", found, SAME)


# --- Theorem 1: the equilibrium minimises φ ----------------------------------------------------


def _prox_by_solver(
    phi: HiddenObjective, g: torch.Generator, inverse: Tensor | None = None
) -> Measurement:
    points = normal(5, phi.W.shape[1], g=g)
    gaps = [off(minimise_in_state(phi, z, 1.0, inverse), phi.layer(z)) for z in points]
    return within("f(z) vs minimiser of φ(u) + ½‖u-z‖² (SLSQP)", max(gaps), SOLVED)


def _tanh_minimum(phi: HiddenObjective) -> Tensor:
    """Minimise φ of a tanh layer in its code, by L-BFGS-B."""
    W, q = phi.W.numpy(), phi.q.numpy()

    def cost(s: np.ndarray) -> tuple[float, np.ndarray]:
        z = s @ W / phi.tau
        entropy = ((1 + s) * np.log1p(s) + (1 - s) * np.log1p(-s)).sum() / 2
        return (entropy - q @ s) / phi.tau - z @ z / 2, (np.arctanh(s) - q - W @ z) / phi.tau

    edge = 1 - 1e-9
    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000, "maxcor": 30}
    found = scipy.optimize.minimize(
        cost, 0 * q, jac=True, method="L-BFGS-B", bounds=[(-edge, edge)] * len(q), options=options
    )
    return torch.as_tensor(found.x @ W / phi.tau)


@claim(
    "xie2022.theorem1",
    title="A unit layer is the proximal map of φ; its equilibria are the minimisers of φ",
    chapter=CHAPTER,
    ref="thm-unit-prox",
)
def unit_layer_is_prox(trial: Trial) -> Iterable[Measurement]:
    """Minimise by SLSQP, nonnegative least squares, Newton's method in the code, and L-BFGS-B."""
    square = conditioned_layer(trial.g)
    yield given("L_σ‖W‖² ÷ τ", square.excess, "≤", 1.0)
    yield _prox_by_solver(square, trial.g)
    tall = unit_layer(trial.g, 9, 5, norm=1.3, tau=2.0)
    yield given("L_σ‖W‖² ÷ τ, more units than states", tall.excess, "≤", 1.0)
    yield within("violation of z - f(z) ∈ ∂φ(f(z))", _subgradient(tall, trial.g), SAME)
    for name, phi in (("square", square), ("tall, τ = 2", tall)):
        z = _equilibrium(phi.layer, phi.W.shape[1])
        yield within(f"{name}: equilibrium vs minimiser, NNLS", off(nnls_minimum(phi), z), SAME)
        found = phi.minimiser()
        yield within(f"{name}: equilibrium vs minimiser, Newton", off(found.z, z), SAME)
        yield within(
            f"{name}: φ at the equilibrium vs its minimum",
            abs(float(phi.value(z)) - found.value),
            SAME,
        )
    state = minimise_in_state(square, torch.zeros(6, dtype=torch.float64), 0.0)
    yield within(
        "square: equilibrium vs minimiser, SLSQP",
        off(state, _equilibrium(square.layer, 6)),
        SOLVED,
    )
    smooth = unit_layer(trial.g, 6, 6, sigma=tanh)
    yield within(
        "tanh: equilibrium vs minimiser, L-BFGS-B",
        off(_tanh_minimum(smooth), _equilibrium(smooth.layer, 6)),
        SOLVED,
    )
    yield from _segment(trial.g)


def _segment(g: torch.Generator) -> Iterator[Measurement]:
    """At ‖W‖ = 1: φ is constant on a segment of equilibria, and larger off it."""
    model, low, high = segment_instance()
    phi = HiddenObjective(model.W.detach(), model.bs[0].detach())
    t = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    along = phi.value(low + t * (high - low))
    others = phi.value(torch.rand(50, 4, generator=g, dtype=torch.float64) * 3 @ phi.W)
    yield within("‖W‖ = 1: spread of φ on the segment", float(along.max() - along.min()), SAME)
    yield at_least("‖W‖ = 1: φ at other points", float(others.min()), float(along.min()))


@unit_layer_is_prox.control("‖W‖² = 2.25 τ: the layer expands")
def too_large(trial: Trial) -> Iterable[Measurement]:
    """ψ is still convex and f its gradient, but φ = ψ* - ½‖·‖² is not convex."""
    layer = unit_layer(trial.g, 9, 5, norm=1.5 * math.sqrt(2), tau=2.0)
    active = HiddenObjective(layer.W, layer.q + 3, 2.0)
    yield within("violation of z - f(z) ∈ ∂φ(f(z))", _subgradient(active, trial.g), SAME)


@unit_layer_is_prox.control("W⁻¹ for W⁻ᵀ in the explicit φ")
def wrong_inverse(trial: Trial) -> Iterable[Measurement]:
    """One of the two readings of the explicit formula in our copy."""
    square = conditioned_layer(trial.g)
    inverse = torch.linalg.inv(square.W)
    yield _prox_by_solver(square, trial.g, inverse)
    state = minimise_in_state(square, torch.zeros(6, dtype=torch.float64), 0.0, inverse)
    yield within(
        "square: equilibrium vs minimiser, SLSQP",
        off(state, _equilibrium(square.layer, 6)),
        SOLVED,
    )


# --- the skip connection -----------------------------------------------------------------------


def _skip_joint(phi: HiddenObjective, z: Tensor, alpha: float, weight: float) -> Tensor:
    """Minimise weight·(φ(y) + ‖w-y‖² ÷ 2(1-α)) + ½‖w-z‖² jointly in w and y; return w."""
    W, q, m = phi.W.numpy(), phi.q.numpy(), len(z)
    pull = weight / (1 - alpha)
    Q = np.block(
        [
            [(1 + pull) * np.eye(m), -pull * W.T],
            [-pull * W, weight * np.eye(len(q)) + (pull - weight) * W @ W.T],
        ]
    )
    return torch.as_tensor(bounded_quadratic(Q, np.append(z.numpy(), weight * q), m)[:m])


def _skip(seed: int, *, factor: bool = True, skip: bool = True) -> Iterator[Measurement]:
    g = generator(seed)
    phi = unit_layer(g, 6, 6)
    z = normal(8, 6, g=g)
    off_by = 1 + torch.rand(6, generator=g, dtype=z.dtype)
    dead = torch.linalg.solve(phi.W, -phi.q - off_by)  # all units are off here
    for alpha in (0.3, 0.7):
        weight = alpha if factor else 1.0
        envelope = phi.envelope(1 - alpha)

        def f(z: Tensor, alpha: float = alpha if skip else 1.0) -> Tensor:
            return alpha * phi.layer(z) + (1 - alpha) * z

        w = f(z)
        gap = (z - w - weight * envelope.gradient(w)).norm(dim=1).max()
        yield within(f"α = {alpha}: z - w vs gradient of αM at w = f_α(z)", float(gap), SAME)
        joint = _skip_joint(phi, z[0], alpha, weight)
        yield within(f"α = {alpha}: f_α(z) vs joint minimiser (BVLS)", off(joint, w[0]), SAME)
        pair = torch.stack([dead, dead - 0.1 * phi.W[0] / phi.W[0].norm()])
        a, b = torch.cat([z[:4], pair[:1]]), torch.cat([z[4:], pair[1:]])
        grows = ((f(a) - f(b)) * (a - b)).sum(1) / (a - b).square().sum(1)
        bound = 1 - alpha
        yield at_least(f"α = {alpha}: strong monotonicity", float(grows.min()), bound - 1e-12)
        end = phi.minimiser()
        slope = float(envelope.gradient(end.z[None]).norm())
        yield within(f"α = {alpha}: gradient of M at the minimiser of φ", slope, SAME)
        level = abs(float(envelope.value(end.z[None])) - end.value)
        yield within(f"α = {alpha}: M - φ at the minimiser", level, SAME)
        yield within(
            f"α = {alpha}: equilibria with and without skip", off(_equilibrium(f, 6), end.z), SAME
        )


@claim(
    "xie2022.skip",
    title="A skip connection is the proximal map of α times the Moreau envelope",
    chapter=CHAPTER,
    ref="thm-skip-envelope",
)
def skip_connection(trial: Trial) -> Iterable[Measurement]:
    """Two routes to the proximal point of αM, the modulus 1-α, and the unchanged minimisers."""
    return list(_skip(trial.seed))


@skip_connection.control("the factor α before the envelope left out, as printed")
def lost_factor(trial: Trial) -> Iterable[Measurement]:
    """The proximal map of M itself has the same fixed points, but it is another layer."""
    found = _skip(trial.seed, factor=False)
    return [m for m in found if "at w =" in m.name or "joint" in m.name]


@skip_connection.control("no skip connection")
def no_skip(trial: Trial) -> Iterable[Measurement]:
    """Where all units are off the layer is constant."""
    found = _skip(trial.seed, skip=False)
    return [m for m in found if "strong" in m.name]


# --- Lemma 3, Lemma 6, Theorem 2, Corollary 1: deep is a block problem -------------------------


def _block_map(net: Deep, P: Tensor) -> Callable[[Tensor], Tensor]:
    """Return z̃ ↦ αW̃ᵀσ(W̃Pz̃ + q̃) + (1-α)Pz̃ on rows."""
    W = torch.block_diag(*[f.W for f in net.layers])
    q, alpha = torch.cat([f.q for f in net.layers]), net.model.alpha

    def f(z: Tensor) -> Tensor:
        turned = z @ P.mT
        return alpha * torch.relu(turned @ W.mT + q) @ W + (1 - alpha) * turned

    return f


def _multi_block(seed: int, L: int, *, transpose: bool = False) -> Iterator[Measurement]:
    net = deep(seed, L, 0.6)
    P = cyclic_shift(L, net.model.m)
    f = _block_map(net, P.mT if transpose else P)
    flat = net.blocks.reshape(1, -1)
    yield within(f"L = {L}: residual of the block equation", float((f(flat) - flat).norm()), SAME)
    found = fixed_point(f, torch.zeros_like(flat), solver=Anderson(), tol=1e-12, max_steps=5000).z
    yield within(
        f"L = {L}: last block of its solution vs equilibrium",
        off(found[0, -net.model.m :], net.blocks[-1]),
        SAME,
    )


@claim(
    "xie2022.lemma3",
    title="A deep OptEq is one tied layer on blocks, after a cyclic shift",
    chapter=CHAPTER,
    ref="lem-multi-block",
)
def multi_block(trial: Trial) -> Iterable[Measurement]:
    """Both directions, for 1, 2 and 4 layers."""
    for L in (1, 2, 4):
        yield from _multi_block(trial.seed, L)


@multi_block.control("Pᵀ for P: the layers in the opposite order")
def transposed_shift(trial: Trial) -> Iterable[Measurement]:
    """With four layers the order matters."""
    return list(_multi_block(trial.seed, 4, transpose=True))


def _change_of_variable(
    f: Rows, A: Rows, value: Rows, z: Tensor, w: Tensor
) -> Iterator[Measurement]:
    """Test that A(z) - f(z) is a subgradient of a convex φ at f(z)."""
    fz, fw = f(z), f(w)
    broken = subgradient_violation(value(fz), value(fw), fz, fw, A(z) - fz)
    yield within("violation of A(z) - f(z) ∈ ∂φ(f(z))", broken, SAME)
    slope = ((fz - fw) * (A(z) - fz - A(w) + fw)).sum(1) / (z - w).square().sum(1)
    yield at_least("least monotonicity of that subgradient", float(slope.min()), -1e-12)


@claim(
    "xie2022.lemma6",
    title="A an isometry: f minimises ½‖u‖² - ⟨u, A(z)⟩ + φ(u), φ convex, iff f∘A⁻¹ is proximal",
    chapter=CHAPTER,
    ref="lem-change-of-variable",
)
def change_of_variable(trial: Trial) -> Iterable[Measurement]:
    """Let A be a random rotation with a translation, f = prox ∘ A."""
    phi = conditioned_layer(trial.g, 5)
    Q, shift = torch.linalg.qr(normal(5, 5, g=trial.g))[0], normal(5, g=trial.g)

    def A(z: Tensor) -> Tensor:
        return z @ Q.mT + shift

    def f(z: Tensor) -> Tensor:
        return phi.layer(A(z))

    z, w = 2 * normal(2, 200, 5, g=trial.g)
    grow = ((f(z) - f(w)).norm(dim=1) / (z - w).norm(dim=1)).max()
    yield given("‖f(z)-f(w)‖ ÷ ‖z-w‖", float(grow), "≤", 1.0)
    same = ((A(z) - A(w)).norm(dim=1) / (z - w).norm(dim=1) - 1).abs().max()
    yield given("| ‖A(z)-A(w)‖ ÷ ‖z-w‖ - 1 |", float(same), "≤", 1e-12)
    yield from _change_of_variable(f, A, phi.value, z, w)
    gaps = [off(minimise_in_state(phi, A(p), 1.0), f(p)) for p in z[:3]]
    yield within("f(z) vs minimiser of ½‖u‖² - ⟨u, A(z)⟩ + φ(u) (SLSQP)", max(gaps), SOLVED)


@change_of_variable.control("A = ½I: invertible and 1-Lipschitz as printed, but no isometry")
def half(trial: Trial) -> Iterable[Measurement]:
    """With f = I, which is nonexpansive, f∘A⁻¹ = 2I is a gradient, and φ = -¼‖·‖² is concave."""
    z, w = normal(2, 200, 5, g=trial.g)
    found = _change_of_variable(
        lambda z: z, lambda z: z / 2, lambda u: -u.square().sum(-1) / 4, z, w
    )
    return list(found)


def _inclusion(seed: int, L: int, P: Tensor | None = None) -> Measurement:
    net = deep(seed, L, 0.6)
    P = cyclic_shift(L, net.model.m) if P is None else P
    residual = inclusion_residual(net.layers, net.blocks, net.model.alpha, P)
    return within(f"L = {L}: ‖∇Φ(z̃) + (I-P)z̃‖", float(residual.norm()), SAME)


@claim(
    "xie2022.theorem2",
    title="The blocks of a deep OptEq solve 0 ∈ ∂Φ(z̃) + (I-P)z̃",
    chapter=CHAPTER,
    ref="thm-deep-inclusion",
)
def deep_inclusion(trial: Trial) -> Iterable[Measurement]:
    """Gradients of the envelopes come from quadratic problems; at α = 1 test subgradients."""
    for L in (1, 2, 4):
        yield given(f"L = {L}: ‖W_l‖", _largest_norm(deep(trial.seed, L, 0.6)), "≤", 1.0)
        yield _inclusion(trial.seed, L)
    yield _without_skip(trial)


def _without_skip(trial: Trial, shift: int = 1) -> Measurement:
    """Test (P-I)z̃ ∈ ∂Φ(z̃) at α = 1, where Φ is not smooth; shift = -1 stands for Pᵀ."""
    net, worst = deep(trial.seed, 3, 1.0, m=4, h=6), []
    before, neighbours = (net.blocks.roll(by, dims=0) for by in (1, shift))
    for phi, z, previous, neighbour in zip(net.layers, net.blocks, before, neighbours):
        far = 3 * normal(12, 4, g=trial.g)
        far[6:] = previous + 0.01 * far[6:]  # half of the points u are near z
        u = phi.layer(far)
        slope = (neighbour - z).expand_as(u)
        value = phi.value(z[None]).expand(len(u))
        worst.append(subgradient_violation(value, phi.value(u), z.expand_as(u), u, slope))
    return within("α = 1, L = 3: violation of (P-I)z̃ ∈ ∂Φ(z̃)", max(worst), SAME)


def _largest_norm(net: Deep) -> float:
    return max(operator_norm(f.W) for f in net.layers)


@deep_inclusion.control("Pᵀ for P")
def inclusion_transposed(trial: Trial) -> Iterable[Measurement]:
    """The coupling is not symmetric, so the transpose is another equation."""
    yield _inclusion(trial.seed, 4, cyclic_shift(4, 5).mT)
    yield _without_skip(trial, shift=-1)


@deep_inclusion.control("the coupling (I-P)z̃ dropped: ∇Φ(z̃) = 0")
def no_coupling(trial: Trial) -> Iterable[Measurement]:
    """The blocks do not minimise Φ on their own, except for one layer."""
    for L in (2, 4):
        yield _inclusion(trial.seed, L, torch.eye(5 * L, dtype=torch.float64))


def _laplacian(L: int, m: int) -> Tensor:
    """Return I - ½(P + Pᵀ), the symmetric part of I - P."""
    P = cyclic_shift(L, m)
    return torch.eye(L * m, dtype=torch.float64) - (P + P.mT) / 2


def _two_blocks(seed: int, L: int, *, factor: bool = True) -> Iterator[Measurement]:
    for alpha in (0.3, 0.6):
        net = deep(seed, L, alpha)
        C = _laplacian(L, net.model.m).numpy()
        joint = joint_blocks(net.layers, alpha, C, factor=factor)
        yield within(f"α = {alpha}: blocks vs joint minimiser (BVLS)", off(joint, net.blocks), SAME)
        if factor:
            found = block_minimiser(net.layers, alpha)
            yield within(f"α = {alpha}: blocks vs block_minimiser", off(found, net.blocks), SAME)
    if factor:
        net = deep(seed, L, 1.0)
        found = block_minimiser(net.layers, 1.0)
        yield within("α = 1: blocks vs block_minimiser", off(found, net.blocks), SAME)


@claim(
    "xie2022.corollary1",
    title="Two layers: the blocks minimise αM₁(z₁) + αM₂(z₀) + ½‖z₁-z₀‖²",
    chapter=CHAPTER,
    ref="cor-two-blocks",
)
def two_blocks(trial: Trial) -> Iterable[Measurement]:
    """Solve the convex problem by SciPy's bounded least squares and by the package."""
    return list(_two_blocks(trial.seed, 2))


@two_blocks.control("three layers, with the symmetric part of I-P")
def three_blocks(trial: Trial) -> Iterable[Measurement]:
    """A convex problem, but its minimiser is not the equilibrium: I-P is no longer symmetric."""
    return list(_two_blocks(trial.seed, 3))


@two_blocks.control("the factor α before the envelopes left out")
def envelopes_without_factor(trial: Trial) -> Iterable[Measurement]:
    """The balance between the envelopes and the coupling is then another one."""
    return list(_two_blocks(trial.seed, 2, factor=False))


# --- Lemma 7, Theorem 3: α → 0 -----------------------------------------------------------------


def _limit(
    maps: Callable[[float], Rows], k: float, fixed: Callable[[float], Tensor]
) -> Iterator[Measurement]:
    """Compare ‖z_t - z_0‖ with ‖T_t(z_0) - z_0‖ ÷ (1-k) as t → 0."""
    start, ratios = fixed(0.0), []
    times = (0.3, 0.1, 0.03, 0.01, 1e-3)
    for t in times:
        gap = float((fixed(t) - start).norm())
        moved = float((maps(t)(start[None])[0] - start).norm())
        ratios.append(gap * (1 - k) / moved)
    yield at_most("‖z_t - z_0‖ ÷ bound", max(ratios), 1.0)
    yield at_most("‖z_t - z_0‖ at t = 0.001 ÷ at t = 0.3", gap / _first(fixed, times[0]), 0.05)


def _first(fixed: Callable[[float], Tensor], t: float) -> float:
    return float((fixed(t) - fixed(0.0)).norm())


@claim(
    "xie2022.lemma7",
    title="Contractions with a common factor that converge pointwise have converging fixed points",
    chapter=CHAPTER,
    ref="lem-limits-of-contractions",
)
def limits_of_contractions(trial: Trial) -> Iterable[Measurement]:
    """Move both W and q of a tied layer by t, keeping ‖W‖ = 0.9."""
    g = trial.g
    base, other = unit_layer(g), unit_layer(g)

    def layer(t: float) -> HiddenObjective:
        W = base.W + t * other.W
        return HiddenObjective(W * (0.9 / operator_norm(W)), base.q + t * other.q)

    yield given("common factor k = ‖W‖²", layer(0.3).excess, "≤", 0.81 + 1e-12)
    yield from _limit(lambda t: layer(t).layer, 0.81, lambda t: layer(t).minimiser().z)


@limits_of_contractions.control("no common factor: T_t(z) = (1-t)z + t·v tends to the identity")
def no_common_factor(trial: Trial) -> Iterable[Measurement]:
    """Every T_t contracts and T_t(0) → 0, but the fixed point is v for all t > 0."""
    v = normal(6, g=trial.g)
    found = _limit(lambda t: lambda z: (1 - t) * z + t * v, 0.81, lambda t: v if t > 0 else 0 * v)
    return list(found)


ALPHAS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def deep_wide_bound(layers: Sequence[HiddenObjective], y: Tensor, alpha: float) -> float:
    r"""Return the bound on :math:`\max_l\|z_l-y\|` of the theorem.

    :math:`\alpha c\Delta/(1-\alpha cL)` with :math:`\kappa=\frac1L\sum\|W_l\|^2`,
    :math:`c=\frac1{2(1-\kappa)}`, :math:`\Delta=\sum_l\|p_l(y)-y\|`, the layers without skip
    being :math:`p_l`; infinite from :math:`\alpha=\frac1{cL}` on.
    """
    kappa = sum(f.excess for f in layers) / len(layers)
    c = 1 / (2 * (1 - kappa))
    length = sum(float((f.layer(y) - y).norm()) for f in layers)
    room = 1 - alpha * c * len(layers)
    return alpha * c * length / room if room > 0 else math.inf


def _to_the_limit(gaps: Sequence[float], bounds: Sequence[float]) -> Iterator[Measurement]:
    ratio = max(gap / bound for gap, bound in zip(gaps, bounds))
    yield at_most("max ‖z_l - y‖ ÷ bound, α = 0.05 … 0.001", ratio, 1.0)
    order = np.polyfit(np.log(ALPHAS), np.log(gaps), 1)[0]
    yield equal("fitted order in α", float(order), 1.0, 0.05)


def _gaps(seed: int, y: Tensor) -> list[float]:
    nets = [deep(seed, 3, alpha, norms=(1.0, 1.0, 0.8)) for alpha in ALPHAS]
    return [float((net.blocks - y).norm(dim=1).max()) for net in nets]


@claim(
    "xie2022.theorem3",
    title="α → 0: a deep OptEq tends to the wide one with the average of its layers",
    chapter=CHAPTER,
    ref="thm-deep-wide",
)
def deep_becomes_wide(trial: Trial) -> Iterable[Measurement]:
    """Three layers of norms 1, 1, 0.8; the wide layer is solved without running any network."""
    layers = deep(trial.seed, 3, 1.0, norms=(1.0, 1.0, 0.8)).layers
    sizes = [operator_norm(f.W) for f in layers]
    yield given("largest ‖W_l‖", max(sizes), "≤", 1 + 1e-12)
    yield given("least ‖W_l‖, which must be below 1", min(sizes), "≤", 0.8 + 1e-12)
    y = wide(layers).minimiser().z
    average = sum((f.layer(y) for f in layers), torch.zeros_like(y)) / 3
    yield within("y vs average of the layers at y", off(average, y), SAME)
    yield within("y vs joint minimiser (BVLS)", off(joint_wide(layers), y), SAME)
    yield from _to_the_limit(
        _gaps(trial.seed, y), [deep_wide_bound(layers, y, alpha) for alpha in ALPHAS]
    )


@deep_becomes_wide.control("a weighted average, ½, ¼, ¼, for the limit")
def weighted(trial: Trial) -> Iterable[Measurement]:
    """The weights of the limit are equal because every layer has the same α."""
    layers = deep(trial.seed, 3, 1.0, norms=(1.0, 1.0, 0.8)).layers

    def f(z: Tensor) -> Tensor:
        return layers[0].layer(z) / 2 + layers[1].layer(z) / 4 + layers[2].layer(z) / 4

    y = _equilibrium(f, 5)
    bounds = [deep_wide_bound(layers, wide(layers).minimiser().z, alpha) for alpha in ALPHAS]
    return list(_to_the_limit(_gaps(trial.seed, y), bounds))


@deep_becomes_wide.control("all W_l = I: no ‖W_l‖ < 1")
def identities(trial: Trial) -> Iterable[Measurement]:
    """With q = 0 every z ≥ 0 is an equilibrium for every α; the limit depends on the start."""
    eye = torch.eye(5, dtype=torch.float64)
    start, zero = normal(1, 5, g=trial.g).abs(), torch.zeros(5, dtype=torch.float64)
    gaps = []
    for alpha in ALPHAS:
        model = DeepOptEq([eye] * 3, [zero[:, None]] * 3, [zero] * 3, eye, alpha=alpha)
        found = model.solve(zero[None, :1], start, tol=1e-10)
        gaps.append(float(found.z.norm()))  # y = 0 solves the wide problem
    return named(_to_the_limit(gaps, [1.0] * len(gaps)), "fitted")
