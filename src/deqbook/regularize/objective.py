r"""The function that a tied layer hides (xie2022, Sections 2 and 3).

A unit layer :math:`f(z)=\tfrac1\tau W^\top\sigma(Wz+q)` is the gradient of

.. math:: \psi(z)=\tfrac1\tau\mathbf 1^\top\tilde\sigma(Wz+q),\qquad\tilde\sigma(t)=\int_0^t\sigma,

and, if :math:`L_\sigma\|W\|^2\le\tau`, the proximal map of the convex function

.. math:: \varphi(z)=\psi^*(z)-\tfrac12\|z\|^2=\min\big\{\tfrac1\tau(\mathbf 1^\top\tilde\sigma^*(s)
          -q^\top s):\ W^\top s=\tau z\big\}-\tfrac12\|z\|^2 .

Nothing here runs the network. For ReLU everything is a quadratic problem in a *code*
:math:`s\ge0` with :math:`z=\tfrac1\tau W^\top s`, solved exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from deqbook.activations import Activation, activation, relu
from deqbook.linalg import operator_norm
from deqbook.regularize.proximal import Moreau

__all__ = [
    "HiddenObjective",
    "Minimum",
    "NoMinimiser",
    "Potential",
    "nonnegative_qp",
    "potential",
]

ROUNDING = 1e-12  # L_σ‖W‖² within this of τ counts as equal
DOMAIN = 1e-9  # a code outside the domain by less than this (relative) counts as on its edge


# --- activations, integrated -------------------------------------------------------------------


@dataclass(frozen=True)
class Potential:
    r"""The integral :math:`\tilde\sigma` of an activation and its conjugate, entry by entry.

    ``limits`` is the closed interval on which the conjugate is finite.

    >>> potential(relu).conjugate(torch.tensor([-1.0, 2.0])).tolist()
    [inf, 2.0]
    """

    value: Callable[[Tensor], Tensor]
    conjugate: Callable[[Tensor], Tensor]
    limits: tuple[float, float]


def _log_cosh(t: Tensor) -> Tensor:
    return t.abs() + torch.log1p(torch.exp(-2 * t.abs())) - math.log(2)


def _entropy(s: Tensor) -> Tensor:
    inner = s.clamp(-1, 1)
    value = (torch.xlogy(1 + inner, 1 + inner) + torch.xlogy(1 - inner, 1 - inner)) / 2
    return torch.where(s.abs() <= 1, value, math.inf)


_POTENTIALS = {
    "relu": Potential(
        lambda t: torch.relu(t) ** 2 / 2,
        lambda s: torch.where(s >= 0, s**2 / 2, math.inf),
        (0.0, math.inf),
    ),
    "tanh": Potential(_log_cosh, _entropy, (-1.0, 1.0)),
    "identity": Potential(lambda t: t**2 / 2, lambda s: s**2 / 2, (-math.inf, math.inf)),
}


def potential(sigma: Activation) -> Potential:
    r"""Return :math:`\tilde\sigma` and :math:`\tilde\sigma^*` of a known activation.

    Known are ReLU, tanh and the identity; another is a ``ValueError``.

    >>> potential(relu).value(torch.tensor([-1.0, 2.0])).tolist(), potential(relu).limits
    ([0.0, 2.0], (0.0, inf))
    """
    if sigma.name not in _POTENTIALS:
        raise ValueError(
            f"the integral of {sigma.name!r} and its conjugate are not known here; "
            f"choose one of {sorted(_POTENTIALS)}."
        )
    return _POTENTIALS[sigma.name]


# --- quadratic problems over s ≥ 0 -------------------------------------------------------------


def nonnegative_qp(H: Tensor, g: Tensor, *, max_steps: int = 1000) -> tuple[Tensor, int]:
    r"""Return :math:`\arg\min_{s\ge0}\tfrac12s^\top Hs-g^\top s` for a positive definite H.

    The solution is :math:`s_S=H_{SS}^{-1}g_S` for the right set S of positive entries. A step
    exchanges all entries that are on the wrong side: semismooth Newton, which usually ends after
    two or three steps but can cycle. When the number of wrong entries has not fallen for three
    steps, only the last of them is exchanged (Murty's rule), which cannot cycle. So the method is
    exact and finite. H is (h, h), g (h,). Returns the solution and the number of linear solves;
    ``RuntimeError`` after ``max_steps`` of them, as for an indefinite H.

    >>> H = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    >>> s, solves = nonnegative_qp(H, torch.tensor([2.0, -1.0], dtype=torch.float64))
    >>> s.round(decimals=6).tolist(), solves
    ([1.0, 0.0], 1)
    """
    on, fewest, patience = g > 0, len(g) + 1, 3
    for step in range(1, max_steps + 1):
        s = torch.zeros_like(g)
        if bool(on.any()):
            s[on] = torch.linalg.solve(H[on][:, on], g[on])
        pull = H @ s - g  # must be ≥ 0 where s = 0
        noise = 1e-13 * (float(H.abs().max() * s.abs().max()) + float(g.abs().max()))
        wrong = (on & (s < -noise)) | (~on & (pull < -noise))
        count = int(wrong.sum())
        if count == 0:
            return s.clamp(min=0.0), step
        if count < fewest:
            fewest, patience = count, 3
        else:
            patience -= 1
        if patience < 0:
            last = int(wrong.nonzero()[-1])
            wrong = torch.zeros_like(wrong)
            wrong[last] = True
        on = on ^ wrong
    raise RuntimeError(
        f"no solution after {max_steps} exchanges: the matrix is singular or indefinite "
        f"(least eigenvalue {float(torch.linalg.eigvalsh(H)[0]):.1e}), or max_steps is too small."
    )


# --- the hidden objective ----------------------------------------------------------------------


class NoMinimiser(ValueError):
    """Raised when φ has no minimiser, so that the layer has no equilibrium.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> try:
    ...     HiddenObjective(one, one[0]).minimiser()  # z = relu(z + 1)
    ... except NoMinimiser as reason:
    ...     print(str(reason)[:32])
    ‖W‖² = τ and φ falls without end
    """


@dataclass(frozen=True)
class Minimum:
    r"""A minimiser of φ: the state z, its code s with :math:`z=\tfrac1\tau W^\top s`, φ(z).

    ``status`` is "unique" when :math:`L_\sigma\|W\|^2<\tau`, else "exists": at equality there may
    be other minimisers. ``steps`` counts linear solves.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> found = HiddenObjective(one, one[0], tau=2.0).minimiser()
    >>> found.s.round(decimals=6).tolist(), round(found.value, 6), found.status
    ([2.0], -0.5, 'unique')
    """

    z: Tensor
    s: Tensor
    value: float
    status: str
    steps: int


@dataclass(frozen=True, init=False)
class HiddenObjective:
    r"""φ of the layer :math:`f(z)=\tfrac1\tau W^\top\sigma(Wz+q)`, W (h, m), for one injection q.

    ``value`` and ``prox`` act on rows, so ``Moreau(objective, gamma)`` is the envelope
    :math:`M_\varphi^\gamma` with its gradient. φ is convex iff the layer is a proximal map, which
    :math:`L_\sigma\|W\|^2\le\tau` guarantees (``proximal``); ``value`` is defined in any case.
    States are (m,) or rows of it, codes (h,) likewise. ``ValueError`` for other shapes, for a tau
    that is not positive and finite, and for an activation that ``potential`` does not know.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> phi = HiddenObjective(one, one[0], tau=2.0)  # z = relu(z + 1)/2 at z = 1
    >>> phi.proximal, phi.minimiser().z.round(decimals=6).tolist()
    (True, [1.0])
    >>> z = torch.tensor([[3.0], [-1.0]], dtype=torch.float64)
    >>> phi.prox(z).tolist() == phi.layer(z).tolist() == [[2.0], [0.0]]
    True
    >>> phi.value(z).round(decimals=6).tolist()  # no code reaches -1
    [1.5, inf]
    """

    W: Tensor
    q: Tensor
    tau: float
    sigma: Activation

    def __init__(self, W: Tensor, q: Tensor, tau: float = 1.0, sigma: str | Activation = relu):
        if W.ndim != 2 or q.shape != W.shape[:1]:
            raise ValueError(
                f"W must be (h, m) and q (h,), got {tuple(W.shape)} and {tuple(q.shape)}; "
                "the injection of one sample is one row of inject(x)."
            )
        if not 0 < tau < math.inf:
            raise ValueError(f"tau must be positive and finite, got {tau!r}.")
        act = activation(sigma)
        potential(act)
        # W and q become numbers, not parameters: SciPy cannot follow a gradient.
        fields = {"W": W.detach(), "q": q.detach(), "tau": tau, "sigma": act}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @cached_property
    def excess(self) -> float:
        r"""Return :math:`L_\sigma\|W\|^2/\tau`, at most 1 for a proximal map."""
        return self.sigma.lipschitz * operator_norm(self.W) ** 2 / self.tau

    @property
    def proximal(self) -> bool:
        """Whether the layer is certified to be a proximal map."""
        return self.excess <= 1 + ROUNDING

    def layer(self, z: Tensor) -> Tensor:
        r"""Return :math:`\tfrac1\tau W^\top\sigma(Wz+q)`: the network, for comparison."""
        return self.sigma(z @ self.W.mT + self.q) @ self.W / self.tau

    def psi(self, z: Tensor) -> Tensor:
        r"""Return :math:`\psi(z)=\tfrac1\tau\mathbf 1^\top\tilde\sigma(Wz+q)`; ∇ψ = f."""
        return potential(self.sigma).value(z @ self.W.mT + self.q).sum(-1) / self.tau

    def code_value(self, s: Tensor) -> Tensor:
        r"""Return :math:`\tfrac1\tau(\mathbf 1^\top\tilde\sigma^*(s)-q^\top s)-\tfrac12\|z\|^2`.

        Here :math:`z=\tfrac1\tau W^\top s`. It is φ(z) for the best code of z, and no smaller for
        any other.
        """
        z = s @ self.W / self.tau
        inner = potential(self.sigma).conjugate(s).sum(-1) - s @ self.q
        return inner / self.tau - z.square().sum(-1) / 2

    def value(self, z: Tensor) -> Tensor:
        """Return φ for every row; infinity where no code reaches z.

        ``RuntimeError`` for tanh with many codes and a state too near the edge of the domain.
        """
        rows = z.reshape(-1, self.W.shape[1])
        if self._kernel.shape[1] == 0:  # at most one code for each state: φ is explicit
            s, reached = self._least_code(rows)
            s, inside = _clip(s, potential(self.sigma).limits)
            found = torch.where(reached & inside, self.code_value(s), math.inf)
        else:
            found = torch.stack([self._inner_minimum(row) for row in rows])
        return found.reshape(z.shape[:-1])

    def prox(self, z: Tensor, step: float = 1.0) -> Tensor:
        r"""Return :math:`\mathrm{prox}_{t\varphi}` of every row, t the step, for ReLU.

        By the quadratic problem in the code,
        :math:`\min_{s\ge0}t\,\varphi(\tfrac1\tau W^\top s)+\tfrac12\|\tfrac1\tau W^\top s-z\|^2`.
        ``ValueError`` for another activation, a layer that is not ``proximal``, or a step that is
        not positive and finite.
        """
        self._need_quadratic("prox")
        if not 0 < step < math.inf:
            raise ValueError(f"a proximal step must be positive and finite, got {step!r}.")
        rows = z.reshape(-1, self.W.shape[1])
        H = step * self._hessian + self._gram
        found = [nonnegative_qp(H, step * self.q + self.W @ row)[0] for row in rows]
        return (torch.stack(found) @ self.W / self.tau).reshape(z.shape)

    def envelope(self, gamma: float) -> Moreau:
        r"""Return the Moreau envelope :math:`M_\varphi^\gamma`, with value, gradient and prox."""
        return Moreau(self, gamma)

    def minimiser(self) -> Minimum:
        r"""Minimise φ exactly, for ReLU: the minimisers are the equilibria of the layer.

        In the code, :math:`\min_{s\ge0}\tfrac12s^\top(I-\tfrac1\tau WW^\top)s-q^\top s`.
        ``NoMinimiser`` if :math:`\|W\|^2=\tau` and φ is unbounded below; ``ValueError`` for another
        activation or a layer that is not ``proximal``.
        """
        self._need_quadratic("minimiser")
        if self.excess < 1 - ROUNDING:
            s, steps = nonnegative_qp(self._hessian, self.q)
            return self._minimum(s, "unique", steps)
        self._need_bounded()
        return self._proximal_points()

    def _proximal_points(self, weight: float = 1e-3, max_steps: int = 1000) -> Minimum:
        r"""Minimise φ where its Hessian H in the code is singular.

        A problem that is bounded below has a solution (Frank and Wolfe). Proximal point steps
        find one; each solves a definite problem with :math:`H+wI`, and a few are enough.

        The step :math:`s\to s'` leaves the residual :math:`q-Hs'=w(s'-s)` in the entries that are
        on. It cannot be computed to better than a few :math:`\varepsilon(\|q\|+\|s\|)` per
        entry, as :math:`\|H\|\le1`, so a move of that size over w is rounding, and the end.
        """
        s, total = torch.zeros_like(self.q), 0
        H = self._hessian + weight * torch.eye(len(s), dtype=s.dtype)
        few = 4 * len(s) * torch.finfo(s.dtype).eps
        for _ in range(max_steps):
            new, steps = nonnegative_qp(H, self.q + weight * s)
            total, moved, s = total + steps, float((new - s).norm()), new
            if weight * moved <= few * float(self.q.norm() + s.norm()):
                return self._minimum(s, "exists", total)
        raise RuntimeError(
            f"the proximal point method did not settle in {max_steps} steps "
            f"(last move {moved:.1e})."
        )

    # --- what the methods share ---

    @cached_property
    def _gram(self) -> Tensor:
        return self.W @ self.W.mT / self.tau

    @cached_property
    def _hessian(self) -> Tensor:
        return torch.eye(len(self.q), dtype=self.q.dtype) - self._gram

    @cached_property
    def _pseudo_inverse(self) -> Tensor:
        return torch.linalg.pinv(self.W.mT)

    @cached_property
    def _kernel(self) -> Tensor:
        """An orthonormal basis of the codes with Wᵀs = 0, in columns."""
        left, values, _ = torch.linalg.svd(self.W)
        floor = max(self.W.shape) * torch.finfo(self.W.dtype).eps * float(values[0])
        return left[:, int((values > floor).sum()) :]

    def _least_code(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shortest s with Wᵀs = τz for every row, and whether there is one."""
        s = self.tau * rows @ self._pseudo_inverse.mT
        gap = (s @ self.W - self.tau * rows).norm(dim=-1)
        return s, gap <= DOMAIN * (1 + self.tau * rows.norm(dim=-1))

    def _inner_minimum(self, z: Tensor) -> Tensor:
        """Return φ(z) where many codes lead to z."""
        least, reached = self._least_code(z[None])
        if not bool(reached):
            return z.new_tensor(math.inf)
        best = _BEST_CODE[self.sigma.name](self, least[0])
        return z.new_tensor(math.inf) if best is None else self.code_value(best)

    def _minimum(self, s: Tensor, status: str, steps: int) -> Minimum:
        return Minimum(s @ self.W / self.tau, s, float(self.code_value(s)), status, steps)

    def _need_quadratic(self, what: str) -> None:
        if self.sigma.name != "relu":
            raise ValueError(
                f"{what} solves a quadratic problem and is for ReLU, not {self.sigma.name}; "
                "minimise code_value(s) with a general solver instead."
            )
        if not self.proximal:
            norm = operator_norm(self.W)
            raise ValueError(
                f"‖W‖ = {norm:.6g} exceeds √τ = {math.sqrt(self.tau):.6g}: the layer is not "
                "certified to be a proximal map, φ need not be convex, and a fixed point need not "
                "minimise it. "
                f"Divide W by {norm / math.sqrt(self.tau):.6g} or raise tau to {norm**2:.6g}."
            )

    def _need_bounded(self) -> None:
        """Raise if φ decreases for ever along a code d ≥ 0 with no curvature and qᵀd > 0."""
        values, vectors = torch.linalg.eigh(self._hessian)
        curved = vectors[:, values > 1e-10].mT.numpy()
        found = scipy.optimize.linprog(
            -self.q.numpy(),
            A_eq=curved if len(curved) else None,
            b_eq=np.zeros(len(curved)) if len(curved) else None,
            bounds=(0.0, 1.0),
        )
        if found.status != 0:
            raise RuntimeError(f"the test for a minimiser failed: {found.message}")
        if -found.fun > 1e-9 * max(1.0, float(self.q.abs().max())):
            raise NoMinimiser(
                f"‖W‖² = τ and φ falls without end along the code {np.round(found.x, 3)}: the "
                "layer has no equilibrium. Make ‖W‖ smaller, or tau larger."
            )


def _clip(s: Tensor, limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Move codes that rounding put outside the domain back to its edge; say which rows are in."""
    near = s.clamp(*limits)
    room = DOMAIN * (1 + s.abs().amax(dim=-1, keepdim=True))
    return near, ((s - near).abs() <= room).all(-1)


def _relu_code(phi: HiddenObjective, least: Tensor) -> Tensor | None:
    r"""Return the s ≥ 0 with :math:`W^\top s=\tau z` that is nearest to q, or None.

    With an orthonormal basis N of the kernel, :math:`s=s_1+Nv` where :math:`s_1` is nearest among
    all codes, of any sign. The least v with :math:`Nv\ge-s_1` comes from a nonnegative least
    squares problem (Lawson and Hanson's least distance programming).
    """
    N = phi._kernel
    nearest = least + N @ (N.mT @ (phi.q - least))
    if bool((nearest >= 0).all()):
        return nearest
    scale = float(nearest.abs().max())
    for slack in (0.0, DOMAIN):  # a state on the edge of the domain may be off by rounding
        edge = -(nearest.numpy() / scale + slack)
        E = np.vstack([N.mT.numpy(), edge])
        target = np.zeros(len(E))
        target[-1] = 1.0
        weights, size = scipy.optimize.nnls(E, target)
        if size > 1e-7:  # else ‖v‖ would exceed 1e7 times the scale: no such v
            r = E @ weights - target
            v = torch.as_tensor(-r[:-1] / r[-1], dtype=N.dtype)
            return (nearest + scale * (N @ v)).clamp(min=0.0)
    return None


def _tanh_code(phi: HiddenObjective, least: Tensor) -> Tensor | None:
    r"""Return :math:`s=\tanh(W\lambda+q)` with :math:`W^\top s=\tau z`, or None.

    A code with entries in [-1, 1] exists iff the least possible largest entry is at most 1, a
    linear programme; then Newton's method maximises the concave dual
    :math:`\tau\langle z,\lambda\rangle-\mathbf 1^\top\log\cosh(W\lambda+q)`.
    """
    W, target = phi.W, least @ phi.W
    h, m = W.shape
    ones = np.ones((h, 1))
    box = np.block([[np.eye(h), -ones], [-np.eye(h), -ones]])
    cost = np.append(np.zeros(h), 1.0)
    found = scipy.optimize.linprog(
        cost,
        A_ub=box,
        b_ub=np.zeros(2 * h),
        A_eq=np.hstack([W.mT.numpy(), np.zeros((m, 1))]),
        b_eq=target.numpy(),
        bounds=(None, None),
    )
    if found.status != 0 or found.fun > 1 + DOMAIN:
        return None
    basis = torch.linalg.svd(W, full_matrices=False)[2]
    basis = basis[: h - phi._kernel.shape[1]]
    lam = torch.zeros(len(basis), dtype=W.dtype)
    A, goal = W @ basis.mT, basis @ target

    def dual(x: Tensor) -> float:
        return float(goal @ x - _log_cosh(A @ x + phi.q).sum())

    for _ in range(200):
        s = torch.tanh(A @ lam + phi.q)
        gradient = goal - A.mT @ s
        if float(gradient.norm()) <= 1e-13 * (1 + float(goal.norm())):
            return s
        curvature = A.mT @ ((1 - s**2)[:, None] * A)
        direction = torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]
        now, rise, length = dual(lam), float(gradient @ direction), 1.0
        noise = 1e-13 * (1 + abs(now))  # near the end the rise is below what can be seen
        while dual(lam + length * direction) < now + 1e-4 * length * rise - noise:
            length /= 2
        lam = lam + length * direction
    if float(gradient.norm()) <= DOMAIN * (1 + float(goal.norm())):
        return s
    raise RuntimeError(
        f"the state lies within {abs(1 - found.fun):.1e} of the edge of the domain of φ, where the "
        "best code is at infinity in the dual; move it inwards."
    )


def _free_code(phi: HiddenObjective, least: Tensor) -> Tensor:
    """Return the code nearest to q: the identity puts no limits on it."""
    return least + phi._kernel @ (phi._kernel.mT @ (phi.q - least))


_BEST_CODE: dict[str, Callable[[HiddenObjective, Tensor], Tensor | None]] = {
    "relu": _relu_code,
    "tanh": _tanh_code,
    "identity": _free_code,
}
