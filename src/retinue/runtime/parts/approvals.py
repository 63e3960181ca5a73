"""Approvals as a part: the skills by which people list and answer the calls that wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from retinue.hub.approvals import ApprovalBook, add_approval_skills
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.lazy_runs import LazyRuns


class ApprovalsPart(Part):
    """Adds the skills of approvals to the hub's agent."""

    name = "approvals"
    kinds = frozenset({"hub", "command"})
    needs = (LazyRuns,)
    rank = 86
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        book = ApprovalBook(runs.open_approvals, exists=runs.store.exists)
        yield Opened(skills=partial(add_approval_skills, book=book))
