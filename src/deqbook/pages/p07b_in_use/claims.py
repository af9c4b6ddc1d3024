"""Page 7b, a DEQ in use: an estimate, two facts about iteration on a line, a certificate.

The statements are the book's own. Each is measured where it is attained: all probes of a small
Jacobian, all strings of a small length, and networks for which the certified radius is exact.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.claims import (
    at_least,
    at_most,
    chapter,
    checks,
    equal,
    given,
    headline,
    seen,
    within,
)
from deqbook.linalg import eye, operator_norm, relative, spectral_radius
from deqbook.pages.p07b_in_use.lab.networks import Dense, Monotone, jacobian_penalty, jacobians
from deqbook.pages.p07b_in_use.lab.robust import (
    attack,
    certified_radius,
    input_jacobian,
    margins,
    slope_of_difference,
)
from deqbook.pages.p07b_in_use.lab.steps import Line, light_cone, parity_cell, strings
from deqbook.runtime import generator, normal, sphere
from deqbook.wellposed import monotonicity

claim = chapter("07b_in_use")

ROUNDING = 1 + 1e-9  # room for rounding where a bound is attained exactly


# --- Hutchinson's estimate ----------------------------------------------------------------------


@lru_cache(maxsize=8)
def _cell(seed: int) -> tuple[Dense, Tensor, Tensor]:
    """Return a network of width 6 and the equilibrium of one input, with its injection."""
    net = Dense.init(6, 4, 2, scale=0.9, seed=seed)
    q = net.inject(sphere(1, 4, seed + 40)).detach()
    return net, net.solve_injected(q, tol=1e-13).z, q


def _probe(trial, probes: Tensor) -> Tensor:
    """Return ‖Jᵀε‖² for each probe, by a pull-back through the cell: the mean of two copies."""
    net, z, q = (_cell(trial.seed)[0], *(t.expand(2, -1) for t in _cell(trial.seed)[1:]))
    return torch.stack([jacobian_penalty(net, z, q, e.expand(2, -1)).detach() for e in probes])


def _estimate(trial, *, biased=False):
    net, z, q = _cell(trial.seed)
    J = jacobians(net, z, q)[0]
    numeric = torch.autograd.functional.jacobian(lambda u: net.f(u[None], q, net.W)[0], z[0])
    yield within("J = DW vs automatic differentiation", float((J - numeric).abs().max()), 1e-10)
    probes = torch.tensor(list(itertools.product((1.0, -1.0), repeat=6)), dtype=torch.float64)
    if biased:  # the first sign is always that of the second
        probes = probes[probes[:, 0] == probes[:, 1]]
    values, exact = _probe(trial, probes), float(J.square().sum())
    yield equal("mean of ‖Jᵀε‖² over all 2⁶ signs ÷ ‖J‖_F²", float(values.mean()) / exact, 1, 1e-9)
    S = J @ J.mT
    variance = 2 * float(S.square().sum() - S.diagonal().square().sum())
    drawn = float(values.var(correction=0))
    yield equal("variance over all signs ÷ 2Σ_{i≠j}S_ij²", drawn / variance, 1, 1e-8)


def _normal_probes(trial, *, signed=False):
    """Three points carry the moments of a normal entry up to the fifth: 3⁶ probes are exact."""
    net, z, q = _cell(trial.seed)
    S = jacobians(net, z, q)[0] @ jacobians(net, z, q)[0].mT
    entry = {1.0: 0.5, -1.0: 0.5} if signed else {0.0: 2 / 3, 3**0.5: 1 / 6, -(3**0.5): 1 / 6}
    probes = list(itertools.product(entry, repeat=6))
    chances = torch.tensor([math.prod(entry[e] for e in one) for one in probes]).double()
    values = _probe(trial, torch.tensor(probes, dtype=torch.float64))
    mean = float(chances @ values)
    yield equal("normal probes: mean ÷ ‖J‖_F²", mean / float(S.trace()), 1, 1e-8)
    variance = float(chances @ (values - mean).square())
    target = 2 * float(S.square().sum())
    yield equal("normal probes: variance ÷ 2‖S‖_F²", variance / target, 1, 1e-6)


def _order(trial):
    net, z, q = _cell(trial.seed)
    J = jacobians(net, z, q)[0]
    power = torch.linalg.matrix_power(J / operator_norm(J), 200)
    grown = operator_norm(J) * operator_norm(power) ** (1 / 200)
    yield equal("‖J²⁰⁰‖^{1/200} ÷ ρ(J)", grown / spectral_radius(J), 1, 0.05)
    yield at_most("ρ(J) ÷ ‖J‖", spectral_radius(J) / operator_norm(J), ROUNDING)
    yield at_most("‖J‖ ÷ ‖J‖_F", operator_norm(J) / float(J.norm()), ROUNDING)


@claim(
    "book.prop-hutchinson",
    "E‖Jᵀε‖² = ‖J‖_F², with variance 2Σ_{i≠j}S_ij² for signs and 2‖S‖_F² for normal probes",
    "prop-hutchinson",
)
def probing(trial):
    yield from _estimate(trial)
    yield from _normal_probes(trial)
    yield from _order(trial)


probing.breaks(
    "two signs are always equal: Eεεᵀ is not I", "mean", "variance", part=_estimate, biased=True
)
probing.breaks(
    "signs in the place of normal entries",
    "normal probes: variance",
    part=_normal_probes,
    shown={"normal probes": "signs"},
    signed=True,
)


# --- the light cone -----------------------------------------------------------------------------


def _cone(trial, *, steps=3, knows=False):
    """All 2⁹ strings, a network drawn at random, and the best network that there could be."""
    length = 9
    x = torch.tensor(list(itertools.product((1.0, -1.0), repeat=length)), dtype=torch.float64)
    y = ((x > 0).long().cumsum(dim=1) % 2).double()
    net = Line(8, seed=trial.seed)
    with torch.no_grad():
        q = net.inject(x)
        start = y[..., None].expand_as(q) if knows else torch.zeros_like(q)
        z = net.run(q, steps, start.clone())
        scores = net.readout(z, q)
    # given all signs but the first, the answer beyond the cone does not change
    other = x.clone()
    other[:, 0] = -other[:, 0]
    with torch.no_grad():
        q = net.inject(other)
        told = 1 - y if knows else y
        start = told[..., None].expand_as(q) if knows else torch.zeros_like(q)
        moved = net.readout(net.run(q, steps, start.clone()), q) - scores
    beyond = moved[:, steps + 1 :].abs().max()
    yield within("x₁ turned: change of the scores beyond the cone", float(beyond), 1e-12)
    edge = moved[:, steps].abs().max()
    yield seen("x₁ turned: change at the last site of the cone", float(edge), "≥", 1e-9)
    right = ((scores > 0) == (y > 0.5)).double().mean(dim=0)
    worst = (right[steps + 1 :] - 0.5).abs().max()
    yield within("share right beyond the cone - ½, all strings", float(worst), 1e-12)
    # the best local rule: right wherever it can see all signs, a fixed guess elsewhere
    best = torch.where(torch.arange(length) <= steps, y, torch.ones_like(y))
    reached = float((best == y).double().mean())
    yield headline(
        equal("best local rule ÷ light_cone", reached / light_cone(steps, length), 1, 1e-12)
    )
    share = float(((scores > 0) == (y > 0.5)).double().mean())
    yield at_most("network drawn at random: share right", share, light_cone(steps, length))


@claim(
    "book.prop-light-cone",
    "After k steps a local network is a coin at every site beyond k + 1",
    "prop-light-cone",
)
def cone(trial):
    yield from _cone(trial)


cone.breaks("a start that knows the answers", "x₁ turned: change of", part=_cone, knows=True)


# --- prefix parity as an equilibrium ------------------------------------------------------------


def _sweep(trial, *, closed=True):
    x, odd = strings(40, 12, trial.g)
    target = 1 - 2 * odd  # -1 for odd
    step = parity_cell(x, closed=closed)
    z = normal(40, 12, g=trial.g)
    gaps = []
    for _ in range(12):
        z = step(z)
        gaps.append(float((z - target).abs().max()))
    yield within("distance to the signed parities after ℓ = 12 steps", gaps[-1], 1e-12)
    yield seen("distance one step earlier", gaps[-2], "≥", 1e-3)
    J = torch.autograd.functional.jacobian(
        lambda u: parity_cell(x[:1], closed=closed)(u[None])[0], z[0]
    )
    yield equal("‖J‖", operator_norm(J), 1, 1e-9)
    power = torch.linalg.matrix_power(J, 12)
    yield within("‖J^ℓ‖: nilpotent, so ρ(J) = 0", float(power.abs().max()), 1e-12)
    last = torch.linalg.matrix_power(J, 11)
    yield equal("largest entry of J^{ℓ-1}", float(last.abs().max()), 1, 1e-9)


@claim(
    "book.prop-prefix",
    "Prefix parity is the only equilibrium of z_i = -x_iz_{i-1}, reached in ℓ steps, with ‖J‖ = 1",
    "prop-prefix",
)
def prefix(trial):
    yield from _sweep(trial)


prefix.breaks(
    "z₀ is not fixed: the line is closed to a circle",
    "distance to",
    "‖J^ℓ‖",
    part=_sweep,
    closed=False,
)


# --- the certified radius -----------------------------------------------------------------------


def _exact_network(seed: int) -> tuple[Monotone, Tensor, Tensor]:
    """Return a network whose certificate is exact: one strip of state, two classes.

    W = (1-μ)I, and the rows of U are orthogonal and of one length; in the direction V_y - V_j all
    units stay on, so every inequality of the proof is an equality there.
    """
    g, m, d, mu = generator(seed + 70), 6, 8, 0.4
    basis = torch.linalg.qr(normal(d, m, g=g))[0]
    U, V = 1.7 * basis.mT, normal(3, m, g=g)
    net = Monotone(torch.zeros(m, m).double(), torch.zeros(m, m).double(), U, V, mu)
    net.b.data += 40.0  # all units are on, far from their kinks
    x = sphere(20, d, seed + 71)
    return net.requires_grad_(False), x, net(x, tol=1e-12).argmax(dim=1).detach()


def _crossing(net: Monotone, x: Tensor, y: Tensor, stretch: float) -> Tensor:
    """Move each input by ``stretch`` × r(x) straight at its nearest rival; return the margins."""
    r, gaps = certified_radius(net, x, y), margins(net, x, y)
    slopes = input_jacobian(net, x)
    apart = slopes.gather(1, y[:, None, None].expand(-1, 1, x.shape[1])) - slopes
    lengths = (net.V[y][:, None] - net.V).norm(dim=2)
    rival = (gaps / lengths).argmin(dim=1)
    way = apart[torch.arange(len(x)), rival]
    way = way / way.norm(dim=1, keepdim=True)
    return margins(net, x - stretch * r[:, None] * way, y).amin(dim=1)


def _attained(trial, *, stretch=0.999):
    net, x, y = _exact_network(trial.seed)
    yield given("modulus of the network ÷ μ", monotonicity(net.W) / net.mu, "≥", 1 - 1e-9)
    kept = _crossing(net, x, y, stretch)
    yield headline(at_least("exact network: least margin at 0.999 r(x)", float(kept.min()), 0.0))
    lost = _crossing(net, x, y, 1.001)
    yield within("exact network: largest margin at 1.001 r(x)", float(lost.max()), 0.0)


def _attacked(trial, *, modulus=1.0):
    net = Monotone.init(12, 8, 3, mu=0.4, seed=trial.seed).requires_grad_(False)
    x = 2 * sphere(8, 8, trial.seed + 72)
    y = net(x, tol=1e-12).argmax(dim=1)
    r = certified_radius(net, x, y) * modulus
    hit = attack(net, x, y, largest=40.0, rounds=7, restarts=1, steps=8)
    yield given("share of the inputs for which an attack is found", _share(hit.radius), "≥", 0.5)
    yield at_least("smallest attack ÷ certified radius, least", float((hit.radius / r).min()), 1)
    whole = certified_radius(net, x, y, pairs=False)
    yield at_least("r(x) ÷ margin/(√2L), least", float((r / whole).min()), 1)


def _slopes(trial):
    """Compare the slopes by which attacks climb with central differences of the outputs."""
    net = Monotone.init(12, 8, 3, mu=0.4, seed=trial.seed).requires_grad_(False)
    x, h = 2 * sphere(8, 8, trial.seed + 72), 1e-6
    ends = ((net(x + h * e, tol=1e-12), net(x - h * e, tol=1e-12)) for e in eye(8))
    slopes = torch.stack([(after - before) / (2 * h) for after, before in ends], dim=2)
    J, q = input_jacobian(net, x), net.inject(x)
    yield within("∂ŷ/∂x vs central differences", relative(J, slopes), 1e-4)
    up, down = torch.zeros(8, dtype=torch.long), torch.ones(8, dtype=torch.long)
    climbed = slope_of_difference(net, net.solve(x, tol=1e-12).z, q, up, down)
    yield within("∂(ŷ_0-ŷ_1)/∂x by an adjoint state", relative(climbed, J[:, 0] - J[:, 1]), 1e-6)


def _share(radius: Tensor) -> float:
    return float(torch.isfinite(radius).double().mean())


@claim(
    "book.prop-radius",
    "Within r(x) = min μ(ŷ_y-ŷ_j)/(‖V_y-V_j‖‖U‖) the label of a monotone DEQ does not change",
    "prop-radius",
)
def radius(trial):
    yield from _attained(trial)
    yield from _attacked(trial)
    yield from _slopes(trial)


radius.breaks(
    "a thousandth beyond the radius",
    "exact network: least",
    part=_attained,
    shown={"0.999": "1.001"},
    stretch=1.001,
)
radius.breaks("μ taken 100 times too large", "smallest", part=_attacked, modulus=100.0)

check = checks(claim)
