"""Queues events for other nodes and sends them in batches until they arrive.

A queue holds RIDs and event types; the bundle is read when it is sent, so what arrives is the newest state.
The queues are kept in the journal of the cache and survive a restart.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import structlog

from retinue.core.errors import StateError
from retinue_koi.codec.bundles import Dialect, Event, EventType, encode_bundle, in_dialect
from retinue_koi.peers import NodeClient, PeerError
from retinue_koi.storage.cache import KoiCache

MAX_QUEUED: Final = 20_000
"""Events that wait for one node, one for each RID; further ones are dropped, with a log line."""

MAX_QUEUES: Final = 10_000
"""Nodes for which events wait; events for further nodes are dropped, with a log line."""

BATCH_EVENTS: Final = 100
BATCH_BYTES: Final = 1024 * 1024
COLLECT_S: Final = 0.01
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0

log = structlog.get_logger("retinue.koi")

P = ParamSpec("P")
R = TypeVar("R")

_MAX_RETRY_PAUSE_S: Final = 60.0


class Outbox:
    """Sends queued events; ``introduce`` is awaited when a node replies that it does not know this one."""

    def __init__(
        self,
        cache: KoiCache,
        peers: NodeClient,
        introduce: Callable[[str], Awaitable[None]],
        *,
        max_queued: int = MAX_QUEUED,
        max_queues: int = MAX_QUEUES,
    ) -> None:
        self.max_queued = max_queued
        """Events that may wait for one node; further ones are dropped."""
        self.max_queues = max_queues
        """Nodes for which events may wait."""
        self._cache = cache
        self._peers = peers
        self._introduce = introduce
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._turns = itertools.count()
        self._changes: dict[tuple[str, str], int] = {}
        """The turn of the last push of a RID to a node; a turn is never used twice."""
        self._running = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any node is kept here; what waits for nodes is in the cache."""
        return not (self._senders or self._wakes or self._changes)

    def start(self) -> None:
        """Go on with what waited when the node stopped."""
        self._running = True
        for target in list(self._cache.queues):
            self._wake(target)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Try to send for a moment; the rest waits for the next start."""
        self._running = False
        tasks = list(self._senders.values())
        for wake in self._wakes.values():
            wake.set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def push(self, target: str, rid: str, event_type: EventType) -> None:
        """Let an event wait for a node. Raises StateError if it cannot be kept."""
        queue = self._cache.queues.get(target)
        if queue is None and len(self._cache.queues) >= self.max_queues:
            log.warning(
                "koi_event_dropped", node=target, rid=rid, reason=f"{self.max_queues} nodes have queues"
            )
            return
        if queue is not None and len(queue) >= self.max_queued and rid not in queue:
            log.warning(
                "koi_event_dropped", node=target, rid=rid, reason=f"{self.max_queued} events wait already"
            )
            return
        waiting = queue.get(rid) if queue else None
        if waiting == EventType.NEW and event_type is EventType.UPDATE:
            event_type = EventType.NEW  # the node has not seen it yet
        self._cache.enqueue(target, rid, event_type.value)
        self._changes[target, rid] = next(self._turns)
        self._wake(target)

    def take(self, target: str, limit: int, dialect: Dialect) -> list[Event]:
        """The events that a node polls; they are removed. 0 = as many as fit into one reply."""
        rids, events = self._collect(target, limit or self.max_queued, dialect)
        if rids:
            self._dequeue(target, rids)
        return events

    def count(self, target: str) -> int:
        return len(self._cache.queues.get(target, ()))

    def drop(self, target: str) -> None:
        """Forget what waits for a node that has left."""
        queue = self._cache.queues.get(target)
        if queue:
            self._dequeue(target, list(queue))

    async def flushed(self, target: str, timeout_s: float) -> bool:
        """Wait until nothing waits for a node; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.count(target):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False
        return True

    # Sending

    def _wake(self, target: str) -> None:
        if not self._running or self._peers.find_address(target) is None:
            return  # a node that polls
        wake = self._wakes.setdefault(target, asyncio.Event())
        wake.set()
        sender = self._senders.get(target)
        if sender is None or sender.done():  # one that is done may not have been removed yet
            task = asyncio.get_running_loop().create_task(self._send_all(target, wake))
            self._senders[target] = task
            task.add_done_callback(lambda ended: self._remove_sender(target, ended))

    def _remove_sender(self, target: str, ended: asyncio.Task[None]) -> None:
        if self._senders.get(target) is ended:
            del self._senders[target]
            del self._wakes[target]

    async def _send_all(self, target: str, wake: asyncio.Event) -> None:
        failures = 0
        batch = BATCH_EVENTS
        has_introduced = False
        while self.count(target):
            wake.clear()
            await asyncio.sleep(COLLECT_S if self._running else 0)
            try:
                sent = await self._send_some(target, batch)
            except PeerError as error:
                if error.fault == "unknown_node":
                    await self._introduce(target)
                    if not has_introduced:
                        has_introduced = True
                        continue
                if error.status in (400, 413, 422) and not error.fault and self.count(target):
                    if batch > 1:
                        batch = 1  # find the one that it does not take
                        continue
                    self._drop_first(target, str(error))
                    continue
                failures += 1
                if not await self._pause(target, wake, failures, str(error)):
                    return
                continue
            except StateError as error:
                failures += 1
                if not await self._pause(target, wake, failures, str(error)):
                    return
                continue
            failures, has_introduced = 0, False
            batch = BATCH_EVENTS if sent else batch
            if not self._running and not sent:
                return

    async def _pause(self, target: str, wake: asyncio.Event, failures: int, reason: str) -> bool:
        """Wait before the next attempt; False if the node stops meanwhile."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
        if failures in (1, 5) or failures % 20 == 0:
            log.warning("koi_events_not_sent", node=target, waiting=self.count(target), reason=reason)
        end = asyncio.get_running_loop().time() + pause_s * random.uniform(0.8, 1.2)
        while self._running and (left := end - asyncio.get_running_loop().time()) > 0:
            wake.clear()
            try:
                async with asyncio.timeout(left):
                    await wake.wait()
            except TimeoutError:
                break
        return self._running

    async def _send_some(self, target: str, limit: int) -> int:
        address = self._peers.find_address(target)
        if address is None:
            raise PeerError("its address is not known any more")
        rids, events = self._collect(target, limit, address.dialect)
        before = {rid: self._changes.get((target, rid)) for rid in rids}
        if events:
            await self._peers.broadcast_events(events=events, address=address)
        # what has changed meanwhile waits for another turn
        self._dequeue(target, [rid for rid in rids if self._changes.get((target, rid)) == before[rid]])
        return len(events)

    def _dequeue(self, target: str, rids: list[str]) -> None:
        self._cache.dequeue(target, rids)
        for rid in rids:
            self._changes.pop((target, rid), None)

    def _collect(self, target: str, limit: int, dialect: Dialect) -> tuple[list[str], list[Event]]:
        """The next RIDs of a queue, and their events; a RID without a bundle has no event."""
        rids: list[str] = []
        events: list[Event] = []
        size = 0
        for rid, kind in list(self._cache.queues.get(target, {}).items()):
            if len(rids) >= limit:
                break
            if kind == EventType.FORGET:
                events.append(Event.from_rid(EventType.FORGET, rid))
            else:
                bundle = self._cache.read(rid)
                if bundle is not None:
                    size += len(encode_bundle(bundle))
                    if size > BATCH_BYTES and rids:
                        break
                    events.append(Event.from_bundle(EventType(kind), in_dialect(bundle, dialect)))
            rids.append(rid)
        return rids, events

    def _drop_first(self, target: str, reason: str) -> None:
        rid = next(iter(self._cache.queues[target]))
        log.warning("koi_event_dropped", node=target, rid=rid, reason=reason)
        self._dequeue(target, [rid])


def with_retry(
    retries: int = 3,
    delay: float = 1.0,
    backoff: float = 2.0,
    exceptions: type[Exception] | tuple[type[Exception], ...] = Exception,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate an async function to be called again when it raises one of ``exceptions``.

    ``retries`` are attempts after the first. The pauses are ``delay`` seconds, then ``backoff`` times as long
    each, at most a minute. The last error is raised.
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            pause_s = delay
            for attempt in range(1, retries + 1):
                try:
                    return await function(*args, **kwargs)
                except exceptions as error:
                    log.warning("retried", attempt=attempt, of=retries, in_s=pause_s, reason=str(error))
                await sleep(pause_s)
                pause_s = min(pause_s * backoff, _MAX_RETRY_PAUSE_S)
            return await function(*args, **kwargs)

        return retried

    return decorate
