"""Introduces a node to others, and recognises its first contact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from retinue_koi.codec.bundles import Event, EventType
from retinue_koi.node_state import NodeState
from retinue_koi.peers import NodeAddress, NodeClient, PeerError
from retinue_koi.rules import Rules

CONTACT_ANSWERS_S: Final = 15.0

log = structlog.get_logger("retinue.koi")


class Introductions:
    """Introduces the node, and remembers the nodes that know it; the first contact is a relay of the rules.

    It may take ``contact_answers_s`` to answer with its own introduction.
    """

    def __init__(
        self,
        state: NodeState,
        peers: NodeClient,
        rules: Rules,
        *,
        contact_answers_s: float = CONTACT_ANSWERS_S,
    ) -> None:
        self.introduced: Callable[[str], None] = lambda rid: None
        """Called with the RID of a node that has taken an introduction."""
        self._contact_answers_s = contact_answers_s
        self._state = state
        self._peers = peers
        self._rules = rules
        self._introduced: set[str] = set()
        self._contact_met = asyncio.Event()

    async def introduce(self, address: NodeAddress) -> None:
        """Send the handshake: FORGET and NEW of the own profile. Raises PeerError."""
        own = self._state.cache.read(self._state.rid)
        if own is None:
            raise PeerError("the node has not started")
        events = (Event.from_rid(EventType.FORGET, self._state.rid), Event.from_bundle(EventType.NEW, own))
        await self._peers.broadcast_events(events=events, address=address)
        contact = self._peers.first_contact
        rid = address.rid or (contact.rid if contact is not None and contact.url == address.url else None)
        if rid is not None:
            self._introduced.add(rid)
            self.introduced(rid)

    async def introduce_again(self, target: str) -> None:
        """Introduce the node to a node that has forgotten it; a failure is only logged."""
        address = self._peers.find_address(target)
        if address is not None:
            try:
                await self.introduce(address)
            except PeerError as error:
                log.warning("koi_handshake_failed", node=target, reason=str(error), remedy=error.remedy)

    def has_introduced_itself_to(self, rid: str) -> bool:
        return rid in self._introduced

    def forget(self, rid: str) -> None:
        """Forget the introduction to a removed node, so that it gets another when it returns."""
        self._introduced.discard(rid)

    async def wait_for_contact(self, address: NodeAddress) -> None:
        """Say in the log if the first contact has taken the introduction and does not answer with its own."""
        try:
            async with asyncio.timeout(self._contact_answers_s):
                await self._contact_met.wait()
        except TimeoutError:
            log.warning(
                "koi_first_contact_silent",
                url=address.url,
                reason="it has taken the introduction of this node, and does not answer with its own",
                remedy="if it is a KOI node, name this node in koi.known there; its log says why it refuses",
            )

    def recognise_contact(self, rid: str) -> None:
        """Learn the RID of the first contact, if only its url was given."""
        contact, profile = self._peers.first_contact, self._state.graph.find_node(rid)
        if contact is not None and contact.rid == rid:
            self._contact_met.set()
        if contact is None or contact.rid is not None or profile is None or profile.base_url != contact.url:
            return
        contact.rid = rid
        self._contact_met.set()
        self._rules.relays.add(rid)
        self._introduced.add(rid)
