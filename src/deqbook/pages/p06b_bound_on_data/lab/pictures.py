r"""The bound of gao2023 on data: what the page and its claims share.

A ``KernelStart`` is all that the theorem looks at before training: a kernel and a first guess on a
sample and on test data, fixed before any label is seen. From it come the predictor that gradient
flow with the frozen kernel reaches, its radius B and its error. Samples of pictures are drawn
independently.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from deqbook.bounds.generalization import Deviation
from deqbook.data import Dataset, load
from deqbook.dynamics import Record, Trajectory, gradient_descent
from deqbook.implicit import IFT
from deqbook.kernels import gram_of_tangents, implicit_only_limit, tangents
from deqbook.kernels.frozen import FrozenKernel, freeze
from deqbook.models import ReLUImplicit
from deqbook.pages.p03d_real_data.lab import DescentRun, build, samples, step_of
from deqbook.pages.p06b_bound_on_data.lab.bounds import FINE, bounded_kernel_bound, fine_bound
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Newton, Picard

DELTA = 0.05
Loss = Callable[[Tensor, Tensor], Tensor]


# --- losses -------------------------------------------------------------------------------------


def cut(f: Tensor, y: Tensor) -> Tensor:
    r"""Return :math:`\min(|f-y|,1)`."""
    return (f - y).abs().clamp(max=1)


def ramp(f: Tensor, y: Tensor) -> Tensor:
    r"""Return :math:`\min(\max(1-yf,0),1)`: 1 on the wrong side, 0 beyond the label."""
    return (1 - y * f).clamp(0, 1)


def wrong(f: Tensor, y: Tensor) -> Tensor:
    r"""Return 1 where the sign of f is not the label (:math:`yf\le0`), else 0."""
    return (y * f <= 0).to(f.dtype)


def noisy(loss: Loss, f: Tensor, y: Tensor, p: float) -> Tensor:
    r"""Return the mean loss when y is replaced by a coin with probability p.

    :math:`(1-\tfrac p2)\,\ell(f,y)+\tfrac p2\,\ell(f,-y)`: the coin is averaged, not thrown.
    """
    return (1 - p / 2) * loss(f, y) + p / 2 * loss(f, -y)


def error_bar(p: int, delta: float = DELTA) -> float:
    r"""Return :math:`\sqrt{\log(2/\delta)/2p}`: how far a mean over p test samples may be off.

    Hoeffding's inequality, for a loss in [0, 1] and independent samples, with probability 1-δ.
    """
    return math.sqrt(math.log(2 / delta) / (2 * p))


# --- samples and labels -------------------------------------------------------------------------


def draw(y: Tensor, n: int, g: torch.Generator) -> Tensor:
    """Return the places of n samples whose classes are drawn by a fair coin, each picture once.

    A bundled set has as many pictures of one class as of the other, which a sample of independent
    pictures has not. So the class is tossed, and the next unused picture of that class, in random
    order, is taken. The sample is then independent, from half of each class.
    """
    order = torch.randperm(len(y), generator=g)
    heads = torch.randint(0, 2, (n,), generator=g) == 1
    place = torch.empty(n, dtype=torch.long)
    for sign, tossed in ((1, heads), (-1, ~heads)):
        unused, wanted = order[y[order] == sign], int(tossed.sum())
        if wanted > len(unused):
            raise ValueError(
                f"the coin asks for {wanted} pictures with label {sign:+d}, there are "
                f"{len(unused)}. Draw fewer than n = {n}."
            )
        place[tossed] = unused[:wanted]
    return place


def noisy_labels(y: Tensor, p: float, g: torch.Generator) -> Tensor:
    """Replace each label, with probability p, by a fair coin ±1."""
    coins = (2 * torch.randint(0, 2, y.shape, generator=g) - 1).to(y.dtype)
    replaced = torch.rand(y.shape, generator=g, dtype=torch.float64) < p
    return torch.where(replaced, coins, y)


def mean_squared_radius(H: Tensor, y: Tensor, p: float) -> float:
    r"""Return :math:`\mathbb E\,B^2=(1-p)^2\,y^\top H^{-1}y+p(2-p)\operatorname{tr}H^{-1}`.

    The mean over the coins of ``noisy_labels``, for a start of zero: the labels have mean (1-p)y
    and covariance (1-(1-p)²)I.
    """
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(H))
    return float((1 - p) ** 2 * (y @ inverse @ y) + p * (2 - p) * inverse.trace())


# --- what is there before training --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelStart:
    r"""A kernel and a first guess on n samples and p test samples.

    ``H`` (n, n) is :math:`k_0(X,X)`, ``k`` (p, n) is :math:`k_0(X_{\mathrm{test}},X)`; ``guess``
    (n,) and ``guess_test`` (p,) are :math:`f_0`. ``diagonal`` is the value of k(x, x) where it is
    the same for all inputs, else None.
    """

    H: Tensor
    k: Tensor
    guess: Tensor
    guess_test: Tensor
    y: Tensor
    y_test: Tensor
    diagonal: float | None = None

    def only(self, kept: Tensor | slice) -> KernelStart:
        """Keep these samples of the sample."""
        return replace(
            self,
            H=self.H[kept][:, kept],
            k=self.k[:, kept],
            guess=self.guess[kept],
            y=self.y[kept],
        )

    def first(self, n: int) -> KernelStart:
        """Keep the first n samples."""
        return self.only(slice(n))

    def centred(self) -> KernelStart:
        r"""Subtract the first guess: the predictor is :math:`f-f_0`, which starts from 0."""
        zero, zero_test = torch.zeros_like(self.guess), torch.zeros_like(self.guess_test)
        return replace(self, guess=zero, guess_test=zero_test)

    def labelled(self, y: Tensor) -> KernelStart:
        """Put other labels on the sample."""
        return replace(self, y=y)

    def frozen(self) -> FrozenKernel:
        """Return gradient flow on the sample with the kernel held."""
        return freeze(self.H, self.y, self.guess)

    def predict(self, t: float = math.inf) -> Tensor:
        """Return the predictions on the test data at time t."""
        return self.frozen().predict(self.k, self.guess_test, t)

    def interpolate(self) -> tuple[Tensor, float]:
        r"""Return the predictions at :math:`t=\infty` and B, by a Cholesky factor (cheaper)."""
        r = self.y - self.guess
        alpha = torch.cholesky_solve(r[:, None], torch.linalg.cholesky(self.H))[:, 0]
        return self.guess_test + self.k @ alpha, math.sqrt(max(float(r @ alpha), 0.0))

    def bound(self, B: float, *, delta: float = DELTA, ratio: float = FINE) -> Deviation:
        """Return the bound on test minus training error for functions of norm B around f₀."""
        return fine_bound(self.H, B, delta=delta, ratio=ratio)

    def sharper(self, B: float, *, delta: float = DELTA, ratio: float = FINE) -> Deviation:
        """Return the sharper bound that a constant diagonal allows."""
        if self.diagonal is None:
            raise ValueError(
                "the sharper bound needs k(x, x) ≤ r² known for all x; the kernel of a network of "
                "finite width has no such constant. Use bound, or limit_start."
            )
        r = math.sqrt(self.diagonal)
        return bounded_kernel_bound(len(self.y), B, r=r, delta=delta, ratio=ratio)


def start_of(
    model: ReLUImplicit, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor
) -> KernelStart:
    """Return the tangent kernel and the outputs of a network at its initialisation."""
    rows, tests = (tangents(model, points, tol=1e-10) for points in (X, X_test))
    H, k = gram_of_tangents(model, rows, rows)["W"], gram_of_tangents(model, tests, rows)["W"]
    out, out_test = (model.readout(t.z, t.q).detach() for t in (rows, tests))
    return KernelStart(H, k, out, out_test, y, y_test)


@lru_cache(maxsize=12)
def _pictures(name: str, tests: int) -> Dataset:
    """Return all training pictures of a set and the first ``tests``/2 of each test class."""
    s = load(name, norm="unit", dtype=torch.float64)
    half = [torch.nonzero(s.y_test == sign)[: tests // 2, 0] for sign in (-1, 1)]
    chosen = torch.cat(half).sort().values
    return replace(s, x_test=s.x_test[chosen], y_test=s.y_test[chosen])


def _sample(name: str, n: int, seed: int, tests: int) -> Dataset:
    """Draw n independent training pictures."""
    s = _pictures(name, tests)
    place = draw(s.y_train, n, generator(1000 + seed))
    return replace(s, x_train=s.x_train[place], y_train=s.y_train[place])


def network_start(
    name: str, n: int, *, m: int, seed: int, gamma: float = 0.4, tests: int = 1000
) -> KernelStart:
    """Return the start of the network of gao2023 on n independent pictures of a set.

    The seed draws the weights and, from another stream, the sample. Half of the test pictures are
    of each class.
    """
    s = _sample(name, n, seed, tests)
    model = ReLUImplicit.init_implicit_only(m, s.d, gamma=gamma, seed=seed)
    return start_of(model, s.x_train, s.y_train, s.x_test, s.y_test)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A network at its start, with the gradient of each output in W as a row of ``J``.

    ``H`` is the closed form of the tangent kernel, ``values`` (rising) and ``vectors`` its
    eigenvalues and eigenvectors, ``r`` what is left to learn.
    """

    J: Tensor
    H: Tensor
    values: Tensor
    vectors: Tensor
    y: Tensor
    r: Tensor

    def shortest(self, R: Tensor) -> Tensor:
        """Return the length of the shortest move of W that adds a column of R to the outputs."""
        return torch.linalg.lstsq(self.J, R, driver="gelsd").solution.norm(dim=0)


def spectrum(name: str, n: int, *, m: int, seed: int, gamma: float = 0.4) -> Spectrum:
    """Return the Jacobian of a network on n pictures by automatic differentiation, and H."""
    s = _sample(name, n, seed, 2)
    model = ReLUImplicit.init_implicit_only(m, s.d, gamma=gamma, seed=seed)
    how = IFT(tol=1e-12)
    rows = [
        torch.autograd.grad(model(x[None], tol=1e-12, adjoint=how).sum(), model.W)[0].flatten()
        for x in s.x_train
    ]
    start = start_of(model, s.x_train, s.y_train, s.x_test, s.y_test)
    values, vectors = torch.linalg.eigh(start.H)
    return Spectrum(torch.stack(rows), start.H, values, vectors, start.y, start.y - start.guess)


def limit_start(
    name: str, n: int, *, seed: int, gamma: float = 0.4, tests: int = 1000
) -> KernelStart:
    """Return the limit of infinite width (linear features, dense W), with the zero function.

    The seed draws the sample, the same as for ``network_start``.
    """
    s = _sample(name, n, seed, tests)
    H, k = (implicit_only_limit(rows, s.x_train, gamma=gamma) for rows in (s.x_train, s.x_test))
    return _zero_start(H, k, s.y_train, s.y_test)


def limit_starts(
    name: str, n: int, *, seeds: int, gamma: float = 0.4, tests: int = 1000
) -> list[KernelStart]:
    """Return ``limit_start`` for seeds 0, 1, …; the kernel of the whole set is computed once."""
    s = _pictures(name, tests)
    H, k = (implicit_only_limit(rows, s.x_train, gamma=gamma) for rows in (s.x_train, s.x_test))
    drawn = [draw(s.y_train, n, generator(1000 + seed)) for seed in range(seeds)]
    return [_zero_start(H[i][:, i], k[:, i], s.y_train[i], s.y_test) for i in drawn]


def _zero_start(H: Tensor, k: Tensor, y: Tensor, y_test: Tensor) -> KernelStart:
    zero, zero_test = torch.zeros_like(y), torch.zeros_like(y_test)
    return KernelStart(H, k, zero, zero_test, y, y_test, float(H.diagonal().max()))


@dataclass(frozen=True, eq=False)
class DiagonalNetwork:
    r"""The network of gao2023, Section 5.2: :math:`W(0)=\operatorname{diag}(w)`, linear features.

    Unit r solves its own equation. For :math:`\tilde\gamma w_r<1` and :math:`\phi=Ux/\sqrt m` its
    state is :math:`z_r=\sigma(\phi_r)/(1-\tilde\gamma w_r)`, with the adjoint
    :math:`v_r=a_r\mathbf 1\{\phi_r>0\}/(1-\tilde\gamma w_r)`. No matrix is needed, so large
    widths are cheap. The source has :math:`\phi=\sigma(Ux)/\sqrt m`: the same states, but every
    unit that is off is then exactly on its kink, and there is no derivative in W.
    """

    w: Tensor
    U: Tensor
    a: Tensor
    gamma: float

    @classmethod
    def init(cls, m: int, d: int, *, gamma: float, seed: int, mean: float = 0.0) -> DiagonalNetwork:
        """Draw w ~ N(mean, 1), U ~ N(0, 1) and a = ±1."""
        g = generator(seed)
        w, U = mean + normal(m, g=g), normal(m, d, g=g)
        return cls(w, U, signs(m, g=g), gamma)

    @property
    def loop(self) -> Tensor:
        r"""Return :math:`\tilde\gamma w_r`, which must stay below 1."""
        return self.gamma * self.w / math.sqrt(len(self.w))

    def states(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the equilibria and the adjoint states, one row per input."""
        if not float(self.loop.max()) < 1:
            raise ValueError(
                f"a unit has γ̃w = {float(self.loop.max()):.3g} ≥ 1 and no equilibrium; take a "
                "smaller gamma or a larger m."
            )
        phi = X @ self.U.mT / math.sqrt(len(self.w))
        return phi.relu() / (1 - self.loop), self.a * (phi > 0) / (1 - self.loop)

    def model(self, phi: str = "identity") -> ReLUImplicit:
        """Return the same network with W as a matrix; ``phi="relu"`` are the source's features."""
        zero = torch.zeros_like(self.a)
        return ReLUImplicit(self.w.diag(), self.U, self.a, zero, self.gamma, phi=phi, train=("W",))

    def kernel(self, X: Tensor, X2: Tensor | None = None) -> Tensor:
        r"""Return :math:`\tilde\gamma^2VV_2^\top\circ ZZ_2^\top`."""
        Z, V = self.states(X)
        Z2, V2 = (Z, V) if X2 is None else self.states(X2)
        return self.gamma**2 / len(self.w) * (V @ V2.mT) * (Z @ Z2.mT)

    def start(self, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor) -> KernelStart:
        """Return what the theorem looks at."""
        guess, guess_test = (self.states(points)[0] @ self.a for points in (X, X_test))
        return KernelStart(self.kernel(X), self.kernel(X_test, X), guess, guess_test, y, y_test)


def diagonal_kernels(X: Tensor, m: int, *, gamma: float, seed: int, count: int) -> Tensor:
    """Return H(0) of so many diagonal starts of width m, (count, n, n)."""
    first = 10_000 * (seed + 1)
    nets = (DiagonalNetwork.init(m, X.shape[1], gamma=gamma, seed=first + k) for k in range(count))
    return torch.stack([net.kernel(X) for net in nets])


@dataclass(frozen=True)
class FirstStep:
    """One step of length h against the gradient of ½‖ŷ-y‖²: what H(0) says of it, and what happens.

    ``kinks`` is the share of pre-activations that are exactly 0 at the start, ``speed`` the
    distance of Δŷ/h from -H(0)e, relative, and ``kernel`` that of H after the step from H(0).
    """

    kinks: float
    speed: float
    kernel: float


@torch.no_grad()
def first_step(model: ReLUImplicit, X: Tensor, y: Tensor, h: float = 1e-6) -> FirstStep:
    """Take one short step of gradient descent on W, in a copy, and compare with the kernel."""
    model = copy.deepcopy(model)
    at = tangents(model, X, tol=1e-14)
    out = model.readout(at.z, at.q)
    e, H = out - y, gram_of_tangents(model, at, at)["W"]
    before = model.scale * at.z @ model.W.mT + at.q
    model.W.sub_(h * model.gradients(at, e)["W"])
    then = tangents(model, X, tol=1e-14)
    speed = (model.readout(then.z, then.q) - out) / h
    moved = gram_of_tangents(model, then, then)["W"] - H
    return FirstStep(
        float((before == 0).double().mean()),
        float((speed + H @ e).norm() / (H @ e).norm()),
        float(moved.norm() / H.norm()),
    )


# --- many samples at once -----------------------------------------------------------------------

SIZES = (50, 100, 200, 400, 800)
NOISES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Row:
    r"""Bound and error of one predictor.

    ``complexity`` is :math:`2B\sqrt{\operatorname{tr}H}/n`, ``expected`` the same with
    :math:`B^2` replaced by its mean over the coins of the label noise (for a zero start);
    ``bound`` and ``sharper`` are whole bounds (``sharper`` is NaN where it does not apply). The
    errors ``cut``, ``ramp`` and ``wrong`` are those on labels with the noise of the sample,
    ``clean`` is the share of wrong signs against the true labels.
    """

    complexity: float
    expected: float
    bound: float
    sharper: float
    cut: float
    ramp: float
    wrong: float
    clean: float


@dataclass(frozen=True)
class Stop:
    """Gradient flow stopped where the bound is least: when, the bound, and its errors."""

    time: float
    bound: float
    training: float
    ramp: float
    wrong: float


@dataclass(frozen=True, eq=False)
class Survey:
    """One set of pictures: rows by (n, noise, seed), stops by (n, seed), shares by seed.

    ``shares`` and ``coin_shares`` (400,) are the cumulative shares of the squared labels along the
    eigenvectors of H, largest eigenvalue first, for true labels and for coins.
    """

    rows: Mapping[tuple[int, float, int], Row]
    stops: Mapping[tuple[int, int], Stop]
    shares: Mapping[int, Sequence[float]]
    coin_shares: Mapping[int, Sequence[float]]

    def read(self, name: str, *, n: int, p: float = 0.0) -> list[float]:
        """Return one column of the rows, an entry per seed."""
        return [getattr(row, name) for (k, q, _), row in self.rows.items() if (k, q) == (n, p)]


def row(start: KernelStart, frozen: FrozenKernel, y: Tensor, p: float) -> Row:
    """Measure the predictor that fits the labels y, drawn with noise p, on a start."""
    fitted, n = replace(frozen, y=y), len(y)
    B = math.sqrt(float(fitted.squared_norm(math.inf)))
    f = fitted.predict(start.k, start.guess_test, math.inf)
    scale = 2 * math.sqrt(float(frozen.values.sum())) / n
    along = (frozen.vectors.mT @ (start.y - start.guess)).square() / frozen.values
    mean = (1 - p) ** 2 * float(along.sum()) + p * (2 - p) * float((1 / frozen.values).sum())
    cut_error, ramp_error, wrong_share = (
        float(noisy(loss, f, start.y_test, p).mean()) for loss in (cut, ramp, wrong)
    )
    return Row(
        complexity=scale * B,
        expected=scale * math.sqrt(mean),
        bound=start.bound(B).total,
        sharper=math.nan if start.diagonal is None else start.sharper(B).total,
        cut=cut_error,
        ramp=ramp_error,
        wrong=wrong_share,
        clean=float(wrong(f, start.y_test).mean()),
    )


def best_stop(start: KernelStart, frozen: FrozenKernel, times: int = 60) -> Stop:
    """Return the stopping time with the least bound: training ramp plus the price of the norm.

    The bound holds for all functions of a ball at once, hence for all times at once.
    """
    grid = torch.logspace(-2, 5, times, dtype=start.H.dtype)
    fits, squared = frozen.fitted(grid), frozen.squared_norm(grid)
    training = ramp(fits, start.y).mean(dim=1)
    price = grid.new_tensor([start.sharper(math.sqrt(float(B2))).total for B2 in squared])
    k = int((training + price).argmin())
    f = start.guess_test + frozen.coefficients(float(grid[k])) @ start.k.mT
    return Stop(
        float(grid[k]),
        float(training[k] + price[k]),
        float(training[k]),
        float(ramp(f, start.y_test).mean()),
        float(wrong(f, start.y_test).mean()),
    )


def survey(name: str, *, seeds: int = 3) -> Survey:
    """Measure bound and error of the infinitely wide network on one set of pictures."""
    rows: dict[tuple[int, float, int], Row] = {}
    stops: dict[tuple[int, int], Stop] = {}
    shares: dict[str, dict[int, Sequence[float]]] = {"true": {}, "coins": {}}
    for seed, whole in enumerate(limit_starts(name, max(SIZES), seeds=seeds)):
        g = generator(4000 + seed)
        labels = {p: noisy_labels(whole.y, p, g) for p in NOISES}
        for n in SIZES:
            start = whole.first(n)
            frozen = start.frozen()
            for p in NOISES:
                rows[n, p, seed] = row(start, frozen, labels[p][:n], p)
            stops[n, seed] = best_stop(start, frozen)
            if n == 400:
                for kind, y in (("true", start.y), ("coins", labels[1.0][:n])):
                    along = (frozen.vectors.mT @ y).square().flip(0)
                    shares[kind][seed] = (along.cumsum(0) / along.sum()).tolist()
    return Survey(rows, stops, shares["true"], shares["coins"])


def network_rows(seed: int, *, m: int = 400, gamma: float = 0.4) -> dict[tuple[int, bool], Row]:
    """Measure a network on MNIST by (n, first guess removed or not)."""
    whole = network_start("mnist01", max(SIZES), m=m, seed=seed, gamma=gamma)
    rows = {}
    for n in SIZES:
        start = whole.first(n)
        frozen = start.frozen()
        rows[n, False] = row(start, frozen, start.y, 0.0)
        centred = start.centred()  # the same kernel, so the same eigenvectors
        rows[n, True] = row(centred, replace(frozen, start=centred.guess), start.y, 0.0)
    return rows


# --- the network itself -------------------------------------------------------------------------


@dataclass(frozen=True)
class WidthRun:
    """A run of the network of gao2023: a ``DescentRun``, and whether its first guess is subtracted.

    ``coins`` replaces the training labels by coins; the test labels stay.
    """

    case: DescentRun
    centred: bool = False
    coins: bool = False


def only_W(run: WidthRun, *, tests: int = 1000) -> Trajectory:
    r"""Train W alone, and predict half of each class of the test pictures.

    To fit :math:`f-f_0` to y is to fit f to :math:`y+f_0(X)`: that is how a centred run is made.
    """
    case, s = run.case, samples(run.case)
    unseen = _pictures(case.data, tests)
    test = unseen.x_test.to(case.dtype), unseen.y_test.to(case.dtype)
    model, y = build(case), s.y_train
    if run.coins:
        y = noisy_labels(y, 1.0, generator(5000 + case.seed))
    with torch.no_grad():
        target = y + model(s.x_train) if run.centred else y
    # a narrow cell may expand, and its systems are small: Newton's method
    way = Newton() if case.m <= 30 else Picard()
    return gradient_descent(
        model,
        s.x_train,
        target,
        step_of(case),
        case.epochs,
        record=Record(every=case.every, flips=False, norms=case.norms, test=test),
        solver=way,
        adjoint_solver=way,
        tol=1e-6 if case.double else 1e-5,  # far below what a step changes
        throw=False,
    )


def frozen_twins(case: DescentRun, *, tests: int = 1000) -> dict[bool, Tensor]:
    """Return the test predictions of a run, had its kernel stood still, by ``centred``.

    Gradient flow up to step times epochs, from the same start; a centred run is read without it.
    """
    case = replace(case, double=True)
    s, model = samples(case), build(case)
    if not isinstance(model, ReLUImplicit):
        raise TypeError(f"only the network of gao2023 is meant here, not {case.network}.")
    unseen = _pictures(case.data, tests)
    start = start_of(model, s.x_train, s.y_train, unseen.x_test, unseen.y_test)
    t = step_of(case) * case.epochs
    return {False: start.predict(t), True: start.centred().predict(t)}


def tested_values(path: Trajectory, run: WidthRun) -> Tensor:
    """Return the test predictions at each record; a centred run is read without its first guess."""
    f = path.test_predictions
    if f is None:
        raise ValueError("the run has no test predictions; it was not made by only_W.")
    return torch.as_tensor(f - f[0] if run.centred else f, dtype=torch.float64)
