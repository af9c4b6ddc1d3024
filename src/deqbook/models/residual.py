"""The convolutional residual cell of the experiments in nguyen2022, section 4.1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deqbook.models.base import EquilibriumModel, check_weights
from deqbook.runtime import generator, normal
from deqbook.wellposed import Unstructured

__all__ = ["ResidualCell"]


class ResidualCell(EquilibriumModel):
    r"""A residual block iterated to equilibrium on images (n, channels, height, width).

    :math:`f(z,x)=N(\sigma(z+N(x+W_2*N(\sigma(W_1*z)))))`: 3×3 convolutions without bias, N group
    normalisation. The image enters through a convolution E and one more N. The outer N bounds the
    state, so an equilibrium exists (Brouwer); nothing certifies that it is unique or found.

    ``W1`` is (inner, channels, 3, 3), ``W2`` (channels, inner, 3, 3), ``E`` (channels, colours, 3,
    3), ``V`` (k, 4·channels). ``ValueError`` for other shapes, entries that are not finite, and
    ``groups`` that do not divide ``channels`` and ``inner``.

    >>> from deqbook.wellposed import certify
    >>> model = ResidualCell.init(std=0.02, channels=4, inner=4, k=3, seed=0)
    >>> x = torch.linspace(-1, 1, 128, dtype=torch.float64).reshape(2, 1, 8, 8)
    >>> certify(model).holds, model.solve(x, tol=1e-2).z.shape, model(x, tol=1e-2).shape
    (False, torch.Size([2, 4, 8, 8]), torch.Size([2, 3]))
    """

    def __init__(self, W1: Tensor, W2: Tensor, E: Tensor, *, V: Tensor, groups: int = 4):
        super().__init__()
        sizes = check_weights(
            W1=(W1, ("inner", "channels", 3, 3)),
            W2=(W2, ("channels", "inner", 3, 3)),
            E=(E, ("channels", "colours", 3, 3)),
            V=(V, ("k", "features")),
        )
        self.channels, self.colours, self.groups = sizes["channels"], sizes["colours"], groups
        if sizes["channels"] % groups or sizes["inner"] % groups:
            raise ValueError(
                f"groups={groups} must divide both channel counts, "
                f"{sizes['channels']} and {sizes['inner']}."
            )
        if sizes["features"] != 4 * self.channels:
            raise ValueError(f"V must be (k, {4 * self.channels}), got {tuple(V.shape)}.")
        self.W1, self.W2, self.E, self.V = (nn.Parameter(t.clone()) for t in (W1, W2, E, V))

    @classmethod
    def init(
        cls,
        *,
        std: float | tuple[float, float],
        channels: int = 16,
        inner: int = 24,
        colours: int = 1,
        k: int = 10,
        groups: int = 4,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ) -> ResidualCell:
        """Draw W1, W2 ~ N(0, std²) (one std, or one each); E and V by fan-in."""
        s1, s2 = (std, std) if isinstance(std, float | int) else std
        g = generator(seed)
        W1 = s1 * normal(inner, channels, 3, 3, g=g, dtype=dtype)
        W2 = s2 * normal(channels, inner, 3, 3, g=g, dtype=dtype)
        E = normal(channels, colours, 3, 3, g=g, dtype=dtype) / (3 * colours**0.5)
        V = normal(k, 4 * channels, g=g, dtype=dtype) / (2 * channels**0.5)
        return cls(W1, W2, E, V=V, groups=groups)

    def _norm(self, z: Tensor) -> Tensor:
        return F.group_norm(z, self.groups)

    def inject(self, x: Tensor) -> Tensor:
        """Return the normalised features of the images (n, colours, height, width)."""
        if x.ndim != 4 or x.shape[1] != self.colours:
            raise ValueError(
                f"x must be images (n, {self.colours}, height, width), got shape {tuple(x.shape)}."
            )
        return self._norm(F.conv2d(x, self.E, padding=1))

    def weights(self) -> tuple[Tensor, ...]:
        """The cell depends on W1 and W2."""
        return self.W1, self.W2

    def f(self, z: Tensor, q: Tensor, *weights: Tensor) -> Tensor:
        """Return N(σ(z + N(q + W2 * N(σ(W1 * z)))))."""
        W1, W2 = weights
        inner = self._norm(torch.relu(F.conv2d(z, W1, padding=1)))
        return self._norm(torch.relu(z + self._norm(q + F.conv2d(inner, W2, padding=1))))

    def readout(self, z: Tensor, q: Tensor) -> Tensor:
        """Pool to 2×2 and apply V."""
        return F.adaptive_avg_pool2d(z, 2).flatten(1) @ self.V.mT

    def structure(self) -> Unstructured:
        """No certificate is known."""
        return Unstructured("a group-normalised convolutional residual cell")
