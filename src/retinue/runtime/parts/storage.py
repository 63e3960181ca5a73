"""The free disk space of a process as a part: a full disk is a readiness problem."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from retinue.core.errors import StateError
from retinue.parts.part import Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.storage.files import check_room, storage_errors

FRESH_S = 2.0
"""How long an answer serves, so that many probes write few files."""


class StoragePart(Part):
    """Says at ``/ready`` that nothing can be stored: tasks, messages and runs are refused meanwhile."""

    name = "storage"
    kinds = frozenset({"hub", "agent", "worker"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        room = Room(process.state.root)

        async def problems() -> Sequence[ReadinessProblem]:
            error = await room.find_error()
            reason = "" if error is None else f"{error.message} — {error.remedy}"
            return [] if error is None else [ReadinessProblem("storage", "", reason, is_fatal=False)]

        yield Opened(problems=problems)


class Room:
    """Whether a folder takes files, asked at most every `FRESH_S`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._error: StateError | None = None
        self._asked_at = -FRESH_S

    async def find_error(self) -> StateError | None:
        """Why the folder takes no file; None if it does, or if it does not exist yet."""
        if time.monotonic() - self._asked_at >= FRESH_S:
            self._asked_at = time.monotonic()
            self._error = await asyncio.to_thread(self._ask)
        return self._error

    def _ask(self) -> StateError | None:
        if not self._folder.is_dir():
            return None
        try:
            with storage_errors(self._folder):
                check_room(self._folder)
        except StateError as error:
            return error
        return None
