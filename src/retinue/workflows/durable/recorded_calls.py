"""The recorded calls of a run that is taken up, which its body gets in place of new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One recorded call of a run; ``child_id`` is set where it started a child run.

    ``is_error`` = the engine recorded an exception in place of an output.
    """

    number: int
    name: str
    child_id: str | None
    output: Any
    is_error: bool = False


PAGE_CALLS = 500
"""How many recorded calls one query reads."""

PATCHED = "patched"
"""That a run has a change of its code is recorded as the call ``patched <change>``."""

YIELD_CALLS = 50
"""After so many recorded calls a body lets other tasks of the event loop run."""


class RecordedCalls:
    """The recorded calls of a run that is taken up, read in pages.

    The engine itself asks the database for each call of a body alone. ``read`` gives the recorded calls with
    numbers above one, at most so many.
    """

    def __init__(self, read: Callable[[int, int], Awaitable[Sequence[EngineCall]]]) -> None:
        self._read = read
        self._calls: dict[int, EngineCall] = {}
        self._last = -1
        self._taken = 0
        self._is_whole = False
        self._reading = asyncio.Lock()

    async def take(self, number: int) -> EngineCall | None:
        """The call with this number; None where none is recorded. It is given once."""
        await self._read_to(number)
        call = self._calls.pop(number, None)
        if call is not None:
            self._taken += 1
            if self._taken % YIELD_CALLS == 0:
                await asyncio.sleep(0)
        return call

    async def list_patches(self, number: int) -> list[str]:
        """The names of the calls ``patched <name>`` that follow one another from this number on."""
        names = list[str]()
        while (call := await self._find(number + len(names))) is not None and is_patch(call):
            names.append(call.name)
        return names

    async def has_more(self, number: int = 0) -> bool:
        """Whether there are recorded calls from this number on that were not taken."""
        while not (has_some := any(at >= number for at in self._calls)) and not self._is_whole:
            async with self._reading:
                if not self._is_whole:
                    await self._read_page()
        return has_some

    async def _find(self, number: int) -> EngineCall | None:
        await self._read_to(number)
        return self._calls.get(number)

    async def _read_to(self, number: int) -> None:
        if not self._is_whole and number > self._last:
            async with self._reading:
                while not self._is_whole and number > self._last:
                    await self._read_page()

    async def _read_page(self) -> None:
        page = await self._read(self._last, PAGE_CALLS)
        self._calls |= {call.number: call for call in page}
        self._last = page[-1].number if page else self._last
        self._is_whole = len(page) < PAGE_CALLS


def is_patch(call: EngineCall) -> bool:
    """Whether a call records that a run has a change of its code."""
    return call.name.startswith(f"{PATCHED} ")
