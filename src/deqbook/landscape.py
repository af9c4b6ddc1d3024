"""Pictures of what is too large to see: paths of a solver, the loss around trained weights.

A solver's states are drawn in the plane of their two principal components. A loss is drawn on a
plane through the weights, and its curvature is measured by Lanczos' iteration. Weights are a
mapping from names to tensors, as ``dict(model.named_parameters())`` gives them, and a loss is any
function of such a mapping: of this package's models or of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deqbook.solvers import Map, Solution, Solver, fixed_point

__all__ = [
    "Lanczos",
    "Plane",
    "Weights",
    "filter_direction",
    "filter_norms",
    "hessian_product",
    "lanczos",
    "loss_surface",
    "path_ratio",
    "principal_plane",
    "record",
]

Weights = Mapping[str, Tensor]
"""Parameters by name."""


def record(
    f: Map, z0: Tensor, *, solver: Solver, steps: int, tol: float = 1e-12
) -> tuple[Tensor, Solution]:
    """Run a solver and keep every state it evaluates: returns (states, n, D) and the solution.

    ``f`` and ``z0`` are those of :func:`deqbook.solvers.fixed_point`, ``steps`` its ``max_steps``;
    a failure does not raise. ``Newton`` evaluates a state again for its Jacobian. A splitting needs
    to know the map and is refused (``ValueError``).

    >>> from deqbook.solvers import Picard
    >>> states, found = record(lambda z: z / 2, torch.ones(1, 1).double(), solver=Picard(), steps=2)
    >>> states.flatten().tolist(), bool(found.converged)
    ([1.0, 0.5, 0.25], False)
    """
    states: list[Tensor] = []

    def watched(z: Tensor) -> Tensor:
        states.append(z.reshape(z.shape[0], -1).clone())
        return f(z)

    found = fixed_point(watched, z0, solver=solver, tol=tol, max_steps=steps, throw=False)
    return torch.stack(states), found


@dataclass(frozen=True)
class Plane:
    """The first two principal components of a cloud of states.

    ``points`` are the coordinates (states, n, 2), ``explained`` the share of the variance that the
    plane holds; ``centre`` is (D,), the orthonormal ``axes`` are (2, D).

    >>> plane = principal_plane(torch.tensor([[[0.0, 0.0, 7.0]], [[3.0, 4.0, 7.0]]]))
    >>> back = plane.centre + plane.points @ plane.axes
    >>> [round(c, 3) for c in back[1, 0].tolist()]
    [3.0, 4.0, 7.0]
    """

    points: Tensor
    centre: Tensor
    axes: Tensor
    explained: float


def principal_plane(states: Tensor) -> Plane:
    """Project all states of all samples on their first two right singular vectors, centred.

    ``states`` is (states, n, D), as of ``record``; another shape is a ``ValueError``.

    >>> states = torch.tensor([[[0.0, 0.0, 7.0]], [[3.0, 4.0, 7.0]], [[6.0, 8.0, 7.0]]])
    >>> plane = principal_plane(states)
    >>> tuple(plane.points.shape), round(plane.explained, 3)
    ((3, 1, 2), 1.0)
    """
    if states.ndim != 3:
        raise ValueError(f"states must be (states, n, D), got shape {tuple(states.shape)}.")
    cloud = states.reshape(-1, states.shape[2])
    centre = cloud.mean(dim=0)
    _, values, axes = torch.linalg.svd(cloud - centre, full_matrices=False)
    points = (states - centre) @ axes[:2].mT
    explained = float((values[:2] ** 2).sum() / (values**2).sum())
    return Plane(points, centre, axes[:2], explained)


def path_ratio(points: Tensor) -> float:
    """Return the path length after the first step ÷ the first step, median over samples.

    ``points`` is (states, n, D) or the ``points`` of a ``Plane``. Near 0 the solver leaps once and
    stays; well above 1 it wanders. A first step of length 0 counts as infinite.

    >>> path_ratio(torch.tensor([0.0, 4.0, 5.0, 4.0]).reshape(4, 1, 1))
    0.5
    """
    hops = (points[1:] - points[:-1]).norm(dim=2)
    return float((hops[1:].sum(dim=0) / hops[0]).median())


def filter_norms(weights: Weights) -> dict[str, Tensor]:
    """Return, in the shape of each weight, the Euclidean norm of the filter an entry belongs to.

    A filter is a slice along the first axis: a row of a matrix, one output of a convolution.
    Weights with fewer than two axes (biases, scales of a normalisation) have no filters and get 0.

    >>> filter_norms({"W": torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "b": torch.ones(2)})
    {'W': tensor([[5., 5.],
            [2., 2.]]), 'b': tensor([0., 0.])}
    """

    def norms(w: Tensor) -> Tensor:
        if w.ndim < 2:
            return torch.zeros_like(w)
        length = torch.linalg.vector_norm(w.flatten(1), dim=1)
        return length.reshape(-1, *[1] * (w.ndim - 1)).expand(w.shape)

    return {name: norms(w.detach()) for name, w in weights.items()}


def filter_direction(weights: Weights, g: torch.Generator) -> dict[str, Tensor]:
    """Draw a Gaussian direction, each filter scaled to the norm of the filter that it moves.

    >>> weights = {"W": torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "b": torch.ones(2)}
    >>> drawn = filter_direction(weights, torch.Generator().manual_seed(0))
    >>> [round(n, 3) for n in drawn["W"].norm(dim=1).tolist()], drawn["b"].tolist()
    ([5.0, 2.0], [0.0, 0.0])
    """
    made = {}
    for name, norms in filter_norms(weights).items():
        raw = torch.randn(norms.shape, generator=g, dtype=torch.float64).to(norms)
        if norms.ndim < 2:
            made[name] = torch.zeros_like(raw)
        else:
            length = torch.linalg.vector_norm(raw.flatten(1), dim=1)
            made[name] = raw * norms / length.reshape(-1, *[1] * (norms.ndim - 1))
    return made


@torch.no_grad()
def loss_surface(
    loss: Callable[[dict[str, Tensor]], Tensor],
    weights: Weights,
    directions: tuple[Weights, Weights],
    a: Sequence[float],
    b: Sequence[float],
) -> Tensor:
    r"""Return :math:`\mathcal L(\theta+a_id_1+b_jd_2)` as a matrix (len(a), len(b)).

    ``ValueError`` where a direction lacks a weight or has another shape.

    >>> ball = lambda w: w["x"].pow(2).sum()
    >>> start, axes = {"x": torch.zeros(2)}, ({"x": torch.eye(2)[0]}, {"x": torch.eye(2)[1]})
    >>> loss_surface(ball, start, axes, [0.0, 1.0], [0.0, 2.0]).tolist()
    [[0.0, 4.0], [1.0, 5.0]]
    """
    for direction in directions:
        for name, w in weights.items():
            if name not in direction or direction[name].shape != w.shape:
                seen = tuple(direction[name].shape) if name in direction else "nothing"
                raise ValueError(f"a direction must move {name!r} by {tuple(w.shape)}, got {seen}.")
    first, second = directions
    rows = [
        [float(loss({k: w + s * first[k] + t * second[k] for k, w in weights.items()})) for t in b]
        for s in a
    ]
    return torch.tensor(rows, dtype=torch.float64)


def hessian_product(
    loss: Callable[[dict[str, Tensor]], Tensor],
    weights: Weights,
    scale: Weights | None = None,
) -> tuple[Callable[[Tensor], Tensor], int]:
    r"""Return :math:`u\mapsto DHDu` on flat vectors, and their length.

    H is the Hessian of the loss at the weights, D the diagonal of ``scale`` (the identity if there
    is none). One product costs a gradient and a directional derivative of it; no matrix is formed.
    Through ``deqbook.implicit.equilibrium`` the product is exact, up to the tolerances of the
    solves: the directional derivative of an adjoint is an equilibrium again. At a kink it is that
    of the piece the weights lie on.

    >>> at = {"x": torch.tensor([1.0, 2.0])}
    >>> product, size = hessian_product(lambda w: w["x"].pow(3).sum(), at)
    >>> size, product(torch.tensor([1.0, 1.0])).tolist()
    (2, [6.0, 12.0])
    """
    at = {name: w.detach() for name, w in weights.items()}
    sizes = [w.numel() for w in at.values()]
    factors = None if scale is None else torch.cat([scale[name].flatten() for name in at])
    slope = torch.func.grad(loss)

    def product(u: Tensor) -> Tensor:
        pieces = (u if factors is None else factors * u).split(sizes)
        tangent = {name: p.reshape(w.shape) for (name, w), p in zip(at.items(), pieces)}
        turned = torch.func.jvp(slope, (at,), (tangent,))[1]
        flat = torch.cat([turned[name].flatten() for name in at])
        return flat if factors is None else factors * flat

    return product, sum(sizes)


@dataclass(frozen=True)
class Lanczos:
    """Ritz values of a symmetric operator in falling order, and how far each can be off.

    Within ``errors[i]`` of ``values[i]`` there is an eigenvalue (in exact arithmetic).

    >>> found = lanczos(lambda u: torch.tensor([3.0, 1.0]) * u, torch.ones(2), steps=2)
    >>> [round(v, 3) for v in found.values.tolist()]
    [3.0, 1.0]
    """

    values: Tensor
    errors: Tensor


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Lanczos:
    r"""Find extreme eigenvalues of a symmetric operator from ``steps`` products with vectors.

    From :math:`q_1` = ``start`` normalised: :math:`w=Hq_k-\beta_{k-1}q_{k-1}`,
    :math:`\alpha_k=\langle w,q_k\rangle`, then :math:`w-\alpha_kq_k=\beta_kq_{k+1}`. The values
    are the eigenvalues of the tridiagonal matrix of α and β. Every :math:`w` is made orthogonal
    to all earlier q, twice, or rounding would bring eigenvalues back as ghosts. The iteration ends
    early when the q span an invariant space. ``ValueError`` for ``steps`` below 1, a start that is
    zero or no vector, or a product that is not finite.

    >>> diagonal = torch.arange(1.0, 101.0, dtype=torch.float64)
    >>> found = lanczos(lambda u: diagonal * u, torch.ones(100, dtype=torch.float64), steps=30)
    >>> bool((found.values[0] - 100).abs() < 1e-2)
    True
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    if start.ndim != 1 or not float(start.norm()) > 0:
        raise ValueError(f"start must be a vector that is not zero, got {tuple(start.shape)}.")
    basis = [start / start.norm()]
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for _ in range(min(steps, len(start))):
        w = product(basis[-1])
        if not bool(torch.isfinite(w).all()):
            raise ValueError("the product has NaN or infinite entries.")
        alphas.append(torch.dot(w, basis[-1]))
        Q = torch.stack(basis)
        for _ in range(2):
            w = w - Q.mT @ (Q @ w)
        betas.append(w.norm())
        size = torch.stack(alphas).abs().max()
        if float(betas[-1]) <= 100 * torch.finfo(w.dtype).eps * float(size):
            break
        basis.append(w / betas[-1])
    off = torch.stack(betas[:-1]) if len(betas) > 1 else start.new_zeros(0)
    T = torch.diag(torch.stack(alphas)) + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(T)
    return Lanczos(values.flip(0), (betas[-1] * vectors[-1].abs()).flip(0))
