"""Asks the members of a network whether they still answer, and evicts the ones that do not.

A member is a node with an edge to this one. A node that was heard since the last look is not asked. A node
that polls has no address: it is silent once it has not polled for as long as a node counts as seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from retinue_koi.codec.bundles import EventType
from retinue_koi.codec.payloads import FetchManifests
from retinue_koi.codec.profiles import NodeType
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.node import KoiNode
from retinue_koi.peers import PeerError

LOOK_EVERY_S: Final = 60.0
EVICT_AFTER_S: Final = 3600.0

_ASKED_AT_ONCE: Final = 8
ANSWER_WITHIN_S: Final = 5.0
_LOOKS_OF_EVICTED: Final = 10
"""An evicted member is asked at one look of this many; it is heard at once where it speaks itself."""
_REFUSED: Final = (403, 507)
"""Statuses of a node that refuses a question: it is there. A proxy answers 503 for a node that is not."""

log = structlog.get_logger("retinue.koi")

Mark = Callable[[str, str | None], None]
"""Called with the RID of a member: with the reason once it is silent, with None once it answers again."""


@dataclass(slots=True)
class _Silence:
    since_s: float
    looks: int = 0
    is_evicted: bool = False


class Presence:
    """Looks at the members of one node every ``look_every_s``.

    A member that has not answered for ``evict_after_s`` is evicted: this node forgets its personalities and
    tells its subscribers; 0 = never. A member has ``answer_within_s`` to answer. ``clock`` gives seconds.
    """

    def __init__(
        self,
        node: KoiNode,
        mark: Mark = lambda rid, reason: None,
        *,
        evict_after_s: float = EVICT_AFTER_S,
        look_every_s: float = LOOK_EVERY_S,
        answer_within_s: float = ANSWER_WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._mark = mark
        self._evict_after_s = evict_after_s
        self._look_every_s = look_every_s
        self._answer_within_s = answer_within_s
        self._clock = clock
        self._silent: dict[str, _Silence] = {}
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)

    def is_silent(self, rid: str) -> bool:
        """Whether a member has not answered the last question."""
        return rid in self._silent

    async def run(self) -> None:
        """Look until this is cancelled; the first time after ``look_every_s``."""
        while True:
            await asyncio.sleep(self._look_every_s)
            await self.look()

    async def look(self) -> None:
        """Ask each member that was not heard meanwhile, and evict the ones that are silent for too long."""
        members = self._node.graph.get_neighbors()
        for rid in self._silent.keys() - set(members):
            del self._silent[rid]
        await asyncio.gather(*(self._look_at(rid) for rid in members))

    async def _look_at(self, rid: str) -> None:
        silence = self._silent.get(rid)
        if self._was_heard(rid):
            answers = True
        elif silence is not None and silence.is_evicted and silence.looks % _LOOKS_OF_EVICTED:
            answers = False
        else:
            async with self._asking:
                answers = await self._answers(rid)
        if answers:
            if silence is not None:
                self._return(rid)
            return
        if silence is None:
            silence = self._silent[rid] = _Silence(self._clock())
            reason = "the node does not answer"
            log.warning("koi_member_silent", node=rid, reason=reason)
            self._mark(rid, reason)
        silence.looks += 1
        silent_s = self._clock() - silence.since_s
        if self._evict_after_s and silent_s >= self._evict_after_s and not silence.is_evicted:
            await self._evict(rid, silence, silent_s)

    def _was_heard(self, rid: str) -> bool:
        memory = self._node.state.memory
        return memory.was_seen(rid, within_s=self._look_every_s)

    async def _answers(self, rid: str) -> bool:
        peers = self._node.wire.peers
        address = peers.find_address(rid)
        if address is None:
            return self._node.state.memory.was_seen(rid)
        try:
            async with asyncio.timeout(self._answer_within_s):
                await peers.request(address, FetchManifests((), (rid,)))
        except TimeoutError:
            return False
        except PeerError as error:
            if error.fault == "unknown_node":
                # it has lost its cache, and this node would get no more events
                await self._node.wire.introductions.introduce_again(rid)
            return bool(error.fault) or error.status in _REFUSED
        return True

    def _return(self, rid: str) -> None:
        """Take a member back: fetch what it has, because it does not tell again what it has told before."""
        del self._silent[rid]
        log.info("koi_member_answers_again", node=rid)
        self._mark(rid, None)
        profile = self._node.graph.find_node(rid)
        if profile is not None:
            self._node.joining.subscribe(rid, profile)

    async def _evict(self, rid: str, silence: _Silence, silent_s: float) -> None:
        """Forget the personalities of a member; the node, its edges and its queue stay for its return."""
        profile, node = self._node.graph.find_node(rid), self._node
        if profile is None or profile.node_type is not NodeType.FULL:
            return  # nothing could be fetched from it when it returns
        silence.is_evicted = True
        entries = (
            (personality, node.cache.find_entry(personality))
            for personality in node.cache.list_rids([PERSONALITY_TYPE])
        )
        owned = [one for one, entry in entries if entry is not None and entry.owner == rid]
        for personality in owned:
            await node.processor.handle(rid=personality, event_type=EventType.FORGET)
            # its owner has not forgotten it, so that the same state may come back
            node.state.memory.drop_forgotten(personality)
        log.warning("koi_member_evicted", node=rid, silent_s=round(silent_s), personalities=owned)
