"""Who is asked when a step names a role: the agents of the directory that have it, best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from retinue.core.errors import RoleNotOfferedError, UnknownAgentError
from retinue.core.record import Listing
from retinue.mesh.roles import RoleOffer, list_offers, parse_role
from retinue.mesh.routing import Strategy, first, is_called
from retinue.mesh.suggest import suggest
from retinue.workflows.caller import Choice


class Agents(Protocol):
    """All agents there are; the directory."""

    async def ensure_fresh(self) -> None:
        """Read again what is too old."""

    def list_all(self) -> Sequence[Listing]:
        """Every listing, in the directory's order."""


class NoAgents:
    """A mesh in which nobody has a role."""

    async def ensure_fresh(self) -> None:
        """There is nothing to read."""

    def list_all(self) -> Sequence[Listing]:
        return ()


class RoleChoice:
    """Lists agents by role for workflows."""

    def __init__(self, agents: Agents, strategy: Strategy = first) -> None:
        self._agents = agents
        self._strategy = strategy

    async def list_role(self, role: str, agents: Sequence[str], scopes: frozenset[str]) -> Sequence[Choice]:
        """As ``Caller.list_role``."""
        role = parse_role(role)
        await self._agents.ensure_fresh()
        listings = self._agents.list_all()
        offers = list_offers(listings, role, scopes, self._strategy)
        names = Counter(offer.listing.record.name for offer in offers)
        if agents:
            return [_choose(_find(agent, role, offers, listings), names) for agent in agents]
        available = [offer for offer in offers if offer.is_available]
        if not available:
            raise RoleNotOfferedError(role)
        return [_choose(offer, names) for offer in available]


def _find(agent: str, role: str, offers: Iterable[RoleOffer], listings: Iterable[Listing]) -> RoleOffer:
    found = next((offer for offer in offers if is_called(offer.listing, agent)), None)
    if found is not None:
        return found
    if any(is_called(listing, agent) for listing in listings):
        raise RoleNotOfferedError(role, agent)
    raise UnknownAgentError(agent, near=suggest(agent, (one.record.name for one in listings)))


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
