"""The objects that a node's pipeline processes, and the declarations of their handlers.

The stages and what a handler may do in each are those of koi-net; `pipeline` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from retinue_koi.codec.bundles import Bundle, Dialect, Event, EventType, Manifest
from retinue_koi.codec.orn import ORN
from retinue_koi.codec.rids import parse_rid, type_name, type_of


class HandlerType(StrEnum):
    """The five stages."""

    RID = "rid"
    Manifest = "manifest"
    Bundle = "bundle"
    Network = "network"
    Final = "final"


class KnowledgeSource(StrEnum):
    """Where an object comes from: this node, or another."""

    Internal = "INTERNAL"
    External = "EXTERNAL"


class StopChain:
    """The class of `STOP_CHAIN`."""

    def __repr__(self) -> str:
        return "STOP_CHAIN"


STOP_CHAIN: Final = StopChain()
"""The value with which a handler ends the processing of an object."""


class Handled:
    """Awaits the end of the processing of some objects; raises the first error of storage among them."""

    __slots__ = ("_error", "_future", "_left", "asked")

    def __init__(self, count: int) -> None:
        self._left = count
        self.asked = 0
        """How many of them wait for an answer of another node."""
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None

    def finish(self, error: Exception | None = None) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left == 0 and self._future is not None and not self._future.done():
            self._future.set_result(None)

    @property
    def only_asked_left(self) -> bool:
        """Whether all that have not ended wait for another node."""
        return self._left <= self.asked

    def __await__(self) -> Generator[Any, None, None]:
        if self._left > 0:
            self._future = self._future or asyncio.get_running_loop().create_future()
            yield from asyncio.shield(self._future).__await__()
        if self._error is not None:
            raise self._error


@dataclass(slots=True)
class KnowledgeObject:
    """One object while the pipeline processes it.

    ``event_type`` is the sender's, ``normalized_event_type`` its meaning to this node: NEW and UPDATE write
    to the cache, FORGET deletes, None ends the processing after the Bundle stage. ``network_targets`` are the
    nodes that are told.
    """

    rid_text: str
    manifest: Manifest | None = None
    contents: dict[str, Any] | None = None
    event_type: EventType | None = None
    source: KnowledgeSource = KnowledgeSource.Internal
    source_node: str | None = None
    dialect: Dialect = "unsigned"
    normalized_event_type: EventType | None = None
    network_targets: set[Any] = field(default_factory=set)
    handled: Handled | None = None
    settled: bool = False
    """The node's own rules have accepted it; see `rules`."""
    replayed: bool = False
    """It came in a signed message that came before."""
    asked: tuple[str, ...] = ()
    """Which questions other nodes have answered for it: ``owner``, ``alive``, ``gone``."""
    next_stage: HandlerType = HandlerType.RID
    rid_type: str = field(init=False)

    def __post_init__(self) -> None:
        self.rid_type = type_of(self.rid_text)

    @property
    def rid(self) -> ORN:
        return parse_rid(self.rid_text)

    @property
    def bundle(self) -> Bundle | None:
        if self.manifest is None or self.contents is None:
            return None
        return Bundle(self.manifest, self.contents)

    @property
    def normalized_event(self) -> Event:
        """The event for the targets. Raises ValueError before the Bundle stage."""
        if self.normalized_event_type is None:
            raise ValueError(
                "the object has no normalized event type yet; a Manifest or Bundle handler sets it"
            )
        if self.normalized_event_type is EventType.FORGET:
            return Event(self.rid_text, EventType.FORGET)
        return Event(self.rid_text, self.normalized_event_type, self.manifest, self.contents)


HandlerResult = KnowledgeObject | StopChain | None
HandlerFunction = Callable[[Any, KnowledgeObject], HandlerResult | Awaitable[HandlerResult]]
"""A handler, called with the processor and the object; None = go on with the object as it is."""


@dataclass(frozen=True)
class KnowledgeHandler:
    """A handler and its conditions; empty = everything."""

    function: HandlerFunction
    handler_type: HandlerType
    rid_types: frozenset[str] = frozenset()
    event_types: frozenset[EventType | None] = frozenset()
    source: KnowledgeSource | None = None

    def is_for(self, kobj: KnowledgeObject, rid_type: str) -> bool:
        return (
            (not self.rid_types or rid_type in self.rid_types)
            and (not self.event_types or kobj.event_type in self.event_types)
            and (self.source is None or kobj.source is self.source)
        )


def handler(
    handler_type: HandlerType,
    rid_types: Iterable[Any] | None = None,
    event_types: Iterable[EventType | None] | None = None,
    source: KnowledgeSource | None = None,
) -> Callable[[HandlerFunction], KnowledgeHandler]:
    """Make a handler of a function ``(processor, kobj)``; `Processor.add_handler` registers it.

    ``rid_types`` are classes or texts. The function may be async; it returns the object, `STOP_CHAIN` or
    None.
    """

    def make(function: HandlerFunction) -> KnowledgeHandler:
        return KnowledgeHandler(
            function,
            handler_type,
            frozenset(type_name(rid_type) for rid_type in rid_types or ()),
            frozenset(event_types or ()),
            source,
        )

    return make
