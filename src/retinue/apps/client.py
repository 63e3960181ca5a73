"""The command line's way to the mesh: the running hub's ``/execute``, else the same skills right here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retinue.core.call import LOCAL, Call, Outcome, new_id
from retinue.drivers.http import HttpClient
from retinue.drivers.joins import joined_token
from retinue.drivers.mesh_signer import MeshSigner
from retinue.drivers.peers import HubCalls
from retinue.drivers.state import State, find_hub_url
from retinue.mesh.dispatch import Calls
from retinue.mesh.guards import fresh_trace
from retinue.settings import Settings


@dataclass(slots=True)
class Client:
    """Asks the mesh; ``hub_url`` is None when there is no hub and this process answers itself."""

    calls: Calls
    hub_url: str | None

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float = 60.0,
    ) -> Outcome:
        """The whole outcome: a failure is data."""
        call = Call(
            id=new_id(),
            skill=skill,
            arguments=dict(arguments or {}),
            principal=LOCAL,
            door="cli",
            trace=fresh_trace(),
            agent=agent,
            version_range=version,
            deadline=asyncio.get_running_loop().time() + timeout_s,
        )
        return await self.calls.dispatch(call)

    async def get(self, skill: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The value; raises what the call failed with."""
        return (await self.ask(skill, arguments, **options)).get()


@asynccontextmanager
async def open_client(
    settings: Settings, state: State, *, hub_url: str | None = None
) -> AsyncIterator[Client]:
    """A client of the hub at ``hub_url``, or of the state's hub, or of this state without a hub."""
    url = hub_url or find_hub_url(state)
    async with AsyncExitStack() as stack:
        if url is not None:
            http = await stack.enter_async_context(HttpClient())
            joined, signer = joined_token(state.keys, url), MeshSigner.of(state)
            yield Client(HubCalls(http, url, token=state.local_token(), joined=joined, signer=signer), url)
        else:
            # a command that asks a hub must not wait for the import of everything a hub is made of
            from retinue.apps.mesh import open_mesh
            from retinue.mesh.listings import MemoryListings

            mesh = await stack.enter_async_context(open_mesh(settings, state, MemoryListings(), durable=True))
            yield Client(mesh.dispatcher, None)
