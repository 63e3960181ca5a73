"""The mesh as an agent's process sees it: through the hub when there is one, else straight."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from retinue.apps.parts import mesh_sources
from retinue.core.call import LOCAL, Call, Outcome
from retinue.core.errors import StateError
from retinue.drivers.http import HttpClient
from retinue.drivers.joins import joined_token
from retinue.drivers.mesh_bearer import MeshBearer
from retinue.drivers.mesh_signer import MeshSigner
from retinue.drivers.peers import HubCalls, PeerInvoker
from retinue.drivers.state import State, find_hub_url
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.directory import Directory
from retinue.mesh.dispatch import Calls, Dispatcher
from retinue.mesh.guards import Signer, TraceGuard, fresh_trace
from retinue.mesh.listings import MemoryListings
from retinue.mesh.pulse import Pulses
from retinue.mesh.routing import make_strategy
from retinue.mesh.sources import Source
from retinue.settings import Settings

_log = structlog.get_logger("retinue.mesh")


class JoinedMesh:
    """Sends each call to the hub of the moment, which may start, stop and move while this runs.

    ``signer`` vouches for the traces of this process, and judges those that come to its doors.
    """

    def __init__(
        self, http: HttpClient, state: State, hub_url: str | None, straight: Calls, signer: Signer
    ) -> None:
        self._http = http
        self.signer = signer
        self._state = state
        self._hub_url = hub_url
        self._straight = straight
        self._token = state.local_token()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        state: State,
        http: HttpClient,
        sources: Sequence[Source],
        hub_url: str | None,
        signer: Signer | None = None,
    ) -> AsyncIterator[JoinedMesh]:
        """The mesh of ``state``, closed on leaving; ``signer`` None = with the key of the state."""
        signer = signer or MeshSigner.of(state)
        directory = Directory(MemoryListings(), sources, ttl_s=settings.directory.ttl_s)
        # what arrives here was counted by the guard at the agent's own door
        guard = TraceGuard()
        bearer = MeshBearer(state.mesh_key()).make
        of_mesh = mesh_sources(settings, state, (source.name for source in sources))
        peers = PeerInvoker(http, signer=signer, mesh=of_mesh, bearer=bearer)
        pulses = Pulses()
        strategy = make_strategy(settings.routing.strategy, pulses)
        straight = Dispatcher(
            "mesh", directory, lambda _: peers, guard=guard, pulses=pulses, strategy=strategy
        )
        try:
            yield cls(http, state, hub_url, straight, signer)
        finally:
            await directory.aclose()

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """One call of an agent to whoever offers the skill."""
        try:
            url = self._hub_url or find_hub_url(self._state)
            joined = None if url is None else joined_token(self._state.keys, url)
        except StateError as error:
            return Outcome(call.id, call.skill, "failed", error=error)
        if url is None:
            return await self._straight.dispatch(call, channel or NullChannel())
        hub = HubCalls(self._http, url, token=self._token, joined=joined, signer=self.signer)
        return await hub.dispatch(call, channel)


async def tell_hub(http: HttpClient, state: State, hub_url: str | None) -> None:
    """Let the hub read the registries now; it would find out by itself, only later."""
    try:
        url = hub_url or find_hub_url(state)
        if url is None:
            return
        joined = joined_token(state.keys, url)
    except StateError as error:
        _log.warning("hub not told", error=error.message)
        return
    call = Call(uuid.uuid4().hex, "refresh_agents", {}, LOCAL, "agent", fresh_trace())
    hub = HubCalls(http, url, token=state.local_token(), joined=joined, signer=MeshSigner.of(state))
    outcome = await hub.dispatch(call)
    if outcome.error is not None:
        _log.warning("hub not told", hub=url, error=outcome.error.message)
