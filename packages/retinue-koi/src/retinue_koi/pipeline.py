"""The pipeline of a node: passes objects, one at a time, through five stages of handlers.

The stages are those of koi-net: RID (known, wanted?), Manifest (newer?), Bundle (valid? sets the normalized
event type), then the cache is changed, Network (who is told?), Final. A handler that raises stops its object
only, with a log line.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import structlog

from retinue.core.errors import StateError
from retinue_koi.codec.bundles import Bundle, Event, EventType, Manifest
from retinue_koi.knowledge import (
    Handled,
    HandlerFunction,
    HandlerType,
    KnowledgeHandler,
    KnowledgeObject,
    KnowledgeSource,
    StopChain,
    handler,
)

MAX_WAITING: Final = 20_000
"""Objects from other nodes that wait; more are refused, and their senders keep them."""

_SLICE_S: Final = 0.005
"""The event loop is given to others after this time at the latest."""

log = structlog.get_logger("retinue.koi")


class PipelineFullError(Exception):
    """Too many objects wait; the sender should send them again later."""


class PipelineSteps(ABC):
    """The work of a node for its pipeline, at the places where koi-net fetches, writes and sends.

    `NodeSteps` in `steps` implements each.
    """

    @abstractmethod
    def settle(self, kobj: KnowledgeObject) -> Awaitable[bool] | bool:
        """Whether the object is accepted; an awaitable if another node has to be asked first."""

    @abstractmethod
    def is_stale(self, kobj: KnowledgeObject) -> bool:
        """Whether the cache has this state already, or a later one; sets the normalized event type."""

    @abstractmethod
    def fetch(self, kobj: KnowledgeObject) -> Awaitable[bool]:
        """Add manifest and contents from the source or another provider; False if no node has them."""

    @abstractmethod
    def change_cache(self, kobj: KnowledgeObject) -> None:
        """Write or delete. Raises StateError."""

    @abstractmethod
    def send(self, kobj: KnowledgeObject) -> None:
        """Queue the event for each target of the object. Raises StateError."""


class Processor:
    """The pipeline with its queue. Handlers run one object at a time, in the order of registration.

    ``cache``, ``identity`` and ``network`` are what seed 003's handlers use; the node sets them.
    """

    def __init__(self, steps: PipelineSteps, *, max_waiting: int = MAX_WAITING) -> None:
        self._steps = steps
        self.max_waiting = max_waiting
        """Objects of other nodes that may wait; further ones are refused."""
        self._handlers: dict[HandlerType, list[KnowledgeHandler]] = {kind: [] for kind in HandlerType}
        self._waiting: deque[KnowledgeObject] = deque()
        self._arrived = asyncio.Event()
        self._asked: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._current: KnowledgeObject | None = None
        self.cache: Any = None
        self.identity: Any = None
        self.network: Any = None

    @property
    def waiting_objects(self) -> int:
        """How many objects wait to be processed."""
        return len(self._waiting)

    # Handlers

    def add_handler(self, added: KnowledgeHandler) -> None:
        self._handlers[added.handler_type].append(added)

    def register_handler(
        self,
        handler_type: HandlerType,
        rid_types: Iterable[Any] | None = None,
        event_types: Iterable[EventType | None] | None = None,
        source: KnowledgeSource | None = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Decorate a function ``(processor, kobj)`` to register it; see `handler`."""

        def register(function: HandlerFunction) -> HandlerFunction:
            self.add_handler(handler(handler_type, rid_types, event_types, source)(function))
            return function

        return register

    # Input

    def handle(
        self,
        rid: object = None,
        manifest: Manifest | None = None,
        bundle: Bundle | None = None,
        event: Event | None = None,
        kobj: KnowledgeObject | None = None,
        event_type: EventType | None = None,
        source: KnowledgeSource = KnowledgeSource.Internal,
        source_node: object = None,
    ) -> Handled:
        """Let one object be processed; exactly one of the first five. Await the result for its end."""
        if kobj is None:
            node = None if source_node is None else str(source_node)
            if event is not None:
                kobj = KnowledgeObject(event.rid, event.manifest, event.contents, event.event_type)
            elif bundle is not None:
                kobj = KnowledgeObject(bundle.rid, bundle.manifest, bundle.contents, event_type)
            elif manifest is not None:
                kobj = KnowledgeObject(manifest.rid, manifest, None, event_type)
            elif rid is not None:
                kobj = KnowledgeObject(str(rid), None, None, event_type)
            else:
                raise ValueError("one of rid, manifest, bundle, event and kobj is needed")
            kobj.source, kobj.source_node = source, node
        kobj.handled = kobj.handled or Handled(1)
        self.handle_all([kobj])
        return kobj.handled

    def handle_all(self, kobjs: Sequence[KnowledgeObject]) -> None:
        """Let objects be processed in their order. Raises BusyError, and takes none, if too many wait."""
        external = any(kobj.source is KnowledgeSource.External for kobj in kobjs)
        if external and len(self._waiting) + len(self._asked) + len(kobjs) > self.max_waiting:
            raise PipelineFullError(
                f"{len(self._waiting)} objects wait, of {self.max_waiting}; send these again later"
            )
        self._waiting.extend(kobjs)
        self._arrived.set()

    def handle_next(self, kobjs: Sequence[KnowledgeObject]) -> None:
        """Let what follows from the object in work be processed before all that waits."""
        self._waiting.extendleft(reversed(kobjs))
        self._arrived.set()

    # Work

    def start(self) -> None:
        self._worker = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """End the work; waiting objects are dropped, and were not acknowledged."""
        for task in [*self._asked, *([self._worker] if self._worker else [])]:
            task.cancel()
        await asyncio.gather(*self._asked, *([self._worker] if self._worker else []), return_exceptions=True)
        self._worker = None
        for kobj in self._waiting:
            _finish(kobj, StateError("the node has stopped", remedy="send the events again"))
        self._waiting.clear()

    async def idle(self) -> None:
        """Wait until nothing is being processed."""
        while self._waiting or self._asked or self._current is not None:
            await asyncio.sleep(0.002)

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            slice_end = time.monotonic() + _SLICE_S
            while self._waiting:
                self._current = kobj = self._waiting.popleft()
                error: Exception | None = None
                try:
                    asked = await self._run(kobj)
                    if asked is not None:
                        self._ask(*asked)
                        continue
                except StateError as problem:
                    error = problem
                    log.warning("koi_object_not_kept", rid=kobj.rid_text, reason=str(problem))
                except Exception as problem:
                    log.warning("koi_object_failed", rid=kobj.rid_text, reason=repr(problem), exc_info=True)
                finally:
                    self._current = None
                _finish(kobj, error)
                if time.monotonic() > slice_end:
                    break
            await asyncio.sleep(0)

    def _ask(self, kobj: KnowledgeObject, asked: Awaitable[bool]) -> None:
        """Wait for other nodes outside the pipeline, then let the object go on."""

        async def ask() -> None:
            try:
                try:
                    go_on = await asked
                finally:
                    if kobj.handled is not None:
                        kobj.handled.asked -= 1
                if go_on:
                    self._waiting.append(kobj)
                    self._arrived.set()
                    return
            except Exception as problem:
                log.warning("koi_object_failed", rid=kobj.rid_text, reason=repr(problem), exc_info=True)
            _finish(kobj, None)

        if kobj.handled is not None:
            kobj.handled.asked += 1
        task = asyncio.get_running_loop().create_task(ask())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _run(self, kobj: KnowledgeObject) -> tuple[KnowledgeObject, Awaitable[bool]] | None:
        """Take an object through the stages that it has not passed; an awaitable = another node is asked."""
        steps = self._steps
        rid_type = kobj.rid_type
        if kobj.next_stage is HandlerType.RID:
            rid_result = await self._call(HandlerType.RID, kobj, rid_type)
            if rid_result is None:
                return None
            kobj = rid_result
            kobj.next_stage = HandlerType.Manifest
        if kobj.event_type is EventType.FORGET:
            held = self.cache.read(kobj.rid_text)
            if held is None:
                return None
            kobj.manifest, kobj.contents = held.manifest, held.contents
            if not kobj.settled:
                verdict = steps.settle(kobj)
                if not isinstance(verdict, bool):
                    return kobj, verdict
                if not verdict:
                    return None
            kobj.normalized_event_type = EventType.FORGET
        else:
            if kobj.manifest is None:
                return None if kobj.source is KnowledgeSource.Internal else (kobj, steps.fetch(kobj))
            if kobj.next_stage is HandlerType.Manifest:
                if steps.is_stale(kobj):
                    return None
                rid_result = await self._call(HandlerType.Manifest, kobj, rid_type)
                if rid_result is None:
                    return None
                kobj = rid_result
                kobj.next_stage = HandlerType.Bundle
            elif steps.is_stale(kobj):
                return None
            if kobj.contents is None:
                return None if kobj.source is KnowledgeSource.Internal else (kobj, steps.fetch(kobj))
            if not kobj.settled:
                verdict = steps.settle(kobj)
                if not isinstance(verdict, bool):
                    return kobj, verdict
                if not verdict:
                    return None
        for stage, step in (
            (HandlerType.Bundle, steps.change_cache),
            (HandlerType.Network, steps.send),
            (HandlerType.Final, None),
        ):
            rid_result = await self._call(stage, kobj, rid_type) if self._handlers[stage] else kobj
            if rid_result is None or rid_result.normalized_event_type is None:
                return None
            kobj = rid_result
            if step is not None:
                step(kobj)
        return None

    async def _call(self, stage: HandlerType, kobj: KnowledgeObject, rid_type: str) -> KnowledgeObject | None:
        for registered in self._handlers[stage]:
            if not registered.is_for(kobj, rid_type):
                continue
            result = registered.function(self, kobj)
            if result is kobj or result is None:
                continue
            if not isinstance(result, KnowledgeObject | StopChain) and inspect.isawaitable(result):
                result = await result
            if result is None:
                continue
            if isinstance(result, StopChain):
                return None
            if not isinstance(result, KnowledgeObject):
                raise TypeError(
                    f"handler {registered.function!r} returned {type(result).__name__}, not a KnowledgeObject"
                )
            result.handled = result.handled or kobj.handled
            kobj = result
        return kobj


def _finish(kobj: KnowledgeObject, error: Exception | None) -> None:
    if kobj.handled is not None:
        kobj.handled.finish(error)
