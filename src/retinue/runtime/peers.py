"""The clients of a process for agents in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from retinue.mcp.upstream.client import AgentClient
from retinue.mcp.upstream.invoker import InteractiveInvoker
from retinue.mesh.guard.trace_guard import TraceSigner
from retinue.rpc.client import PeerInvoker
from retinue.runtime.factories import mesh_sources
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import MeshBearer, MeshSigner


@dataclass(frozen=True, slots=True)
class Peers:
    """How this process calls agents elsewhere: with a channel over MCP, else at ``/execute``."""

    http: HttpClient
    plain: PeerInvoker
    mcp_client: AgentClient
    remote: InteractiveInvoker
    signer: TraceSigner
    token_for: Callable[[str, str], str | None]


def make_peers(
    settings: Settings,
    state: State,
    http: HttpClient,
    sources: Iterable[str],
    signer: TraceSigner | None = None,
) -> Peers:
    """The clients of one process; agents of ``sources`` that belong to the mesh get its token.

    ``signer`` None means the state's own signer.
    """
    signer = signer or MeshSigner.of(state)
    bearer = MeshBearer(state.mesh_key(), mesh_sources(settings, state, sources))
    plain = PeerInvoker(http, signer=signer, token_for=bearer.token_for)
    client = AgentClient(http, bearer.token_for, signer)
    return Peers(http, plain, client, InteractiveInvoker(client, plain), signer, bearer.token_for)
