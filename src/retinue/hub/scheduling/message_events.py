"""Starts runs for messages that arrive at the hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import RepeatedEventError, RetinueError
from retinue.hub.scheduling.events import EventStarter
from retinue.mesh.permissions import matches
from retinue.workflows.definitions.starts import OnMessage
from retinue.workflows.triggers import Event, StoredTrigger

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.triggers import TriggerTable

KNOWN_S = 2.0
"""How long a list of triggers is used, so that a flood of messages reads the database rarely."""

PATIENCE_S = 1.0
"""How long the answer to a message waits for its runs to be stored, while the database is slow."""

MAX_LATE = 100
"""Messages whose runs are started after their answer; later ones start nothing."""

_SECOND_ATTEMPT_S = 0.001
"""By how much a second attempt is later than the first, so that it is no repetition of it."""

_log = structlog.get_logger("retinue.schedules")


class MessageEvents:
    """Looks at each message; close it with `aclose`.

    ``exists`` = whether there may be triggers, ``clock`` = seconds since 1970. A message waits ``patience_s``
    for its runs to be stored, and not at all while those of another one are late.
    """

    def __init__(
        self,
        open_table: Callable[[], Awaitable[TriggerTable]],
        starter: EventStarter,
        *,
        exists: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._open_table = open_table
        self._starter = starter
        self._exists = exists
        self._clock = clock
        self._known: Sequence[StoredTrigger] = ()
        self._known_until = 0.0
        self._patience_s = patience_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Cancel the starts that are late."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def note(
        self, message: Mapping[str, Any], principal: Principal, trace: TraceContext | None
    ) -> None:
        """Start the runs of a message that was understood; what prevents them does not concern its sender.

        A message of a caller without a token, without the scope ``mesh``, or that is limited to some agents,
        starts nothing: the runs have the rights of others.
        """
        if not _may_start(principal) or not self._exists():
            return
        if len(self._late) >= MAX_LATE:
            _log.warning("message starts nothing", error="the database of the runs is slow")
            return
        task = asyncio.create_task(self._start_all(message, principal, trace), name="message-events")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        _, pending = await asyncio.wait((task,), timeout=0 if self._late else self._patience_s)
        self._late |= pending
        task.add_done_callback(self._late.discard)

    async def _start_all(
        self, message: Mapping[str, Any], principal: Principal, trace: TraceContext | None
    ) -> None:
        try:
            await self._start_fitting(message, principal, trace)
        except Exception:  # noqa: BLE001  # nobody waits for this task
            _log.exception("message starts nothing")

    async def _start_fitting(
        self, message: Mapping[str, Any], principal: Principal, trace: TraceContext | None
    ) -> None:
        try:
            table = await self._open_table()
            triggers = await self._list(table)
        except RetinueError as error:
            _log.warning("message starts nothing", error=error.message)
            return
        fitting = [trigger for trigger in triggers if _fits(trigger.rule.message, message)]
        if not fitting:
            return
        source = f"{principal.id} {message['message_id']}"
        event = Event(sha256(source.encode()).hexdigest()[:32], self._clock(), message, trace)
        for trigger in fitting:
            try:
                current = await table.find(trigger.id)
                if current is not None and _fits(current.rule.message, message):
                    await self._start(table, current, event)
            except RepeatedEventError:
                continue
            except RetinueError as error:
                _log.warning("message starts nothing", trigger=trigger.id, error=error.message)

    async def _start(self, table: TriggerTable, trigger: StoredTrigger, event: Event) -> None:
        try:
            await self._starter.start(table, trigger, event, sent_at=event.at)
        except RepeatedEventError:
            # the claim may be our own, stored without a run because the answer of the database was lost
            await self._starter.start(table, trigger, event, sent_at=event.at + _SECOND_ATTEMPT_S)

    async def _list(self, table: TriggerTable) -> Sequence[StoredTrigger]:
        now = self._clock()
        if not now < self._known_until <= now + KNOWN_S:
            self._known = [trigger for trigger in await table.list_all() if trigger.rule.message is not None]
            self._known_until = now + KNOWN_S
        return self._known


def _may_start(principal: Principal) -> bool:
    return principal.kind != "anonymous" and "mesh" in principal.scopes and not principal.agents


def _fits(options: OnMessage | None, message: Mapping[str, Any]) -> bool:
    if options is None or (options.performative and message["performative"] not in options.performative):
        return False
    payload = message["payload"]
    topic = payload.get("topic") if isinstance(payload, Mapping) else None
    patterns = (
        (options.sender, message["sender"]),
        (options.receiver, message["receiver"]),
        (options.topic, topic),
    )
    return all(
        glob is None or (isinstance(value, str) and matches(value, (glob,))) for glob, value in patterns
    )
