"""Norms, spectra and GMRES against dense linear algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deqbook.linalg import gmres, operator_norm, perron_root, spectral_radius, symmetric_part
from deqbook.runtime import generator, normal

quick = settings(derandomize=True, deadline=None, max_examples=30)
seeds = st.integers(0, 10_000)


def rotation(degrees: float, scale: float = 0.9) -> Tensor:
    t = math.radians(degrees)
    rows = [[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]
    return scale * torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("degrees", [0, 17, 45, 90, 120, 180, 270])
def test_a_rotation_has_the_radius_and_the_norm_of_its_scale(degrees: float) -> None:
    W = rotation(degrees)
    assert spectral_radius(W) == pytest.approx(0.9, abs=1e-12)
    assert spectral_radius(lambda v: W @ v, 2) == pytest.approx(0.9, abs=1e-12)
    assert operator_norm(W) == pytest.approx(0.9, abs=1e-12)
    assert operator_norm(W, method="power") == pytest.approx(0.9, abs=1e-12)


def test_the_largest_of_many_rotations_is_seen_by_the_operator() -> None:
    W = torch.block_diag(*(rotation(37 * k + 90, 0.05 * k) for k in range(1, 16)))
    assert spectral_radius(lambda v: W @ v, 30) == pytest.approx(0.75, abs=1e-9)


def test_a_truncated_krylov_space_finds_an_isolated_largest_eigenvalue() -> None:
    g = generator(3)
    W = 0.3 * normal(300, 300, g=g) / math.sqrt(300)
    W[:2, :] = 0
    W[:2, :2] = rotation(90)
    assert spectral_radius(lambda v: W @ v, 300, krylov=60) == pytest.approx(0.9, abs=1e-8)


@quick
@given(seeds, st.integers(1, 12))
def test_radius_of_matrix_and_operator_agree_with_numpy(seed: int, m: int) -> None:
    W = normal(m, m, g=generator(seed))
    expected = np.abs(np.linalg.eigvals(W.numpy())).max()
    assert spectral_radius(W) == pytest.approx(expected, rel=1e-9)
    assert spectral_radius(lambda v: W @ v, m) == pytest.approx(expected, rel=1e-6)


@quick
@given(seeds, st.integers(1, 10), st.integers(1, 10), st.integers(1, 10))
def test_power_iteration_finds_the_largest_singular_value(
    seed: int, rows: int, columns: int, rank: int
) -> None:
    g = generator(seed)
    W = normal(rows, rank, g=g) @ normal(rank, columns, g=g)  # rank-deficient when rank is small
    expected = np.linalg.svd(W.numpy(), compute_uv=False)[0]
    assert operator_norm(W, method="power", max_steps=100_000) == pytest.approx(expected, rel=1e-8)
    assert operator_norm(W) == pytest.approx(expected, rel=1e-12)


@quick
@given(seeds, st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_lanczos_finds_the_largest_singular_value(
    seed: int, rows: int, columns: int, rank: int
) -> None:
    g = generator(seed)
    W = normal(rows, rank, g=g) @ normal(rank, columns, g=g)
    expected = np.linalg.svd(W.numpy(), compute_uv=False)[0]
    assert operator_norm(W, method="lanczos") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", [(60, 60), (3, 40), (40, 3), (1, 5), (2, 2)])
def test_lanczos_takes_any_shape_precision_and_scale(shape: tuple[int, int]) -> None:
    W = normal(*shape, g=generator(0))
    exact = operator_norm(W)
    lanczos = operator_norm(W.clone().requires_grad_(), method="lanczos")
    assert lanczos == pytest.approx(exact, rel=1e-9)
    assert lanczos == operator_norm(W, method="lanczos")  # the start is fixed
    assert operator_norm(W.float(), method="lanczos") == pytest.approx(exact, rel=1e-5)
    for scale in (1e-200, 1e200):  # its square is not representable
        assert operator_norm(scale * W, method="lanczos") == pytest.approx(scale * exact, rel=1e-9)


def test_lanczos_that_runs_out_of_steps_says_so() -> None:
    W = normal(60, 60, g=generator(0))
    with pytest.raises(RuntimeError, match=r"Lanczos did not settle to 1.0e-14 in 1 steps"):
        operator_norm(W, method="lanczos", tol=1e-14, max_steps=1)


def test_power_iteration_in_float32() -> None:
    W = normal(40, 40, g=generator(0), dtype=torch.float32)
    exact = operator_norm(W.double())
    assert operator_norm(W, method="power") == pytest.approx(exact, rel=1e-5)


def test_the_zero_matrix_has_norm_and_radius_zero() -> None:
    zero = torch.zeros(3, 3, dtype=torch.float64)
    assert operator_norm(zero) == operator_norm(zero, method="power") == 0.0
    assert operator_norm(zero, method="lanczos") == 0.0
    assert spectral_radius(zero) == spectral_radius(lambda v: zero @ v, 3) == 0.0


def test_power_iteration_that_runs_out_of_steps_says_so() -> None:
    W = torch.diag(torch.tensor([1.0, 1.0 - 1e-7], dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"nearly equal.*method='svd'"):
        operator_norm(W, method="power", tol=1e-12, max_steps=5)


def test_perron_root_sees_only_moduli() -> None:
    triangular = torch.tensor([[-0.5, 100.0], [0.0, 0.25]], dtype=torch.float64)
    assert perron_root(triangular) == pytest.approx(0.5, abs=1e-12)
    W = normal(6, 6, g=generator(1))
    growth = torch.linalg.matrix_power(W.abs() / 5, 200).norm() ** (1 / 200) * 5
    assert perron_root(W) == pytest.approx(float(growth), rel=1e-2)
    assert perron_root(rotation(90)) == pytest.approx(0.9, abs=1e-12)


@quick
@given(seeds, st.integers(1, 8))
def test_symmetric_part_keeps_the_quadratic_form(seed: int, m: int) -> None:
    g = generator(seed)
    M, v = normal(m, m, g=g), normal(m, g=g)
    S = symmetric_part(M)
    assert torch.equal(S, S.mT)
    assert float(v @ S @ v) == pytest.approx(float(v @ M @ v), abs=1e-10)


@pytest.mark.parametrize("call", [operator_norm, spectral_radius, perron_root])
def test_bad_matrices_are_named(call) -> None:
    with pytest.raises(ValueError, match="1 NaN or infinite entries"):
        call(torch.tensor([[1.0, math.nan], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        call(torch.ones(3))


def test_wrong_calls_are_named() -> None:
    with pytest.raises(ValueError, match=r"square matrix, got shape \(2, 3\)"):
        spectral_radius(torch.ones(2, 3))
    with pytest.raises(ValueError, match="pass size="):
        spectral_radius(lambda v: v)
    with pytest.raises(ValueError, match="'svd', 'lanczos' or 'power', got 'qr'"):
        operator_norm(torch.eye(2), method="qr")


def batched(A: Tensor):
    return lambda v: torch.einsum("nij,nj->ni", A, v)


@quick
@given(seeds, st.integers(1, 5), st.integers(1, 10))
def test_full_gmres_is_the_dense_solution_row_by_row(seed: int, n: int, m: int) -> None:
    g = generator(seed)
    A = normal(n, m, m, g=g) + 4 * torch.eye(m, dtype=torch.float64)
    b = normal(n, m, g=g)
    x, calls = gmres(batched(A), b, m)
    assert calls == m
    # judged by the residual: a draw may be ill conditioned
    assert float((batched(A)(x) - b).norm()) <= 1e-9 * max(1.0, float(b.norm()))
    dense = torch.linalg.solve(A, b)
    condition = float(torch.linalg.cond(A).max())
    assert float((x - dense).norm()) <= 1e-12 * condition * max(1.0, float(dense.norm()))


def test_early_gmres_minimises_the_residual_over_the_krylov_space() -> None:
    g = generator(5)
    A, b = normal(1, 20, 20, g=g), normal(1, 20, g=g)
    krylov = [b[0]]
    for _ in range(5):
        krylov.append(A[0] @ krylov[-1])
    basis = torch.stack(krylov, dim=1)  # (20, 6)
    for k in (1, 3, 6):
        x, calls = gmres(batched(A), b, k)
        best = np.linalg.lstsq((A[0] @ basis[:, :k]).numpy(), b[0].numpy(), rcond=None)[0]
        least = np.linalg.norm((A[0] @ basis[:, :k]).numpy() @ best - b[0].numpy())
        assert calls == k
        assert float((A[0] @ x[0] - b[0]).norm()) == pytest.approx(least, rel=1e-8)


def test_more_steps_than_dimensions_are_cut() -> None:
    b = normal(2, 3, g=generator(0))
    x, calls = gmres(lambda v: 2 * v, b, 50)
    assert calls == 3
    assert torch.allclose(x, b / 2, atol=1e-12)


def test_rows_that_break_down_early_do_not_disturb_the_others() -> None:
    """The identity is solved in one step, zero needs none, the third row needs all four."""
    A = torch.stack([torch.eye(4), torch.eye(4), torch.eye(4)]).double()
    A[2] += normal(4, 4, g=generator(2))
    b = normal(3, 4, g=generator(3))
    b[1] = 0
    x, _ = gmres(batched(A), b, 4)
    assert torch.allclose(x[0], b[0], atol=1e-13)
    assert torch.equal(x[1], torch.zeros(4, dtype=torch.float64))
    assert torch.allclose(x[2], torch.linalg.solve(A[2], b[2]), atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_singular_systems_give_a_bounded_answer(dtype: torch.dtype) -> None:
    """A consistent system is solved, an inconsistent one is left with its least residual."""
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=dtype).expand(3, 2, 2)
    b = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]], dtype=dtype)
    x, _ = gmres(batched(A), b, 2)
    left = (batched(A)(x) - b).norm(dim=1).double()
    assert left.numpy() == pytest.approx([math.sqrt(0.5), 0.0, math.sqrt(2)], abs=1e-6)
    assert float(x.abs().max()) < 10


@quick
@given(seeds, st.integers(2, 9), st.integers(1, 4))
def test_projections_are_solved_when_the_right_side_is_in_their_range(
    seed: int, m: int, rank: int
) -> None:
    g = generator(seed)
    Q = torch.linalg.qr(normal(m, min(rank, m), g=g))[0]
    spectrum = 1 + torch.rand(Q.shape[1], generator=g, dtype=torch.float64)
    A = ((Q * spectrum) @ Q.mT)[None]
    b = batched(A)(normal(1, m, g=g))
    x, _ = gmres(batched(A), b, m)
    assert float((batched(A)(x) - b).norm()) <= 1e-10 * max(1.0, float(b.norm()))
    assert float(x.norm()) <= 1e3 * max(1.0, float(b.norm()))
