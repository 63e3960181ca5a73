"""The part of a leader of a hub: what it shares with the other processes, and their figures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_urlsafe
from typing import Any

from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.shared_sessions import SESSIONS, USED, SharedSessions
from retinue.mcp.session_records import RelayedRecords, SessionRecords
from retinue.mesh.directory.rollouts import OtherCalls
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.runtime.endpoints.a2a import SharedTasks
from retinue.runtime.endpoints.dashboard import ServingProcesses
from retinue.runtime.endpoints.mcp import SharedMcp
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.leader import (
    POLICIES,
    RESULT_PATH,
    SEARCHES,
    TOUCH_PATH,
    LeaderExchange,
)
from retinue.runtime.hub_processes.led_policies import answer_policies
from retinue.runtime.hub_processes.other_figures import OtherFigures, count_digest_calls
from retinue.runtime.hub_processes.place import HubPlace, make_task_id, own_names, owns_name
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.files import storage_errors

_PROCESS_UP = "retinue_hub_process_up"


class LeaderPart(Part):
    """Leads the processes of a hub: sums their figures, and names in ``/ready`` one that does not serve."""

    name = "hub-processes"
    kinds = frozenset({"hub"})
    gives = LeaderExchange
    is_required = True

    def __init__(self, place: HubPlace, board: Board) -> None:
        self._place = place
        self._board = board

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        exchange = LeaderExchange(process)
        _share_mcp(process, exchange, self._place)
        _share_history(process, exchange)
        process.add(
            SharedTasks,
            SharedTasks(own_names(self._place, make_task_id), partial(owns_name, self._place), leads=True),
        )
        process.add(ServingProcesses, ServingProcesses(self._place.count))
        forwarder = Forwarder(self._place)
        others = range(1, self._place.count)
        readings = OtherFigures(self._board, self._place.folder)
        count = partial(count_digest_calls, self._board, forwarder, others)
        process.add(OtherCalls, OtherCalls(count))

        async def figures(figures: Figures) -> None:
            figures.put(_PROCESS_UP, 1, "0")
            serving = [index for index in others if self._board.find_pid(index) is not None]
            for index in others:
                figures.put(_PROCESS_UP, float(index in serving), str(index))
            await readings.add_to(figures, forwarder, serving)

        process.get(ProcessState).add_others = figures

        async def problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem("hub process", str(index), "not running", is_fatal=False)
                for index in others
                if self._board.find_pid(index) is None
            ]

        try:
            yield Opened(
                product=exchange,
                problems=problems,
                running=partial(_sharing_policies, process, exchange),
                drain=exchange.end,
            )
        finally:
            await forwarder.aclose()


@asynccontextmanager
async def _sharing_policies(process: Process, exchange: LeaderExchange) -> AsyncIterator[None]:
    """Tell the other processes which policies are in force, and answer what theirs ask."""
    loaded, runs = process.get(LoadedPolicies), process.get(LazyRuns)
    answer_policies(exchange, runs.open_call_counts, runs.open_approvals, process.get(SqliteAudit))
    exchange.state_now[POLICIES] = loaded.describe
    loaded.on_loaded = lambda: exchange.tell(POLICIES, loaded.describe())
    loaded.on_loaded()
    yield


def _share_history(process: Process, exchange: LeaderExchange) -> None:
    """Let the history know the calls of the other processes, from the first search on."""
    history = process.get(SearchHistory)
    exchange.state_now[SEARCHES] = lambda: history.is_watching
    history.on_watch = lambda: exchange.tell(SEARCHES, True)


def _share_mcp(process: Process, exchange: LeaderExchange, place: HubPlace) -> None:
    """Let the other processes answer calls in the MCP sessions of the leader."""
    with storage_errors(place.folder):
        records = SessionRecords(place.folder / "sessions")
        relayed = RelayedRecords(place.folder / "relayed")
    sessions = SharedSessions(exchange.tell, records)
    make_state = own_names(place, token_urlsafe)
    process.add(SharedMcp, SharedMcp(make_state=make_state, sessions=sessions, relayed=relayed))
    exchange.state_now |= {SESSIONS: sessions.list_open, USED: lambda: sessions.is_used}

    async def touch(used: Sequence[str]) -> bool:
        for session_id in used:
            sessions.touch(session_id)
        return True

    async def keep_result(result: Sequence[Any]) -> bool:
        process.get(LongResults).take(*result)
        return True

    exchange.answers |= {TOUCH_PATH: touch, RESULT_PATH: keep_result}
