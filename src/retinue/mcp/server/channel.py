"""One request of an MCP client: its caller, its protocol version, and the channel back to the client.

Two families of protocol versions are served: those with ``initialize`` and sessions (to 2025-11-25), and
the sessionless one (2026-07-28), in which questions travel inside results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from retinue.core.call import Principal, TextPiece, TraceContext
from retinue.core.errors import CannotAskError, InputRefusedError, InputRequiredError
from retinue.core.quick_dataclass import quick_dataclass
from retinue.mcp.codec.content import SERVER_INFO_KEY, complete_result
from retinue.mcp.codec.tool_calls import TEXT_KEY
from retinue.mcp.server.offer import HEARTBEAT_S
from retinue.mcp.server.suspended_calls import KEPT_S, SuspendableCall
from retinue.mesh.channel import Capability, LogLevel, NullChannel, Root
from retinue.mesh.permissions import MCP_CLIENT, as_mcp_client
from retinue.mesh.schema.checks import compile_schema
from retinue.web.codec.merged_traces import merge_traces
from retinue.web.codec.trace import parse_trace_headers, parse_trace_meta
from retinue.web.security import identity_of

Context = ServerRequestContext[Any, Any]


STDIO = Principal("stdio", "local", frozenset({"exposed", "runs_code"}))
"""The program that started this process as its MCP server: it may run code, and sees what clients see."""


_NO_TRACE = TraceContext(id="")


current_principal: ContextVar[Principal] = ContextVar("retinue_mcp_asking", default=MCP_CLIENT)
"""The caller of the current request, for callbacks of the SDK that do not name it."""


@quick_dataclass(frozen=True, slots=True)
class McpCaller:
    """The caller of a request, its endpoint, its trace and its session."""

    principal: Principal
    endpoint: str
    trace: TraceContext
    session: str | None = None


def session_of(context: Context) -> str | None:
    """The session of this message; None without one, as over stdio and in 2026-07-28."""
    request = context.request
    return request.headers.get("mcp-session-id") if isinstance(request, Request) else None


def principal_of(context: Context) -> Principal:
    """The sender of this message; over stdio the program that started the process."""
    request = context.request
    return as_mcp_client(identity_of(request.scope).principal) if isinstance(request, Request) else STDIO


def caller_of(context: Context) -> McpCaller:
    """The caller, with the trace of headers and ``_meta`` (specification 5, doubt 3)."""
    request = context.request
    meta: Mapping[str, Any] = context.meta or {}
    from_meta = parse_trace_meta(meta) if meta else None
    if not isinstance(request, Request):
        return McpCaller(STDIO, "mcp-stdio", from_meta or _NO_TRACE)
    from_headers = parse_trace_headers(request.headers)
    trace = merge_traces(from_headers, from_meta) or _NO_TRACE
    return McpCaller(as_mcp_client(identity_of(request.scope).principal), "mcp", trace, session_of(context))


def is_modern(context: Context) -> bool:
    """Whether this message is of the sessionless protocol, where questions travel inside results."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def complete(context: Context, result: dict[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
    """The result with the fields that its protocol version requires."""
    return complete_result(result, cacheable=cacheable) if is_modern(context) else result


def stamp(context: Context, result: dict[str, Any], server: Server[Any]) -> dict[str, Any]:
    """A result that bypasses the SDK's own shaping, with the server's name where the version requires it."""
    if not is_modern(context):
        return result
    return {**result, "_meta": {**result.get("_meta", {}), SERVER_INFO_KEY: server.server_info_stamp}}


LEVELS: tuple[str, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""The levels of MCP log lines, lowest first."""


_TICK = 1e-6

_ASKABLE: tuple[Capability, ...] = ("elicitation", "sampling", "roots")

_ANSWER = "answer"


R = TypeVar("R", bound=BaseModel)


class McpChannel:
    """The channel of one request; a suspended call continues on the request that resumes it.

    ``least_level`` None = no log lines for this client.
    """

    def __init__(
        self,
        context: Context,
        least_level: str | None,
        conversation: SuspendableCall | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.on_line: Callable[[str], None] | None = None
        """Told of each line of progress, also where the client asked for none."""
        self._heartbeat_s = heartbeat_s
        self._context = context
        self._least_level = least_level
        self._conversation = conversation
        self._reported = 0.0
        self._has_total = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The reports that this client receives, and the requests that it declared to answer."""
        kinds: set[Capability] = set()
        meta = self._context.meta
        is_progress_asked = meta and ("progress_token" in meta or "progressToken" in meta)
        if is_progress_asked or self.on_line is not None:
            kinds.add("progress")
        if self._least_level is not None:
            kinds.add("log")
        declared = self._context.session.client_capabilities
        if declared is not None and (self._conversation is not None or not is_modern(self._context)):
            kinds |= {kind for kind in _ASKABLE if getattr(declared, kind) is not None}
        return frozenset(kinds)

    @property
    def is_sessionless(self) -> bool:
        return is_modern(self._context)

    def move_to(self, context: Context, least_level: str | None) -> None:
        """Continue on another request of the same client."""
        self._context = context
        self._least_level = least_level

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Report progress; MCP requires it to grow, so a smaller fraction counts as the last one."""
        if self.on_line is not None:
            self.on_line(message)
        if fraction is not None:
            self._has_total = True
            self._reported = max(self._reported + _TICK, fraction) if self._reported else fraction
        else:
            self._reported += _TICK
        await self._report(message)

    async def stream_text(self, piece: TextPiece) -> None:
        """Report progress with the piece in ``_meta``; its message is for people."""
        meta = self._context.meta or {}
        token = meta.get("progress_token", meta.get("progressToken"))
        if token is None:
            return
        self._reported += _TICK
        params = types.ProgressNotificationParams(
            progress_token=token,
            progress=self._reported,
            total=1.0 if self._has_total else None,
            message=piece.for_people,
            meta={TEXT_KEY: piece.to_json()},
        )
        await self._context.session.send_notification(
            types.ProgressNotification(params=params), related_request_id=self._context.request_id
        )

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        if self._least_level is None or LEVELS.index(level) < LEVELS.index(self._least_level):
            return
        payload: Any = message if data is None else {"message": message, **data}
        params = types.LoggingMessageNotificationParams(level=level, data=payload)
        await self._context.session.send_notification(
            types.LoggingMessageNotification(params=params), related_request_id=self._context.request_id
        )

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        # a form is an object; a single value becomes a form with one field
        is_form = schema.get("type") == "object"
        asked = dict(schema) if is_form else _form_of(schema)
        params = types.ElicitRequestFormParams(message=message, requested_schema=asked)
        result = await self._ask("elicitation", types.ElicitRequest(params=params), types.ElicitResult, key)
        if result.action != "accept":
            raise InputRefusedError(f"the question was answered with {result.action}: {message}")
        content = result.content or {}
        if problems := compile_schema(asked, "question").problems(content):
            problem = f"the answer does not fit the question: {problems[0].message}"
            raise InputRefusedError(problem, answer=content)
        return content if is_form else content[_ANSWER]

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
        result = await self._ask(
            "sampling", types.CreateMessageRequest(params=params), types.CreateMessageResult, key
        )
        if not isinstance(result.content, types.TextContent):
            raise InputRefusedError("the caller's model answered with something other than text")
        return result.content.text

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        result = await self._ask("roots", types.ListRootsRequest(), types.ListRootsResult, key)
        return tuple(Root(str(root.uri), root.name) for root in result.roots)

    def start_heartbeat(self) -> None:
        """Begin to report regularly that the call runs, if the client asked for progress."""
        meta = self._context.meta
        if meta and ("progress_token" in meta or "progressToken" in meta):
            loop = asyncio.get_running_loop()
            self._heartbeat = loop.call_later(self._heartbeat_s, self._beat)

    def stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _beat(self) -> None:
        self._reported += _TICK
        self._beating = asyncio.create_task(self._report("still running"))
        self.start_heartbeat()

    async def _report(self, message: str) -> None:
        total = 1.0 if self._has_total else None
        await self._context.session.report_progress(self._reported, total, message or None)

    async def _ask(self, capability: str, request: types.ServerRequest, kind: type[R], key: str | None) -> R:
        declared = self._context.session.client_capabilities
        if declared is None or getattr(declared, capability) is None:
            raise CannotAskError(capability)
        if is_modern(self._context):
            if self._conversation is None:
                raise CannotAskError(capability)
            return _read(await self._conversation.ask(key, request), kind)  # type: ignore[arg-type]
        related = ServerMessageMetadata(related_request_id=self._context.request_id)
        try:
            return await self._context.session.send_request(request, kind, KEPT_S, related)
        except MCPError as error:
            raise InputRequiredError(f"the caller did not answer: {error}") from error
        except ValidationError as error:
            raise InputRefusedError("the caller's answer cannot be read") from error


class DeafChannel(NullChannel):
    """The channel of a client that listens to nothing and declared nothing that it can be asked."""

    def __init__(self, *, is_sessionless: bool) -> None:
        self.is_sessionless = is_sessionless

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        raise CannotAskError("elicitation")


def _form_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {_ANSWER: dict(schema)}, "required": [_ANSWER]}


def _read(response: BaseModel, kind: type[R]) -> R:
    if isinstance(response, kind):
        return response
    try:
        return kind.model_validate(response.model_dump(by_alias=True))
    except ValidationError as error:
        raise InputRefusedError("the caller's answer is of another kind than the question") from error
