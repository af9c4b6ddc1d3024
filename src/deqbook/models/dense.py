"""The dense models: ReLU implicit network, vanilla DEQ, monotone DEQ."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from deqbook.activations import Activation, activation, relu
from deqbook.implicit import IFT, Adjoint
from deqbook.linalg import operator_norm, symmetric_part
from deqbook.models.base import check_input, check_weights
from deqbook.models.closed_form import ClosedGradient, ClosedKernel, Tangents
from deqbook.runtime import generator, normal, signs
from deqbook.solvers import Newton, Solver
from deqbook.splitting import PeacemanRachford
from deqbook.wellposed import Affine

__all__ = ["MonDEQ", "ReLUImplicit", "VanillaDEQ", "monotone_parameters"]


class ReLUImplicit(ClosedGradient, ClosedKernel):
    r"""ReLU implicit network (gao2022; gao2023 when only W is trained).

    :math:`\phi=m^{-1/2}\varphi(Ux)`, :math:`z=\sigma(\tilde\gamma Wz+\phi)` with
    :math:`\tilde\gamma=\gamma/\sqrt m`, output :math:`a^\top z+c^\top\phi`. ``W`` is (m, m), ``U``
    (m, d), ``a`` and ``c`` (m,); ``phi`` is the activation :math:`\varphi` of the features, and
    ``train`` names the weights that get a gradient. ``ValueError`` for shapes that do not agree,
    entries that are not finite, an unknown ``phi``, and ``gamma`` that is not positive.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = ReLUImplicit(one, one, a=one[0], c=one[0], gamma=0.5)
    >>> round(model.solve(one).z.item(), 3), round(model(one).item(), 3)  # z = relu(z/2 + 1); z + φ
    (2.0, 3.0)
    >>> from deqbook.wellposed import certify
    >>> [certify(ReLUImplicit.init(m=100, d=3, gamma=g, seed=0)).holds for g in (0.3, 3.0)]
    [True, False]
    """

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        a: Tensor,
        c: Tensor,
        gamma: float,
        *,
        phi: str | Activation = relu,
        train: tuple[str, ...] = ("W", "U", "a", "c"),
    ):
        super().__init__()
        sizes = check_weights(W=(W, ("m", "m")), U=(U, ("m", "d")), a=(a, ("m",)), c=(c, ("m",)))
        if not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma!r}.")
        unknown = sorted(set(train) - {"W", "U", "a", "c"})
        if unknown:
            raise ValueError(f"train names {unknown}; the weights are W, U, a and c.")
        self.m, self.d, self.gamma = sizes["m"], sizes["d"], float(gamma)
        self.phi = activation(phi)
        self.W, self.U = (nn.Parameter(t.clone(), k in train) for t, k in ((W, "W"), (U, "U")))
        self.a, self.c = (nn.Parameter(t.clone(), k in train) for t, k in ((a, "a"), (c, "c")))

    @classmethod
    def init(
        cls, m: int, d: int, *, gamma: float, seed: int, dtype: torch.dtype = torch.float64
    ) -> ReLUImplicit:
        """Draw W, U ~ N(0, 1) and a, c = ±1 (gao2022, Assumption 1)."""
        g = generator(seed)
        W, U = normal(m, m, g=g, dtype=dtype), normal(m, d, g=g, dtype=dtype)
        return cls(W, U, signs(m, g=g, dtype=dtype), signs(m, g=g, dtype=dtype), gamma)

    @classmethod
    def init_implicit_only(
        cls,
        m: int,
        d: int,
        *,
        gamma: float,
        seed: int,
        phi: str | Activation = relu,
        dtype: torch.dtype = torch.float64,
    ) -> ReLUImplicit:
        r"""Draw the network of gao2023: no feature read-out (c = 0) and only W trained.

        That source writes the transposes: its A is our Wᵀ and its W our Uᵀ. Its :math:`\gamma`
        is our :math:`\tilde\gamma=\gamma/\sqrt m`, and its states are :math:`\sqrt m` times
        ours, by which its read-out divides: the outputs agree.
        """
        g = generator(seed)
        W, U = normal(m, m, g=g, dtype=dtype).mT, normal(d, m, g=g, dtype=dtype).mT
        a = signs(m, g=g, dtype=dtype)
        return cls(W, U, a, torch.zeros_like(a), gamma, phi=phi, train=("W",))

    @property
    def scale(self) -> float:
        r"""Return :math:`\tilde\gamma=\gamma/\sqrt m`."""
        return self.gamma / math.sqrt(self.m)

    def inject(self, x: Tensor) -> Tensor:
        """Return the features φ."""
        return self.phi(check_input(x, self.d) @ self.U.mT) / math.sqrt(self.m)

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on W."""
        return (self.W,)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return σ(γ̃ W z + φ)."""
        (W,) = weights
        return torch.addmm(q, z, W.mT, alpha=self.scale).relu_()

    def pull_to_weights(
        self, p: Tensor, z: Tensor, q: Tensor, weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return γ̃ pᵀz."""
        return ((p.mT @ z).mul_(self.scale),)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return a·z + c·φ."""
        return z @ self.a + q @ self.c

    def structure(self) -> Affine:
        """An affine ReLU cell with matrix γ̃W."""
        U, root = self.U.detach(), math.sqrt(self.m)
        return Affine(self.scale * self.W.detach(), relu, lambda: operator_norm(U) / root)

    def gradients(self, at: Tangents, e: Tensor) -> dict[str, Tensor]:
        """Return the gradient of ½‖e‖² by parameter name (gao2022.lemma2.3).

        The input weights act along two paths, the state and φ.
        """
        root = math.sqrt(self.m)
        slope_at = self.phi.slope_at
        slopes = self.phi.slope(at.x @ self.U.mT) if slope_at is None else slope_at(root * at.q)
        weighted = e[:, None] * at.v
        through = torch.addr(weighted, e, self.c).mul_(slopes)  # e ∘ (v + c) ∘ φ'
        return {
            "W": (weighted.mT @ at.z).mul_(self.scale),
            "U": (through.mT @ at.x).div_(root),
            "a": e @ at.z,
            "c": e @ at.q,
        }

    def gram_blocks(self, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
        """Return the blocks of the tangent kernel by parameter name (gao2022.lemma3.1).

        Here too the input weights act along both paths.
        """
        root = math.sqrt(self.m)
        p, r = ((k.v + self.c) * self.phi.slope(k.x @ self.U.mT) / root for k in (s, t))
        states = s.z @ t.z.mT
        return {
            "W": self.scale**2 * (s.v @ t.v.mT) * states,
            "U": (p @ r.mT) * (s.x @ t.x.mT),
            "a": states,
            "c": s.q @ t.q.mT,
        }


class _PlainCell(ClosedGradient, ClosedKernel):
    r"""What :math:`z=\sigma(Wz+Ux+b)`, output :math:`a^\top z`, shares however W is made."""

    d: int
    sigma: Activation
    U: nn.Parameter
    b: nn.Parameter | None

    def refuse_bias(self) -> None:
        """Raise ``ValueError`` if the network has a bias: the sources' theorems have none."""
        if self.b is not None:
            size = float(self.b.detach().norm())
            raise ValueError(
                f"this theorem is about networks without bias, and b has length {size:.3g}; append "
                "a 1 to every input and the column b to U."
            )

    @abstractmethod
    def matrix(self) -> Tensor:
        """Return W."""

    def inject(self, x: Tensor) -> Tensor:
        """Return Ux + b."""
        q = check_input(x, self.d) @ self.U.mT
        return q if self.b is None else q + self.b

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on W."""
        return (self.matrix(),)

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return σ(Wz + q)."""
        (W,) = weights
        return self.sigma(torch.addmm(q, z, W.mT))

    def pull_to_weights(
        self, p: Tensor, z: Tensor, q: Tensor, weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return pᵀz."""
        return (p.mT @ z,)

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Return a·z."""
        return z @ self.a

    def structure(self) -> Affine:
        """An affine cell with matrix W."""
        U = self.U.detach()
        return Affine(self.matrix().detach(), self.sigma, lambda: operator_norm(U))

    def _bias(self, b: Tensor | None) -> nn.Parameter | None:
        return None if b is None else nn.Parameter(b.clone())

    def _shared_gradients(self, at: Tangents, e: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient in the assembled W, and those of U, a and b."""
        weighted = e[:, None] * at.v
        shared = {"U": weighted.mT @ at.x, "a": e @ at.z}
        return weighted.mT @ at.z, shared | ({} if self.b is None else {"b": weighted.sum(0)})

    def _shared_blocks(self, s: Tangents, t: Tangents) -> dict[str, Tensor]:
        adjoints = s.v @ t.v.mT
        shared = {"U": adjoints * (s.x @ t.x.mT), "a": s.z @ t.z.mT}
        return shared | ({} if self.b is None else {"b": adjoints})


class VanillaDEQ(_PlainCell):
    r"""The DEQ of ling2023: :math:`z=\sigma(Wz+Ux)`, output :math:`a^\top z`.

    ``W`` is (m, m), ``U`` (m, d), ``a`` (m,). ``b`` (m,) is a bias, which the source does not
    have: :math:`z=\sigma(Wz+Ux+b)`. ``ValueError`` for shapes that do not agree, entries that are
    not finite, and an unknown ``sigma``.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = VanillaDEQ(0.5 * one, one, one[0])  # z = relu(z/2 + x)
    >>> round(model(one).item(), 3)
    2.0
    >>> VanillaDEQ.init(m=50, d=3, seed=0)(torch.ones(4, 3, dtype=torch.float64)).shape
    torch.Size([4])
    """

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        a: Tensor,
        *,
        b: Tensor | None = None,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        sizes = check_weights(
            W=(W, ("m", "m")), U=(U, ("m", "d")), a=(a, ("m",)), **_optional(b=(b, ("m",)))
        )
        self.m, self.d, self.sigma = sizes["m"], sizes["d"], activation(sigma)
        self.W, self.U, self.a = (nn.Parameter(t.clone()) for t in (W, U, a))
        self.b = self._bias(b)

    @classmethod
    def init(
        cls,
        m: int,
        d: int,
        *,
        variance: float = 0.08,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> VanillaDEQ:
        r"""Draw W ~ N(0, 2σ_w²/m), U ~ N(0, 2/d), a ~ N(0, 1/m) (ling2023, Assumption 1).

        ``variance`` is σ_w²; the assumption asks for less than 1/8.
        """
        g = generator(seed)
        W = normal(m, m, g=g, dtype=dtype) * math.sqrt(2 * variance / m)
        U = normal(m, d, g=g, dtype=dtype) * math.sqrt(2 / d)
        return cls(W, U, normal(m, g=g, dtype=dtype) / math.sqrt(m))

    def matrix(self) -> Tensor:
        """Return W."""
        return self.W

    def gradients(self, at: Tangents, e: Tensor) -> dict[str, Tensor]:
        """Return the gradient of ½‖e‖² by parameter name (ling2023.lemma2, its order corrected)."""
        gamma, shared = self._shared_gradients(at, e)
        return {"W": gamma, **shared}

    def gram_blocks(self, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
        """Return the blocks W, U, a of the kernel: H₂, H₃ and H₁ = G of ling2023, Section 3."""
        return {"W": (s.v @ t.v.mT) * (s.z @ t.z.mT), **self._shared_blocks(s, t)}


def _optional(
    **weights: tuple[Tensor | None, tuple[int | str, ...]],
) -> dict[str, tuple[Tensor, tuple[int | str, ...]]]:
    return {name: (w, shape) for name, (w, shape) in weights.items() if w is not None}


def monotone_parameters(W: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    r"""Return A, B with :math:`W=(1-\mu)I-A^\top A+B-B^\top` (nguyen2022.proposition1, converse).

    Take :math:`B=\tfrac12W` and :math:`A=S^{1/2}` with
    :math:`S=(1-\mu)I-\tfrac12(W+W^\top)\succeq0`. ``W`` is (m, m). ``ValueError`` where
    :math:`I-W\succeq\mu I` fails.

    >>> W = torch.tensor([[0.0, 5.0], [-5.0, 0.0]])  # of norm 5, and monotone with modulus 1
    >>> A, B = monotone_parameters(W, mu=0.75)
    >>> torch.allclose(0.25 * torch.eye(2) - A.mT @ A + B - B.mT, W)
    True
    >>> monotone_parameters(W, mu=1.5)
    Traceback (most recent call last):
    ValueError: I - W is not 1.5-strongly monotone: the largest modulus possible is 1. Lower mu.
    """
    eye = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
    values, vectors = torch.linalg.eigh((1 - mu) * eye - symmetric_part(W))
    if float(values[0]) < -1e-12 * max(1.0, float(values.abs().max())):
        raise ValueError(
            f"I - W is not {mu:g}-strongly monotone: the largest modulus possible is "
            f"{mu + float(values[0]):.6g}. Lower mu."
        )
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT, W / 2


class MonDEQ(_PlainCell):
    r"""Monotone DEQ (nguyen2022, Definition 3.2.1).

    :math:`z=\sigma(Wz+Ux)`, output :math:`a^\top z`, with
    :math:`W=(1-\mu)I-A^\top A+B-B^\top`, hence :math:`I-W\succeq\mu I` for all A and B.
    ``A`` and ``B`` are (m, m), ``U`` (m, d), ``a`` (m,). ``b`` (m,) is a bias, which the source
    does not have. Solved by Peaceman-Rachford splitting; plain iteration may diverge.
    ``ValueError`` for shapes that do not agree, entries that are not finite, and ``mu`` that is
    not positive.

    >>> from deqbook.solvers import Picard
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> model = MonDEQ(2**0.5 * one, 0 * one, 3 * one, one[0], mu=1.0)  # W = -2: z = relu(3 - 2z)
    >>> round(model(one).item(), 3), model.solve(one, solver=Picard(), throw=False).converged.item()
    (1.0, False)
    """

    default_solver: ClassVar[Solver] = PeacemanRachford()
    # Not a contraction, so the adjoint is solved by GMRES (restarted if need be), not iterated.
    default_adjoint: ClassVar[Adjoint] = IFT(solver=Newton("gmres", inner=60))

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        U: Tensor,
        a: Tensor,
        mu: float,
        *,
        b: Tensor | None = None,
        sigma: str | Activation = relu,
    ):
        super().__init__()
        sizes = check_weights(
            A=(A, ("m", "m")),
            B=(B, ("m", "m")),
            U=(U, ("m", "d")),
            a=(a, ("m",)),
            **_optional(b=(b, ("m",))),
        )
        if not mu > 0:
            raise ValueError(f"mu must be positive (strong monotonicity), got {mu!r}.")
        self.m, self.d, self.mu, self.sigma = sizes["m"], sizes["d"], float(mu), activation(sigma)
        self.A, self.B, self.U, self.a = (nn.Parameter(t.clone()) for t in (A, B, U, a))
        self.b = self._bias(b)

    @classmethod
    def init(
        cls, m: int, d: int, *, mu: float = 0.5, seed: int, dtype: torch.dtype = torch.float64
    ) -> MonDEQ:
        """Draw A, B ~ ½N(0, 1/m), U ~ N(0, 1), a ~ N(0, 1/m); the source names no distribution."""
        g = generator(seed)
        A, B = (0.5 * normal(m, m, g=g, dtype=dtype) / math.sqrt(m) for _ in range(2))
        U = normal(m, d, g=g, dtype=dtype)
        return cls(A, B, U, normal(m, g=g, dtype=dtype) / math.sqrt(m), mu)

    @property
    def W(self) -> Tensor:
        """Return (1-μ)I - AᵀA + B - Bᵀ."""
        eye = torch.eye(self.m, dtype=self.A.dtype, device=self.A.device)
        return (1 - self.mu) * eye - self.A.mT @ self.A + self.B - self.B.mT

    def matrix(self) -> Tensor:
        """Return the assembled W."""
        return self.W

    def gradients(self, at: Tangents, e: Tensor) -> dict[str, Tensor]:
        """Return the gradient of ½‖e‖² by parameter name (nguyen2022.lemma3.2.3).

        With Γ the gradient in W, A gets -A(Γ+Γᵀ) and B gets Γ-Γᵀ.
        """
        gamma, shared = self._shared_gradients(at, e)
        return {"A": -self.A @ (gamma + gamma.mT), "B": gamma - gamma.mT, **shared}

    def gram_blocks(self, s: Tangents, t: Tangents) -> Mapping[str, Tensor]:
        """Return the blocks of the tangent kernel by parameter name.

        nguyen2022.proposition4, with the Kronecker products multiplied out.
        """
        vv, zz, vz, zv = s.v @ t.v.mT, s.z @ t.z.mT, s.v @ t.z.mT, s.z @ t.v.mT
        Av, Az, Bv, Bz = s.v @ self.A.mT, s.z @ self.A.mT, t.v @ self.A.mT, t.z @ self.A.mT
        return {
            "A": vv * (Az @ Bz.mT) + zz * (Av @ Bv.mT) + vz * (Az @ Bv.mT) + zv * (Av @ Bz.mT),
            "B": 2 * (vv * zz - vz * zv),
            **self._shared_blocks(s, t),
        }
