r"""Training classifiers of pictures by mini-batches: what Tables 1 and 3 of xie2022 do, small.

A ``ClassifierRun`` says everything about a run and a ``Trained`` is everything it leaves, so that
``sweep(train, cases, executor=…)`` may run them anywhere and a result file may store them.

Unlike the rest of the book this is practice: cross-entropy, momentum, weight decay, gradients that
are clipped. The state of deep OptEq is what K unrolled steps from 0 reach, by one of three routes:

- ``none``: :math:`z\leftarrow T(z)`;
- ``sam``: the selection step of a regulariser R is mixed in, with the weights of the theorem;
- ``architecture``: :math:`z\leftarrow T_R(T(z))`, a proximal or a gradient step behind the network.

``implicit`` replaces the unrolled steps by the equilibrium itself and its exact gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.data import Dataset, load, load_full
from deqbook.pages.p05c_opteq_images.lab.baselines import Monotone, NeuralODE, Perceptron
from deqbook.pages.p05c_opteq_images.lab.networks import ConvOptEq, DenseOptEq
from deqbook.regularize import (
    L1,
    Decorrelation,
    HalfSquaredNorm,
    InverseNorm,
    Regulariser,
    Schedule,
    SquaredL2,
    append_gradient,
    append_prox,
    sam,
)
from deqbook.runtime import device, generator
from deqbook.solvers import NotConverged

Network = Literal["dense", "conv", "perceptron", "ode", "augmented", "monotone"]
Route = Literal["none", "sam", "architecture"]
Name = Literal["none", "half-square", "inverse", "decorrelation", "l1", "square"]
Map = Callable[[Tensor], Tensor]
OptEqNet = DenseOptEq | ConvOptEq

CHANNELS = (16, 32, 64, 128, 128)
"""The inner channels of the five convolutions in Tables 1a and 3 of xie2022."""

SMOOTHNESS = {"half-square": 1.0, "inverse": 2.0, "decorrelation": 1.0}
"""What the schedule of SAM takes for L_R; for F_D, which has none, the number is a choice."""


PLAIN_SGD: dict[str, Any] = {"momentum": 0.0, "clip": math.inf, "every": 20}
"""How xie2022 trains: step 0.1, times 0.6 every 20 epochs, no momentum, nothing clipped."""


@dataclass(frozen=True)
class ClassifierRun:
    r"""One run. The defaults are the dense network of the miniature tables.

    ``data`` is a bundled ten-class set or ``"cifar10"``, the complete one; ``block`` averages the
    pictures over squares. ``strength`` is λ for ``l1`` and ``square``, and the step γ of the
    gradient layer for the others (``architecture``). ``radius`` projects :math:`\|W_l\|` back
    after each step. ``divisor`` divides the channels of the convolutional network, ``stride`` is
    that of its extractor. ``drop`` multiplies the step every ``every`` epochs. Momentum and
    clipping are ours, and make short runs shorter; :data:`PLAIN_SGD` is what the source does.
    """

    network: Network = "dense"
    data: str = "cifar10small"
    block: int = 2
    n_train: int | None = 2000
    n_test: int | None = 1000
    alpha: float = 0.8
    route: Route = "none"
    regulariser: Name = "none"
    strength: float = 0.0
    steps: int = 20
    implicit: bool = False
    radius: float | None = None
    m: int = 32
    features: int = 32
    widths: tuple[int, ...] = (16, 32, 32)
    divisor: int = 1
    stride: int = 1
    epochs: int = 10
    batch: int = 125
    step: float = 0.1
    momentum: float = 0.9
    decay: float = 3e-4
    drop: float = 0.6
    every: int = 3
    clip: float = 5.0
    seed: int = 0
    double: bool = True

    def __post_init__(self) -> None:
        if (self.route == "none") != (self.regulariser == "none"):
            raise ValueError(
                f"route {self.route!r} and regulariser {self.regulariser!r} do not fit: "
                "both are 'none' or neither is."
            )
        if self.implicit and self.route == "sam":
            raise ValueError("SAM is unrolled: its output is not an equilibrium. Drop implicit.")

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the run."""
        return torch.float64 if self.double else torch.float32


@dataclass(frozen=True)
class Trained:
    r"""What a run leaves: one entry per epoch of the loss, the test accuracy and the norms.

    ``loss`` is the mean training loss during an epoch, ``accuracy`` that on the test pictures after
    it, ``norm`` the largest :math:`\|W_l\|` at the start and after every epoch. The rest belongs to
    the end: accuracy on the training pictures, the means of \|z\| and z² over all entries, F_D per
    batch and the relative residual on the test pictures, and the norms of the layers. A run that
    was lost says so in ``stopped``, and its numbers end there.
    """

    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    norm: tuple[float, ...]
    train_accuracy: float | None
    mean_abs: float | None
    mean_square: float | None
    decorrelation: float | None
    residual: float | None
    norms: tuple[float, ...]
    parameters: int
    stopped: str = ""


def samples(case: ClassifierRun) -> Dataset:
    """Return what a case trains on: flat rows, or pictures for the convolutional network.

    They are standardised per colour by the training pictures.
    """
    flat = case.network != "conv"
    return _samples(case.data, case.block, case.n_train, case.n_test, flat, case.dtype)


@lru_cache(maxsize=8)
def _samples(
    name: str, block: int, n_train: int | None, n_test: int | None, flat: bool, dtype: torch.dtype
) -> Dataset:
    if name == "cifar10":
        whole = load_full("cifar10", gray=False, norm=None, dtype=dtype, flatten=False)
    else:
        whole = load(name, norm=None, n_train=n_train, n_test=n_test, dtype=dtype, flatten=False)
    X, X_test = (F.avg_pool2d(x, block) for x in (whole.x_train, whole.x_test))
    centre, spread = X.mean(dim=(0, 2, 3), keepdim=True), X.std(dim=(0, 2, 3), keepdim=True)
    X, X_test = ((x - centre) / spread for x in (X, X_test))
    if flat:
        X, X_test = X.flatten(1), X_test.flatten(1)
    return replace(whole, x_train=X, x_test=X_test).to(place(name))


def build(case: ClassifierRun) -> nn.Module:
    """Return the network of a case at its initialisation."""
    return network(case, tuple(samples(case).x_train.shape[1:])).to(place(case.data))


def place(name: str) -> torch.device:
    """Return where to train: the complete set on a GPU if there is one, the small ones here.

    The small runs are quick, and are to give the same numbers with and without a GPU.
    """
    return device() if name == "cifar10" else torch.device("cpu")


def network(case: ClassifierRun, shape: tuple[int, ...]) -> nn.Module:
    """Return the network of a case for pictures (or rows) of this shape."""
    k, pixels = 10, math.prod(shape)
    common: dict[str, Any] = {"seed": case.seed, "dtype": case.dtype}
    if case.network == "conv":
        return ConvOptEq.init(
            case.m,
            (shape[1], shape[2]),
            channels=case.widths,
            divisor=case.divisor,
            features=case.features,
            colours=shape[0],
            stride=case.stride,
            alpha=case.alpha,
            k=k,
            **common,
        )
    if case.network == "dense":
        return DenseOptEq.init_dense(
            case.m,
            pixels,
            features=case.features,
            widths=case.widths,
            alpha=case.alpha,
            k=k,
            **common,
        )
    if case.network == "perceptron":
        return Perceptron((pixels, case.features, *case.widths), k, **common)
    if case.network == "monotone":
        return Monotone(pixels, case.features, case.m, k, **common)
    return NeuralODE(
        pixels, case.features, case.widths[0], k, augmented=case.m - case.features, **common
    )


# --- the state of deep OptEq ----------------------------------------------------------------------


def regulariser(case: ClassifierRun) -> Any:
    """Return the regulariser of a case: for SAM and gradient layers, or with a proximal map."""
    return {
        "half-square": HalfSquaredNorm(),
        "inverse": InverseNorm(1.0),
        "decorrelation": Decorrelation(),
        "l1": L1(case.strength),
        "square": SquaredL2(case.strength),
    }[case.regulariser]


def _rows(z: Tensor) -> Tensor:
    """Return the state with features in columns: of pictures, every pixel is a row."""
    return z if z.ndim == 2 else z.movedim(1, -1).flatten(0, -2)


def _unrows(rows: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2:
        return rows
    return rows.reshape(like.shape[0], *like.shape[2:], like.shape[1]).movedim(-1, 1)


def iterated(case: ClassifierRun, T: Map) -> Map:
    r"""Return what the route iterates besides SAM: T itself, or :math:`T_R\circ T`."""
    if case.route != "architecture":
        return T
    R = regulariser(case)
    if case.regulariser in ("l1", "square"):
        return append_prox(T, R)
    return append_gradient(T, R, case.strength, check=False)


def states(case: ClassifierRun, model: OptEqNet, x: Tensor) -> Tensor:
    """Return the state of deep OptEq for a batch, by the route of the case, differentiable."""
    if case.implicit and case.route == "none":
        return model.state(x, tol=1e-5)
    q, weights = model.inject(x), model.weights()
    zero = model.start(q)

    def T(rows: Tensor) -> Tensor:
        return _rows(model.f(_unrows(rows, zero), q, *weights))

    z = _rows(zero)
    if case.route == "sam":
        R: Regulariser = regulariser(case)
        # F_D and the inverse norm are not convex: no theorem covers them, hence no check.
        z = sam(T, z, R, Schedule(SMOOTHNESS[case.regulariser]), case.steps, check=False)
    else:
        step = iterated(case, T)
        for _ in range(case.steps):
            z = step(z)
    return _unrows(z, zero)


def logits(case: ClassifierRun, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs and the state for a batch."""
    if isinstance(model, OptEqNet):
        z = states(case, model, x)
        return model.readout(z, x), z
    assert isinstance(model, Perceptron | NeuralODE | Monotone)
    z = model.state(x)
    return z @ model.V.mT, z


# --- training -------------------------------------------------------------------------------------


def train(case: ClassifierRun) -> Trained:
    """Run a case: stochastic gradient descent with momentum, one thread, the same numbers twice."""
    s, model = samples(case), build(case)
    optimiser = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad],
        lr=case.step,
        momentum=case.momentum,
        weight_decay=case.decay,
    )
    order = generator(case.seed + 20_000)
    loss: list[float] = []
    accuracy: list[float] = []
    norm, stopped = _largest(model), ""
    for epoch in range(case.epochs):
        for group in optimiser.param_groups:
            group["lr"] = case.step * case.drop ** (epoch // case.every)
        try:
            loss.append(_epoch(case, model, optimiser, s, order))
        except (FloatingPointError, NotConverged) as error:
            stopped = f"epoch {epoch + 1}: {str(error).splitlines()[0]}"
            break
        norm += _largest(model)
        accuracy.append(_accuracy(case, model, s.x_test, s.y_test))
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    ends: dict[str, float | None] = dict.fromkeys(
        ("train_accuracy", "mean_abs", "mean_square", "decorrelation", "residual")
    )
    if not stopped:
        ends |= {"train_accuracy": _accuracy(case, model, s.x_train, s.y_train)}
        ends |= _features(case, model, s.x_test)
    norms = tuple(model.norms()) if isinstance(model, OptEqNet) else ()
    return Trained(
        tuple(loss),
        tuple(accuracy),
        tuple(norm),
        norms=norms,
        parameters=count,
        stopped=stopped,
        **ends,
    )


def _epoch(
    case: ClassifierRun,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    s: Dataset,
    order: torch.Generator,
) -> float:
    """Train on every picture once and return the mean loss."""
    total = 0.0
    shuffled = torch.randperm(s.n, generator=order).to(s.x_train.device)
    for chosen in shuffled.split(case.batch):
        optimiser.zero_grad()
        loss = F.cross_entropy(logits(case, model, s.x_train[chosen])[0], s.y_train[chosen])
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimiser.step()
        if case.radius is not None:
            assert isinstance(model, OptEqNet), "only OptEq has norms to project"
            model.project_(case.radius)
        total += float(loss.detach()) * len(chosen)
    return total / s.n


def _largest(model: nn.Module) -> list[float]:
    """Return the largest norm of a layer, or nothing for networks without tied layers."""
    return [max(model.norms())] if isinstance(model, OptEqNet) else []


def _batches(case: ClassifierRun, X: Tensor) -> Iterator[slice]:
    """Cut as in training: F_D looks at a batch as a whole, so its size is part of the network."""
    return (slice(i, i + case.batch) for i in range(0, len(X), case.batch))


@torch.no_grad()
def _accuracy(case: ClassifierRun, model: nn.Module, X: Tensor, y: Tensor) -> float:
    right = 0
    for rows in _batches(case, X):
        right += int((logits(case, model, X[rows])[0].argmax(1) == y[rows]).sum())
    return right / len(X)


@torch.no_grad()
def _features(case: ClassifierRun, model: nn.Module, X: Tensor) -> dict[str, float | None]:
    """Measure the states of the test pictures: means over batches."""
    found = []
    for rows in _batches(case, X):
        z = logits(case, model, X[rows])[1]
        seen = {
            "mean_abs": float(z.abs().mean()),
            "mean_square": float(z.square().mean()),
            "decorrelation": float(Decorrelation().value(_rows(z))),
        }
        if isinstance(model, OptEqNet):
            seen["residual"] = residual(case, model, X[rows], z)
        found.append(seen)
    return {name: sum(f[name] for f in found) / len(found) for name in found[0]}


@torch.no_grad()
def residual(case: ClassifierRun, model: OptEqNet, x: Tensor, z: Tensor) -> float:
    r"""Return :math:`\|T(z)-z\|/\|z\|` over a batch, of :math:`T_R\circ T` if that is iterated.

    A state that is 0 everywhere has none of its own size: then it is :math:`\|T(0)\|`.
    """
    q, weights = model.inject(x), model.weights()
    step = iterated(case, lambda rows: _rows(model.f(_unrows(rows, z), q, *weights)))
    here = _rows(z)
    return float((step(here) - here).norm()) / (float(here.norm()) or 1.0)


def drift(steps: int, schedule: Schedule) -> float:
    r"""Return the residual that SAM with R = ½‖z‖² keeps after K steps, to first order.

    Where :math:`z=\beta s(z)+(1-\beta)T(z)` with :math:`s(z)=(1-\gamma\lambda-\gamma)z`, it is
    :math:`T(z)-z=\tfrac{\beta}{1-\beta}\gamma(1+\lambda)z`.
    """
    beta, decay = schedule.beta(steps), schedule.decay(steps)
    return beta / (1 - beta) * schedule.gamma * (1 + decay)


def update_seconds(case: ClassifierRun, *, pictures: int = 8) -> float:
    """Measure one training update of the full-size network, and scale it to the batch.

    On made pictures, a few of them: enough to tell hours from weeks before anything is fetched.
    """
    model = network(case, (3, 32, 32)).to(place(case.data))
    g = generator(0)
    count = case.batch if place(case.data).type == "cuda" else pictures
    x = torch.randn(count, 3, 32, 32, generator=g, dtype=case.dtype).to(place(case.data))
    y = torch.randint(0, 10, (count,), generator=g).to(place(case.data))
    took = math.inf
    for _ in range(2):  # the first one also pays for warming up
        started = time.perf_counter()
        F.cross_entropy(logits(case, model, x)[0], y).backward()
        if place(case.data).type == "cuda":
            torch.cuda.synchronize()
        took = min(took, time.perf_counter() - started)
    return took * case.batch / count
