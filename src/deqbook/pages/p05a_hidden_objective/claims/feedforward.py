"""Feed-forward networks inside deep OptEqs: Lemmas 4, 1 and 2 of xie2022."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from deqbook.activations import relu, tanh
from deqbook.claims import at_least, at_most, chapter, equal, given, within
from deqbook.linalg import operator_norm
from deqbook.models import DeepOptEq
from deqbook.pages.p05a_hidden_objective.lab.feedforward import (
    factor,
    feedforward_outputs,
    from_feedforward,
    unit_weights,
    unit_width,
)
from deqbook.pages.p05a_hidden_objective.lab.objective import SAME, off
from deqbook.runtime import generator, normal

claim = chapter("05a_hidden_objective")


# --- Lemma 4: a factor of full rank ------------------------------------------------------------

SHAPES = (
    (3, 4, 5, 3),
    (3, 3, 4, 2),
    (3, 4, 6, 1),
    (4, 2, 4, 2),
    (3, 4, 6, 2),
)  # p, r, k, rank of M


def _of_rank(p: int, r: int, rank: int, g: torch.Generator) -> Tensor:
    return normal(p, rank, g=g) @ normal(rank, r, g=g)


def _rank(M: Tensor) -> int:
    return int(torch.linalg.matrix_rank(M, rtol=1e-9))


def _padded(M: Tensor, A: Tensor) -> Tensor:
    """Return B of the printed proof: the pseudo-inverse, nothing added."""
    return (torch.linalg.pinv(A) @ M).mT


def _generic(M: Tensor, A: Tensor, g: torch.Generator) -> Tensor:
    """Return a random B with M = ABᵀ; its rank is the largest there is."""
    kernel = torch.linalg.svd(A)[2][len(A) :]
    return _padded(M, A) + normal(M.shape[1], len(kernel), g=g) @ kernel


def _factorisation(trial, *, route=factor, shapes=SHAPES, rank_of_A=None):
    gaps, ranks = [], []
    for p, r, k, rank in shapes:
        M = _of_rank(p, r, rank, trial.g)
        A = normal(p, k, g=trial.g) if rank_of_A is None else _of_rank(p, k, rank_of_A, trial.g)
        B = route(M, A)
        gaps.append(off(A @ B.mT, M))
        ranks.append(_rank(B) / r)
    yield within("‖M - ABᵀ‖", max(gaps), SAME)
    yield at_least("rank of B ÷ its rows", min(ranks), 1.0)


def _largest_rank(trial, *, printed=False):
    worst = 0
    for p, r, k, rank in (*SHAPES, (3, 4, 4, 2), (2, 5, 5, 1), (4, 4, 5, 2)):
        M, A = _of_rank(p, r, rank, trial.g), normal(p, k, g=trial.g)
        formula = min(r, k) if printed else min(r, rank + k - p)
        for B in (_generic(M, A, trial.g), factor(M, A, full_rank=False)):
            worst = max(worst, abs(_rank(B) - formula))
    yield equal("largest rank of B vs min(r, rank M + k - p)", worst, 0, 0)


@claim(
    "xie2022.lemma4",
    "M = ABᵀ has a B of full rank iff k ≥ p + r - rank M (corrected)",
    "lem-factorisation",
)
def factorisation(trial):
    for p, r, k, rank in SHAPES:
        yield given(f"columns of A for (p, r, rank) = {(p, r, rank)}", k, "≥", p + r - rank)
    yield from _factorisation(trial)
    yield from _largest_rank(trial)


def _too_few_columns(trial):
    # For (3, 4, 4, 2) no solution has rank 4, whatever is added.
    def route(M: Tensor, A: Tensor) -> Tensor:
        return _generic(M, A, trial.g)

    yield from _factorisation(trial, route=route, shapes=[(3, 4, 4, 2)])
    yield from _largest_rank(trial, printed=True)


factorisation.breaks(
    "k ≥ max(p, r) as printed, M not of full rank",
    "rank of B",
    "largest rank",
    part=_too_few_columns,
    shown={"rank M + k - p": "k"},
)
factorisation.breaks(
    "zeros below Σ⁻¹PᵀM, as in the printed proof",
    "rank of B",
    part=_factorisation,
    route=_padded,
    shapes=SHAPES[:3],
)
factorisation.breaks(
    "A not of full row rank",
    "‖M - ABᵀ‖",
    part=_factorisation,
    route=_padded,
    shapes=SHAPES[:2],
    rank_of_A=2,
)


# --- Lemma 1: tied units of one width ----------------------------------------------------------

WIDTHS = (4, 6, 5, 7, 2)
Weights = Callable[[Sequence[Tensor], Tensor], list[Tensor]]


def _printed_weights(Ms: Sequence[Tensor], first: Tensor) -> list[Tensor]:
    found = [first]
    for M in Ms:
        found.append(_padded(M.mT, found[-1]))
    return found


def _tied_units(trial, *, low, m=None, weights=unit_weights):
    # z_{k+1} = σ(M_k z_k + U_k x + b_k), y = M_L z_L; with ``low`` the second matrix has rank 1.
    g = generator(trial.seed)
    Ms = [normal(r, p, g=g) for p, r in pairwise(WIDTHS)]
    if low:
        Ms[1] = _of_rank(WIDTHS[2], WIDTHS[1], 1, g)
    Us, bs = [normal(w, 3, g=g) for w in WIDTHS[1:-1]], [normal(w, g=g) for w in WIDTHS[1:-1]]
    x, z = normal(10, 3, g=g), normal(10, WIDTHS[0], g=g)
    units = weights(Ms, normal(WIDTHS[0], m or unit_width(Ms), g=g))
    state = z @ units[0]
    for M, W, U, b in zip(Ms, units[1:], Us, bs):
        z = torch.relu(z @ M.mT + x @ U.mT + b)
        state = torch.relu(state @ W.mT + x @ U.mT + b) @ W
    name = "a layer of rank 1" if low else "full rank"
    if low:
        least = WIDTHS[1] + WIDTHS[2] - 1  # n_l + n_{l-1} - rank of the second matrix
        yield equal("a layer of rank 1: width of the units", units[0].shape[1], least, 0)
    error = off(state @ units[-1].mT, z @ Ms[-1].mT)
    yield within(f"{name}: error of the outputs", error, SAME)
    rank = min(_rank(W) / len(W) for W in units)
    yield at_least(f"{name}: rank of W̃_k ÷ its rows", rank, 1.0)


@claim(
    "xie2022.lemma1",
    "A feed-forward network is a chain of tied units of one width (corrected)",
    "lem-universal-unit",
)
def universal_unit(trial):
    yield from _tied_units(trial, low=False, m=max(WIDTHS))
    yield from _tied_units(trial, low=True)


universal_unit.breaks(
    "m = max n_k as printed, and a layer of rank 1",
    part=_tied_units,
    low=True,
    m=max(WIDTHS),
    weights=_printed_weights,
)


# --- Lemma 2: feed-forward networks are deep OptEqs --------------------------------------------

FEEDFORWARD = (3, 5, 4, 6, 2)


def _network(seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return matrices, biases and inputs of a random feed-forward network."""
    g = generator(seed)
    As = [normal(r, p, g=g) for p, r in pairwise(FEEDFORWARD)]
    bs = [normal(r, g=g) for r in FEEDFORWARD[1:-1]]
    return As, bs, normal(12, FEEDFORWARD[0], g=g)


@torch.no_grad()
def _one_step(trial, *, name="plain", sigma=relu, unit_ball=False, change=None):
    As, bs, x = _network(trial.seed)
    model = from_feedforward(As, bs, sigma=sigma, unit_ball=unit_ball, seed=trial.seed)
    model = model if change is None else change(model)
    starts = 3 * normal(2, len(x), model.m, g=trial.g)
    ends = [model.cell(z, x) for z in starts]
    error = off(ends[0] @ model.V.mT, feedforward_outputs(x, As, bs, sigma=sigma))
    yield within(f"{name}: error of the outputs after one step from a random state", error, SAME)
    spread = float((ends[0] - ends[1]).abs().max())
    yield within(f"{name}: difference of two steps from different states", spread, 0.0)
    if change is None:
        yield equal(f"{name}: width of the state", model.m, max(FEEDFORWARD[1:]), 0)
    if name == "rescaled":
        largest = max(operator_norm(W) for W in model.Ws)
        yield at_most("rescaled: largest ‖W_l‖", largest, 1 + 1e-12)


@claim(
    "xie2022.lemma2",
    "Deep OptEqs contain the feed-forward networks; for ReLU even those with ‖W_l‖ ≤ 1",
    "thm-feedforward",
)
def contains_feedforward(trial):
    As, bs, x = _network(trial.seed)
    for ball, name in ((False, "plain"), (True, "rescaled")):
        yield from _one_step(trial, name=name, unit_ball=ball)
        model = from_feedforward(As, bs, unit_ball=ball, seed=trial.seed)
        out = model.solve(x).z @ model.V.detach().mT
        error = off(out, feedforward_outputs(x, As, bs))
        yield within(f"{name}: error of the outputs at the equilibrium", error, SAME)
    yield from _one_step(trial, name="tanh", sigma=tanh)


def _input_erased(good: DeepOptEq) -> DeepOptEq:
    first, m = good.Us[1], good.m  # U_2 = A_1 moves to the layer with W_1 = 0
    Ws = [first.new_zeros(len(first), m), *list(good.Ws)[1:]]
    Us = [first, *(torch.zeros_like(U) for U in list(good.Us)[1:])]
    return DeepOptEq(Ws, Us, [first.new_zeros(len(first)), *list(good.bs)[1:]], good.V)


def _no_eraser(good: DeepOptEq) -> DeepOptEq:
    return DeepOptEq(list(good.Ws)[1:], list(good.Us)[1:], list(good.bs)[1:], good.V)


contains_feedforward.breaks(
    "the input in the layer that erases: W_1 = 0 and U_1 = A_1",
    "plain: error",
    part=_one_step,
    change=_input_erased,
)
contains_feedforward.breaks("no layer that erases the state", part=_one_step, change=_no_eraser)
contains_feedforward.breaks(
    "not rescaled",
    "rescaled: largest",
    part=_one_step,
    name="rescaled",
    shown={"rescaled": "not rescaled"},
)
