"""The hidden objective: ten claims of xie2022.

What is compared is always computed twice: by the network, and by a solver that is given the
objective and nothing else. Subgradient inequalities are tested with φ evaluated from its
definition, a minimum over codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from deqbook.activations import Activation, identity, relu, tanh
from deqbook.claims import (
    Measurement,
    at_least,
    at_most,
    chapter,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq
from deqbook.pages.p01b_monotone.lab import segment_instance
from deqbook.pages.p05a_hidden_objective.lab.deep import (
    Deep,
    block_minimiser,
    cyclic_shift,
    deep,
    deep_wide_bound,
    inclusion_residual,
    joint_blocks,
    joint_wide,
    opposed,
    wide,
)
from deqbook.pages.p05a_hidden_objective.lab.objective import (
    SAME,
    Rows,
    conditioned_layer,
    cyclic_sums,
    equilibrium,
    firm_excess,
    minimise_in_state,
    nnls_minimum,
    off,
    polygons,
    skip_minimum,
    subgradient_violation,
    tanh_minimum,
    unit_layer,
)
from deqbook.regularize import HiddenObjective, potential
from deqbook.runtime import normal
from deqbook.solvers import Anderson, fixed_point

claim = chapter("05a_hidden_objective")
SOLVED = 1e-6  # an iterative solver of SciPy against an exact route


# --- Assumption 1: an activation is a proximal map ---------------------------------------------

TRIPLE = Activation("3 tanh", lambda t: 3 * torch.tanh(t), torch.ones_like, tanh.prox, 3.0)
SWISH = Activation("swish", lambda t: t * torch.sigmoid(t), torch.ones_like, tanh.prox, 1.1)
DOUBLE = Activation("2 relu", lambda t: 2 * torch.relu(t), torch.ones_like, relu.prox)


def _secants(trial, *, acts=(relu, tanh, identity, TRIPLE)):
    a, b = 3 * normal(2, 4000, g=trial.g)
    b[:2000] = a[:2000] + 0.01 * b[:2000]  # near pairs see the derivative
    slopes = [(f(a) - f(b)) / (a - b) for f in acts]
    yield at_least("least secant slope", min(float(s.min()) for s in slopes), 0.0)
    steepest = max(float(s.max()) / f.lipschitz for s, f in zip(slopes, acts))
    yield headline(at_most("largest secant slope ÷ L_σ", steepest, 1 + 1e-9))


def _scalar_prox(trial, *, subtract=True):
    gaps = []
    for f, bounds in ((relu, (0.0, 9.0)), (tanh, (-1.0, 1.0))):
        for t in 2 * normal(6, g=trial.g):

            def cost(u: float, t: Tensor = t, f: Activation = f) -> float:
                u_ = torch.tensor(u, dtype=torch.float64)
                hidden = potential(f).conjugate(u_) - (u_**2 / 2 if subtract else 0.0)
                return float(hidden + (u_ - t) ** 2 / 2)

            found = scipy.optimize.minimize_scalar(
                cost, bounds=bounds, method="bounded", options={"xatol": 1e-9}
            )
            gaps.append(abs(found.x - float(f(t))))
    yield within("σ(t) vs minimiser of f(u) + ½(u-t)², f = σ̃* - ½u²", max(gaps), SOLVED)


@claim(
    "xie2022.assumption1",
    "Secant slopes of an activation lie in [0, L_σ]",
    "asm-activation",
)
def activations(trial):
    yield from _secants(trial)


activations.breaks("swish, t ÷ (1 + e⁻ᵗ), is not monotone", "least", acts=(SWISH,), part=_secants)
activations.breaks("2 ReLU, said to be 1-Lipschitz", "largest", acts=(DOUBLE,), part=_secants)


def _convex(trial, *, scale=1.0):
    # The conjugate of the integral of c·tanh is c·(log cosh)*(u/c).
    a, b = 1.9 * torch.rand(2, 500, generator=trial.g, dtype=torch.float64) - 0.95

    def f(u: Tensor) -> Tensor:
        return scale * potential(tanh).conjugate(u) - (scale * u) ** 2 / 2

    bend = (f(a) + f(b)) / 2 - f((a + b) / 2)
    yield at_least(
        "tanh: least gap of a chord above f, ÷ length²", float((bend / (a - b) ** 2).min()), 0.0
    )


@claim(
    "book.prop-activation-prox",
    "An activation with L_σ = 1 is a proximal map",
    "prop-activation-prox",
)
def activations_are_prox(trial):
    yield from _scalar_prox(trial)
    yield from _convex(trial)


activations_are_prox.breaks(
    "½u² not subtracted from the conjugate",
    shown={"σ̃* - ½u²": "σ̃*"},
    part=_scalar_prox,
    subtract=False,
)
activations_are_prox.breaks(
    "L_σ = 2: f is not convex for σ = 2 tanh", part=_convex, shown={"tanh": "2 tanh"}, scale=2.0
)


# --- Lemma 5: which maps are proximal ----------------------------------------------------------


def _proximal(trial, f, m, name):
    a, b = 2 * normal(2, 2000, m, g=trial.g)
    yield at_most(f"{name}: largest firm excess", firm_excess(a, b, f(a), f(b)), 1e-12)
    x = polygons(1000, m, trial.g)
    yield at_most(f"{name}: largest cyclic sum", float(cyclic_sums(x, f(x)).max()), 1e-12)
    J = torch.stack([torch.autograd.functional.jacobian(f, z) for z in a[:50]])
    spectrum = torch.linalg.eigvalsh((J + J.mT) / 2)
    yield within(f"{name}: asymmetry of the Jacobian", float((J - J.mT).abs().max()), SAME)
    largest = float(spectrum.max())
    yield headline(at_most(f"{name}: largest eigenvalue of the Jacobian", largest, 1 + 1e-9))
    yield at_least(f"{name}: least eigenvalue of the Jacobian", float(spectrum.min()), -1e-12)


def _subgradient(trial, phi, name=""):
    m = phi.W.shape[1]
    z, far = normal(16, m, g=trial.g), 3 * normal(16, m, g=trial.g)
    far[8:] = z[8:] + 0.03 * far[8:]  # half of the points are near
    fz, u = phi.layer(z), phi.layer(far)
    broken = subgradient_violation(phi.value(fz), phi.value(u), fz, u, z - fz)
    yield within(f"{name}violation of z - f(z) ∈ ∂φ(f(z))", broken, SAME)


def _pushed(phi: HiddenObjective) -> HiddenObjective:
    """Return the layer with a larger injection: with few units on no norm could be seen."""
    return HiddenObjective(phi.W, phi.q + 3.0, phi.tau)


def _wide_relu(trial, *, norm=1.0):
    phi = _pushed(unit_layer(trial.g, 8, 4, norm=norm))
    yield from _proximal(trial, phi.layer, 4, "ReLU")
    J = torch.autograd.functional.jacobian(phi.layer, phi.W.mT @ torch.ones_like(phi.q))
    top = float(torch.linalg.eigvalsh(J)[-1])
    yield equal("ReLU: largest eigenvalue where all units are on", top, norm**2, SAME)
    yield from _subgradient(trial, phi, "ReLU: ")


@claim(
    "xie2022.lemma5",
    "A map is proximal iff it is nonexpansive and the gradient of a convex function",
    "lem-which-proximal",
)
def which_are_proximal(trial):
    yield from _wide_relu(trial)
    smooth = unit_layer(trial.g, 4, 4, norm=1.0, sigma=tanh)
    yield from _proximal(trial, smooth.layer, 4, "tanh")
    yield from _subgradient(trial, smooth, "tanh: ")


def _untied(trial):
    phi = unit_layer(trial.g, 4, 4)
    yield from _proximal(trial, lambda z: torch.relu(z @ phi.W.mT + phi.q), 4, "ReLU")


def _rotation(trial):
    c, s = 0.95 * math.cos(0.7), 0.95 * math.sin(0.7)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    yield from _proximal(trial, lambda z: z @ turn.mT, 2, "ReLU")


GRADIENT = ("ReLU: largest firm", "ReLU: largest cyclic", "ReLU: asymmetry")
which_are_proximal.breaks("untied weights, σ(Wz + q) with ‖W‖ = 0.9", *GRADIENT, part=_untied)
which_are_proximal.breaks(
    "a rotation by 0.7, times 0.95", *GRADIENT, part=_rotation, shown={"ReLU": "rotation"}
)
which_are_proximal.breaks(
    "‖W‖ = 1.5: a gradient, but it expands",
    "ReLU: largest firm",
    "ReLU: violation",
    part=_wide_relu,
    norm=1.5,
)


# --- Theorem 1: the equilibrium minimises φ ----------------------------------------------------


@claim(
    "xie2022.theorem1",
    "A unit layer is the proximal map of φ; its equilibria are the minimisers of φ",
    "thm-unit-prox",
)
def unit_layer_is_prox(trial, *, transposed=True):
    square = conditioned_layer(trial.g)
    yield given("L_σ‖W‖² ÷ τ", square.excess, "≤", 1.0)

    def by_slsqp(z: Tensor, weight: float) -> Tensor:
        return minimise_in_state(square, z, weight, transposed=transposed)

    gaps = [off(by_slsqp(z, 1.0), square.layer(z)) for z in normal(5, 6, g=trial.g)]
    yield within("f(z) vs minimiser of φ(u) + ½‖u-z‖² (SLSQP)", max(gaps), SOLVED)
    tall = _pushed(unit_layer(trial.g, 9, 5, norm=1.3, tau=2.0))
    yield given("L_σ‖W‖² ÷ τ, more units than states", tall.excess, "≤", 1.0)
    yield from _subgradient(trial, tall)
    for name, phi in (("square", square), ("tall, τ = 2", tall)):
        yield from _minimises(phi, name)
    gap = off(by_slsqp(torch.zeros_like(square.q), 0.0), equilibrium(square.layer, 6))
    yield within("square: equilibrium vs minimiser, SLSQP", gap, SOLVED)
    smooth = unit_layer(trial.g, 6, 6, sigma=tanh)
    gap = off(tanh_minimum(smooth), equilibrium(smooth.layer, 6))
    yield within("tanh: equilibrium vs minimiser, L-BFGS-B", gap, SOLVED)
    yield from _segment(trial)


def _minimises(phi: HiddenObjective, name: str) -> Iterator[Measurement]:
    z, found = equilibrium(phi.layer, phi.W.shape[1]), phi.minimiser()
    yield headline(
        within(f"{name}: equilibrium vs minimiser, NNLS", off(nnls_minimum(phi), z), SAME)
    )
    yield within(f"{name}: equilibrium vs minimiser, Newton", off(found.z, z), SAME)
    gap = abs(float(phi.value(z)) - found.value)
    yield within(f"{name}: φ at the equilibrium vs its minimum", gap, SAME)


def _segment(trial):
    # φ is constant on a segment of equilibria, and larger off it.
    model, low, high = segment_instance()
    phi = HiddenObjective(model.W, model.bs[0])
    t = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    along = phi.value(low + t * (high - low))
    others = phi.value(torch.rand(50, 4, generator=trial.g, dtype=torch.float64) * 3 @ phi.W)
    yield within("‖W‖ = 1: spread of φ on the segment", float(along.max() - along.min()), SAME)
    yield at_least("‖W‖ = 1: φ at other points", float(others.min()), float(along.min()))


def _expands(trial):
    # ψ is still convex and f its gradient, but φ = ψ* - ½‖·‖² is not convex.
    phi = unit_layer(trial.g, 9, 5, norm=1.5 * math.sqrt(2), tau=2.0)
    yield from _subgradient(trial, _pushed(phi))


unit_layer_is_prox.breaks("‖W‖² = 2.25 τ: the layer expands", part=_expands)
unit_layer_is_prox.breaks(
    "W⁻¹ for W⁻ᵀ in the explicit φ",
    "f(z) vs minimiser",
    "square: equilibrium vs minimiser, SLSQP",
    transposed=False,
)


# --- the skip connection -----------------------------------------------------------------------

SKIPS = (0.3, 0.7)


@claim(
    "xie2022.skip",
    "A skip connection is the proximal map of α times the Moreau envelope",
    "thm-skip-envelope",
)
def skip_connection(trial, *, factor=True, skip=True):
    phi = unit_layer(trial.g, 6, 6)
    z = normal(8, 6, g=trial.g)
    off_by = 1 + torch.rand(6, generator=trial.g, dtype=z.dtype)
    dead = torch.linalg.solve(phi.W, -phi.q - off_by)  # all units are off here
    below = dead - 0.1 * phi.W[0] / phi.W[0].norm()
    a, b = torch.cat([z[:4], dead[None]]), torch.cat([z[4:], below[None]])
    end = phi.minimiser()
    for alpha in SKIPS:
        weight = alpha if factor else 1.0
        envelope = phi.envelope(1 - alpha)

        def f(z: Tensor, alpha: float = alpha if skip else 1.0) -> Tensor:
            return alpha * phi.layer(z) + (1 - alpha) * z

        w = f(z)
        gap = (z - w - weight * envelope.gradient(w)).norm(dim=1).max()
        yield within(f"α = {alpha}: z - w vs gradient of αM at w = f_α(z)", float(gap), SAME)
        joint = skip_minimum(phi, z[0], alpha, weight)
        yield within(f"α = {alpha}: f_α(z) vs joint minimiser (BVLS)", off(joint, w[0]), SAME)
        grows = ((f(a) - f(b)) * (a - b)).sum(1) / (a - b).square().sum(1)
        yield at_least(f"α = {alpha}: strong monotonicity", float(grows.min()), 1 - alpha - 1e-12)
        h = 1e-5 * normal(6, g=trial.g)
        rise = (envelope.value(w + h) - envelope.value(w - h)) / 2
        gap = (rise - envelope.gradient(w) @ h).abs().max() / h.norm()
        yield within(f"α = {alpha}: gradient of M against differences of M", float(gap), SOLVED)
        slope = float(envelope.gradient(end.z[None]).norm())
        yield within(f"α = {alpha}: gradient of M at the minimiser of φ", slope, SAME)
        level = abs(float(envelope.value(end.z[None])) - end.value)
        yield within(f"α = {alpha}: M - φ at the minimiser", level, SAME)
        gap = off(equilibrium(f, 6), end.z)
        yield within(f"α = {alpha}: equilibria with and without skip", gap, SAME)


# Without the factor the fixed points are the same, but the layer is another one. Without the skip
# connection the layer is constant where all units are off.
skip_connection.breaks(
    "the factor α before the envelope left out, as printed",
    *(f"α = {alpha}: {what}" for alpha in SKIPS for what in ("z - w", "f_α(z)")),
    shown={"αM": "M"},
    factor=False,
)
skip_connection.breaks(
    "no skip connection", *(f"α = {alpha}: strong" for alpha in SKIPS), skip=False
)


# --- Lemma 3, Lemma 6, Theorem 2, Corollary 1: deep is a block problem -------------------------

DEPTHS = (1, 2, 4)


def _block_map(net: Deep, shift: int) -> Rows:
    """Return z̃ ↦ αW̃ᵀσ(W̃Pz̃ + q̃) + (1-α)Pz̃ on rows."""
    model = net.model
    W = torch.block_diag(*[W.detach() for W in model.Ws])
    q = torch.cat([(net.x[0] @ U.mT + b).detach() for U, b in zip(model.Us, model.bs)])
    P, alpha = cyclic_shift(len(net.layers), net.model.m, shift), net.model.alpha

    def f(z: Tensor) -> Tensor:
        turned = z @ P.mT
        return alpha * torch.relu(turned @ W.mT + q) @ W + (1 - alpha) * turned

    return f


@claim(
    "xie2022.lemma3",
    "A deep OptEq is one tied layer on blocks, after a cyclic shift",
    "lem-multi-block",
)
def multi_block(trial, *, depths=DEPTHS, shift=1):
    for L in depths:
        net = deep(trial.seed, L, 0.6)
        f = _block_map(net, shift)
        flat = net.blocks.reshape(1, -1)
        residual = float((f(flat) - flat).norm())
        yield within(f"L = {L}: residual of the block equation", residual, SAME)
        found = fixed_point(f, 0 * flat, solver=Anderson(), tol=1e-12, max_steps=5000).z
        gap = off(found[0, -net.model.m :], net.blocks[-1])
        yield within(f"L = {L}: last block of its solution vs equilibrium", gap, SAME)


multi_block.breaks("Pᵀ for P: the layers in the opposite order", depths=(4,), shift=-1)


def _in_subdifferential(
    f: Rows, A: Rows, value: Rows, z: Tensor, w: Tensor
) -> Iterator[Measurement]:
    fz, fw = f(z), f(w)
    broken = subgradient_violation(value(fz), value(fw), fz, fw, A(z) - fz)
    yield within("violation of A(z) - f(z) ∈ ∂φ(f(z))", broken, SAME)
    slope = ((fz - fw) * (A(z) - fz - A(w) + fw)).sum(1) / (z - w).square().sum(1)
    yield at_least("least monotonicity of that subgradient", float(slope.min()), -1e-12)


@claim(
    "xie2022.lemma6",
    "A an isometry: f minimises ½‖u‖² - ⟨u, A(z)⟩ + φ(u), φ convex, iff f∘A⁻¹ is proximal",
    "lem-change-of-variable",
)
def change_of_variable(trial):
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
    yield from _in_subdifferential(f, A, phi.value, z, w)
    gaps = [off(minimise_in_state(phi, A(p), 1.0), f(p)) for p in z[:3]]
    yield within("f(z) vs minimiser of ½‖u‖² - ⟨u, A(z)⟩ + φ(u) (SLSQP)", max(gaps), SOLVED)


def _half(trial):
    # f = I is nonexpansive and f∘A⁻¹ = 2I a gradient, but φ = -¼‖·‖² is concave.
    z, w = normal(2, 200, 5, g=trial.g)
    yield from _in_subdifferential(
        lambda z: z, lambda z: z / 2, lambda u: -u.square().sum(-1) / 4, z, w
    )


change_of_variable.breaks(
    "A = ½I: invertible and 1-Lipschitz as printed, but no isometry", part=_half
)


@claim(
    "xie2022.theorem2", "The blocks of a deep OptEq solve 0 ∈ ∂Φ(z̃) + (I-P)z̃", "thm-deep-inclusion"
)
def deep_inclusion(trial, *, shift=1):
    for L in DEPTHS:
        net = deep(trial.seed, L, 0.6)
        yield given(f"L = {L}: ‖W_l‖", max(operator_norm(f.W) for f in net.layers), "≤", 1.0)
        residual = inclusion_residual(net.layers, net.blocks, net.model.alpha, shift=shift)
        yield within(f"L = {L}: ‖∇Φ(z̃) + (I-P)z̃‖", float(residual.norm()), SAME)
    yield from _without_skip(trial, shift)


def _without_skip(trial, shift):
    # At α = 1 Φ is not smooth: test subgradients.
    net, worst = deep(trial.seed, 3, 1.0, m=4, h=6), []
    before, neighbours = (net.blocks.roll(by, dims=0) for by in (1, shift))
    for phi, z, previous, neighbour in zip(net.layers, net.blocks, before, neighbours):
        far = 3 * normal(12, 4, g=trial.g)
        far[6:] = previous + 0.01 * far[6:]  # half of the points u are near z
        u = phi.layer(far)
        slope = (neighbour - z).expand_as(u)
        value = phi.value(z[None]).expand(len(u))
        worst.append(subgradient_violation(value, phi.value(u), z.expand_as(u), u, slope))
    yield within("α = 1, L = 3: violation of (P-I)z̃ ∈ ∂Φ(z̃)", max(worst), SAME)


deep_inclusion.breaks(
    "Pᵀ for P", "L = 4", "α = 1", shown={"(I-P)": "(I-Pᵀ)", "(P-I)": "(Pᵀ-I)"}, shift=-1
)
deep_inclusion.breaks(
    "the coupling (I-P)z̃ dropped: ∇Φ(z̃) = 0", "L = 2", "L = 4", shown={" + (I-P)z̃": ""}, shift=0
)


@claim(
    "xie2022.corollary1",
    "Two layers: the blocks minimise αM₁(z₁) + αM₂(z₀) + ½‖z₁-z₀‖²",
    "cor-two-blocks",
)
def two_blocks(trial, *, L=2, factor=True):
    for alpha in (0.3, 0.6):
        net = deep(trial.seed, L, alpha)
        joint = joint_blocks(net.layers, alpha, factor=factor)
        yield within(f"α = {alpha}: blocks vs joint minimiser (BVLS)", off(joint, net.blocks), SAME)
        found = block_minimiser(net.layers, alpha)
        yield within(f"α = {alpha}: blocks vs block_minimiser", off(found, net.blocks), SAME)
    net = deep(trial.seed, L, 1.0)
    found = block_minimiser(net.layers, 1.0)
    yield within("α = 1: blocks vs block_minimiser", off(found, net.blocks), SAME)


# For three layers it is a convex problem too, but I-P is no longer symmetric.
two_blocks.breaks("three layers, with the symmetric part of I-P", L=3)
two_blocks.breaks(
    "the factor α before the envelopes left out",
    "α = 0.3: blocks vs joint",
    "α = 0.6: blocks vs joint",
    factor=False,
)


# --- Lemma 7, Theorem 3: α → 0 -----------------------------------------------------------------


def _limit(
    maps: Callable[[float], Rows], k: float, fixed: Callable[[float], Tensor]
) -> Iterator[Measurement]:
    start, gaps, ratios, left = fixed(0.0), [], [], []
    for t in (0.3, 0.1, 0.03, 0.01, 1e-3):
        gaps.append(float((fixed(t) - start).norm()))
        moved = float((maps(t)(start[None])[0] - start).norm())
        ratios.append(gaps[-1] * (1 - k) / moved)
        left.append(off(maps(t)(fixed(t)[None])[0], fixed(t)))
    yield within("residual of the fixed points", max(left), SAME)
    yield headline(at_most("‖z_t - z_0‖ ÷ bound", max(ratios), 1 + SAME))
    yield seen("‖z_t - z_0‖ at t = 0.001 ÷ at t = 0.3", gaps[-1] / gaps[0], "≤", 0.05)


@claim(
    "xie2022.lemma7",
    "Contractions with a common factor that converge pointwise have converging fixed points",
    "lem-limits-of-contractions",
)
def limits_of_contractions(trial):
    base, other = unit_layer(trial.g), unit_layer(trial.g)

    def layer(t: float) -> HiddenObjective:
        W = base.W + t * other.W
        return HiddenObjective(W * (0.9 / operator_norm(W)), base.q + t * other.q)

    yield given("common factor k = ‖W‖²", layer(0.3).excess, "≤", 0.81 + 1e-12)
    yield from _limit(lambda t: layer(t).layer, 0.81, lambda t: layer(t).minimiser().z)
    # All units on and q moved along the first singular vector: the bound is attained.
    first = torch.linalg.svd(base.W)[0][:, 0]
    q = 5 - base.W @ (base.W.mT @ torch.full_like(base.q, 5.0))  # the code is 5 everywhere
    moves = [HiddenObjective(base.W, q + t * first) for t in (0.0, 0.1)]
    gap = float((moves[1].minimiser().z - moves[0].minimiser().z).norm())
    start = moves[0].minimiser().z
    jump = float((moves[1].layer(start) - start).norm())
    yield equal("q along a singular vector: ‖z_t - z_0‖ ÷ bound", gap * 0.19 / jump, 1.0, SOLVED)


def _no_common_factor(trial):
    # Every T_t contracts and T_t(0) → 0, but the fixed point is v for all t > 0.
    v = normal(6, g=trial.g)
    yield from _limit(
        lambda t: lambda z: (1 - t) * z + t * v, 0.81, lambda t: v if t > 0 else 0 * v
    )


limits_of_contractions.breaks(
    "no common factor: T_t(z) = (1-t)z + t·v tends to the identity",
    "‖z_t - z_0‖",
    part=_no_common_factor,
)

ALPHAS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
NORMS = (1.0, 1.0, 0.8)


def _order_one(gaps: Sequence[float], bounds: Sequence[float]) -> Iterator[Measurement]:
    ratio = max(gap / bound for gap, bound in zip(gaps, bounds))
    yield at_most("max ‖z_l - y‖ ÷ bound, α = 0.05 … 0.001", ratio, 1.0)
    order = np.polyfit(np.log(ALPHAS), np.log(gaps), 1)[0]
    yield equal("fitted order in α", float(order), 1.0, 0.05)


def _to_the_limit(seed: int, layers: Sequence[HiddenObjective], y: Tensor) -> Iterator[Measurement]:
    nets = [deep(seed, 3, alpha, norms=NORMS) for alpha in ALPHAS]
    gaps = [float((net.blocks - y).norm(dim=1).max()) for net in nets]
    average = wide(layers).minimiser().z
    yield from _order_one(gaps, [deep_wide_bound(layers, average, alpha) for alpha in ALPHAS])


@claim(
    "xie2022.theorem3",
    "α → 0: a deep OptEq tends to the wide one with the average of its layers",
    "thm-deep-wide",
)
def deep_becomes_wide(trial):
    layers = deep(trial.seed, 3, 1.0, norms=NORMS).layers
    sizes = [operator_norm(f.W) for f in layers]
    yield given("largest ‖W_l‖", max(sizes), "≤", 1 + 1e-12)
    yield given("least ‖W_l‖, which must be below 1", min(sizes), "≤", 0.8 + 1e-12)
    y = wide(layers).minimiser().z
    average = sum((f.layer(y) for f in layers), torch.zeros_like(y)) / 3
    yield within("y vs average of the layers at y", off(average, y), SAME)
    yield within("y vs joint minimiser (BVLS)", off(joint_wide(layers), y), SAME)
    yield from _to_the_limit(trial.seed, layers, y)
    # Two layers that pull apart attain the bound as α and the norms tend to 0.
    net = opposed(1e-3)
    y = wide(net.layers).minimiser().z
    gap = float((net.blocks - y).norm(dim=1).max())
    bound = deep_wide_bound(net.layers, y, net.model.alpha)
    yield headline(at_most("two opposed layers: max ‖z_l - y‖ ÷ bound", gap / bound, 1.0))
    yield seen("two opposed layers: the same from below", gap / bound, "≥", 0.98)


def _weighted(trial):
    layers = deep(trial.seed, 3, 1.0, norms=NORMS).layers

    def f(z: Tensor) -> Tensor:
        return layers[0].layer(z) / 2 + layers[1].layer(z) / 4 + layers[2].layer(z) / 4

    yield from _to_the_limit(trial.seed, layers, equilibrium(f, 5))


def _identities(trial):
    # With q = 0 every z ≥ 0 is an equilibrium for every α; the limit depends on the start.
    eye = torch.eye(5, dtype=torch.float64)
    start, zero = normal(1, 5, g=trial.g).abs(), torch.zeros(5, dtype=torch.float64)
    gaps = []
    for alpha in ALPHAS:
        model = DeepOptEq([eye] * 3, [zero[:, None]] * 3, [zero] * 3, eye, alpha=alpha)
        found = model.solve(zero[None, :1], start, tol=1e-10)
        gaps.append(float(found.z.norm()))  # y = 0 solves the wide problem
    yield from _order_one(gaps, [1.0] * len(gaps))


deep_becomes_wide.breaks("a weighted average, ½, ¼, ¼, for the limit", part=_weighted)
deep_becomes_wide.breaks("all W_l = I: no ‖W_l‖ < 1", "fitted", part=_identities)
