"""The reports of steps while they run: pieces of text, and lines of progress.

Reports are kept in memory: they are no events of the run, and a node that takes the run over does not know
them. Those of a run that another node executes come from there (`RunProgress.share`). Of a run that nobody
watches, only the text of a few calls of models in flight is kept, for a reader who comes later. A reader
that is slower than the steps loses the oldest reports, and holds up no step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from retinue.core.call import TextPiece
from retinue.mesh.channel import Capability, Channel, NullChannel

WATCHED_S = 40.0
"""How long the reports of a run are kept after the last look at them; longer than one `follow_run`."""

KEPT_CHARACTERS = 64 * 1024
"""Characters of the reports of one run that are kept; the oldest go first."""

WATCHED_RUNS = 1_000
"""Runs whose reports are kept at once; the one that was looked at least recently goes first."""

KEPT_TEXTS = 16
"""Calls of models in flight whose text is kept though nobody watches their runs; more would cost too much."""

_OVERHEAD = 100
"""Counted for each report besides its texts."""

_CUT_CHARACTERS = 4 * 1024
"""A longer piece is kept in several, so that its end stays when its beginning has to go."""

_MESSAGE_CHARACTERS = 4 * 1024
"""Characters of a message that are kept."""

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
        """What the report counts: all its texts, of which a remote agent writes most."""
        if self.piece is None:
            return _OVERHEAD + len(self.step) + len(self.message)
        return _OVERHEAD + len(self.step) + len(self.piece.agent) + len(self.piece.text)

    def to_json(self) -> dict[str, Any]:
        """A piece of text, or a fraction and a message, without the number."""
        if self.piece is not None:
            return self.piece.to_json()
        return {"step": self.step, "fraction": self.fraction, "message": self.message}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StepReport:
        """The report in this form, with the number 0."""
        piece = TextPiece.from_json(value)
        if piece is not None:
            return cls(0, piece.step, piece)
        return cls(0, value["step"], None, value["fraction"], value["message"])


@dataclass(slots=True)
class _Watched:
    """The reports of one run."""

    until: float
    numbers: Iterator[int]
    observers: Sequence[Callable[[], None]]
    reports: deque[StepReport] = field(default_factory=deque)
    last: int = 0
    size: int = 0

    def add_line(self, step: str, fraction: float | None, message: str) -> None:
        message = _make_storable(message)
        if len(message) > _MESSAGE_CHARACTERS:
            message = f"{message[: _MESSAGE_CHARACTERS - 1]}…"
        self._add(StepReport(next(self.numbers), step, None, fraction, message))

    def add_piece(self, step: str, piece: TextPiece) -> None:
        piece = replace(piece, text=_make_storable(piece.text))
        # of a longer piece the beginning would not be kept
        first = max(0, len(piece.text) - KEPT_CHARACTERS)
        for start in range(first, max(len(piece.text), first + 1), _CUT_CHARACTERS):
            text = piece.text[start : start + _CUT_CHARACTERS]
            cut = replace(piece, text=text, at=piece.at + start, step=step)
            self._add(StepReport(next(self.numbers), step, cut))

    def _add(self, report: StepReport) -> None:
        self.last = report.number
        self.reports.append(report)
        self.size += report.size
        while self.size > KEPT_CHARACTERS:
            self.size -= self.reports.popleft().size
        for note in tuple(self.observers):
            note()


class RunProgress:
    """The reports of the watched runs of this process, by the id of the outermost run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # not from 1: a reader may come with the number of a report that an earlier process gave it
        self._numbers = count(time.time_ns() // 1_000_000)
        self.watched: dict[str, _Watched] = {}
        """The reports by the id of the outermost run; empty if nobody watches a run."""
        self._kept: dict[_StepChannel, str] = {}
        """The channels of calls whose text is kept, with the outermost runs of the calls."""
        self._observers: list[Callable[[], None]] = []
        self._follow: Callable[[str], None] | None = None
        self._catch_up: Callable[[str], Awaitable[None]] | None = None

    def share(self, follow: Callable[[str], None], catch_up: Callable[[str], Awaitable[None]]) -> None:
        """Let the reports of runs of other processes come here.

        ``follow`` is told of each outermost run that is watched here; ``catch_up`` adds what its process has
        stored by now.
        """
        self._follow, self._catch_up = follow, catch_up

    async def catch_up(self, run_id: str) -> None:
        """Have all reports that came before the events of a run which were read just now."""
        if self._catch_up is not None:
            await self._catch_up(_root_of(run_id))

    def is_watched(self, run_id: str) -> bool:
        """Whether somebody watches a run here."""
        watched = self.watched.get(_root_of(run_id))
        return watched is not None and watched.until >= self._clock()

    def add(self, run_id: str, report: StepReport) -> None:
        """Keep a report of another process, under a number of this one, if somebody watches its run here."""
        if (watched := self.watched.get(_root_of(run_id))) is None:
            return
        if report.piece is None:
            watched.add_line(report.step, report.fraction, report.message)
        else:
            watched.add_piece(report.step, report.piece)

    def subscribe(self, note: Callable[[], None]) -> Callable[[], None]:
        """Call ``note`` at each report that is kept; returns what ends it."""
        self._observers.append(note)
        return partial(self._observers.remove, note)

    def watch(self, run_id: str) -> None:
        """Keep the reports of a run from now on, for `WATCHED_S`; the run need not have started."""
        root = _root_of(run_id)
        now = self._clock()
        self._keep(root, now)
        for channel in [channel for channel, run in self._kept.items() if run == root]:
            channel.give_kept()
        if self._follow is not None:
            self._follow(root)

    def _keep(self, root: str, now: float) -> None:
        if (watched := self.watched.pop(root, None)) is not None:
            watched.until = now + WATCHED_S
            # the first is the one that was looked at least recently
            self.watched[root] = watched
            return
        for name in [name for name, other in self.watched.items() if other.until < now]:
            del self.watched[name]
        while len(self.watched) >= WATCHED_RUNS:
            del self.watched[next(iter(self.watched))]
        self.watched[root] = _Watched(now + WATCHED_S, self._numbers, self._observers)

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
        return self._make_channel(run_id, path, keeps_text=False)

    @contextmanager
    def keep_text(self, run_id: str, path: str) -> Iterator[Channel]:
        """As `open_channel`, for the call of a model: a reader who comes later gets its whole text.

        Of at most `KEPT_TEXTS` calls at once.
        """
        channel = self.open_channel(run_id, path)
        if channel.capabilities or len(self._kept) >= KEPT_TEXTS:
            yield channel
            return
        keeping = self._make_channel(run_id, path, keeps_text=True)
        self._kept[keeping] = _root_of(run_id)
        try:
            yield keeping
        finally:
            del self._kept[keeping]

    def _make_channel(self, run_id: str, path: str, *, keeps_text: bool) -> _StepChannel:
        root = _root_of(run_id)
        below = run_id[len(root) + 1 :]
        step = f"{below}/{path}" if below else path
        return _StepChannel(partial(self.watched.get, root), step, keeps_text=keeps_text)


class _KeptText:
    """The text of a call so far, at most the last `KEPT_CHARACTERS` of it."""

    def __init__(self, first: TextPiece) -> None:
        self._first = first
        self._parts = [first.text]
        self._size = len(first.text)

    @property
    def piece(self) -> TextPiece:
        """The text as one piece."""
        text = "".join(self._parts)
        cut = max(0, len(text) - KEPT_CHARACTERS)
        return replace(self._first, text=text[cut:], at=self._first.at + cut)

    def add(self, piece: TextPiece) -> bool:
        """Take a piece; False if it belongs to another text."""
        own = (self._first.agent, self._first.step, self._first.at + self._size)
        if (piece.agent, piece.step, piece.at) != own:
            return False
        self._parts.append(piece.text)
        self._size += len(piece.text)
        if self._size > 2 * KEPT_CHARACTERS:
            self._first = self.piece
            self._parts, self._size = [self._first.text], len(self._first.text)
        return True


class _StepChannel(NullChannel):
    """Keeps the reports of one call of a step, where the run is watched when they come.

    Its text is kept until then, if the channel is one of `RunProgress.keep_text`.
    """

    capabilities = _PROGRESS

    def __init__(self, find_watched: Callable[[], _Watched | None], step: str, *, keeps_text: bool) -> None:
        self._find_watched = find_watched
        self._step = step
        self._keeps_text = keeps_text
        self._text: _KeptText | None = None

    def give_kept(self) -> None:
        """Report the text that was kept, because the run is watched from now on."""
        text, self._text = self._text, None
        if text is not None and (watched := self._find_watched()) is not None:
            watched.add_piece(self._step_of(text.piece), text.piece)

    async def progress(self, fraction: float | None, message: str = "") -> None:
        if (watched := self._find_watched()) is not None:
            watched.add_line(self._step, fraction, message)

    async def stream_text(self, piece: TextPiece) -> None:
        if (watched := self._find_watched()) is not None:
            watched.add_piece(self._step_of(piece), piece)
        elif self._keeps_text and (self._text is None or not self._text.add(piece)):
            self._text = _KeptText(piece)

    def _step_of(self, piece: TextPiece) -> str:
        # an agent that runs a workflow of its own names the step of that one
        return f"{self._step}/{piece.step}" if piece.step else self._step


def _make_storable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, because UTF-8 has no form for it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _root_of(run_id: str) -> str:
    """The outermost run; the id of a child run is that of its parent, a slash and a path."""
    return run_id.partition("/")[0]
