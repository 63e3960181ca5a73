"""Agents of this process as targets of the dispatch path."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from retinue.authoring.context import AGENT_DOOR, Context
from retinue.core.call import Answer, Call, Outcome
from retinue.core.errors import (
    BusyError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    InputRequiredError,
    RetinueError,
    SkillNotOfferedError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.access import AgentView, is_seen
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls, Dispatcher, Lookup, TimeoutSettings
from retinue.mesh.entry import Candidate
from retinue.mesh.guards import Passage
from retinue.mesh.outcomes import MemoryOutcomes, OutcomeCache
from retinue.mesh.routing import select_candidates
from retinue.mesh.visibility import is_visible

LOCAL_SOURCE = "local"


class LocalAgent(Protocol):
    """What this room needs of an agent (``authoring.agent.Agent``)."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int:
        """Another number whenever the record is another one."""

    def record(self, url: str | None = None) -> AgentRecord: ...

    async def run(self, call: Call, context: Context, channel: Channel) -> Answer: ...


class LocalInvoker:
    """Runs a skill of an agent of this process; ``ctx.call`` goes on through ``mesh``.

    A call with an idempotency key that was run before gets its first outcome from ``outcomes``.
    """

    def __init__(
        self,
        agents: Mapping[str, LocalAgent],
        mesh: Calls,
        timeouts: TimeoutSettings,
        outcomes: OutcomeCache | None = None,
    ) -> None:
        self._agents = agents
        self._outcomes: OutcomeCache = outcomes or MemoryOutcomes()
        self._mesh = mesh
        self._timeouts = timeouts

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        agent = self._agents[listing.record.name]
        passage.arrive(agent.name)
        context = Context(call, agent.name, self._timeouts.agent_call_s, passage, channel, self._mesh)
        try:
            if call.idempotency_key is None:
                return await agent.run(call, context, channel)
            return await self._outcomes.run_once(agent.name, call, lambda: agent.run(call, context, channel))
        except PASSED_ON:
            raise
        except RetinueError as error:
            if context.comes_from_further_call(error):
                # or our caller would read "unknown skill" of a skill that it did not ask for
                raise ExecutionFailedError.from_exception(error) from error
            raise
        except asyncio.CancelledError:
            context.give_up()
            raise


PASSED_ON = (GuardError, BusyError, CallTimedOutError, CallCancelledError, InputRequiredError)
"""What a skill's own further call met and a caller should know as what it is."""


class LocalLookup:
    """Finds skills among the agents of this process; a hidden one is missing (SPEC 5, doubt 9)."""

    def __init__(self, agents: Mapping[str, LocalAgent], url: str | None = None) -> None:
        self._agents = agents
        self._url = url
        self._read_agents()

    def _read_agents(self) -> None:
        self._revision = self._current_revision()
        self._listings = {
            name: Listing(record=agent.record(self._url), source=LOCAL_SOURCE, key=name, reachable=True)
            for name, agent in self._agents.items()
        }
        # one pass now instead of a search at each call
        self._by_skill: dict[str, list[tuple[Listing, Skill]]] = {}
        for listing in self._listings.values():
            for skill in listing.record.skills:
                self._by_skill.setdefault(skill.id, []).append((listing, skill))

    def _current_revision(self) -> int:
        # they only grow, so the sum is another one whenever any of them is
        revision = 0
        for agent in self._agents.values():
            revision += agent.revision
        return revision

    @property
    def names(self) -> Collection[str]:
        return self._listings.keys()

    def find(
        self,
        skill_id: str,
        scopes: frozenset[str],
        agent: str | None,
        version_range: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Listing, ...]:
        """The listings that offer the skill to such a caller, in such a version."""
        if self._revision != self._current_revision():
            self._read_agents()
        found = tuple(
            [
                listing
                for listing, skill in self._by_skill.get(skill_id, ())
                if (agent is None or listing.record.name == agent)
                and is_visible(skill, scopes)
                and is_seen(view, listing.record.name)
            ]
        )
        return found if version_range is None else select_candidates(found, version_range=version_range)

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Listing, ...]:
        if agent is not None and not (agent in self._listings and is_seen(view, agent)):
            raise UnknownAgentError(agent)
        found = self.find(skill_id, scopes, agent, version_range, view)
        if found:
            return found
        if version_range is not None and (offered := self.find(skill_id, scopes, agent, view=view)):
            versions = [listing.record.version or "none" for listing in offered]
            raise VersionConflictError(skill_id, version_range, versions)
        raise UnknownSkillError(skill_id)

    async def open(self, candidate: Candidate) -> Listing | None:
        return self._listings.get(candidate.name)

    async def reread(self, listing: Candidate) -> Listing | None:
        return self._listings.get(listing.name)

    def mark_reachable(self, listing: Candidate) -> None:
        """Nothing to note: an agent of this process is where we are."""

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        """Nothing to note: there is no other one to prefer."""

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        """Nothing to note: an agent of this process is where we are."""


class LocalFirst:
    """A look-up that asks the agents of this process, then everybody else (a hub's view)."""

    def __init__(self, others: Lookup) -> None:
        self._local = LocalLookup({})
        self._others = others

    def add(self, local: LocalLookup) -> None:
        """Name the agents of this process, which are often made of what this look-up is part of."""
        self._local = local

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Candidate, ...]:
        if found := self._local.find(skill_id, scopes, agent, version_range, view):
            return found
        is_local = agent is not None and agent in self._local.names and is_seen(view, agent)
        lookup: Lookup = self._local if is_local else self._others
        return await lookup.resolve_skill(
            skill_id, scopes, version_range=version_range, agent=agent, view=view
        )

    async def open(self, candidate: Candidate) -> Listing | None:
        return await self._of(candidate).open(candidate)

    async def reread(self, listing: Candidate) -> Listing | None:
        return await self._of(listing).reread(listing)

    def mark_reachable(self, listing: Candidate) -> None:
        self._of(listing).mark_reachable(listing)

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        self._of(listing).mark_degraded(listing, reason)

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        self._of(listing).mark_unreachable(listing, error)

    def _of(self, listing: Candidate) -> Lookup:
        return self._local if listing.source == LOCAL_SOURCE else self._others


class NoMesh:
    """The mesh of a process that has joined none: nobody offers anything."""

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        error = SkillNotOfferedError(call.skill)
        return Outcome(call_id=call.id, skill=call.skill, status="refused", error=error)


class OwnSkillsFirst:
    """The mesh as an agent sees it: its own skills, private ones too, then everybody else's.

    A call that an agent merely relays keeps the rights of its caller, who sees no private skill.
    """

    def __init__(self, lookup: LocalLookup, own: Dispatcher, others: Calls) -> None:
        self._lookup = lookup
        self._own = own
        self._others = others

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        inside = call
        if call.door == AGENT_DOOR:
            principal = replace(call.principal, scopes=call.principal.scopes | {"private"})
            inside = replace(call, principal=principal)
        if self._lookup.find(call.skill, inside.principal.scopes, call.agent, call.version_range):
            return await self._own.dispatch(inside, channel or NullChannel())
        return await self._others.dispatch(call, channel or NullChannel())


def local_dispatcher(*agents: LocalAgent, mesh: Calls | None = None, **settings: Any) -> Dispatcher:
    """A dispatcher over agents of this process; the first gives it its name.

    ``mesh`` takes what none of them offers; ``settings`` are further fields of Dispatcher.
    """
    named = {agent.name: agent for agent in agents}
    lookup = LocalLookup(named, settings.pop("url", None))
    timeouts: TimeoutSettings = settings.setdefault("timeouts", TimeoutSettings())
    dispatcher = Dispatcher(agent=agents[0].name, lookup=lookup, invoker_of=lambda _: invoker, **settings)
    own_first = OwnSkillsFirst(lookup, dispatcher, mesh or NoMesh())
    invoker = LocalInvoker(named, own_first, timeouts)
    return dispatcher
