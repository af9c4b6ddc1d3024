"""Inside a trained DEQ: five figures and a conjecture of nguyen2022."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.claims import (
    Measurement,
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
from deqbook.landscape import (
    Plane,
    filter_direction,
    hessian_product,
    loss_surface,
    path_ratio,
    principal_plane,
)
from deqbook.linalg import relative
from deqbook.models import ResidualCell
from deqbook.pages.p07a_training_inside import lab
from deqbook.runtime import generator

claim = chapter("07a_training_inside")

# --- initialisation of a convolutional cell ----------------------------------------------------


def _settles(trial, *, name="median residual after 50 steps", std=0.01):
    _, trace = lab.cell_trajectory(std, trial.seed, n=8)
    yield within(name, float(trace[-1].median()), 1e-2)


def _drawn(trial, *, std=0.01):
    """Measure the spread of the weights: it is what the claim is about."""
    model = ResidualCell.init(std=std, seed=trial.seed).requires_grad_(False)
    for name, W in (("W1", model.W1), ("W2", model.W2)):
        off = abs(float(W.std()) / std - 1) * math.sqrt(2 * W.numel())
        yield within(f"|std of {name} ÷ 0.01 - 1|, in standard errors", off, 5)


@claim(
    "nguyen2022.figure4.1",
    "A cell initialised at standard deviation 0.01 settles in 50 steps; at 1 it does not",
    "fig-init-residual",
    standing="partly",
    reason=(
        "The source's N(0, 0.01) comes out if 0.01 is read as a standard deviation. Read as a "
        "variance, as the notation suggests, it does not: that is a control."
    ),
)
def initialisation_settles(trial):
    yield from _drawn(trial)
    yield from _settles(trial)
    yield from _settles(trial, name="the same with W1 ~ N(0, 1)", std=(1.0, 0.01))


initialisation_settles.breaks("weights N(0, 1)", part=_settles, std=1.0)
initialisation_settles.breaks(
    "0.01 read as a variance: standard deviation 0.1", part=_settles, std=0.1
)


def _plane_by_gram(states: Tensor, plane: Plane) -> Iterator[Measurement]:
    """Compare the plane with the two leading eigenvectors of the Gram matrix of the states."""
    cloud = states.flatten(0, 1)
    away = cloud - cloud.mean(dim=0)
    values, vectors = torch.linalg.eigh(away @ away.mT)
    found = vectors[:, -2:].flip(1) * values[-2:].flip(0).sqrt()
    points = plane.points.flatten(0, 1).double()
    sides = torch.sign((points * found).sum(dim=0))  # of an eigenvector
    off = float((points - sides * found).norm() / found.norm())
    yield within("points of the plane vs the Gram matrix of the states", off, 1e-3)
    share = float(values[-2:].sum() / values.sum())
    yield equal("share of the plane, the same", plane.explained / share, 1.0, 1e-3)


@claim(
    "nguyen2022.figure4.2",
    "In the principal plane a small cell leaps once and stops; a large one wanders",
    "fig-init-plane",
    standing="partly",
    reason=(
        "The source's N(0, 0.01) comes out if 0.01 is read as a standard deviation. Read as a "
        "variance, as the notation suggests, it does not: that is a control."
    ),
)
def initialisation_leaps(trial, *, std=0.01):
    states, _ = lab.cell_trajectory(std, trial.seed, n=8)
    plane = principal_plane(states)
    yield seen("path after the first step ÷ first step", path_ratio(plane.points), "≤", 0.25)
    if std == 0.01:
        yield from _drawn(trial)
        yield from _plane_by_gram(states.double(), plane)


initialisation_leaps.breaks("weights N(0, 1)", std=1.0)
initialisation_leaps.breaks("0.01 read as a variance: standard deviation 0.1", std=0.1)


# --- trajectories while training ---------------------------------------------------------------


@claim(
    "nguyen2022.figure4.3",
    "A dozen steps of training lengthen the solver's path",
    "obs-longer-paths",
    standing="partly",
    reason=(
        "Longer paths after a dozen steps of Adam come out. The 40 epochs of the source, and the "
        "orbits near a fixed point, are not tried here; the gallery of published figures does."
    ),
)
def training_lengthens(trial, *, frozen=(), shuffled=False):
    data, test = lab.images("mnist10", 200, 200)
    few = test.first(30)
    if shuffled:
        order = torch.randperm(len(data.y), generator=generator(trial.seed + 9))
        data = lab.Images(data.x, data.y[order])
    model = lab.cell(trial.seed)
    before = lab.watch(model, few, cap=50)
    run = lab.train(model, data, epochs=3, seed=trial.seed, frozen=frozen)
    after = lab.watch(model, few, cap=50)
    yield seen("training loss after ÷ before", run[-1].loss / run[0].loss, "≤", 0.99)
    yield seen("path ratio after ÷ before", after.ratio / before.ratio, "≥", 1.6)
    yield seen("accuracy on 200 other digits", lab.accuracy(model, test), "≥", 0.2)


training_lengthens.breaks(
    "the cell's weights W1, W2 are not trained, only encoder and read-out",
    "path ratio",
    frozen=("W1", "W2"),
)
training_lengthens.breaks("the labels of the digits are shuffled", "accuracy", shuffled=True)


# --- loss landscapes ---------------------------------------------------------------------------


def _scaled(trial, *, normalised=True):
    """Draw the loss around W1 and around 10·W1, which is the same network."""
    model = ResidualCell.init(std=(1.0, 0.3), channels=4, inner=4, seed=trial.seed)
    data = lab.images("mnist10", 8, 1, torch.float64)[0]
    weights = {k: w.detach() for k, w in model.named_parameters()}
    loss = lab.loss_of(model, data, lab.options(6))
    surfaces = []
    for at in (weights, weights | {"W1": 10 * weights["W1"]}):
        g = generator(trial.seed + 1)
        first, second = filter_direction(at, g), filter_direction(at, g)
        if not normalised:  # one direction for both networks
            first, second = (
                {k: d[k] * weights[k].norm() / at[k].norm() for k in d} for d in (first, second)
            )
        grid = (-1.0, -0.5, 0.0, 0.5, 1.0)
        surfaces.append(loss_surface(loss, at, (first, second), grid, grid))
    gap = (surfaces[0] - surfaces[1]).abs().max() / surfaces[0].std()
    yield within("surfaces of W1 and of 10·W1: largest gap ÷ spread", float(gap), 1e-3)


def _curvature(trial, *, exact=True):
    """Compare Hessian-vector products with differences of exact gradients."""
    product, differences, start = lab.small_hessian(trial.seed, exact=exact)
    u = start / start.norm()
    truth = differences(u)
    gap = float((product(u) - truth).norm() / truth.norm())
    yield within("Hu against differences of the exact gradient", gap, 1e-2)


def _fit_matters(trial, *, target=lab.TARGET):
    """Measure one tied network twice: stopped early, and at the end of training."""
    data, _ = lab.images("cifar10small", 100, 1)
    run = lab.fit(6, trial.seed)
    grid = (-1.0, -0.5, 0.0, 0.5, 1.0)
    early, late = (
        lab.rise(lab.surface(one.model, data.first(48), 6, trial.seed, grid))
        for one in (lab.at_loss(run, target), run[-1])
    )
    yield seen("rise of repeat-6 at loss 1.8 ÷ rise at the end", early / late, "≤", 0.85)


def _instruments(trial):
    """Try the instruments on Σ sin w, whose Hessian is diagonal."""
    g = generator(trial.seed + 9)
    w, scale, u, first, second = (
        torch.randn(5, generator=g, dtype=torch.float64) for _ in range(5)
    )

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.sin(weights["x"]).sum()

    product, _ = hessian_product(loss, {"x": w}, {"x": scale})
    off = relative(product(u), -(scale**2) * torch.sin(w) * u)
    yield within("instruments: DHDu vs its formula", off, 1e-9)
    surface = loss_surface(loss, {"x": w}, ({"x": first}, {"x": second}), [0, 0.3], [0, -0.7])
    off = abs(float(surface[1, 1] - torch.sin(w + 0.3 * first - 0.7 * second).sum()))
    yield within("instruments: a point of a surface vs the loss there", off, 1e-9)


@claim(
    "nguyen2022.figure4.4",
    "The surface of one network rises with its fit; the picture is blind to scale",
    "obs-flatness",
    standing="partly",
    reason=(
        "That the surface of a DEQ is flatter after equal epochs comes out in the stored runs, for "
        "4 of 5 seeds or more. At equal loss it does not, so depth is not shown to be the cause."
    ),
)
def flatter(trial):
    yield from _scaled(trial)
    yield from _curvature(trial)
    yield from _fit_matters(trial)
    yield from _instruments(trial)


flatter.breaks("directions without filter normalisation", part=_scaled, normalised=False)
flatter.breaks("JFB in place of the implicit gradient", part=_curvature, exact=False)
flatter.breaks(
    "compared at equal fit", part=_fit_matters, shown={"at loss 1.8": "at the end"}, target=0.0
)

# --- what a filter-normalised picture measures --------------------------------------------------


@lru_cache(maxsize=16)
def _tied(seed: int, factor: float = 1.0, second: bool = False) -> lab.Quadratic:
    """Return the Hessian of a tied network of depth 3, with W1 (or W2) multiplied by a factor."""
    return lab.small_quadratic(seed, {"W2" if second else "W1": factor})


def _blocks(trial, *, second=False):
    """Multiply a group of filters by 3: the loss stays, its block of the Hessian is ÷ 9."""
    one, three = _tied(trial.seed, 1.0, second), _tied(trial.seed, 3.0, second)
    yield within("loss with 3W ÷ loss - 1", abs(three.loss / one.loss - 1), 1e-3)
    part = one.part("W2" if second else "W1")
    ratio = (one.H[part][:, part] - 9 * three.H[part][:, part]).norm() / one.H[part][:, part].norm()
    yield within("block of W: ∇²𝓛(W) against 9∇²𝓛(3W), relative", float(ratio), 0.02)


def _average(trial, *, normalised=True):
    """The mean curvature of random directions is the trace of the relative Hessian."""
    at, g = _tied(trial.seed, 3.0), generator(trial.seed + 3)
    curvatures = []
    for _ in range(2000):
        d = at.direction(g) if normalised else at.plain(g)
        curvatures.append(d @ at.H @ d)
    found = torch.stack(curvatures)
    error = float(found.std()) / math.sqrt(len(found))
    trace = float((at.scale * at.H * at.scale[:, None]).trace())
    yield given("standard error ÷ |trace|", error / abs(trace), "≤", 0.2)
    off = abs(float(found.mean()) - trace) / error
    yield within("mean dᵀ∇²𝓛d vs tr(S∇²𝓛S), in standard errors", off, 5)


@claim(
    "book.prop-filter-scale",
    "Filter-normalised surfaces are blind to scale; their mean curvature is tr(S∇²𝓛S)",
    "prop-filter-scale",
)
def filter_scale(trial):
    yield from _scaled(trial)
    yield from _blocks(trial)
    yield from _average(trial)
    yield from _instruments(trial)


filter_scale.breaks(
    "directions without filter normalisation", "surfaces", part=_scaled, normalised=False
)
filter_scale.breaks(
    "W2, which is not followed by a normalisation of its own", "block", part=_blocks, second=True
)
filter_scale.breaks(
    "directions of the weights' own length, not filter by filter",
    "mean",
    part=_average,
    normalised=False,
)


claim.uncheckable(
    "nguyen2022.figure4.5",
    "The loss landscape of a multiscale DEQ on ImageNet is flat",
    "obs-imagenet",
    reason=(
        "It needs a trained multiscale DEQ and 1024 ImageNet images, neither of which can be "
        "shipped. deqbook.landscape.loss_surface draws the picture for any model and any images; "
        "the page draws that of its own DEQ."
    ),
)


# --- no linear rate for the logistic loss -------------------------------------------------------


def _slow(trial, *, squares=False, growing=False):
    """Gradient flow of outputs with a kernel H: ŷ' = -H∂𝓛, one sample, then three."""
    g = generator(trial.seed + 80)
    for name, n, first in (("one sample, nearly fitted", 1, 0.01), ("three samples", 3, None)):
        run = lab.output_flow(n, g, first=first, squares=squares, growing=growing)
        ratio = run.loss[1:] / run.floor[1:]
        yield headline(at_least(f"{name}: 𝓛(t) ÷ floor, least", float(ratio.min()), 1 - 1e-6))
        if n == 1:
            yield equal(f"{name}: 𝓛(t) ÷ floor at the end, attained", float(ratio[-1]), 1, 0.02)


@claim(
    "book.prop-no-linear",
    "Logistic loss, λ_max(H) ≤ Λ: 𝓛(t) ≥ 𝓛_0/(1 + Λ𝓛_0t) along the flow",
    "prop-no-linear",
)
def no_linear_rate(trial):
    yield from _slow(trial)


no_linear_rate.breaks("squares instead of the logistic loss", part=_slow, squares=True)
no_linear_rate.breaks("a kernel that outgrows Λ", part=_slow, growing=True)


# --- the conjecture ----------------------------------------------------------------------------


@claim(
    "nguyen2022.conjecture1",
    "Examined, not proved: squared loss, distinct inputs, a wide DEQ: the loss falls linearly",
    "obs-conjecture",
    standing="partly",
    reason=(
        "A conjecture without stated conditions. Seen for one kind of network with squared loss; "
        "for the logistic loss it is false while the kernel is bounded."
    ),
)
def linear_training(trial, *, gap=None, logistic=False):
    run = lab.wide_run(trial.seed, gap=gap, logistic=logistic, m=40, steps=80)
    given_rate = float(run.bound[-1] / run.bound[0])
    yield given("(1-ηκ)⁸⁰, κ the least λ_min(H) on the path", given_rate, "≤", 0.5)
    # at t = 0 both sides are 𝓛_0, whatever κ is
    yield at_most("max 𝓛_t ÷ (1-ηκ)ᵗ𝓛_0, t ≥ 1", float((run.loss / run.bound)[1:].max()), 1)
    # errors shrink by 1-ηκ a step in the slowest direction, the loss by its square: this tells κ
    # from 2κ and from ½κ, which the bound does not
    slowest = 2 * math.log1p(-run.step * max(run.least, 1e-12))
    late = lab.straightness(run.loss)[0] / slowest
    yield seen("late slope of log 𝓛 ÷ 2 log(1-ηκ)", late, "≥", 0.8)
    yield seen("the same, from above", late, "≤", 1.85)
    yield seen("𝓛 after 80 steps ÷ 𝓛 before", float(run.loss[-1] / run.loss[0]), "≤", 0.01)


linear_training.breaks(
    "two equal inputs with different labels, so κ = 0", "hypothesis", "𝓛 after", gap=0.0
)
linear_training.breaks(
    "logistic loss in place of squares", "max", "late slope", "𝓛 after", logistic=True
)

check = checks(claim)
