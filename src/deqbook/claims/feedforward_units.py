"""Feed-forward networks inside deep OptEqs: Lemmas 4, 1 and 2 of xie2022, for chapter 5a."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from deqbook.activations import tanh
from deqbook.claims.hidden_objective import SAME, off
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
from deqbook.models import DeepOptEq, factor, feedforward_outputs, from_feedforward, unit_weights
from deqbook.models.feedforward import unit_width
from deqbook.runtime import generator, normal

CHAPTER = "05a_hidden_objective"


def _of_rank(p: int, r: int, rank: int, g: torch.Generator) -> Tensor:
    return normal(p, rank, g=g) @ normal(rank, r, g=g)


def _rank(M: Tensor) -> int:
    return int(torch.linalg.matrix_rank(M, rtol=1e-9))


def _padded(M: Tensor, A: Tensor) -> Tensor:
    """Return B of the printed proof: the pseudo-inverse, nothing added."""
    return (torch.linalg.pinv(A) @ M).mT


SHAPES = ((3, 4, 5, 3), (3, 3, 4, 2), (3, 4, 6, 1), (4, 2, 4, 2))  # p, r, k, rank of M


def _factorisation(
    g: torch.Generator,
    route: Callable[[Tensor, Tensor], Tensor],
    shapes: Sequence[tuple[int, int, int, int]] = SHAPES,
    rank_of_A: int | None = None,
) -> Iterator[Measurement]:
    gaps, ranks = [], []
    for p, r, k, rank in shapes:
        M = _of_rank(p, r, rank, g)
        A = normal(p, k, g=g) if rank_of_A is None else _of_rank(p, k, rank_of_A, g)
        B = route(M, A)
        gaps.append(off(A @ B.mT, M))
        ranks.append(_rank(B) / r)
    yield within("‖M - ABᵀ‖", max(gaps), SAME)
    yield at_least("rank of B ÷ its rows", min(ranks), 1.0)


def _largest_rank(g: torch.Generator, *, printed: bool = False) -> Measurement:
    """Compare the rank of a random solution B with the formula; generic means largest."""
    worst = 0
    for p, r, k, rank in (*SHAPES, (3, 4, 4, 2), (2, 5, 5, 1), (4, 4, 5, 2)):
        M, A = _of_rank(p, r, rank, g), normal(p, k, g=g)
        kernel = torch.linalg.svd(A)[2][p:]
        B = _padded(M, A) + normal(r, k - p, g=g) @ kernel
        formula = min(r, k) if printed else min(r, rank + k - p)
        worst = max(worst, abs(_rank(B) - formula))
    return equal("largest rank of B vs min(r, rank M + k - p)", worst, 0, 0)


@claim(
    "xie2022.lemma4",
    title="M = ABᵀ has a B of full rank iff k ≥ p + r - rank M (corrected)",
    chapter=CHAPTER,
    ref="lem-factorisation",
)
def factorisation(trial: Trial) -> Iterable[Measurement]:
    """Factor matrices of several shapes and ranks; compare the largest rank with the formula."""
    for p, r, k, rank in SHAPES:
        yield given(f"columns of A for (p, r, rank) = {(p, r, rank)}", k, "≥", p + r - rank)
    yield from _factorisation(trial.g, factor)
    yield _largest_rank(trial.g)


@factorisation.control("k ≥ max(p, r) as printed, M not of full rank")
def too_few_columns(trial: Trial) -> Iterable[Measurement]:
    """(p, r, k, rank) = (3, 4, 4, 2): no solution has rank 4, whatever is added."""
    g = trial.g

    def best(M: Tensor, A: Tensor) -> Tensor:
        kernel = torch.linalg.svd(A)[2][A.shape[0] :]
        return _padded(M, A) + normal(M.shape[1], len(kernel), g=g) @ kernel

    yield from named(_factorisation(g, best, [(3, 4, 4, 2)]), "rank")
    yield _largest_rank(g, printed=True)


@factorisation.control("zeros below Σ⁻¹PᵀM, as in the printed proof")
def zero_padding(trial: Trial) -> Iterable[Measurement]:
    """The rank of B is then that of M."""
    return named(_factorisation(trial.g, _padded, SHAPES[:3]), "rank")


@factorisation.control("A not of full row rank")
def dependent_rows(trial: Trial) -> Iterable[Measurement]:
    """Then M must lie in the range of A, and a random one does not."""
    found = _factorisation(trial.g, _padded, SHAPES[:2], rank_of_A=2)
    return named(found, "‖M")


WIDTHS = (4, 6, 5, 7, 2)


def _hidden_units(
    seed: int, *, low: bool, m: int | None = None, route: str = "corrected"
) -> tuple[float, float]:
    """Compare a network z_{k+1} = σ(M_k z_k + U_k x + b_k), y = M_L z_L with its unit form.

    Returns the relative error of the outputs and the least rank of a W̃_k ÷ its rows. With ``low``
    the second matrix has rank 1.
    """
    g = generator(seed)
    Ms = [normal(r, p, g=g) for p, r in pairwise(WIDTHS)]
    if low:
        Ms[1] = _of_rank(WIDTHS[2], WIDTHS[1], 1, g)
    m = unit_width(Ms) if m is None else m
    Us, bs = [normal(w, 3, g=g) for w in WIDTHS[1:-1]], [normal(w, g=g) for w in WIDTHS[1:-1]]
    x, z = normal(10, 3, g=g), normal(10, WIDTHS[0], g=g)
    units = [normal(WIDTHS[0], m, g=g)]
    if route == "corrected":
        units = unit_weights(Ms, units[0])
    else:
        for M in Ms:
            units.append(_padded(M.mT, units[-1]))
    state = z @ units[0]
    for M, W, U, b in zip(Ms, units[1:], Us, bs):
        z = torch.relu(z @ M.mT + x @ U.mT + b)
        state = torch.relu(state @ W.mT + x @ U.mT + b) @ W
    y = z @ Ms[-1].mT
    return off(state @ units[-1].mT, y), min(_rank(W) / len(W) for W in units)


def _lemma1(seed: int, low: bool, m: int | None = None, route: str = "corrected") -> Iterator:
    name = "a layer of rank 1" if low else "full rank"
    error, rank = _hidden_units(seed, low=low, m=m, route=route)
    yield within(f"{name}: error of the outputs", error, SAME)
    yield at_least(f"{name}: rank of W̃_k ÷ its rows", rank, 1.0)


@claim(
    "xie2022.lemma1",
    title="A feed-forward network is a chain of tied units of one width (corrected)",
    chapter=CHAPTER,
    ref="lem-universal-unit",
)
def universal_unit(trial: Trial) -> Iterable[Measurement]:
    """Widths 4, 6, 5, 7, 2: m = 7 when all matrices have full rank, m = 10 with one of rank 1."""
    yield from _lemma1(trial.seed, low=False, m=max(WIDTHS))
    yield from _lemma1(trial.seed, low=True)


@universal_unit.control("m = max n_k as printed, and a layer of rank 1")
def rank_one_layer(trial: Trial) -> Iterable[Measurement]:
    """The printed construction loses rank, and the next matrix has no factor."""
    return list(_lemma1(trial.seed, low=True, m=max(WIDTHS), route="printed"))


FEEDFORWARD = (3, 5, 4, 6, 2)


def _network(seed: int) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return matrices, biases and inputs of a random feed-forward network, and its outputs."""
    g = generator(seed)
    As = [normal(r, p, g=g) for p, r in pairwise(FEEDFORWARD)]
    bs = [normal(r, g=g) for r in FEEDFORWARD[1:-1]]
    x = normal(12, FEEDFORWARD[0], g=g)
    return As, bs, x, feedforward_outputs(x, As, bs)


@torch.no_grad()
def _rebuilt(
    model: DeepOptEq, x: Tensor, y: Tensor, g: torch.Generator, name: str
) -> Iterator[Measurement]:
    starts = 3 * normal(2, len(x), model.m, g=g)
    ends = [model.cell(z, x) for z in starts]
    error = off(ends[0] @ model.V.mT, y)
    yield within(f"{name}: error of the outputs after one step from a random state", error, SAME)
    spread = float((ends[0] - ends[1]).abs().max())
    yield within(f"{name}: difference of two steps from different states", spread, 0.0)
    largest = max(operator_norm(W) for W in model.Ws)
    if name == "rescaled":
        yield at_most("rescaled: largest ‖W_l‖", largest, 1 + 1e-12)


@claim(
    "xie2022.lemma2",
    title="Deep OptEqs contain the feed-forward networks; for ReLU even those with ‖W_l‖ ≤ 1",
    chapter=CHAPTER,
    ref="thm-feedforward",
)
def contains_feedforward(trial: Trial) -> Iterable[Measurement]:
    """Rebuild a ReLU network of widths 3, 5, 4, 6, 2, plainly and rescaled, and one with tanh."""
    As, bs, x, y = _network(trial.seed)
    for ball, name in ((False, "plain"), (True, "rescaled")):
        model = from_feedforward(As, bs, unit_ball=ball, seed=trial.seed)
        yield from _rebuilt(model, x, y, trial.g, name)
        solved = model.solve(x)
        out = solved.z @ model.V.detach().mT
        yield within(f"{name}: error of the outputs at the equilibrium", off(out, y), SAME)
    smooth = from_feedforward(As, bs, sigma=tanh, seed=trial.seed)
    yield from _rebuilt(smooth, x, feedforward_outputs(x, As, bs, sigma=tanh), trial.g, "tanh")


@contains_feedforward.control("the input in the layer that erases: W_1 = 0 and U_1 = A_1")
def input_erased(trial: Trial) -> Iterable[Measurement]:
    """The first layer outputs 0 whatever its injection, so the input never enters."""
    As, bs, x, y = _network(trial.seed)
    good = from_feedforward(As, bs, seed=trial.seed)
    Ws, Us = [W.detach() for W in good.Ws], [torch.zeros_like(U) for U in good.Us]
    Ws[0] = Ws[0].new_zeros(len(As[0]), good.m)
    Us[0] = As[0]
    biases = [Ws[0].new_zeros(len(As[0])), *(b.detach() for b in list(good.bs)[1:])]
    model = DeepOptEq(Ws, Us, biases, good.V.detach())
    return named(_rebuilt(model, x, y, trial.g, "plain"), "plain: error")


@contains_feedforward.control("no layer that erases the state")
def no_eraser(trial: Trial) -> Iterable[Measurement]:
    """The state comes back through W_2, and the cell is not constant."""
    As, bs, x, y = _network(trial.seed)
    good = from_feedforward(As, bs, seed=trial.seed)
    Ws, Us, biases = ([p.detach() for p in list(ps)[1:]] for ps in (good.Ws, good.Us, good.bs))
    model = DeepOptEq(Ws, Us, biases, good.V.detach())
    return list(_rebuilt(model, x, y, trial.g, "plain"))


@contains_feedforward.control("not rescaled")
def not_rescaled(trial: Trial) -> Iterable[Measurement]:
    """Some ‖W_l‖ exceeds 1."""
    As, bs, x, y = _network(trial.seed)
    model = from_feedforward(As, bs, seed=trial.seed)
    return named(_rebuilt(model, x, y, trial.g, "rescaled"), "rescaled: largest")
