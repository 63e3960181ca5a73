"""Runs work of a node concurrently with its pipeline, until the node stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger("retinue.koi")


class BackgroundWork:
    """The tasks of the node ``name``; an error of one of them is logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether all work has ended."""
        return not self._tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work concurrently with the pipeline."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # for a task that never ran

    async def stop(self) -> None:
        """Cancel all work, and wait for its end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            log.warning("koi_task_failed", node=self._name, reason=repr(error), exc_info=True)
