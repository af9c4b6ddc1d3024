r"""Deep OptEq for pictures: a trained feature extractor, dense or convolutional layers (xie2022).

A convolution is a linear map W from pictures to pictures, so everything proved for matrices holds
for it: the layer is :math:`\alpha W^\top\sigma(Wz+U\!*x+b)+(1-\alpha)z` with the **exact adjoint**
:math:`W^\top`, which is a transposed convolution with the same kernel. Its norm depends on the size
of the picture. Two numbers are offered: :func:`conv_norm` is the norm itself, by Lanczos' method;
:func:`conv_norm_bound` is an upper bound that costs a handful of small SVDs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import scipy.sparse.linalg
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel, check_weights
from deqbook.models.opteq import DeepOptEq, check_layers
from deqbook.runtime import generator, normal
from deqbook.wellposed import Tied, Unstructured

LARGEST_MATRIX = 4_000_000
"""Entries up to which a convolution is written out as a matrix, for certificates and tests."""


def conv(z: Tensor, W: Tensor) -> Tensor:
    """Return W * z: a convolution of odd size that keeps the picture's size, zero outside."""
    return F.conv2d(z, W, padding=W.shape[-1] // 2)


def conv_adjoint(s: Tensor, W: Tensor) -> Tensor:
    """Return Wᵀ s, the exact adjoint of ``conv``: ⟨s, W * z⟩ = ⟨Wᵀs, z⟩."""
    return F.conv_transpose2d(s, W, padding=W.shape[-1] // 2)


def conv_matrix(W: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the convolution on pictures of this size as a matrix (h·H·B, m·H·B)."""
    entries = W.shape[0] * W.shape[1] * math.prod(size) ** 2
    if entries > LARGEST_MATRIX:
        raise ValueError(
            f"the matrix of a {tuple(W.shape)} convolution on {size[0]} × {size[1]} pictures has "
            f"{entries:.1e} entries; use conv_norm, which never writes it out."
        )
    columns = torch.eye(W.shape[1] * math.prod(size), dtype=W.dtype, device=W.device)
    return conv(columns.reshape(-1, W.shape[1], *size), W).flatten(1).mT


def conv_norm(
    W: Tensor, size: tuple[int, int], *, tol: float = 1e-8, max_steps: int = 5000, seed: int = 0
) -> float:
    """Return the operator norm of the convolution on pictures of this size, by Lanczos."""
    W = W.detach().double().cpu()
    h, m = W.shape[:2]
    shape = (h * math.prod(size), m * math.prod(size))
    if min(shape) < 3 or not bool(W.any()):  # ARPACK needs room, and a start it does not lose
        return operator_norm(conv_matrix(W, size))

    def forward(v: object) -> object:
        return conv(torch.as_tensor(v).reshape(1, m, *size), W).flatten().numpy()

    def backward(v: object) -> object:
        return conv_adjoint(torch.as_tensor(v).reshape(1, h, *size), W).flatten().numpy()

    operator = scipy.sparse.linalg.LinearOperator(
        shape, matvec=forward, rmatvec=backward, dtype="float64"
    )
    start = normal(min(shape), g=generator(seed)).numpy()
    try:
        found = scipy.sparse.linalg.svds(
            operator, k=1, v0=start, tol=tol, maxiter=max_steps, return_singular_vectors=False
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise RuntimeError(
            f"Lanczos did not settle to {tol:.1e} in {max_steps} steps; raise max_steps."
        ) from None
    return float(found[0])


def conv_norm_bound(W: Tensor, size: tuple[int, int]) -> float:
    r"""Return an upper bound of ``conv_norm``: the norm of the same convolution on a torus.

    A picture of H × B pixels with r rows and columns of zeros added (r half the kernel's width)
    lies on a torus where nothing wraps around. There the Fourier transform turns the convolution
    into one small matrix per frequency, :math:`\hat W(\omega)`, and its norm is exactly
    :math:`\max_\omega\|\hat W(\omega)\|`; cutting the picture out again can only lower it.
    """
    radius = W.shape[-1] // 2
    torus = [s + radius for s in size]
    # Kernels wider than the torus would overlap themselves when placed on it.
    torus = [max(s, W.shape[-1]) for s in torus]
    spectrum = torch.fft.fft2(W.detach().double(), s=torus)
    return float(torch.linalg.matrix_norm(spectrum.permute(2, 3, 0, 1), 2).max())


def _strided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Return the size of a picture of which every ``stride``-th row and column is taken."""
    return -(-size[0] // stride), -(-size[1] // stride)


class DenseOptEq(DeepOptEq):
    r"""Deep OptEq on trained features :math:`x=\sigma(Ex_0+e)` of flattened pictures :math:`x_0`.

    The layers, the read-out and their names are those of :class:`DeepOptEq`.
    """

    def __init__(
        self,
        Ws: Sequence[Tensor],
        Us: Sequence[Tensor],
        bs: Sequence[Tensor],
        V: Tensor,
        E: Tensor,
        e: Tensor,
        *,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__(Ws, Us, bs, V, alpha=alpha, sigma=sigma)
        check_weights(E=(E, (self.d, "pixels")), e=(e, (self.d,)))
        self.E, self.e = nn.Parameter(E.clone()), nn.Parameter(e.clone())

    @classmethod
    def init_dense(
        cls,
        m: int,
        pixels: int,
        *,
        features: int,
        widths: Sequence[int],
        k: int,
        norm: float = 0.7,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> DenseOptEq:
        """Draw the layers as ``DeepOptEq.init_deep`` does and E ~ N(0, 2/pixels), e = 0."""
        body = DeepOptEq.init_deep(
            m, features, widths=widths, k=k, norm=norm, alpha=alpha, seed=seed, dtype=dtype
        )
        E = normal(features, pixels, g=generator(seed + 10_000), dtype=dtype)
        E = E * math.sqrt(2 / pixels)
        e = torch.zeros(features, dtype=dtype)
        Ws, Us, bs = ([t.detach() for t in ts] for ts in (body.Ws, body.Us, body.bs))
        return cls(Ws, Us, bs, body.V.detach(), E, e, alpha=alpha, sigma=sigma)

    def inject(self, x: Tensor) -> Tensor:
        """Extract features, then return the injections of all layers side by side."""
        pixels = self.E.shape[1]
        if x.ndim != 2 or x.shape[1] != pixels:
            raise ValueError(f"x must be (n, {pixels}): flat pictures; got {tuple(x.shape)}.")
        return super().inject(self.sigma(x @ self.E.mT + self.e))

    def norms(self) -> list[float]:
        """Return ‖W_l‖ of every layer."""
        return [operator_norm(W.detach()) for W in self.Ws]

    @torch.no_grad()
    def project_(self, radius: float = 1.0) -> None:
        """Scale every layer back to ‖W_l‖ ≤ radius, the hypothesis of the theory."""
        for W in self.Ws:
            W.mul_(radius / max(radius, operator_norm(W)))


class ConvOptEq(EquilibriumModel):
    r"""Convolutional deep OptEq on pictures (n, colours, height, width).

    :math:`x=\sigma(E*x_0+e)`, then
    :math:`f_l(z)=\alpha W_l^\top\sigma(W_l*z+U_l*x+b_l)+(1-\alpha)z` for a state z of m channels.
    ``Ws[l]`` is (h_l, m, 3, 3), ``Us[l]`` (h_l, c, 3, 3), E (c, colours, 3, 3). With ``stride`` s
    the extractor takes every s-th pixel. The output is V applied to the means of z over a
    ``pool`` × ``pool`` grid, or with ``pool=0`` to every pixel: (n, k, height, width).
    """

    def __init__(
        self,
        Ws: Sequence[Tensor],
        Us: Sequence[Tensor],
        bs: Sequence[Tensor],
        V: Tensor,
        E: Tensor,
        e: Tensor,
        *,
        size: tuple[int, int],
        stride: int = 1,
        pool: int = 2,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        check_layers(Ws, Us, bs, alpha)
        if any(t.ndim == 4 and t.shape[-1] % 2 == 0 for t in (*Ws, *Us, E)):
            raise ValueError("kernels must have odd size, so that pictures keep theirs.")
        weights: dict[str, tuple[Tensor, tuple[int | str, ...]]] = {
            "E": (E, ("c", "colours", "width", "width")),
            "e": (e, ("c",)),
            "V": (V, ("k", "pooled")),
        }
        for i, (W, U, b) in enumerate(zip(Ws, Us, bs), start=1):
            weights[f"W{i}"] = (W, (f"h{i}", "m", "width", "width"))
            weights[f"U{i}"] = (U, (f"h{i}", "c", "width", "width"))
            weights[f"b{i}"] = (b, (f"h{i}",))
        sizes = check_weights(**weights)
        self.m, self.colours = sizes["m"], sizes["colours"]
        if sizes["pooled"] != self.m * max(pool, 1) ** 2:
            raise ValueError(
                f"V must be (k, {self.m * max(pool, 1) ** 2}) for pool = {pool} and {self.m} "
                f"channels, got {tuple(V.shape)}."
            )
        self.size = _strided(size, stride)
        self.picture, self.stride, self.pool = tuple(size), stride, pool
        self.alpha, self.sigma = alpha, activation(sigma)
        self.Ws, self.Us, self.bs = (
            nn.ParameterList([nn.Parameter(t.clone()) for t in ts]) for ts in (Ws, Us, bs)
        )
        self.V, self.E, self.e = (nn.Parameter(t.clone()) for t in (V, E, e))

    @classmethod
    def init(
        cls,
        m: int,
        size: tuple[int, int],
        *,
        channels: Sequence[int],
        divisor: int = 1,
        features: int | None = None,
        colours: int = 3,
        k: int = 10,
        stride: int = 1,
        pool: int = 2,
        norm: float = 0.7,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> ConvOptEq:
        """Draw W_l rescaled to operator norm ``norm``; U_l, E and V by fan-in; b_l, e = 0.

        ``channels`` are those of the source, each divided by ``divisor``; ``features`` is the
        number c of feature channels (None: m).
        """
        if any(h % divisor for h in channels):
            raise ValueError(f"divisor {divisor} does not divide the channels {tuple(channels)}.")
        g = generator(seed)
        c = m if features is None else features
        inside = _strided(size, stride)
        Ws, Us, bs = [], [], []
        for h in (h // divisor for h in channels):
            W = normal(h, m, 3, 3, g=g)
            Ws.append((W * (norm / conv_norm(W, inside))).to(dtype))
            Us.append(normal(h, c, 3, 3, g=g, dtype=dtype) / (3 * math.sqrt(c)))
            bs.append(torch.zeros(h, dtype=dtype))
        E = normal(c, colours, 3, 3, g=g, dtype=dtype) * (math.sqrt(2 / colours) / 3)
        pooled = m * max(pool, 1) ** 2
        V = normal(k, pooled, g=g, dtype=dtype) / math.sqrt(pooled)
        e = torch.zeros(c, dtype=dtype)
        return cls(
            Ws, Us, bs, V, E, e, size=size, stride=stride, pool=pool, alpha=alpha, sigma=sigma
        )

    def inject(self, x: Tensor) -> Tensor:
        """Extract features, then return the injections of all layers, channel by channel."""
        if x.ndim != 4 or tuple(x.shape[1:]) != (self.colours, *self.picture):
            raise ValueError(
                f"x must be pictures (n, {self.colours}, {self.picture[0]}, {self.picture[1]}), "
                f"got shape {tuple(x.shape)}."
            )
        width = self.E.shape[-1]
        x = self.sigma(F.conv2d(x, self.E, self.e, stride=self.stride, padding=width // 2))
        return torch.cat([conv(x, U) + b[:, None, None] for U, b in zip(self.Us, self.bs)], dim=1)

    def start(self, q: Tensor) -> Tensor:
        """Return the zero state."""
        return q.new_zeros(q.shape[0], self.m, *self.size)

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on all W_l."""
        return tuple(self.Ws)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return f_L ∘ … ∘ f_1 (z)."""
        for W, part in zip(weights, q.split([W.shape[0] for W in weights], dim=1)):
            z = self.alpha * conv_adjoint(self.sigma(conv(z, W) + part), W) + (1 - self.alpha) * z
        return z

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return V of the pooled state, or of every pixel."""
        if self.pool == 0:
            return torch.einsum("km,nmij->nkij", self.V, z)
        return F.adaptive_avg_pool2d(z, self.pool).flatten(1) @ self.V.mT

    def norms(self) -> list[float]:
        """Return the operator norm of every W_l on the model's own picture size."""
        return [conv_norm(W, self.size) for W in self.Ws]

    @torch.no_grad()
    def project_(self, radius: float = 1.0) -> None:
        """Scale every layer back until its torus bound, hence its norm, is at most ``radius``."""
        for W in self.Ws:
            W.mul_(radius / max(radius, conv_norm_bound(W, self.size)))

    def structure(self) -> Tied | Unstructured:
        """Tied layers, written out as matrices where these are small enough."""
        largest = max(W.shape[0] for W in self.Ws) * self.m * math.prod(self.size) ** 2
        if largest > LARGEST_MATRIX:
            return Unstructured("a convolutional OptEq too large to write out; see norms()")
        return Tied(
            tuple(conv_matrix(W.detach(), self.size) for W in self.Ws), self.sigma, self.alpha
        )
