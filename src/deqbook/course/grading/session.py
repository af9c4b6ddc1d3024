"""Run the cells of a submission, and keep a kernel ready for the judge's questions.

A cell that kills the kernel, or does not give up, costs its author that cell and no more: a fresh
kernel runs the others again, without it. The same holds for a function that the judge calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from deqbook.course.grading.kernel import Client, Lost, Ran
from deqbook.course.grading.limits import Limits
from deqbook.course.grading.probe import ProbeError
from deqbook.course.grading.sandbox import kernel, uptime

#: How many fresh kernels one submission gets after its first.
SECOND_CHANCES = 4


@dataclass(frozen=True)
class Cell:
    """One cell to run: a name for sentences about it, and its code."""

    name: str
    source: str


@dataclass
class Session:
    """A submission in a kernel; a context manager, which ends the kernel."""

    cells: Sequence[Cell]
    limits: Limits
    trust: bool = False
    ran: dict[int, Ran] = field(default_factory=dict)
    _skip: set[int] = field(default_factory=set)
    _began: dict[int, float] = field(
        default_factory=dict
    )  # when each cell of this kernel was begun
    _chances: int = SECOND_CHANCES
    _client: Client | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def run(self) -> None:
        """Run all cells, each with its limit, and all within the limit of the notebook."""
        left = self.limits.time
        while True:
            try:
                self._attempt(left)
                return
            except Lost as lost:
                left -= self._client.spent if self._client is not None else 0.0
                self._end()
                self._chances -= 1
                if self._chances < 0 or left <= 0:
                    for number in range(len(self.cells)):
                        self.ran.setdefault(number, Ran(trouble=f"it was not run, because {lost}"))
                    raise

    def _attempt(self, seconds: float) -> None:
        """Run what is not yet known to be fatal, in one kernel, for so long."""
        self._start()
        assert self._client is not None  # started above
        self._began = {}
        for number, cell in enumerate(self.cells):
            if number in self._skip or not cell.source.strip():
                continue
            left = seconds - self._client.spent
            if left <= 0:
                late = f"it was not run: the notebook had used its {self.limits.time:.4g} s"
                self.ran.setdefault(number, Ran(trouble=late))
                continue
            self._began[number] = uptime()
            try:
                found = self._client.run(
                    cell.source, min(self.limits.cell, left), self.limits.output
                )
            except Lost as lost:
                self._leave_out(parent_of_most(self._client.box.heavy, self._began), lost)
                raise
            self.ran.setdefault(number, found)
            if found.trouble:  # stopped once, it would be stopped again
                self._skip.add(number)

    def _leave_out(self, number: int, lost: Lost) -> None:
        self._skip.add(number)
        self.ran[number] = Ran(trouble=str(lost))

    def _start(self) -> None:
        self._end()
        box = self._stack.enter_context(kernel(self.limits, trust=self.trust))
        self._client = Client(box)
        self._stack.callback(self._client.close)

    def _end(self) -> None:
        self._client = None
        self._stack.close()

    def ask(self, code: str, seconds: float | None, private: str) -> Ran:
        """Run the judge's code, in a fresh kernel if the last one is gone."""
        if self._client is None or not self._client.box.alive():
            try:
                self.run()
            except Lost as lost:
                sentence = f"The notebook could not be run: {lost}."
                raise ProbeError(sentence, "the notebook does not run") from None
        assert self._client is not None  # started above
        question = len(self.cells)
        self._began[question] = uptime()
        try:
            limit = self.limits.question if seconds is None else min(seconds, self.limits.question)
            return self._client.run(code, limit, self.limits.output, private)
        except Lost as lost:
            guilty = parent_of_most(self._client.box.heavy, self._began)
            self._end()
            self._chances -= 1
            if guilty != question and self._chances >= 0:  # a process that a cell left behind
                self._leave_out(guilty, lost)
                return self.ask(code, seconds, private)
            return Ran(trouble=str(lost))


def parent_of_most(heavy: Sequence[tuple[float, int]], began: Mapping[int, float]) -> int:
    """Return the cell that ended a kernel: the last one, unless memory went to processes of others.

    ``heavy`` are the second of birth and the memory of every process, ``began`` when each cell was
    begun. The kernel itself was born before all cells; what it has is the last one's.

    >>> parent_of_most([], {3: 10.0, 4: 20.0})
    4
    >>> parent_of_most([(1.0, 100), (12.0, 600), (13.0, 600)], {3: 10.0, 4: 20.0})
    3
    """
    last = max(began)
    sums = dict.fromkeys(began, 0)
    for born, size in heavy:
        before = [number for number, start in began.items() if start <= born + 0.02]
        sums[max(before) if before else last] += size
    return max(sums, key=lambda number: (sums[number], number))
