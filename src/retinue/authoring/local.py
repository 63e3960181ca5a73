"""Agents of this process as targets of the dispatch path, and as sources of reads."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from retinue.authoring.context import AGENT_ENDPOINT, Context
from retinue.authoring.offering import Offering
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
from retinue.core.record import (
    LOCAL_SOURCE,
    QUERY_CAPABILITIES,
    AgentRecord,
    Candidate,
    Listing,
    ListingKey,
    Prompt,
    Resource,
    Skill,
    is_visible,
)
from retinue.core.uri_template import fits_template, is_template
from retinue.mesh.artifacts import ArtifactStore
from retinue.mesh.asking.query import QUERY_SKILL
from retinue.mesh.channel import ASKABLE, Channel, NullChannel
from retinue.mesh.checked_reads import item_of, read_checked
from retinue.mesh.directory.routing import select_candidates
from retinue.mesh.dispatch import Calls, Dispatcher, Invoker, Lookup, TimeoutSettings
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.idempotency import AFTER_TIME_OUT_S, OutcomeCache
from retinue.mesh.permissions import AgentView, is_seen
from retinue.mesh.reading import Read, Reader, ReadRequest
from retinue.mesh.servers import Servers
from retinue.mesh.time_limit import TimeLimit

PROPAGATED = (GuardError, BusyError, CallTimedOutError, CallCancelledError, InputRequiredError)
"""Errors of a skill's own calls that its caller gets unchanged."""


class LocalInvoker:
    """Runs skills of agents of this process; their ``ctx.call`` goes through ``mesh``.

    A repeated call with an idempotency key gets its first outcome from ``outcomes``.
    """

    def __init__(
        self,
        agents: Mapping[str, Offering],
        mesh: Calls,
        timeouts: TimeoutSettings,
        outcomes: OutcomeCache | None = None,
        servers: Servers | None = None,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        self._servers = servers
        self._artifacts = artifacts
        self._agents = agents
        self._outcomes = outcomes or OutcomeCache()
        self._mesh = mesh
        self._timeouts = timeouts

    def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Coroutine[Any, Any, Answer]:
        agent = self._agents[listing.record.name]
        admitted.set_agent(agent.name)
        if skill is QUERY_SKILL or call.idempotency_key is None:
            return self._run(agent, skill, call, admitted, channel)
        return self._outcomes.run_once(
            agent.name, call, lambda: self._run_within(agent, skill, call, admitted, channel)
        )

    async def _run_within(
        self, agent: Offering, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """Run a call that outlives its request within the skill's own time, if it can ask no questions."""
        if skill.timeout_s is None or not ASKABLE.isdisjoint(channel.capabilities):
            return await self._run(agent, skill, call, admitted, channel)
        limit = TimeLimit(skill.timeout_s)
        try:
            with limit:
                return await self._run(agent, skill, call, admitted, channel)
        except TimeoutError as error:
            if not limit.expired:
                raise
            raise CallTimedOutError(
                skill.id, skill.timeout_s, layer=f"skill {skill.id}", setting="timeout_s of the skill"
            ) from error

    async def _run(
        self, agent: Offering, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        limit_s = self._timeouts.agent_call_s
        context = Context(
            call, agent.name, limit_s, admitted, channel, self._mesh, self._servers, self._artifacts
        )
        if skill is not QUERY_SKILL and call.idempotency_key is not None:
            context.outlive(AFTER_TIME_OUT_S)
        try:
            if skill is QUERY_SKILL:
                return await agent.answer_query(call, context)
            return await agent.run(call, context, channel)
        except PROPAGATED as error:
            if isinstance(error, BusyError) and context.comes_from_further_call(error):
                error.is_nested = True
            raise
        except RetinueError as error:
            if context.comes_from_further_call(error):
                # Otherwise the caller would get, say, "unknown skill" for a skill that it did not call.
                raise ExecutionFailedError.from_exception(error) from error
            raise
        except asyncio.CancelledError:
            context.set_cancelled()
            raise


class LocalLookup:
    """Finds skills among the agents of this process; a hidden skill is not found."""

    def __init__(self, agents: Mapping[str, Offering], url: str | None = None) -> None:
        self._agents = agents
        self._url = url
        self._read_agents()

    def _read_agents(self) -> None:
        self._revision = self._current_revision()
        self._listings = {
            name: Listing(record=agent.record(self._url), source=LOCAL_SOURCE, key=name, reachable=True)
            for name, agent in self._agents.items()
        }
        # One pass now instead of a search at each call.
        self._by_skill: dict[str, list[tuple[Listing, Skill]]] = {}
        for listing in self._listings.values():
            for skill in listing.record.skills:
                self._by_skill.setdefault(skill.id, []).append((listing, skill))
            if listing.record.find_skill(QUERY_CAPABILITIES) is None:
                self._by_skill.setdefault(QUERY_CAPABILITIES, []).append((listing, QUERY_SKILL))

    def _current_revision(self) -> int:
        # Revisions only grow, so the sum changes whenever one of them does.
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
        """The listings that offer the skill to such a caller, in a version of the range."""
        if self._revision != self._current_revision():
            self._read_agents()
        listings = tuple(
            [
                listing
                for listing, skill in self._by_skill.get(skill_id, ())
                if (agent is None or listing.record.name == agent)
                and is_visible(skill.visibility, scopes)
                and is_seen(view, listing.record.name)
            ]
        )
        return listings if version_range is None else select_candidates(listings, version_range=version_range)

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
        listings = self.find(skill_id, scopes, agent, version_range, view)
        if listings:
            return listings
        if version_range is not None and (offered := self.find(skill_id, scopes, agent, view=view)):
            versions = [listing.record.version or "none" for listing in offered]
            raise VersionConflictError(skill_id, version_range, versions)
        raise UnknownSkillError(skill_id)

    async def find_offering(
        self,
        listing_id: ListingKey,
        skill_id: str,
        scopes: frozenset[str],
        *,
        view: AgentView | None = None,
    ) -> Listing | None:
        listings = self.find(skill_id, scopes, listing_id.key, view=view)
        return next((listing for listing in listings if listing.id == listing_id), None)

    async def open(self, candidate: Candidate) -> Listing | None:
        return self._listings.get(candidate.name)

    async def reread(self, listing: Candidate) -> Listing | None:
        return self._listings.get(listing.name)


class LocalFirst:
    """A look-up that asks the agents of this process first, then ``others``, and has the invokers of both.

    The invoker of a listing is that of its source. Without one, it is that of a protocol of the agent, if the
    agent has no ``/execute``. Every other agent is invoked by ``remote``.
    """

    def __init__(self, others: Lookup, remote: Invoker) -> None:
        self._local = LocalLookup({})
        self._others = others
        self._remote = remote
        self._by_source: dict[str, Invoker] = {}
        self._by_protocol: dict[str, Invoker] = {}

    def add(self, local: LocalLookup, invoker: Invoker) -> None:
        """Set the agents of this process, which are often created after this look-up."""
        self._local = local
        self._by_source[LOCAL_SOURCE] = invoker

    def add_invoker(self, source: str, invoker: Invoker) -> None:
        """Set the invoker of the listings of one source."""
        self._by_source[source] = invoker

    def add_protocol(self, protocol: str, invoker: Invoker) -> None:
        """Set the invoker of agents that have an endpoint of this protocol and none of ``execute``.

        Of several protocols of an agent, the one that its card names first is used.
        """
        self._by_protocol[protocol] = invoker

    def invoker_of(self, listing: Listing) -> Invoker:
        """The invoker of a listing's skills."""
        invoker = self._by_source.get(listing.source)
        if invoker is None and listing.record.url is None:
            named = (self._by_protocol.get(endpoint.protocol) for endpoint in listing.record.endpoints)
            invoker = next((candidate for candidate in named if candidate is not None), None)
        return self._remote if invoker is None else invoker

    def is_peer(self, listing: Listing) -> bool:
        """Whether no source with its own invoker has the listing."""
        return listing.source not in self._by_source

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Candidate, ...]:
        if listings := self._local.find(skill_id, scopes, agent, version_range, view):
            return listings
        is_local = agent is not None and agent in self._local.names and is_seen(view, agent)
        lookup: Lookup = self._local if is_local else self._others
        return await lookup.resolve_skill(
            skill_id, scopes, version_range=version_range, agent=agent, view=view
        )

    async def find_offering(
        self,
        listing_id: ListingKey,
        skill_id: str,
        scopes: frozenset[str],
        *,
        view: AgentView | None = None,
    ) -> Candidate | None:
        return await self._of(listing_id).find_offering(listing_id, skill_id, scopes, view=view)

    async def open(self, candidate: Candidate) -> Listing | None:
        return await self._of(candidate.id).open(candidate)

    async def reread(self, listing: Candidate) -> Listing | None:
        return await self._of(listing.id).reread(listing)

    def _of(self, listing_id: ListingKey) -> Lookup:
        return self._local if listing_id.source == LOCAL_SOURCE else self._others


class NoMesh:
    """The mesh of a process without one: no agent offers any skill."""

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        error = SkillNotOfferedError(call.skill)
        return Outcome(call_id=call.id, skill=call.skill, status="refused", error=error)


class OwnSkillsFirst:
    """The mesh as an agent sees it: its own skills, including private ones, then those of other agents.

    A call that an agent only relays keeps the scopes of its caller, which do not include private skills.
    """

    def __init__(self, lookup: LocalLookup, own: Dispatcher, others: Calls) -> None:
        self._lookup = lookup
        self._own = own
        self._others = others

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        inside = call
        if call.endpoint == AGENT_ENDPOINT:
            principal = replace(call.principal, scopes=call.principal.scopes | {"private"})
            inside = replace(call, principal=principal)
        if self._lookup.find(call.skill, inside.principal.scopes, call.agent, call.version_range):
            return await self._own.dispatch(inside, channel or NullChannel())
        return await self._others.dispatch(call, channel or NullChannel())


def local_dispatcher(*agents: Offering, mesh: Calls | None = None, **settings: Any) -> Dispatcher:
    """A dispatcher of agents of this process; the first one is its default agent.

    ``mesh`` takes calls of skills that none of them offers, ``servers`` connects them to MCP servers,
    ``artifacts`` holds the files that they save, ``outcomes`` keeps those of calls
    with an idempotency key; ``settings`` are further fields of Dispatcher.
    """
    named = {agent.name: agent for agent in agents}
    lookup = LocalLookup(named, settings.pop("url", None))
    timeouts: TimeoutSettings = settings.setdefault("timeouts", TimeoutSettings())
    servers: Servers | None = settings.pop("servers", None)
    artifacts: ArtifactStore | None = settings.pop("artifacts", None)
    outcomes: OutcomeCache | None = settings.pop("outcomes", None)
    dispatcher = Dispatcher(agent=agents[0].name, lookup=lookup, invoker_of=lambda _: invoker, **settings)
    own_first = OwnSkillsFirst(lookup, dispatcher, mesh or NoMesh())
    invoker = LocalInvoker(named, own_first, timeouts, outcomes, servers, artifacts)
    return dispatcher


class LocalReads:
    """Reads resources and prompts of one agent; their ``ctx.call`` goes through ``mesh``."""

    def __init__(
        self, agent: Offering, mesh: Calls, dispatcher: Dispatcher, servers: Servers | None = None
    ) -> None:
        self._agent = agent
        self._servers = servers
        self._mesh = mesh
        self._dispatcher = dispatcher

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        async def read(request: ReadRequest, call: Call, channel: Channel) -> Read:
            return await self._read(request, call, admitted, channel)

        checks = self._dispatcher
        if checks.check_read is None and checks.guards is None:
            return await read(request, call, channel)
        record = self._agent.record(with_facts=True)
        if not _shows(record, item_of(request), request.principal.scopes):
            return await read(request, call, channel)  # it fails, or another source has the item
        listing = Listing(record, LOCAL_SOURCE, self._agent.name)
        return await read_checked(checks, listing, request, call, admitted, channel, read)

    async def _read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        limit_s = self._dispatcher.timeouts.agent_call_s
        context = Context(call, self._agent.name, limit_s, admitted, channel, self._mesh, self._servers)
        try:
            return await self._agent.read(request, context)
        except PROPAGATED:
            raise
        except RetinueError as error:
            if context.comes_from_further_call(error):
                raise ExecutionFailedError.from_exception(error) from error
            raise

    def follow(self, uris: frozenset[str]) -> None:
        """Nothing to do: `Agent.resource_changed` tells of every change."""


def _shows(record: AgentRecord, item: Resource | Prompt, scopes: frozenset[str]) -> bool:
    """Whether a caller with these scopes may read the item of an agent."""
    if isinstance(item, Prompt):
        return any(
            prompt.name == item.name and is_visible(prompt.visibility, scopes) for prompt in record.prompts
        )
    return any(
        (resource.uri == item.uri or (is_template(resource.uri) and fits_template(resource.uri, item.uri)))
        and is_visible(resource.visibility, scopes)
        for resource in record.resources
    )


def local_reader(
    agent: Offering, dispatcher: Dispatcher, mesh: Calls | None = None, servers: Servers | None = None
) -> Reader:
    """The reader of ``agent``, with the admission and access lists of its ``dispatcher``."""
    own_first = OwnSkillsFirst(LocalLookup({agent.name: agent}), dispatcher, mesh or NoMesh())
    return Reader(
        agent=agent.name,
        source=LocalReads(agent, own_first, dispatcher, servers),
        admission=dispatcher.admission,
        access=dispatcher.access,
        timeout_s=dispatcher.timeouts.endpoint_s,
    )
