r"""Norms, spectra and Krylov methods for operators that are applied, never formed.

A trap worth naming: a power iteration read off by the Rayleigh quotient
:math:`\langle v,Jv\rangle` returns 0 for a rotation by a right angle, whose spectral radius is 1.
Here norms come from :math:`J^\top J` (symmetric, so the quotient is honest) and radii from the
eigenvalues of a Hessenberg matrix, which may be complex.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy.sparse.linalg
import torch
from torch import Tensor

from deqbook.runtime import generator, normal

__all__ = [
    "commutation",
    "eye",
    "gmres",
    "kron",
    "operator_norm",
    "perron_root",
    "relative",
    "spectral_radius",
    "symmetric_part",
    "unvec",
    "vec",
]

Apply = Callable[[Tensor], Tensor]


def symmetric_part(M: Tensor) -> Tensor:
    r"""Return :math:`\tfrac12(M+M^\top)` of square M; M ⪰ μI is a statement about it.

    >>> symmetric_part(torch.tensor([[1.0, 4.0], [0.0, 1.0]])).tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    return (M + M.mT) / 2


def operator_norm(
    W: Tensor, *, method: str = "svd", tol: float = 1e-10, max_steps: int = 5000, seed: int = 0
) -> float:
    r"""Return :math:`\|W\|=\sigma_{\max}(W)`: by SVD, by Lanczos, or by power iteration.

    Lanczos (ARPACK, from a fixed start) is the method for the norm of one large matrix. The power
    iteration, on :math:`W^\top W`, stops when the eigen-residual
    :math:`\|W^\top Wv-\lambda v\|\le\mathrm{tol}\,\lambda`: then some eigenvalue of
    :math:`W^\top W` lies within ``tol·λ`` of λ. With the random start it is the largest one.

    ``method`` is ``"svd"``, ``"lanczos"`` or ``"power"``; ``tol``, ``max_steps`` and ``seed`` serve
    the last two. ``ValueError`` for another one and for a W that is no matrix or not finite,
    ``RuntimeError`` if an iteration does not settle.

    >>> W = torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    >>> [round(operator_norm(W, method=by), 3) for by in ("svd", "lanczos", "power")]
    [4.0, 4.0, 4.0]
    """
    _finite_matrix(W)
    if method == "svd":
        return float(torch.linalg.matrix_norm(W, 2))
    if method == "lanczos":
        return _lanczos_norm(W, tol, max_steps, seed)
    if method != "power":
        raise ValueError(f"method must be 'svd', 'lanczos' or 'power', got {method!r}.")
    v = normal(W.shape[1], g=generator(seed), dtype=W.dtype).to(W.device)
    v = v / v.norm()
    tol = max(tol, 10 * torch.finfo(W.dtype).eps)
    for _ in range(max_steps):
        w = W.mT @ (W @ v)
        lam = torch.dot(v, w)
        size = w.norm()
        if float(size) == 0.0:
            return 0.0
        if float((w - lam * v).norm()) <= tol * float(lam):
            return float(lam.sqrt())
        v = w / size
    raise RuntimeError(
        f"power iteration did not settle to {tol:.1e} in {max_steps} steps: the two largest "
        "singular values are nearly equal. Raise max_steps or use method='svd'."
    )


def _lanczos_norm(W: Tensor, tol: float, max_steps: int, seed: int) -> float:
    small = min(W.shape)
    if small < 3:  # ARPACK needs room for more than one vector
        return operator_norm(W.detach())
    largest = float(W.detach().abs().max())
    if largest == 0.0:
        return 0.0
    start = normal(small, g=generator(seed), dtype=W.dtype).numpy()
    M = W.detach().cpu().numpy() / largest  # WᵀW neither overflows nor vanishes
    options = {"v0": start, "tol": tol, "maxiter": max_steps, "return_singular_vectors": False}
    try:
        return largest * float(scipy.sparse.linalg.svds(M, k=1, **options)[0])
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise RuntimeError(
            f"Lanczos did not settle to {tol:.1e} in {max_steps} steps. Raise max_steps or use "
            "method='svd'."
        ) from None


def spectral_radius(
    W: Tensor | Apply, size: int | None = None, *, krylov: int = 80, seed: int = 0
) -> float:
    r"""Return :math:`\rho(W)=\max|\lambda_i(W)|` of a square matrix or of an operator.

    A matrix is handled exactly (all eigenvalues). An operator ``v ↦ Wv`` on vectors of length
    ``size`` is projected on a Krylov space by Arnoldi's method and the complex Ritz values are
    taken, so rotations are seen. Exact when ``krylov ≥ size``; otherwise usually a slight
    underestimate, because the Ritz values have not all converged.

    ``ValueError`` for an operator without ``size`` and for a W that is not square or not finite.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    >>> round(spectral_radius(turn), 3), round(spectral_radius(lambda v: turn @ v, size=2), 3)
    (1.0, 1.0)
    >>> round(spectral_radius(torch.tensor([[0.0, 4.0], [0.0, 0.0]])), 3)  # the norm is 4
    0.0
    """
    if isinstance(W, Tensor):
        _finite_matrix(W, square=True)
        return float(torch.linalg.eigvals(W).abs().max())
    if size is None:
        raise ValueError("for an operator pass size=, the length of the vectors it acts on.")
    v = normal(size, g=generator(seed))
    _, H, steps = _arnoldi(lambda rows: W(rows[0])[None], v[None], min(krylov, size))
    return float(torch.linalg.eigvals(H[0, :steps, :steps]).abs().max())


def perron_root(W: Tensor) -> float:
    r"""Return :math:`\lambda_{\mathrm{pf}}(|W|)`, the spectral radius of the entrywise modulus.

    Between ρ(W) and ‖W‖_∞; errors as for ``spectral_radius``.

    >>> W = torch.tensor([[0.5, -0.5], [0.5, 0.5]])
    >>> round(perron_root(W), 3), round(spectral_radius(W), 3)
    (1.0, 0.707)
    """
    return spectral_radius(W.abs())


def gmres(apply: Apply, rhs: Tensor, steps: int) -> tuple[Tensor, int]:
    """Solve ``apply(x) = rhs`` approximately for every row at once by ``steps`` of GMRES.

    ``rhs`` is (n, D) and ``apply`` is linear and acts on each row on its own. Returns the solution
    and the number of times ``apply`` was called: ``steps``, at most D. No host synchronisation
    inside.

    >>> A = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    >>> x, calls = gmres(lambda rows: rows @ A.mT, torch.tensor([[3.0, 1.0]]), steps=5)
    >>> x.round(decimals=3).tolist(), calls
    ([[1.0, 1.0]], 2)
    """
    V, H, k = _arnoldi(apply, rhs, min(steps, rhs.shape[1]))
    beta = rhs.new_zeros(rhs.shape[0], k + 1, 1)
    beta[:, 0, 0] = rhs.norm(dim=1)
    Q, R = torch.linalg.qr(H)
    # A vanishing diagonal means that the rest of the space adds nothing: leave it out of the row.
    diagonal = R.diagonal(dim1=1, dim2=2).abs()
    floor = 10 * k * torch.finfo(rhs.dtype).eps * diagonal.amax(dim=1, keepdim=True)
    lost = (diagonal <= floor).cumsum(dim=1)[..., None] > 0
    R = torch.where(lost, torch.eye(k, dtype=R.dtype, device=R.device), R)
    y = torch.linalg.solve_triangular(R, torch.where(lost, 0.0, Q.mT @ beta), upper=True)[..., 0]
    return torch.einsum("nkd,nk->nd", V[:, :k], y), k


def _arnoldi(apply: Apply, start: Tensor, steps: int) -> tuple[Tensor, Tensor, int]:
    """Build per row an orthonormal Krylov basis V (n, k+1, D) and Hessenberg H (n, k+1, k)."""
    n, size = start.shape
    V = start.new_zeros(n, steps + 1, size)
    H = start.new_zeros(n, steps + 1, steps)
    V[:, 0] = _normalise(start)
    for j in range(steps):
        w = apply(V[:, j])
        for _ in range(2):  # Gram-Schmidt twice: once loses orthogonality, twice is enough
            h = torch.einsum("nkd,nd->nk", V[:, : j + 1], w)
            w = w - torch.einsum("nkd,nk->nd", V[:, : j + 1], h)
            H[:, : j + 1, j] += h
        H[:, j + 1, j] = w.norm(dim=1)
        V[:, j + 1] = _normalise(w)
    return V, H, steps


def _normalise(v: Tensor) -> Tensor:
    """Scale rows to unit length; rows that have vanished stay exactly zero (space exhausted)."""
    size = v.norm(dim=1, keepdim=True)
    tiny = 1e3 * torch.finfo(v.dtype).tiny
    return torch.where(size > tiny, v / size.clamp(min=tiny), torch.zeros_like(v))


def _finite_matrix(W: Tensor, *, square: bool = False) -> None:
    if W.ndim != 2 or (square and W.shape[0] != W.shape[1]):
        kind = "a square matrix" if square else "a matrix"
        raise ValueError(f"expected {kind}, got shape {tuple(W.shape)}.")
    if not bool(torch.isfinite(W).all()):
        bad = int((~torch.isfinite(W)).sum())
        raise ValueError(f"the matrix has {bad} NaN or infinite entries; check the weights.")


def vec(M: Tensor) -> Tensor:
    """Stack the columns of the last two dimensions: (…, a, b) becomes (…, ab).

    >>> vec(torch.tensor([[1, 2], [3, 4]])).tolist()
    [1, 3, 2, 4]
    """
    return M.mT.flatten(-2)


def unvec(v: Tensor, like: Tensor) -> Tensor:
    """Undo ``vec``, in the last dimension, for matrices shaped as ``like``, (a, b).

    >>> M = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> torch.equal(unvec(vec(M), M), M)
    True
    """
    rows, columns = like.shape
    return v.reshape(*v.shape[:-1], columns, rows).mT


def eye(m: int) -> Tensor:
    """Return the m×m identity in double precision.

    >>> eye(2).dtype, eye(2).tolist()
    (torch.float64, [[1.0, 0.0], [0.0, 1.0]])
    """
    return torch.eye(m, dtype=torch.float64)


def kron(A: Tensor, B: Tensor) -> Tensor:
    r"""Return A⊗B of two matrices; torch.kron itself fails on some transposed arguments.

    The rule :math:`\mathrm{vec}(AMB)=(B^\top\otimes A)\,\mathrm{vec}(M)`:

    >>> A, M, B = torch.arange(12).reshape(3, 2, 2)
    >>> torch.equal(vec(A @ M @ B), kron(B.mT, A) @ vec(M))
    True
    """
    blocks = A[:, None, :, None] * B[None, :, None, :]
    return blocks.reshape(A.shape[0] * B.shape[0], A.shape[1] * B.shape[1])


def commutation(a: int, b: int) -> Tensor:
    r"""Return K with :math:`K\,\mathrm{vec}(M)=\mathrm{vec}(M^\top)` for every a×b matrix M.

    >>> M = torch.arange(6).reshape(2, 3).double()
    >>> torch.equal(commutation(2, 3) @ vec(M), vec(M.mT))
    True
    """
    labels = torch.arange(a * b).reshape(b, a).mT  # vec(labels) = 0, 1, 2, …
    return eye(a * b)[vec(labels.mT)]


def relative(value: Tensor, target: Tensor) -> float:
    """Return ‖value - target‖ ÷ ‖target‖ (of all entries), or infinity if the shapes differ.

    >>> relative(torch.tensor([3.0, 0.0]), torch.tensor([2.0, 0.0]))
    0.5
    >>> relative(torch.ones(2), torch.ones(2, 1))
    inf
    """
    if value.shape != target.shape:
        return math.inf
    return float((value - target).norm() / target.norm())
