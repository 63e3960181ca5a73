"""Adds the schedules of a team whose command was killed after the team had begun to serve."""

from __future__ import annotations

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

    async def look(self) -> None:
        """Add what is missing. A failure is tried again at the next look."""
        state = self._process.state
        if (change := find_teams_change(state)) == self._seen and not self._is_waiting:
            return
        from retinue.runtime.teams.schedules import add_missing_schedules
        from retinue.runtime.teams.store import TeamStore

        self._seen, self._is_waiting = change, True
        try:
            self._is_waiting = await add_missing_schedules(call_hub(self._process), TeamStore(state))
        except RetinueError as error:
            _log.warning("schedules of teams not added", error=error.message)
