"""Sends calls to one hub: over ``/mcp`` where the caller has a channel, else over ``/execute``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.hub_choice import HubChoice
from retinue.core.call import Call, Outcome
from retinue.core.error_kinds.execution import HUB
from retinue.core.errors import (
    AgentUnreachableError,
    InvalidRequestError,
    NotAuthenticatedError,
    RemoteFaultError,
    RetinueError,
)
from retinue.core.record import HUB_NAME
from retinue.rpc.client import HubCalls
from retinue.storage.state import State
from retinue.web.fast.plain_http_client import PlainHttpClient
from retinue.web.mesh_tokens import MeshSigner

if TYPE_CHECKING:
    from retinue.artifacts.client import ArtifactServer
    from retinue.mcp.upstream.invoker import InteractiveHubCalls
    from retinue.mesh.channel import Channel
    from retinue.mesh.guard.trace_guard import TraceSigner
    from retinue.web.http_client import HttpClient
    from retinue.web.transport import HttpStreamer

_LOGIN_REMEDY = (
    "set RETINUE_TOKEN to one of its machine (retinue token new), or store it: "
    "retinue context add NAME URL --token-stdin"
)


_NO_HUB = f"agent {HUB} answered "
"""How the message of a reply without JSON-RPC begins; replies of a hub have other messages."""


@dataclass(frozen=True, slots=True)
class _Link:
    """The hub of the moment, and how calls get to it."""

    hub: HubChoice
    http: PlainHttpClient | HttpClient
    calls: HubCalls
    signer: TraceSigner | None


class HubDispatch:
    """The mesh behind the hub that ``choose`` names; its connections are kept until `aclose`.

    ``choose`` is asked at the first call, and again after the hub was unreachable or rejected the token,
    because it may have moved, or a person may have stored another token; it raises RetinueError.
    """

    def __init__(self, choose: Callable[[], HubChoice], state: State) -> None:
        self._choose = choose
        self._state = state
        self._stack = AsyncExitStack()
        self._plain: PlainHttpClient | None = None
        self._web: HttpClient | None = None
        self._link: _Link | None = None
        self._interactive: InteractiveHubCalls | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def url(self) -> str:
        """The URL of the hub. Raises what choosing it raises."""
        return self._choose().url if self._link is None else self._link.hub.url

    async def aclose(self) -> None:
        """Close all connections; later calls raise InvalidRequestError. Raises it in another event loop."""
        if self._plain is not None:
            self._check_loop()
        self._is_closed = True
        self._link = self._interactive = self._plain = self._web = None
        await self._stack.aclose()

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """The outcome as the hub reports it, with the remedy for a hub that is away or rejects the token."""
        try:
            link = await self._open()
        except RetinueError as error:
            return Outcome(call.id, call.skill, "failed", agent=call.agent, error=error)
        outcome = await self._send(link, call, channel)
        if outcome.error is not None:
            if isinstance(outcome.error, AgentUnreachableError | NotAuthenticatedError):
                self._forget(link)
            _explain(outcome.error, link.hub)
        return outcome

    async def _send(self, link: _Link, call: Call, channel: Channel | None) -> Outcome:
        if channel is None or not channel.capabilities:
            return await link.calls.dispatch(call)
        if self._interactive is None:
            self._interactive = interactive_calls(link.http, link.hub.url, link.calls, link.signer)
        return await self._interactive.dispatch(call, channel)

    async def _open(self) -> _Link:
        if self._is_closed:
            raise InvalidRequestError(
                "the connection to the mesh is closed", remedy="open another one with connect()"
            )
        self._check_loop()
        if self._link is not None:
            return self._link
        hub = self._choose()
        http = await self._open_http(hub.url)
        # a signature means nothing to a hub of another mesh
        signer = MeshSigner.of(self._state) if hub.is_member else None
        self._link = _Link(hub, http, HubCalls(http, hub.url, joined=hub.token, signer=signer), signer)
        return self._link

    def _check_loop(self) -> None:
        """Raises InvalidRequestError where another event loop has opened the connections."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidRequestError(
                "the connection to the mesh belongs to another event loop",
                remedy="open one with connect() in each event loop, or share one of connect_sync()",
            )

    async def _open_http(self, url: str) -> PlainHttpClient | HttpClient:
        if self._plain is None:
            self._plain = await self._stack.enter_async_context(PlainHttpClient())
        if self._plain.can_request(url):
            return self._plain
        return await self._open_web()

    async def _open_web(self) -> HttpClient:
        if self._web is None:
            # imported here, because aiohttp takes a third of the time of a command
            from retinue.web.http_client import HttpClient

            self._web = await self._stack.enter_async_context(HttpClient())
        return self._web

    async def find_artifact_server(self) -> ArtifactServer:
        """The hub of the moment, for requests of artifacts. Raises what choosing it raises."""
        from retinue.artifacts.client import ArtifactServer

        link = await self._open()
        headers = {} if link.hub.token is None else {"authorization": f"Bearer {link.hub.token}"}
        return ArtifactServer(link.hub.url, link.http, headers, self._open_web)

    def _forget(self, link: _Link) -> None:
        """Choose the hub again before the next call; calls in flight keep their connections."""
        if self._link is link:
            self._link = self._interactive = None


def interactive_calls(
    http: HttpStreamer, url: str, calls: HubCalls, signer: TraceSigner | None
) -> InteractiveHubCalls:
    """Calls to the hub at ``url`` whose channel reaches through; the others go by ``calls``."""
    # imported here, because the client of streams takes longer to load than most commands to run
    from retinue.mcp.upstream.client import AgentClient
    from retinue.mcp.upstream.invoker import InteractiveHubCalls

    return InteractiveHubCalls(
        AgentClient(http, lambda source, place: calls.token, signer), HUB_NAME, url, calls
    )


def _explain(error: RetinueError, hub: HubChoice) -> None:
    """Say which hub an error of this process is about, and what to do; errors of the hub stay as they are."""
    if isinstance(error, AgentUnreachableError):
        error.message = f"the hub at {hub.url} is unreachable: {error.cause}"
        error.remedy = hub.remedy
    elif isinstance(error, NotAuthenticatedError) and not (hub.is_member and hub.has_own_token):
        verb = "wants a token" if hub.token is None else "rejects the token"
        error.message = f"the hub at {hub.url} {verb}"
        error.remedy = _LOGIN_REMEDY
    elif isinstance(error, RemoteFaultError) and error.message.startswith(_NO_HUB):
        error.message = f"the program at {hub.url} is no hub: it{error.message.removeprefix(f'agent {HUB}')}"
        error.remedy = hub.remedy
    else:
        return
    error.args = (error.message,)
