"""The endpoints of Retinue's own processes: ``/execute``, ``/health`` and ``/ready``.

``POST /execute`` is JSON-RPC 2.0 where the method is a skill (P-07 … P-12, P-22 … P-24). It
is a plain ASGI app, because Starlette's Request and Response cost more than the whole dispatch. JSON-RPC
errors have HTTP status 200 (specification 2, doubt 12); only rejections by ``web.security`` have another
status. ``GET /health`` proves that the process is alive (specification 2.1), and ``GET /ready`` says whether
it can serve callers (specification 7.15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.core.call import ANONYMOUS, MAX_KEY_LENGTH, Call, TraceContext, new_id
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidRequestError,
    OutOfMemoryError,
    OutputInvalidError,
    RetinueError,
    StoppingError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.parts import list_beside
from retinue.core.usage import add_usage
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Calls
from retinue.parts.part import ReadinessProblem
from retinue.rpc.streaming import EVENT_STREAM, ReplyStream
from retinue.web.codec.jsonrpc import (
    INTERNAL_ERROR,
    Malformed,
    Request,
    parse_message,
    render_batch,
    render_error,
    render_result,
)
from retinue.web.codec.trace import (
    CALLS_USED_KEY,
    USAGE_KEY,
    WARNINGS_KEY,
    parse_raw_trace_headers,
    render_usage,
    render_warnings,
)
from retinue.web.disconnect import WATCH_AFTER_S, CancelOnDisconnect, read_body
from retinue.web.error_table import execute_fault, rest_fault
from retinue.web.security import Headers, RequestIdentity, identity_of

MAX_AT_ONCE = 16
"""Maximum number of requests of one batch that run concurrently."""


_CALLS_USED = CALLS_USED_KEY.lower().encode()
_WARNINGS = WARNINGS_KEY.lower().encode()
_USAGE = USAGE_KEY.lower().encode()
_EVENT_STREAM = EVENT_STREAM.encode()

_NO_TRACE = TraceContext(id="")
"""The trace of a request without one; the guard gives it an id."""


_log = structlog.get_logger("retinue.execute")


def execute_route(
    calls: Calls,
    *,
    path: str = "/execute",
    agent: str | None = None,
    endpoint: str = "execute",
    answer_without_id: bool = False,
    validation_code: int = INTERNAL_ERROR,
    watch_after_s: float = WATCH_AFTER_S,
) -> Route:
    """The endpoint at ``path`` for ``agent``, or for the agent that ``{agent}`` in the path names.

    With ``answer_without_id`` notifications are answered as well (specification 7.2).
    ``validation_code`` is the code of invalid parameters; −32602 is JSON-RPC's own (specification 2, doubt
    1). A call that runs for longer than ``watch_after_s`` is cancelled when its client disconnects.
    """
    app = ExecuteEndpoint(calls, agent, endpoint, answer_without_id, validation_code, watch_after_s)
    return Route(path, app, methods=["POST"])


class ExecuteEndpoint:
    """The endpoint as an ASGI app; `execute_route` makes it a route."""

    def __init__(
        self,
        calls: Calls,
        agent: str | None,
        endpoint: str,
        answer_without_id: bool,
        validation_code: int,
        watch_after_s: float,
    ) -> None:
        self._calls = calls
        self._agent = agent
        self._endpoint = endpoint
        self._answer_without_id = answer_without_id
        self._validation_code = validation_code
        self._watch_after_s = watch_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor = identity_of(scope)
        body = await read_body(receive)
        if body is None:
            return
        agent = self._agent or scope.get("path_params", {}).get("agent")
        used = _CallsUsed()
        with CancelOnDisconnect(receive, self._watch_after_s):
            if _EVENT_STREAM not in visitor.headers.get(b"accept", b""):
                await _send(send, await self._answer(body, visitor, agent, used), used)
                return
            stream = ReplyStream(send)
            try:
                reply = await self._answer(body, visitor, agent, used, stream)
                if not await stream.finish(*_render_head(reply, used), reply):
                    await _send(send, reply, used)
            finally:
                stream.close()

    async def _answer(
        self,
        body: bytes,
        visitor: RequestIdentity,
        agent: str | None,
        used: _CallsUsed,
        channel: Channel | None = None,
    ) -> bytes | None:
        """The rendered reply; the reports of a single call go to ``channel``."""
        try:
            is_batch, entries = parse_message(body)
            key = _idempotency_key(visitor.headers)
        except OutOfMemoryError:
            raise  # the security middleware answers it, with a status
        except RetinueError as error:
            return self._render_error(None, error)
        trace = parse_raw_trace_headers(visitor.headers) or _NO_TRACE
        if not is_batch:
            return await self._answer_one(entries[0], visitor, agent, trace, key, used, channel)
        replies: list[bytes | None] = [None] * len(entries)
        pending = enumerate(entries)

        async def work(entries: Iterator[tuple[int, Request | Malformed]]) -> None:
            for index, entry in entries:
                own_key = f"{key}/{index}" if key else None
                replies[index] = await self._answer_one(entry, visitor, agent, trace, own_key, used)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(MAX_AT_ONCE, len(entries))):
                group.create_task(work(pending))
        used.refusal = None  # the other calls of a batch have their results
        rendered = [reply for reply in replies if reply is not None]
        return render_batch(rendered) if rendered else None

    async def _answer_one(
        self,
        entry: Request | Malformed,
        visitor: RequestIdentity,
        agent: str | None,
        trace: TraceContext,
        key: str | None,
        used: _CallsUsed,
        channel: Channel | None = None,
    ) -> bytes | None:
        """The rendered reply to one entry; None for a notification."""
        if isinstance(entry, Malformed):
            return self._render_error(entry.id, entry.error)
        call = Call(
            id=new_id(),
            skill=entry.method,
            arguments=entry.params,
            principal=visitor.principal,
            endpoint=self._endpoint,
            trace=trace,
            agent=agent,
            version_range=_version_range(visitor.headers),
            idempotency_key=key,
        )
        try:
            outcome = await (
                self._calls.dispatch(call) if channel is None else self._calls.dispatch(call, channel)
            )
            error = outcome.error
            if self._agent is not None and isinstance(error, UnknownAgentError):
                # this endpoint named the agent, not the caller: a hidden one must not tell its name
                error = UnknownSkillError(entry.method)
            used.calls += outcome.calls_used or 0
            used.warnings += outcome.warnings
            if outcome.usage is not None:
                used.usage = add_usage(used.usage, outcome.usage)
            if isinstance(error, StoppingError) and not error.is_nested:
                used.refusal = error
        except Exception:  # noqa: BLE001 - one failing call must not end a batch
            # A bug in Retinue: its text belongs in the log, not on the wire.
            _log.exception("dispatch failed", call_id=call.id, skill=call.skill)
            error = ExecutionFailedError("internal error", remedy=f"see the log for call {call.id}")
        if entry.notification and not self._answer_without_id:
            return None
        if error is None:
            try:
                beside = list_beside(outcome.value, outcome.parts) if outcome.parts else ()
                return render_result(entry.id, outcome.value, beside)
            except TypeError as cause:
                error = OutputInvalidError.not_json(entry.method, "", str(cause))
        return self._render_error(entry.id, error)

    def _render_error(self, request_id: Any, error: RetinueError) -> bytes:
        code, message, data = execute_fault(error, validation_code=self._validation_code)
        return render_error(request_id, code, message, data)


@dataclass(slots=True)
class _CallsUsed:
    """Further calls that a request has caused; reported to its caller, which counts them in its budget.

    ``warnings`` and ``usage`` are those of its outcomes, which the body has no place for; of a batch, their
    sum.
    """

    calls: int = 0
    warnings: tuple[str, ...] = ()
    usage: Mapping[str, Any] | None = None
    refusal: StoppingError | None = None
    """Set if the process takes no new calls: a balancer or proxy reads the status, not the body."""


async def _send(send: Send, body: bytes | None, used: _CallsUsed) -> None:
    status, headers = _render_head(body, used)
    if body is not None:
        headers.insert(1, (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body or b""})


def _render_head(body: bytes | None, used: _CallsUsed) -> tuple[int, list[tuple[bytes, bytes]]]:
    """The status and the headers of a reply, without its length."""
    if body is None:
        return 204, []
    headers = [(b"content-type", b"application/json")]
    if used.calls:
        headers.append((_CALLS_USED, str(used.calls).encode()))
    if used.warnings:
        headers.append((_WARNINGS, render_warnings(used.warnings).encode()))
    if used.usage is not None:
        headers.append((_USAGE, render_usage(used.usage).encode()))
    if used.refusal is None:
        return 200, headers
    fault = rest_fault(used.refusal)
    headers += [(name.encode(), value.encode()) for name, value in fault.headers.items()]
    return fault.status, headers


def _version_range(headers: Headers) -> str | None:
    """The version range that the request asks for; checked when an agent is chosen."""
    wanted = headers.get(b"x-retinue-version")
    return None if wanted is None else wanted.decode("latin-1")


def _idempotency_key(headers: Headers) -> str | None:
    key = headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequestError(f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_LENGTH}")
    return key.decode("latin-1")


async def _answer(request: HttpRequest) -> JSONResponse:
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return JSONResponse({"status": "ok", "timestamp": stamp})


def ready_route(
    find_problems: Callable[[], Awaitable[list[ReadinessProblem]]], path: str = "/ready"
) -> Route:
    """The route that shows whether the process can serve callers; it needs no token.

    The status is 200 for ``ready`` and ``degraded``, 503 for ``not ready``. Only a caller with a token sees
    the missing parts, because names of registries and agents may be secret (specification 7.15).
    """

    async def answer(request: HttpRequest) -> JSONResponse:
        problems = await find_problems()
        is_down = any(problem.is_fatal for problem in problems)
        shown: dict[str, Any] = {"status": "not ready" if is_down else "degraded" if problems else "ready"}
        if identity_of(request.scope).principal != ANONYMOUS:
            shown["problems"] = [
                {
                    "what": problem.what,
                    **({"name": problem.name} if problem.name else {}),
                    "reason": problem.reason,
                }
                for problem in problems
            ]
        return JSONResponse(shown, 503 if is_down else 200, {"cache-control": "no-store"})

    return Route(path, answer, methods=["GET"])


def health_route(path: str = "/health") -> Route:
    """The route that shows whether the process is running; it needs no token."""
    return Route(path, _answer, methods=["GET"])
