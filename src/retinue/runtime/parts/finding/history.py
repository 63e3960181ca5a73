"""The history of calls as a part: stores what came of calls that were found by words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog

from retinue.authoring.agent import Agent
from retinue.core.errors import StateError
from retinue.core.record import HUB_NAME
from retinue.mesh.history.records import Hashes, HistoryStore
from retinue.mesh.history.search_history import SearchHistory
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.serving import in_background
from retinue.settings import Settings
from retinue.settings_tables import HistoryTable

WRITE_S = 1.0
"""Seconds between two writes."""

READ_S = 10.0
"""Seconds between two looks for the records of other hubs on one database."""

_log = structlog.get_logger("retinue.history")


class HistoryPart(Part):
    """Keeps the history of the calls of a hub; off, it stores nothing and changes no ranking.

    A command without a hub uses the file of the state. To a server it connects only to forget everything.
    """

    name = "history"
    kinds = frozenset({"hub", "command"})
    is_required = True
    needs = (SearchHistory,)

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        history, table = process.get(SearchHistory), process.tables.get(HistoryTable)
        shares = _find_server(process) is not None
        why_off = "" if table.keep else "history.keep is false"
        if not why_off and shares and process.kind == "command":
            why_off = "hubs keep the history in the database; ask one of them"
        if why_off:
            history.stay_off(partial(_find_store, process), why_off)
        else:
            await asyncio.to_thread(self._open, process, history, table)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            if process.kind == "command":
                yield
                return
            async with in_background(_write(history, shares), name="history"):
                yield

        try:
            yield Opened(running=running, skills=partial(_add_skills, history))
        finally:
            # the events of the last calls wait in the bus
            process.dispatcher.admission.events.flush()
            await history.flush()

    def _open(self, process: Process, history: SearchHistory, table: HistoryTable) -> None:
        events = process.dispatcher.admission.events
        subscribe = partial(events.subscribe_later, history.observe)
        history.catch_up = events.flush
        try:
            store, hashes = _find_store(process), Hashes(process.state.mesh_key())
            history.open(store, hashes, table.wishes, subscribe)
        except StateError as error:
            _log.warning("no history of calls", error=error.message, remedy=error.remedy)


def _find_server(process: Process) -> str | None:
    """The url of the server that the hubs share; None = the history is in the state."""
    url = process.tables.get(Settings).database
    return url if url is not None and url.startswith("postgres") else None


def _find_store(process: Process) -> HistoryStore:
    # imported here, because a process that is switched off needs no store
    from retinue.storage.history_store import FileDatabase, ServerDatabase, SqlHistory

    url, state = _find_server(process), process.state
    return SqlHistory(FileDatabase(state.history, state.root) if url is None else ServerDatabase(url))


async def _write(history: SearchHistory, shares: bool) -> None:
    """Write what changed, and read what other hubs have written."""
    waited_s = 0.0
    while True:
        await asyncio.sleep(WRITE_S)
        await history.flush()
        waited_s += WRITE_S
        if shares and waited_s >= READ_S:
            waited_s = 0.0
            await history.read_others()


def _add_skills(history: SearchHistory, agent: Agent) -> None:
    from retinue.hub.history import add_history_skills

    if agent.name == HUB_NAME:
        add_history_skills(agent, history)
