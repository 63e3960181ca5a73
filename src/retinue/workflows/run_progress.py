"""What the steps of runs report while they run: pieces of text, and lines of progress.

Reports are kept in the memory of the process that executes the run, and nowhere else: they are no events of
the run, and a node that takes the run over does not know them. Nothing is kept of a run that nobody watches.
A reader that is slower than the steps loses the oldest reports, and holds up no step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from retinue.core.call import TextPiece
from retinue.mesh.channel import Capability, Channel, NullChannel

WATCHED_S = 40.0
"""How long the reports of a run are kept after the last look at them; longer than one `follow_run`."""

KEPT_CHARACTERS = 64 * 1024
"""Characters of the reports of one run that are kept; the oldest go first."""

WATCHED_RUNS = 1_000
"""Runs whose reports are kept at once; the one that was watched first goes first."""

_OVERHEAD = 100
"""Counted for each report besides its text."""

_PROGRESS: frozenset[Capability] = frozenset({"progress"})
_NULL_CHANNEL = NullChannel()


@dataclass(frozen=True, slots=True)
class StepReport:
    """A report of the step ``step``: a piece of its text, or a fraction and a message."""

    number: int
    step: str
    piece: TextPiece | None = None
    fraction: float | None = None
    message: str = ""

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.message if self.piece is None else self.piece.text)


@dataclass(slots=True)
class _Watched:
    """The reports of one run."""

    until: float
    numbers: Iterator[int]
    reports: deque[StepReport] = field(default_factory=deque)
    last: int = 0
    size: int = 0

    def add(
        self, step: str, piece: TextPiece | None, fraction: float | None = None, message: str = ""
    ) -> None:
        self.last = next(self.numbers)
        report = StepReport(self.last, step, piece, fraction, message)
        self.reports.append(report)
        self.size += report.size
        while self.size > KEPT_CHARACTERS:
            self.size -= self.reports.popleft().size


class RunProgress:
    """The reports of the watched runs of this process, by the id of the outermost run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # not from 1: a reader may come with the number of a report that an earlier process gave it
        self._numbers = count(time.time_ns() // 1_000_000)
        self.watched: dict[str, _Watched] = {}
        """What was reported, by the id of the outermost run; empty where nobody watches a run."""

    def watch(self, run_id: str) -> None:
        """Keep the reports of a run from now on, for `WATCHED_S`; the run need not have started."""
        root = _root_of(run_id)
        now = self._clock()
        if (watched := self.watched.get(root)) is not None:
            watched.until = now + WATCHED_S
            return
        for name in [name for name, other in self.watched.items() if other.until < now]:
            del self.watched[name]
        while len(self.watched) >= WATCHED_RUNS:
            del self.watched[next(iter(self.watched))]
        self.watched[root] = _Watched(now + WATCHED_S, self._numbers)

    def last(self, run_id: str) -> int:
        """The number of the newest report of a run, 0 without one."""
        watched = self.watched.get(_root_of(run_id))
        return 0 if watched is None else watched.last

    def list_after(self, run_id: str, number: int) -> Sequence[StepReport]:
        """The kept reports after a number; pieces of one text that follow each other are one report."""
        watched = self.watched.get(_root_of(run_id))
        joined: list[StepReport] = []
        for report in () if watched is None else watched.reports:
            if report.number <= number:
                continue
            before = joined[-1].piece if joined else None
            if report.piece is not None and before is not None and report.piece.continues(before):
                joined[-1] = replace(report, piece=replace(before, text=before.text + report.piece.text))
            else:
                joined.append(report)
        return joined

    def open_channel(self, run_id: str, path: str) -> Channel:
        """The channel of a call that the step at ``path`` of a run makes now."""
        root = _root_of(run_id)
        watched = self.watched.get(root)
        if watched is None or watched.until < self._clock():
            return _NULL_CHANNEL
        below = run_id[len(root) + 1 :]
        return _StepChannel(watched, f"{below}/{path}" if below else path)


class _StepChannel(NullChannel):
    """Keeps the reports of one call of a step."""

    capabilities = _PROGRESS

    def __init__(self, watched: _Watched, step: str) -> None:
        self._watched = watched
        self._step = step

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self._watched.add(self._step, None, fraction, message)

    async def stream_text(self, piece: TextPiece) -> None:
        # an agent that runs a workflow of its own names the step of that one
        step = f"{self._step}/{piece.step}" if piece.step else self._step
        self._watched.add(step, replace(piece, step=step))


def _root_of(run_id: str) -> str:
    """The outermost run; the id of a child run is that of its parent, a slash and a path."""
    return run_id.partition("/")[0]
