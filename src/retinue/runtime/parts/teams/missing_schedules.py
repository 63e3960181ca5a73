"""Adds the schedules of a team whose command was killed after the team had begun to serve."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from retinue.core.call import Call, TraceContext, new_id
from retinue.core.errors import RetinueError
from retinue.core.record import HUB_NAME
from retinue.mesh.guard.trace_guard import new_trace
from retinue.parts.process import Process
from retinue.runtime.parts.children import find_teams_change
from retinue.web.security import LOCAL_TOKEN

AGAIN_S = 5.0
"""How long schedules rest that could not be added."""

_log = structlog.get_logger("retinue.teams")


def begin_chain(process: Process) -> TraceContext:
    """The trace of a chain of calls that the hub itself begins for a team."""
    return new_trace().with_allowance(process.dispatcher.admission.guard.new_trace_allowance)


def call_hub(process: Process) -> Callable[[str, Mapping[str, Any]], Awaitable[Any]]:
    """What calls a skill of the hub with the rights of the owner of the state."""

    async def get(skill: str, arguments: Mapping[str, Any]) -> Any:
        call = Call(new_id(), skill, arguments, LOCAL_TOKEN, "team", begin_chain(process), HUB_NAME)
        return (await process.dispatcher.dispatch(call)).get()

    return get


class MissingSchedules:
    """Looks for such teams where the rows have changed, and again while their commands run."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen: object = None
        self._is_waiting = False
        self._failure = ""
        self._rests_until = 0.0

    async def look(self) -> None:
        """Add what is missing. A failure is logged once, and tried again after `AGAIN_S`."""
        state = self._process.state
        is_same = (change := find_teams_change(state)) == self._seen
        if is_same and (not self._is_waiting or time.monotonic() < self._rests_until):
            return
        from retinue.runtime.teams.schedules import add_missing_schedules
        from retinue.runtime.teams.store import TeamStore

        self._seen, self._is_waiting = change, True
        try:
            self._is_waiting = await add_missing_schedules(call_hub(self._process), TeamStore(state))
            self._failure = ""
        except RetinueError as error:
            self._rests_until = time.monotonic() + AGAIN_S
            if error.message != self._failure:
                self._failure = error.message
                _log.warning("schedules of teams not added", error=error.message)
