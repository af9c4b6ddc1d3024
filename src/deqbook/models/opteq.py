"""OptEq: layers that are proximal maps, so equilibria solve optimisation problems (xie2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel, check_input, check_weights
from deqbook.runtime import generator, normal
from deqbook.wellposed import Tied

__all__ = ["DeepOptEq", "OptEq"]


class DeepOptEq(EquilibriumModel):
    r"""Deep OptEq: :math:`z=f_L\circ\dots\circ f_1(z)`, output :math:`Vz`.

    Each layer is
    :math:`f_l(z)=\alpha W_l^\top\sigma(W_lz+U_lx+b_l)+(1-\alpha)z`: the same matrix before and
    after the activation, and a skip connection of weight :math:`1-\alpha`.
    """

    def __init__(
        self,
        Ws: Sequence[Tensor],
        Us: Sequence[Tensor],
        bs: Sequence[Tensor],
        V: Tensor,
        *,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        if not len(Ws) == len(Us) == len(bs) > 0:
            raise ValueError(
                f"one W, U and b per layer, at least one: got {len(Ws)}, {len(Us)}, {len(bs)}."
            )
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}.")
        weights: dict[str, tuple[Tensor, tuple[int | str, ...]]] = {"V": (V, ("k", "m"))}
        for i, (W, U, b) in enumerate(zip(Ws, Us, bs), start=1):
            weights[f"W{i}"] = (W, (f"h{i}", "m"))
            weights[f"U{i}"] = (U, (f"h{i}", "d"))
            weights[f"b{i}"] = (b, (f"h{i}",))
        sizes = check_weights(**weights)
        self.m, self.d, self.alpha, self.sigma = sizes["m"], sizes["d"], alpha, activation(sigma)
        self.Ws, self.Us, self.bs = (
            nn.ParameterList([nn.Parameter(t.clone()) for t in ts]) for ts in (Ws, Us, bs)
        )
        self.V = nn.Parameter(V.clone())

    @classmethod
    def init_deep(
        cls,
        m: int,
        d: int,
        *,
        widths: Sequence[int],
        k: int = 1,
        norm: float = 0.7,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> DeepOptEq:
        """Draw standard normal W_l rescaled to ‖W_l‖ = norm, U_l ~ N(0, 1/d), b_l = 0."""
        g = generator(seed)
        Ws, Us, bs = _draw(m, d, widths, norm, g, dtype)
        V = normal(k, m, g=g, dtype=dtype) / math.sqrt(m)
        return DeepOptEq(Ws, Us, bs, V, alpha=alpha, sigma=sigma)

    def inject(self, x: Tensor) -> Tensor:
        """Return the injections U_l x + b_l of all layers side by side."""
        x = check_input(x, self.d)
        return torch.cat([x @ U.mT + b for U, b in zip(self.Us, self.bs)], dim=1)

    def start(self, q: Tensor) -> Tensor:
        """Return the zero state."""
        return q.new_zeros(q.shape[0], self.m)

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on all W_l."""
        return tuple(self.Ws)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return f_L ∘ … ∘ f_1 (z)."""
        for W, part in zip(weights, q.split([W.shape[0] for W in weights], dim=1)):
            z = self.alpha * self.sigma(z @ W.mT + part) @ W + (1 - self.alpha) * z
        return z

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return Vz."""
        return z @ self.V.mT

    def structure(self) -> Tied:
        """Tied layers with skip weight α."""
        Us = [U.detach() for U in self.Us]

        def inputs() -> tuple[float, ...]:
            return tuple(operator_norm(U) for U in Us)

        return Tied(tuple(W.detach() for W in self.Ws), self.sigma, self.alpha, inputs)


class OptEq(DeepOptEq):
    r"""One-layer OptEq: :math:`z=W^\top\sigma(Wz+Ux+b)`, output :math:`Vz`."""

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        b: Tensor,
        V: Tensor,
        *,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__([W], [U], [b], V, alpha=alpha, sigma=sigma)

    @property
    def W(self) -> Tensor:
        """Return the tied matrix (h, m)."""
        return self.Ws[0]

    @classmethod
    def init(
        cls,
        m: int,
        d: int,
        *,
        width: int | None = None,
        k: int = 1,
        norm: float = 0.7,
        alpha: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> OptEq:
        """Draw a standard normal W rescaled to ‖W‖ = norm, U ~ N(0, 1/d), b = 0."""
        g = generator(seed)
        (W,), (U,), (b,) = _draw(m, d, [width or m], norm, g, dtype)
        V = normal(k, m, g=g, dtype=dtype) / math.sqrt(m)
        return cls(W, U, b, V, alpha=alpha, sigma=sigma)


def _draw(
    m: int, d: int, widths: Sequence[int], norm: float, g: torch.Generator, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    Ws, Us, bs = [], [], []
    for h in widths:
        W = normal(h, m, g=g, dtype=dtype)
        Ws.append(W * (norm / operator_norm(W)))
        Us.append(normal(h, d, g=g, dtype=dtype) / math.sqrt(d))
        bs.append(torch.zeros(h, dtype=dtype))
    return Ws, Us, bs
