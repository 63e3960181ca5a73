"""Pure: reads from a POST which process of a hub must answer it, before anything is checked.

A request may name something that one process has: a chain of calls, a suspended call of MCP, or a task of
A2A. The name tells the process (`place.owner_of`). Names from clients are claims; a wrong one reaches a
process that refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from retinue.core.quick_dataclass import quick_dataclass
from retinue.core.record import HUB_NAME
from retinue.mcp.codec.messages import is_modern
from retinue.mcp.codec.wire import SESSION_HEADER, VERSION_HEADER

Protocol = Literal["execute", "mcp", "a2a"]

TRACE_ID = b"x-openstarry-trace-id"

READ_BYTES = 64 * 1024
"""A longer body is not read here; the leader answers the request."""

_TRACE_KEY = TRACE_ID.decode()
_STATE = b"requestState"
"""What a body of MCP has that names a process, besides the id of a trace; others are not parsed for it."""

_CHANGES_NOTHING = frozenset(
    {
        "initialize",
        "notifications/initialized",
        "ping",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "server/discover",
    }
)
"""Methods of MCP after which the server is as it was, or whose repetition changes nothing more."""

_ENDS: Mapping[str, Protocol] = {"/execute": "execute", "/mcp": "mcp"}
_AGENTS = "/agents/"
_SESSION, _VERSION = SESSION_HEADER.encode(), VERSION_HEADER.encode()


@quick_dataclass(frozen=True, slots=True)
class RequestHead:
    """A POST whose answer may come from any process; ``agent`` None = to the hub's own endpoint."""

    protocol: Protocol
    agent: str | None
    headers: Mapping[bytes, bytes]

    @property
    def needs_body(self) -> bool:
        """Whether the path and the headers do not tell which process answers."""
        return self.protocol != "execute" or self.agent is None

    @property
    def is_short(self) -> bool:
        """Whether the body may be read whole to decide."""
        length = self.headers.get(b"content-length", b"")
        return length.isdigit() and int(length) <= READ_BYTES

    @property
    def session(self) -> str | None:
        """The session of MCP."""
        session = self.headers.get(_SESSION)
        return None if session is None else session.decode("latin-1")

    @property
    def is_sessionless(self) -> bool:
        """Whether the version of MCP has no sessions."""
        version = self.headers.get(_VERSION)
        return version is not None and is_modern(version.decode("latin-1")) and self.session is None


def read_head(path: str, headers: list[tuple[bytes, bytes]]) -> RequestHead | None:
    """What a POST to ``path`` asks for; None for an endpoint of the leader alone."""
    end = path[path.rfind("/") :]
    protocol = _ENDS.get(end)
    if protocol is None:
        agent = path.removeprefix(_AGENTS).removesuffix("/")
        is_agent = path.startswith(_AGENTS) and agent and "/" not in agent
        return RequestHead("a2a", agent, dict(headers)) if is_agent else None
    place = path[: -len(end)]
    if not place:
        return RequestHead(protocol, None, dict(headers))
    if not place.startswith(_AGENTS):
        return None
    agent = place[len(_AGENTS) :]
    is_hub = protocol == "mcp" and agent == HUB_NAME
    return RequestHead(protocol, None if is_hub else agent, dict(headers))


def find_name(head: RequestHead, body: bytes | None) -> bytes | None:
    """The name in a request that tells which process has what it means; None for none."""
    trace_id = head.headers.get(TRACE_ID)
    if body is None:
        return trace_id
    if head.protocol == "a2a":
        params = read_params(body)
        message = read_message(params)
        named = message.get("taskId") or (None if message else params.get("taskId") or params.get("id"))
        claims: list[Any] = [named, trace_id, _find_trace(message.get("metadata"))]
        claims.append(_find_trace(params.get("metadata")))
    elif trace_id is not None or not (_STATE in body or TRACE_ID in body.lower()):
        return trace_id
    else:
        params = read_params(body)
        claims = [params.get("requestState"), _find_trace(params.get("_meta"))]
    for claim in claims:
        if isinstance(claim, str):
            return claim.encode("utf-8", "surrogatepass")
        if isinstance(claim, bytes):
            return claim
    return None


def find_message_id(body: bytes | None) -> str | None:
    """The id of a message of A2A, by which a repetition of it is known."""
    message_id = {} if body is None else read_message(read_params(body)).get("messageId")
    return message_id if isinstance(message_id, str) else None


def changes_nothing(body: bytes) -> bool:
    """Whether a request of MCP changes nothing, so that it may be sent again to the next leader."""
    return read_request(body).get("method") in _CHANGES_NOTHING


def find_tool(body: bytes) -> str | None:
    """The tool that a request of MCP calls."""
    name = read_params(body).get("name") if read_request(body).get("method") == "tools/call" else None
    return name if isinstance(name, str) else None


def read_message(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message that a request of A2A sends; {} where it sends none."""
    message = params.get("message")
    return message if isinstance(message, dict) else {}


def _find_trace(meta: Any) -> Any:
    """The id of the trace in metadata, whose keys may have any case."""
    if not isinstance(meta, dict):
        return None
    return next((value for key, value in meta.items() if key.lower() == _TRACE_KEY), None)


def read_request(body: bytes) -> Mapping[str, Any]:
    """The JSON-RPC request in ``body``; {} for a batch and for anything else."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return request if isinstance(request, dict) else {}


def read_params(body: bytes) -> Mapping[str, Any]:
    """The parameters of the request in ``body``; {} where it has none."""
    params = read_request(body).get("params")
    return params if isinstance(params, dict) else {}
