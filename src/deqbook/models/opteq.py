"""OptEq: layers that are proximal maps, so equilibria solve optimisation problems (xie2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deqbook.activations import Activation, activation, relu
from deqbook.implicit import IFT
from deqbook.linalg import operator_norm
from deqbook.models.base import EquilibriumModel, check_input, check_weights
from deqbook.models.closed_form import ClosedKernel, Tangents
from deqbook.runtime import generator, normal
from deqbook.solvers import fixed_point
from deqbook.wellposed import Tied

__all__ = ["DeepOptEq", "Layer", "OptEq", "check_layers"]


@dataclass(frozen=True)
class Layer:
    """One tied layer at a state: its weights, input, activations and slopes.

    ``W`` is (h, m), ``z`` (n, m), ``h`` and ``slopes`` (n, h). Made by ``DeepOptEq.layers``.

    >>> model, x = OptEq.init(m=3, d=2, width=5, seed=0), torch.ones(4, 2, dtype=torch.float64)
    >>> (layer,) = model.layers(model.solve(x).z, model.inject(x))
    >>> layer.h.shape, torch.equal(layer.slopes, (layer.h > 0).double())
    (torch.Size([4, 5]), True)
    """

    W: Tensor
    z: Tensor
    h: Tensor
    slopes: Tensor


class DeepOptEq(EquilibriumModel, ClosedKernel):
    r"""Deep OptEq: :math:`z=f_L\circ\dots\circ f_1(z)`, output :math:`Vz`.

    Each layer is
    :math:`f_l(z)=\tfrac\alpha\tau W_l^\top\sigma(W_lz+U_lx+b_l)+(1-\alpha)z`: the same matrix
    before and after the activation, a divisor :math:`\tau` (1 by default) and a skip connection of
    weight :math:`1-\alpha`. ``Ws`` are (n_l, m), ``Us`` (n_l, d), ``bs`` (n_l,), ``V`` (k, m). A
    network without input has U of shape (n_l, 0) and x of shape (n, 0). ``ValueError`` for shapes
    that do not agree, entries that are not finite, ``alpha`` outside (0, 1], and ``tau`` that is
    not positive.

    >>> W, U, b = torch.ones(1, 1).double(), 2 * torch.ones(1, 1).double(), torch.zeros(1).double()
    >>> model = DeepOptEq([W, W], [U, U], [b, b], V=W, alpha=0.5, tau=2.0)
    >>> round(model(torch.ones(1, 1).double()).item(), 3)  # layers z/2 + relu(z + 2)/4
    2.0
    >>> DeepOptEq.init_deep(m=3, d=2, widths=[4, 5], k=2, seed=0)(torch.ones(6, 2).double()).shape
    torch.Size([6, 2])
    """

    def __init__(
        self,
        Ws: Sequence[Tensor],
        Us: Sequence[Tensor],
        bs: Sequence[Tensor],
        V: Tensor,
        *,
        alpha: float = 1.0,
        tau: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        check_layers(Ws, Us, bs, alpha)
        if not tau > 0:
            raise ValueError(f"tau divides the layer and must be positive, got {tau!r}.")
        weights: dict[str, tuple[Tensor, tuple[int | str, ...]]] = {"V": (V, ("k", "m"))}
        for i, (W, U, b) in enumerate(zip(Ws, Us, bs), start=1):
            weights[f"W{i}"] = (W, (f"h{i}", "m"))
            weights[f"U{i}"] = (U, (f"h{i}", "d"))
            weights[f"b{i}"] = (b, (f"h{i}",))
        sizes = check_weights(**weights)
        self.m, self.d, self.sigma = sizes["m"], sizes["d"], activation(sigma)
        self.alpha, self.tau = alpha, tau
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
        tau: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> DeepOptEq:
        """Draw standard normal W_l rescaled to ‖W_l‖ = norm, U_l ~ N(0, 1/d), b_l = 0."""
        g = generator(seed)
        Ws, Us, bs = _draw(m, d, widths, norm, g, dtype)
        V = normal(k, m, g=g, dtype=dtype) / math.sqrt(m)
        return DeepOptEq(Ws, Us, bs, V, alpha=alpha, tau=tau, sigma=sigma)

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
        scale = self.alpha / self.tau
        for W, part in zip(weights, q.split([W.shape[0] for W in weights], dim=1)):
            z = scale * self.sigma(z @ W.mT + part) @ W + (1 - self.alpha) * z
        return z

    def layers(self, z: Tensor, q: Tensor) -> list[Layer]:
        """Return the layers, walked through from the state z; ``.z`` are their inputs."""
        found, scale = [], self.alpha / self.tau
        for W, part in zip(self.Ws, q.split([W.shape[0] for W in self.Ws], dim=1)):
            pre = z @ W.mT + part
            h = self.sigma(pre)
            found.append(Layer(W, z, h, self.sigma.slope(pre)))
            z = scale * h @ W + (1 - self.alpha) * z
        return found

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return Vz."""
        return z @ self.V.mT

    def structure(self) -> Tied:
        """Tied layers with skip weight α."""
        Us = [U.detach() for U in self.Us]

        def inputs() -> tuple[float, ...]:
            return tuple(operator_norm(U) for U in Us)

        Ws = tuple(W.detach() for W in self.Ws)
        return Tied(Ws, self.sigma, self.alpha, inputs, tau=self.tau)

    def adjoints(self, z: Tensor, q: Tensor, *, tol: float | None = None) -> Tensor:
        r"""Solve :math:`v=J_1\cdots J_Lv+V_o`, one v for every output o of every sample.

        Each :math:`J_l=\tfrac\alpha\tau W_l^\top D_lW_l+(1-\alpha)I`.
        """
        layers, source = self._repeated(z, q), self.V.detach().repeat(len(z), 1)
        scale = self.alpha / self.tau

        def back(v: Tensor) -> Tensor:
            for layer in reversed(layers):
                v = scale * (layer.slopes * (v @ layer.W.mT)) @ layer.W + (1 - self.alpha) * v
            return source + v

        own = self.default_adjoint
        solver = own.solver if isinstance(own, IFT) else None
        with torch.no_grad():
            return fixed_point(back, source, solver=solver, tol=tol, max_steps=2000).z

    def gram_blocks(self, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
        r"""Return the blocks of the tangent kernel, (nk, pk), by parameter name.

        Tied layers use W twice: :math:`\partial\hat y/\partial W_l=ch p^\top+rz^\top`. Here
        :math:`c=\alpha/\tau`, p is the cotangent of the layer's output and r that of its
        pre-activation.
        """
        outputs, c = self.V.shape[0], self.alpha / self.tau
        x, y = (k.x.repeat_interleave(outputs, dim=0) for k in (s, t))
        same = torch.eye(outputs, dtype=s.z.dtype, device=s.z.device)
        blocks = {"V": torch.kron(s.z @ t.z.mT, same)}
        for i, ((a, q, p), (b, r, o)) in enumerate(zip(self._pulled(s), self._pulled(t))):
            both = p @ o.mT
            blocks[f"Ws.{i}"] = (
                c**2 * (a.h @ b.h.mT) * (q @ r.mT)
                + c * (a.h @ o.mT) * (q @ b.z.mT)
                + c * (p @ b.h.mT) * (a.z @ r.mT)
                + both * (a.z @ b.z.mT)
            )
            blocks[f"Us.{i}"] = both * (x @ y.mT)
            blocks[f"bs.{i}"] = both
        return blocks

    def _repeated(self, z: Tensor, q: Tensor) -> list[Layer]:
        """Return the layers with rows repeated, one per output of a sample."""
        outputs = self.V.shape[0]
        return self.layers(*(t.repeat_interleave(outputs, dim=0) for t in (z, q)))

    def _pulled(self, t: Tangents) -> list[tuple[Layer, Tensor, Tensor]]:
        """Return, for every layer, the cotangents of its output and of its pre-activation."""
        found, q = [], t.v
        for layer in reversed(self._repeated(t.z, t.q)):
            p = self.alpha / self.tau * layer.slopes * (q @ layer.W.mT)
            found.append((layer, q, p))
            q = p @ layer.W + (1 - self.alpha) * q
        return found[::-1]


class OptEq(DeepOptEq):
    r"""One-layer OptEq: :math:`z=\tfrac1\tau W^\top\sigma(Wz+Ux+b)`, output :math:`Vz`.

    ``W`` is (h, m), ``U`` (h, d), ``b`` (h,), ``V`` (k, m). A skip connection of weight
    :math:`1-\alpha` does not move the equilibrium. ``ValueError`` as for ``DeepOptEq``.

    >>> W, U, b = torch.ones(1, 1).double(), 2 * torch.ones(1, 1).double(), torch.zeros(1).double()
    >>> model = OptEq(W, U, b, V=W, tau=2.0)
    >>> round(model(torch.ones(1, 1).double()).item(), 3)  # z = relu(z + 2)/2
    2.0
    """

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        b: Tensor,
        V: Tensor,
        *,
        alpha: float = 1.0,
        tau: float = 1.0,
        sigma: str | Activation = relu,
    ):
        super().__init__([W], [U], [b], V, alpha=alpha, tau=tau, sigma=sigma)

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
        tau: float = 1.0,
        sigma: str | Activation = relu,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> OptEq:
        """Draw a standard normal W rescaled to ‖W‖ = norm, U ~ N(0, 1/d), b = 0."""
        g = generator(seed)
        (W,), (U,), (b,) = _draw(m, d, [width or m], norm, g, dtype)
        V = normal(k, m, g=g, dtype=dtype) / math.sqrt(m)
        return cls(W, U, b, V, alpha=alpha, tau=tau, sigma=sigma)


def check_layers(
    Ws: Sequence[Tensor], Us: Sequence[Tensor], bs: Sequence[Tensor], alpha: float
) -> None:
    """Check that there is one W, U and b per layer, and a skip weight 1 - α in [0, 1).

    ``ValueError`` if not.

    >>> check_layers([torch.eye(2)], [], [torch.ones(2)], alpha=1.0)
    Traceback (most recent call last):
    ValueError: one W, U and b per layer, at least one: got 1, 0, 1.
    """
    if not len(Ws) == len(Us) == len(bs) > 0:
        raise ValueError(
            f"one W, U and b per layer, at least one: got {len(Ws)}, {len(Us)}, {len(bs)}."
        )
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be in (0, 1], got {alpha!r}.")


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
