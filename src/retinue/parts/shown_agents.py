"""The visible agents of a process for one caller: an agent's own, or those of a hub's directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from retinue.authoring.agent import Agent
from retinue.core.call import Principal
from retinue.core.errors import UnknownAgentError
from retinue.core.record import LOCAL_SOURCE, AgentRecord, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.permissions import (
    Access,
    AgentView,
    decide_listings,
    is_agent_listed,
    is_seen,
    narrow_record,
)

OPENED_AT_ONCE = 50
"""Listings that are opened before other tasks run, at about 100 µs each."""

_NO_SCOPES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShownAgent:
    """An agent for one caller.

    ``record`` has what is in the caller's lists; what of it the caller may see follows from ``scopes``. For a
    call it is whole, as it is unless it ``is_narrowed``. ``name`` identifies the agent in this process, such
    as ``echo@office`` where two agents are called ``echo``.
    """

    record: AgentRecord
    name: str
    scopes: frozenset[str]
    is_narrowed: bool = False


class ShownAgents(Protocol):
    """The agents that the endpoints of a process serve; ``agent`` is the process's own.

    With ``has_others`` (a hub) the endpoints serve agents of other processes, too.
    """

    agent: Agent
    has_others: bool

    def own(self, caller: Principal) -> ShownAgent:
        """The process's own agent; without scopes where the caller does not see it."""

    async def decide(self, caller: Principal) -> None:
        """Decide what the caller may list of the process's own agent, while others run, before `own`."""

    async def find(self, name: str, caller: Principal, *, for_call: bool = False) -> ShownAgent:
        """The agent of a name. ``for_call`` as in `Directory.ensure_fresh`; the record is whole then.

        Raises UnknownAgentError, the same for a hidden and for a missing agent: it names no similar agents,
        because they may be hidden from the caller. Raises StateError.
        """

    def iterate_others(self, caller: Principal) -> AsyncIterator[ShownAgent]:
        """The agents of other processes that the caller sees; other tasks run meanwhile."""

    async def read_revision(self) -> tuple[int, ...]:
        """The number of changes of the agents until now; reads sources that are out of date."""

    async def find_spelling(self, name: str, caller: Principal) -> str | None:
        """The name of the only seen agent that differs in case, ``_`` or ``-`` alone."""

    def subscribe(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` when the agent may have changed; the returned function ends it."""


class OwnAgent:
    """The agent of a process that serves no other; ``url`` is the base of its endpoints, if it has any."""

    has_others = False

    def __init__(self, agent: Agent, access: Access, url: str | None) -> None:
        self.agent = agent
        self._access = access
        # rendering a record takes longer than finding it, and a change counts up the revision
        self._read = lru_cache(maxsize=1)(lambda revision: agent.record(url))

    def own(self, caller: Principal, *, for_call: bool = False) -> ShownAgent:
        view, name = self._access.view_of(caller), self.agent.name
        scopes = caller.scopes if is_seen(view, name) else _NO_SCOPES
        record = self._read(self.agent.revision)
        if for_call or view is None or view.lists is None:
            return ShownAgent(record, name, scopes)
        return _narrow(view, Listing(record, LOCAL_SOURCE, name), name, scopes)

    async def find(self, name: str, caller: Principal, *, for_call: bool = False) -> ShownAgent:
        if name != self.agent.name or not self.is_seen(caller):
            raise UnknownAgentError(name)
        if not for_call:
            await self.decide(caller)
        return self.own(caller, for_call=for_call)

    async def decide(self, caller: Principal) -> None:
        record = self._read(self.agent.revision)
        listing = Listing(record, LOCAL_SOURCE, self.agent.name)
        await decide_listings(self._access.view_of(caller), [listing])

    async def iterate_others(self, caller: Principal) -> AsyncIterator[ShownAgent]:
        others: tuple[ShownAgent, ...] = ()
        for other in others:
            yield other

    async def read_revision(self) -> tuple[int, ...]:
        return (self.agent.revision,)

    async def find_spelling(self, name: str, caller: Principal) -> str | None:
        """None: an agent's own endpoints do not tell its name."""
        return None

    def subscribe(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self.agent.changes.subscribe(lambda change: changed())

    def is_seen(self, caller: Principal) -> bool:
        """Whether the caller sees the agent."""
        return is_seen(self._access.view_of(caller), self.agent.name)


class MeshAgents:
    """A hub's own agent and those of its directory."""

    has_others = True

    def __init__(self, agent: Agent, access: Access, url: str | None, directory: Directory) -> None:
        self.agent = agent
        self._own = OwnAgent(agent, access, url)
        self._access = access
        self._directory = directory
        self._changes = 0
        directory.subscribe(self._count)

    def own(self, caller: Principal) -> ShownAgent:
        return self._own.own(caller)

    async def decide(self, caller: Principal) -> None:
        await self._own.decide(caller)

    async def find(self, name: str, caller: Principal, *, for_call: bool = False) -> ShownAgent:
        if name == self.agent.name and self._own.is_seen(caller):
            if not for_call:
                await self._own.decide(caller)
            return self._own.own(caller, for_call=for_call)
        await self._directory.ensure_fresh(for_call=for_call)
        view = self._access.view_of(caller)
        # not `Directory.open_named`, whose error names similar agents of all
        entry = self._directory.find_named(name, view=view)
        listing = None if entry is None else await self._directory.open(entry)
        if listing is None or not is_seen(view, listing.name):
            raise UnknownAgentError(name)
        if for_call:
            return ShownAgent(listing.record, self._directory.name_of(listing), caller.scopes)
        await decide_listings(view, [listing])
        if not is_agent_listed(view, listing, caller.scopes):
            raise UnknownAgentError(name)
        return self._show(listing, caller, view)

    async def iterate_others(self, caller: Principal) -> AsyncIterator[ShownAgent]:
        await self._directory.ensure_fresh()
        view = self._access.view_of(caller)
        async for page in self._directory.iterate_pages():
            seen = [entry for entry in page if is_seen(view, entry.name)]
            for start in range(0, len(seen), OPENED_AT_ONCE):
                for listing in self._directory.open_all(seen[start : start + OPENED_AT_ONCE]):
                    await decide_listings(view, [listing])
                    if is_agent_listed(view, listing, caller.scopes):
                        yield self._show(listing, caller, view)
                await asyncio.sleep(0)

    async def read_revision(self) -> tuple[int, ...]:
        await self._directory.ensure_fresh()
        return (self.agent.revision, self._changes)

    async def find_spelling(self, name: str, caller: Principal) -> str | None:
        from retinue.mesh.asking.query import fold

        wanted, view = fold(name), self._access.view_of(caller)
        spellings = {
            shown
            async for page in self._directory.iterate_pages()
            for entry in page
            if fold(shown := self._directory.name_of(entry)) == wanted and is_seen(view, entry.name)
        }
        return spellings.pop() if len(spellings) == 1 else None

    def subscribe(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        def note(change: ListingChange) -> None:
            if not change.measured and self._directory.name_of(change.entry) == name:
                changed()

        is_own = name == self.agent.name
        return self._own.subscribe(name, changed) if is_own else self._directory.subscribe(note)

    def _count(self, change: ListingChange) -> None:
        if not change.measured:
            self._changes += 1

    def _show(self, listing: Listing, caller: Principal, view: AgentView | None) -> ShownAgent:
        return _narrow(view, listing, self._directory.name_of(listing), caller.scopes)


def _narrow(view: AgentView | None, listing: Listing, name: str, scopes: frozenset[str]) -> ShownAgent:
    record = narrow_record(view, listing, listing.record)
    return ShownAgent(record, name, scopes, is_narrowed=record is not listing.record)
