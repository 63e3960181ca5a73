"""The implementations of the durability ports, which one suite runs over.

The durable one takes a process of its own (its engine is one per process): a child pytest runs the suite
with the variable below set, see ``tests/workflows/durable/child``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.runs.ports import Body, Runs


class Open(Protocol):
    """Opens runs of a body; ``options`` are those that both implementations have."""

    def __call__(self, body: Body, **options: Any) -> AbstractAsyncContextManager[Runs]: ...


VARIABLE = "RUNS_UNDER_TEST"
"""``memory`` or ``durable``."""


@asynccontextmanager
async def open_memory(body: Body, **options: Any) -> AsyncIterator[Runs]:
    runs = MemoryRuns(body, **options)
    try:
        yield runs
    finally:
        await runs.aclose()


@asynccontextmanager
async def open_durable(body: Body, **more: Any) -> AsyncIterator[Runs]:
    from retinue.workflows.durable.runs import DurableOptions, DurableRuns

    with tempfile.TemporaryDirectory(prefix="runs-") as folder:
        shutil.copy(await make_database(), f"{folder}/runs.db")
        options = DurableOptions(poll_s=0.05, **more)
        runs = DurableRuns(
            body, url=f"sqlite:///{folder}/runs.db", nodes=Path(folder) / "nodes", options=options
        )
        try:
            yield runs
        finally:
            await runs.aclose()


_made: list[Path] = []


async def make_database() -> Path:
    """An empty database with its tables, made once: that takes longer than most tests."""
    from retinue.workflows.durable.database import RunDatabase

    if not _made:
        folder = tempfile.TemporaryDirectory(prefix="runs-")
        atexit.register(folder.cleanup)
        path = Path(folder.name) / "runs.db"
        database = RunDatabase(f"sqlite:///{path}")
        await database.prepare()
        database.close()
        _made.append(path)
    return _made[0]


OPEN: dict[str, Open] = {"memory": open_memory, "durable": open_durable}


def opened_here() -> Open:
    """How the suite of this process opens runs."""
    return OPEN[os.environ.get(VARIABLE, "memory")]
