r"""What a training run leaves behind: arrays over the recorded times, and nothing that needs code.

A ``Trajectory`` is written to and read from a plain ``.npz`` file, without pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["Record", "Trajectory"]

Array = NDArray[np.float64]
ROWS = ("times", "gradients", "predictions", "gram_min", "gram_max", "flips", "test_predictions")
Named = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Record:
    """What to write down, and how often (``every`` epochs; a flow uses its own times).

    ``gram`` adds the extreme eigenvalues of the tangent kernel and the smallest of each of its
    blocks; ``norms`` the operator norms of the weights and of the cell; ``flips`` how many units
    are on another side than at the start; ``test=(X, y)`` the predictions on other data.
    ``ValueError`` for ``every`` below 1.

    >>> Record(every=10, gram=True)
    Record(every=10, gram=True, norms=True, flips=True, test=None)
    """

    every: int = 1
    gram: bool = False
    norms: bool = True
    flips: bool = True
    test: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")


EVERYTHING = Record()  # the default: every epoch, all that is cheap


@dataclass(frozen=True, repr=False)
class Trajectory:
    r"""A run, recorded at ``times``; row j of every array belongs to ``times[j]``.

    ``gradients`` counts gradient evaluations, so for descent it is the epoch. ``norms["cell"]`` is
    the norm of the matrix that multiplies the state; the model contracts while it is below 1.
    ``displacement`` is :math:`\|\theta-\theta(0)\|_F` by parameter, ``block_min`` the smallest
    eigenvalue of each block of the tangent kernel. ``start`` and ``end`` hold the trained weights.
    ``stopped`` says why a run ended early. ``len(run)`` counts records, ``run[2:5]`` is a part.

    >>> times, seen = np.array([0.0, 0.1]), np.array([[1.0], [2.0]])  # predictions are (2, n)
    >>> run = Trajectory("descent", times, np.arange(2), seen, np.array([3.0]), step=0.1)
    >>> run
    Trajectory(descent, 2 records to t = 0.1, loss 2 → 0.5)
    >>> run.error.tolist(), run.loss.tolist(), len(run[:1])
    ([[-2.0], [-1.0]], [2.0, 0.5], 1)
    """

    kind: str
    times: Array
    gradients: NDArray[np.int64]
    predictions: Array
    y: Array
    step: float = 0.0
    norms: Mapping[str, Array] = field(default_factory=dict)
    displacement: Mapping[str, Array] = field(default_factory=dict)
    block_min: Mapping[str, Array] = field(default_factory=dict)
    gram_min: Array | None = None
    gram_max: Array | None = None
    flips: Array | None = None
    test_predictions: Array | None = None
    y_test: Array | None = None
    start: Named = field(default_factory=dict)
    end: Named = field(default_factory=dict)
    stopped: str = ""

    @property
    def error(self) -> Array:
        r"""The errors :math:`e=\hat y-y`, one row per recorded time."""
        return (self.predictions - self.y).reshape(len(self), -1)

    @property
    def error_norm(self) -> Array:
        r"""The norms :math:`\|e\|`."""
        return np.linalg.norm(self.error, axis=1)

    @property
    def loss(self) -> Array:
        r"""The losses :math:`\tfrac12\|e\|^2`, a sum over samples."""
        return 0.5 * self.error_norm**2

    @property
    def test_loss(self) -> Array:
        """The losses on the other data; ``ValueError`` if there are none, as for ``test_error``."""
        predictions, y = self._tested()
        return 0.5 * ((predictions - y) ** 2).reshape(len(self), -1).sum(axis=1)

    @property
    def test_error(self) -> Array:
        """The fractions of other data whose label, coded ±1, has the wrong sign."""
        predictions, y = self._tested()
        return (np.sign(predictions) != np.sign(y)).reshape(len(self), -1).mean(axis=1)

    def _tested(self) -> tuple[Array, Array]:
        if self.test_predictions is None or self.y_test is None:
            raise ValueError("no test data were recorded; pass record=Record(test=(X, y)).")
        return self.test_predictions, self.y_test

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, rows: slice) -> Trajectory:
        """Return a part of the run; one without the last row has no weights at its ``end``."""
        if not isinstance(rows, slice):
            raise TypeError(f"slice a trajectory (t[2:5]); got {rows!r}.")
        part = self.with_rows({name: value[rows] for name, value in self._rows().items()})
        whole = len(part) > 0 and part.times[-1] == self.times[-1]
        return part if whole else replace(part, end={})

    def __repr__(self) -> str:
        last = f"loss {self.loss[0]:.3g} → {self.loss[-1]:.3g}" if len(self) else "empty"
        note = f"; stopped: {self.stopped}" if self.stopped else ""
        until = f"{len(self)} records to t = {self.times[-1]:.4g}" if len(self) else "no records"
        return f"Trajectory({self.kind}, {until}, {last}{note})"

    def continued(self, later: Trajectory) -> Trajectory:
        """Return this run followed by ``later``, which began where this one ended.

        ``ValueError`` if the labels differ, or what was recorded.
        """
        if not np.array_equal(self.y, later.y):
            raise ValueError("the two parts have different labels y; resume with the same data.")
        if not len(later):
            return replace(self, stopped=later.stopped)
        ours, theirs = self._rows(), later[1:]._rows()
        if ours.keys() != theirs.keys():
            raise ValueError(
                f"the two parts recorded different things: {sorted(ours)} and {sorted(theirs)}; "
                "resume with the same Record."
            )
        joined = {k: np.concatenate([ours[k], theirs[k]]) for k in ours}
        return replace(
            self.with_rows(joined), end=later.end, stopped=later.stopped, step=later.step
        )

    def restore(self, model: nn.Module) -> None:
        """Load the weights at the end of the run into a model, in place.

        ``ValueError`` for a part of a run without its last row.
        """
        if not self.end:
            raise ValueError("this part of a run does not reach its end, so it holds no weights.")
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in self.end:
                    p.copy_(torch.as_tensor(self.end[name]))

    def plot(self, ax: Axes, *, against: str = "times", **style: Any) -> Line2D:
        """Draw the loss on a logarithmic axis against ``times`` or ``gradients``.

        ``style`` goes to ``ax.semilogy``; anything else to draw against is a ``ValueError``.

        >>> from matplotlib.figure import Figure
        >>> run = Trajectory("flow", np.arange(2.0), np.arange(2), np.eye(2), np.zeros(2))
        >>> run.plot(Figure().subplots(), label="flow").get_ydata().tolist()
        [0.5, 0.5]
        """
        if against not in ("times", "gradients"):
            raise ValueError(f"against must be 'times' or 'gradients', got {against!r}.")
        (line,) = ax.semilogy(getattr(self, against), self.loss, **style)
        ax.set_xlabel("time" if against == "times" else "gradient evaluations")
        ax.set_ylabel("training loss")
        return line

    def save(self, path: str | Path) -> None:
        """Write a plain ``.npz`` file (arrays only, no pickle).

        >>> import tempfile
        >>> run = Trajectory("flow", np.arange(2.0), np.arange(2), np.eye(2), np.zeros(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run.save(Path(folder, "run.npz"))
        ...     Trajectory.load(Path(folder, "run.npz"))
        Trajectory(flow, 2 records to t = 1, loss 0.5 → 0.5)
        """
        arrays: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Mapping):
                arrays |= {f"{f.name}/{key}": entry for key, entry in value.items()}
            elif value is not None:
                arrays[f.name] = np.asarray(value)
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read what ``save`` wrote; another ``.npz`` or ``.npy`` file is a ``ValueError``."""
        found: dict[str, Any] = {}
        known = {f.name for f in fields(cls)}
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise ValueError(f"{path} is not a saved trajectory: it holds a single array.")
        with opened as file:
            for key in file.files:
                name, _, part = key.partition("/")
                if name not in known:
                    raise ValueError(f"{path} is not a saved trajectory: unknown entry {key!r}.")
                if part:
                    found.setdefault(name, {})[part] = file[key]
                elif file[key].ndim == 0:
                    found[name] = file[key].item()
                else:
                    found[name] = file[key]
        missing = {"kind", "times", "gradients", "predictions", "y"} - found.keys()
        if missing:
            raise ValueError(f"{path} is not a saved trajectory: {sorted(missing)} are missing.")
        return cls(**found)

    def _rows(self) -> dict[str, NDArray[Any]]:
        """Return every array that has a row per time, by a flat name."""
        flat: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in ROWS if getattr(self, name) is not None
        }
        for name in ("norms", "displacement", "block_min"):
            flat |= {f"{name}/{key}": value for key, value in getattr(self, name).items()}
        return flat

    def with_rows(self, flat: Mapping[str, NDArray[Any]]) -> Trajectory:
        """Return the run with other rows, by their flat names (``"times"``, ``"norms/cell"``)."""
        changes: dict[str, Any] = {}
        for key, value in flat.items():
            name, _, part = key.partition("/")
            if part:
                changes.setdefault(name, {})[part] = value
            else:
                changes[name] = value
        return replace(self, **changes)
