"""The mesh of an agent's process: calls go through the hub if one runs, otherwise from agent to agent.

`LimitedCalls` applies the agent's ``send`` list before a call leaves its process (S-17).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from retinue.authoring.local import LocalFirst
from retinue.client.hub_dispatch import interactive_calls
from retinue.core.call import LOCAL, Call, Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    LookupFailedError,
    NotAllowedError,
    PolicyDeniedError,
    RemoteFaultError,
    RetinueError,
    StateError,
    StoppingError,
)
from retinue.core.record import HUB_NAME, RUN_WORKFLOW, AgentRecord, Endpoint, Listing
from retinue.core.trust import Trust
from retinue.mcp.upstream.client import AgentClient
from retinue.mcp.upstream.invoker import InteractiveInvoker
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.kept_stats import keep_stats
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.routing import make_strategy
from retinue.mesh.directory.sources import Source
from retinue.mesh.dispatch import Calls, CheckPolicies, Dispatcher, Guards
from retinue.mesh.guard.trace_guard import TraceSigner, new_trace
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.permissions import matches
from retinue.mesh.servers import Ask, Servers
from retinue.rpc.client import HubCalls
from retinue.rpc.queries import PeerQueries
from retinue.runtime.messages import PROTOCOL, LazyMessageInvoker
from retinue.runtime.peers import Peers, make_peers
from retinue.settings import Settings
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import State, find_hub_url
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import MeshSigner

if TYPE_CHECKING:
    from retinue.mcp.upstream.servers import MeshServers

_log = structlog.get_logger("retinue.mesh")

_NOT_FOUND_TYPES = frozenset({"skill_not_offered", "unknown_skill", "unknown_agent"})


class JoinedMesh:
    """Sends each call to the hub that runs at that moment; a hub may start, stop and move meanwhile.

    The signer of ``peers`` signs the traces of this process and verifies those of incoming calls.
    """

    def __init__(
        self,
        http: HttpClient,
        state: State,
        hub_url: str | None,
        directory: Directory,
        direct: Dispatcher,
        lookup: LocalFirst,
        peers: Peers,
    ) -> None:
        self.lookup = lookup
        """Calls agents when no hub runs; parts add invokers."""
        self.peers = peers
        self.hub_skills_here: Callable[[], Awaitable[Calls]] | None = None
        """Gives the hub's skills in this process, which are called when no hub runs; None for most agents."""
        self.own_agents: Mapping[str, str] = {}
        """The full names of the agents and imports of the own team, by their plain names."""
        self.own_team = ""
        """The name of the own team, which the hub is told with each call; "" for none."""
        self._http = http
        self._state = state
        self._hub_url = hub_url
        self._directory = directory
        self._direct = direct
        self._token = state.local_token()
        self._servers: MeshServers | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        state: State,
        http: HttpClient,
        sources: Sequence[Source],
        hub_url: str | None,
        signer: TraceSigner | None = None,
    ) -> AsyncIterator[JoinedMesh]:
        """The mesh of ``state``, closed on leaving; ``signer`` None means the state's own signer."""
        directory = Directory(MemoryListings(), sources, ttl_s=settings.directory.ttl_s)
        peers = make_peers(settings, state, http, (source.name for source in sources), signer)
        lookup = LocalFirst(directory, peers.remote)
        by_messages = LazyMessageInvoker(peers)
        lookup.add_protocol(PROTOCOL, InteractiveInvoker(peers.mcp_client, by_messages))
        agent_stats = keep_stats(directory, AgentStatsTable())
        strategy = make_strategy(settings.routing.strategy, agent_stats)
        direct = Dispatcher(
            "mesh",
            lookup,
            lookup.invoker_of,
            # without limits and bounds: the agent's own endpoint has admitted the chain already
            agent_stats=agent_stats,
            health_sink=directory.record_health,
            strategy=strategy,
            queries=PeerQueries(peers.plain),
        )
        try:
            yield cls(http, state, hub_url, directory, direct, lookup, peers)
        finally:
            await by_messages.aclose()
            await directory.aclose()

    def check_policies(self, check: CheckPolicies | None) -> None:
        """Check calls that go to agents without a hub; the hub checks the others."""
        self._direct.check_policies = check

    def use_guards(self, guards: Guards | None) -> None:
        """Look at calls that go to agents without a hub; the hub looks at the others."""
        self._direct.guards = guards

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """Dispatch one call of the agent to an agent that offers the skill."""
        if call.agent is not None and call.agent in self.own_agents:
            call = replace(call, agent=self.own_agents[call.agent])
        if self.own_team:
            call = replace(call, principal=replace(call.principal, team=self.own_team))
        try:
            url = self._hub_url or find_hub_url(self._state)
            joined = None if url is None else joined_token(self._state.keys, url)
        except StateError as error:
            return Outcome(call.id, call.skill, "failed", error=error)
        if url is None:
            calls: Calls = self._direct
            if call.agent == HUB_NAME and self.hub_skills_here is not None:
                calls = await self.hub_skills_here()
            return await calls.dispatch(call, channel or NullChannel())
        hub = HubCalls(self._http, url, token=self._token, joined=joined, signer=self.peers.signer)
        if channel is None or not channel.capabilities:
            return await hub.dispatch(call)
        return await interactive_calls(self._http, url, hub, self.peers.signer).dispatch(call, channel)

    def connect(self, server: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Ask]:
        """A connection of ``ctx.mcp``: to an agent, through the hub if one runs, or to a server at a URL."""
        if self._servers is None:
            # imported here, because most agents connect to no server
            from retinue.mcp.upstream.servers import MeshServers

            self._servers = MeshServers(self._http, self._route, version("retinue"), team=self.own_team)
        return self._servers.connect(server, headers)

    async def _route(self, name: str) -> tuple[Listing, AgentClient]:
        name = self.own_agents.get(name, name)
        url = self._hub_url or find_hub_url(self._state)
        if url is None:
            await self._directory.ensure_fresh()
            listing = await self._directory.open_named(name)
            is_checked = self._direct.check_policies is not None or self._direct.guards is not None
            if is_checked and listing.trust is not Trust.OWN_MESH:
                # the requests would pass neither policies nor guards, and the agent checks none of ours
                raise PolicyDeniedError(
                    f"ctx.mcp({name!r}) is refused, because policies or guards are in force and no hub runs",
                    remedy="start a hub, which checks the requests, or use ctx.call",
                )
            return listing, self.peers.mcp_client
        joined = joined_token(self._state.keys, url)
        hub = HubCalls(self._http, url, token=self._token, joined=joined, signer=self.peers.signer)
        endpoint = Endpoint("mcp", f"{url.rstrip('/')}/agents/{quote(name)}/mcp")
        listing = Listing(record=AgentRecord(name, endpoints=(endpoint,)), source="hub", key=url)
        return listing, AgentClient(self._http, lambda source, place: hub.token, self.peers.signer)


async def notify_hub(
    http: HttpClient,
    state: State,
    hub_url: str | None,
    *,
    withdrawn: str | None = None,
    forgotten: str | None = None,
) -> bool:
    """Ask the hub to read the registries now instead of at its next refresh; failures are logged only.

    True if the hub has released the name ``forgotten`` on its KOI network.

    ``withdrawn`` is an agent that has withdrawn its own card, and is away from now on; ``forgotten`` one that
    somebody removed.
    """
    try:
        url = hub_url or find_hub_url(state)
        if url is None:
            return False
        joined = joined_token(state.keys, url)
    except StateError as error:
        _log.warning("hub not told", error=error.message)
        return False
    news = {"withdrawn": withdrawn, "forgotten": forgotten}
    arguments = {key: name for key, name in news.items() if name is not None}
    call = Call(uuid.uuid4().hex, "refresh_agents", arguments, LOCAL, "agent", new_trace())
    hub = HubCalls(http, url, token=state.local_token(), joined=joined, signer=MeshSigner.of(state))
    outcome = await hub.dispatch(call)
    if outcome.error is not None:
        # a hub that stops, or has stopped with its agents, reads the registries when it starts
        is_gone = outcome.error.type == StoppingError.type or (
            withdrawn is not None and isinstance(outcome.error, AgentUnreachableError)
        )
        tell = _log.debug if is_gone else _log.warning
        tell("hub not told", hub=url, error=outcome.error.message)
    return isinstance(outcome.value, dict) and outcome.value.get("released") is True


class LimitedCalls:
    """Calls of an agent with a ``send`` list, and its connections to ``servers``."""

    def __init__(self, calls: Calls, agent: str, send: Sequence[str], servers: Servers | None = None) -> None:
        self._calls = calls
        self._servers = servers
        self._agent = agent
        self._send = tuple(send)
        parts = (entry.partition("/") for entry in send)
        self._entries = [(target, skill or "*") for target, _, skill in parts]

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """Dispatch one call if the list allows it; otherwise the outcome is a NotAllowedError.

        A run that the agent starts for its caller gets the list, because it calls further skills.
        """
        if call.principal.through and (call.agent, call.skill) == (HUB_NAME, RUN_WORKFLOW):
            principal = replace(call.principal, send=self._send)
            return await self._calls.dispatch(replace(call, principal=principal), channel or NullChannel())
        targets = tuple(agent for agent, skill in self._entries if fnmatchcase(call.skill, skill))
        named = None if call.agent is None else call.agent.partition("@")[0]
        if not targets or (named is not None and not matches(named, targets)):
            return self._refuse(call, named)
        if named is None and "*" not in targets:
            if call.principal.agents:
                return self._refuse(call, named)
            # an agent found by skill must be one of the allowed ones
            call = replace(call, principal=replace(call.principal, agents=targets))
        outcome = await self._calls.dispatch(call, channel or NullChannel())
        if (
            named is None
            and "*" not in targets
            and outcome.error is not None
            and _is_not_found(outcome.error)
        ):
            return self._refuse(call, named)
        return outcome

    @asynccontextmanager
    async def connect(self, server: str, headers: Mapping[str, str]) -> AsyncIterator[Ask]:
        """A connection of ``ctx.mcp``, where the list allows every skill of the agent, or the URL.

        Raises NotAllowedError.
        """
        # a server may offer what the list does not name, so an entry for single skills is not enough
        targets = tuple(agent for agent, skill in self._entries if skill == "*")
        if self._servers is None or not matches(server.partition("@")[0], targets):
            raise self._not_allowed(f"the MCP server {server}")
        async with self._servers.connect(server, headers) as ask:
            yield ask

    def _refuse(self, call: Call, named: str | None) -> Outcome:
        error = self._not_allowed(call.skill if named is None else f"{call.skill} of {named}")
        return Outcome(call.id, call.skill, "refused", agent=call.agent, error=error)

    def _not_allowed(self, what: str) -> NotAllowedError:
        return NotAllowedError(
            f"{self._agent} may not call {what}, or no agent that it may call offers it",
            remedy=f"see access.{self._agent}.send in retinue.toml, or access.send in its agent.json",
        )


@dataclass(frozen=True, slots=True)
class AgentCalls:
    """The mesh for the calls of an agent, or the part of it that its ``send`` list allows."""

    mesh: JoinedMesh | LimitedCalls


def _is_not_found(error: RetinueError) -> bool:
    if isinstance(error, RemoteFaultError):
        return error.remote_type in _NOT_FOUND_TYPES
    return isinstance(error, LookupFailedError)
