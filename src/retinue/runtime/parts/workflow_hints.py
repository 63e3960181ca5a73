"""What an author of workflows in Python should know, as a part of the processes that host them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from retinue.flows.body import HostedWorkflows
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.parts.author_hints import watch_loop

_REMEDY = "move the work into a function with def, which runs in a thread: await run.step(function)"

_log = structlog.get_logger("retinue.author")


class WorkflowHintsPart(Part):
    """Warns of what does not belong between the steps of hosted workflows in Python.

    It warns of a function that keeps the event loop from running as well.
    """

    name = "workflow-hints"
    kinds = frozenset({"hub", "worker"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        hosted = process.get(HostedWorkflows)
        for hint in hosted.list_hints():
            _log.warning(hint.message, at=f"{hint.file}:{hint.line}", remedy=hint.remedy)
        yield Opened(running=watch_loop(_REMEDY) if hosted.list_hosted() else None)
