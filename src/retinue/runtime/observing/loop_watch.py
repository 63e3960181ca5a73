"""Finds the code of an author that keeps the event loop from running."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

LIMIT_S = 1.0
"""How long the loop may stand still; calls of others wait meanwhile."""

_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")

_NOT_AUTHORS = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in _FOLDERS}
    | {str(Path(__file__).resolve().parents[2])}
)
"""The folders of the standard library, of installed packages and programs, and of Retinue itself."""


@dataclass(frozen=True, slots=True)
class BlockingPlace:
    """The line of an author's code that ran while the loop stood still, and for how long so far."""

    function: str
    file: str
    line: int
    seconds: float


class LoopWatch:
    """Looks from a thread whether the event loop runs; ``report`` is called once for each function.

    A loop that stands still while no code of an author runs, as in a process that was stopped, is no finding.
    """

    def __init__(self, report: Callable[[BlockingPlace], None], *, limit_s: float = LIMIT_S) -> None:
        self._report = report
        self._limit_s = limit_s
        self._beat = time.monotonic()
        self._reported: set[tuple[str, str]] = set()
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        threading.Thread(target=self._watch, args=(loop_thread,), name="loop watch", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._limit_s / 4)
                self._beat = time.monotonic()
        finally:
            self._stop.set()

    def _watch(self, loop_thread: int) -> None:
        while not self._stop.wait(self._limit_s / 2):
            seconds = time.monotonic() - self._beat
            if seconds < self._limit_s:
                continue
            frame = find_author_frame(sys._current_frames().get(loop_thread))
            if frame is None:
                continue
            key = (frame.f_code.co_filename, frame.f_code.co_qualname if sys.version_info >= (3, 11) else "")
            if key not in self._reported:
                self._reported.add(key)
                self._report(BlockingPlace(frame.f_code.co_name, key[0], frame.f_lineno, seconds))


def find_author_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of code that is neither of a package nor of the standard library."""
    while frame is not None:
        file = str(Path(frame.f_code.co_filename).resolve())
        if not file.startswith(("<", *_NOT_AUTHORS)) and Path(file).exists():
            return frame
        frame = frame.f_back
    return None
