"""Who is asked when a step names a role: the agents of the directory that have it, best first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from retinue.core.errors import RoleNotOfferedError, UnknownAgentError
from retinue.core.record import Listing
from retinue.mesh.entry import Entry
from retinue.mesh.roles import RoleOffer, list_offers, parse_role
from retinue.mesh.routing import Strategy, first, is_called
from retinue.mesh.suggest import suggest
from retinue.workflows.caller import Choice

_OPENED = 200
"""Listings that are read whole while others wait: some 20 ms."""


class Agents(Protocol):
    """All agents there are; the directory."""

    async def ensure_fresh(self) -> None:
        """Read again what is too old."""

    def list_with_role(self, role: str, scopes: frozenset[str]) -> Sequence[Entry]:
        """Who has the role for these scopes, in the directory's order."""

    def open_all(self, entries: Sequence[Entry]) -> Sequence[Listing]:
        """These listings, whole, without those that are gone."""

    def find_named(self, name: str) -> Entry | None:
        """The agent of a bare name or ``name@source``."""

    def stands(self, entry: Entry) -> bool:
        """Whether this listing is the one that stands for its agent."""

    def list_entries(self) -> Sequence[Entry]:
        """Every agent, in the directory's order."""


class NoAgents:
    """A mesh in which nobody has a role."""

    async def ensure_fresh(self) -> None:
        """There is nothing to read."""

    def list_with_role(self, role: str, scopes: frozenset[str]) -> Sequence[Entry]:
        return ()

    def open_all(self, entries: Sequence[Entry]) -> Sequence[Listing]:
        return ()

    def find_named(self, name: str) -> Entry | None:
        return None

    def stands(self, entry: Entry) -> bool:
        return False

    def list_entries(self) -> Sequence[Entry]:
        return ()


class RoleChoice:
    """Lists agents by role for workflows; the cards of those that have it are read, and no others."""

    def __init__(self, agents: Agents, strategy: Strategy = first) -> None:
        self._agents = agents
        self._strategy = strategy

    async def list_role(self, role: str, agents: Sequence[str], scopes: frozenset[str]) -> Sequence[Choice]:
        """As ``Caller.list_role``."""
        role = parse_role(role)
        await self._agents.ensure_fresh()
        entries = self._agents.list_with_role(role, scopes)
        listings: list[Listing] = []
        for start in range(0, len(entries), _OPENED):
            if start:
                await asyncio.sleep(0)
            listings += self._agents.open_all(entries[start : start + _OPENED])
        offers = list_offers(listings, role, scopes, self._strategy)
        names = Counter(offer.listing.record.name for offer in offers)
        if agents:
            return [_choose(self._find(agent, role, offers), names) for agent in agents]
        available = [offer for offer in offers if offer.is_available]
        if not available:
            raise RoleNotOfferedError(role)
        return [_choose(offer, names) for offer in available]

    def _find(self, agent: str, role: str, offers: Iterable[RoleOffer]) -> RoleOffer:
        found = next((offer for offer in offers if is_called(offer.listing, agent)), None)
        if found is not None:
            return found
        known = self._agents.find_named(agent)
        if known is not None and self._agents.stands(known):
            raise RoleNotOfferedError(role, agent)
        raise UnknownAgentError(agent, near=suggest(agent, (one.name for one in self._agents.list_entries())))


def _choose(offer: RoleOffer, names: Counter[str]) -> Choice:
    record = offer.listing.record
    return Choice(
        agent=record.name if names[record.name] == 1 else f"{record.name}@{offer.listing.source}",
        skill=offer.skill.id,
        version=record.version,
        url=record.url,
        input_schema=offer.skill.input_schema,
        output_schema=offer.skill.output_schema,
        score=offer.score,
        available=offer.is_available,
    )
