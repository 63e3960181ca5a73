"""The A2A endpoint: JSON-RPC 2.0 over HTTP, streams as server-sent events, for clients of 1.x and 0.3.

The method's name tells the version. It is a plain ASGI app, because the layers of the A2A SDK cost many
times the whole dispatch and cannot express the codes of the error table (decision 0040).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import structlog
from starlette.types import Receive, Scope, Send

from retinue.a2a.codec import v03
from retinue.a2a.codec.faults import A2aError, render_fault, unknown_method, version_not_supported
from retinue.a2a.codec.requests import (
    PushConfig,
    read_history_length,
    read_id,
    read_list,
    read_params,
    read_push_config,
    read_send,
)
from retinue.a2a.codec.tasks import with_history
from retinue.a2a.server.agents import A2aAgent, AgentOf
from retinue.a2a.server.service import A2aService
from retinue.a2a.server.task_table import Sender
from retinue.a2a.server.versions import VERSION_HEADER, read_version
from retinue.core.call import MAX_KEY_LENGTH, TraceContext
from retinue.core.errors import InvalidRequestError, OutOfMemoryError, RetinueError
from retinue.core.record import Skill
from retinue.web.codec.jsonrpc import Malformed, Request, parse_message
from retinue.web.codec.merged_traces import merge_traces
from retinue.web.codec.trace import parse_raw_trace_headers, parse_trace_meta
from retinue.web.disconnect import CancelOnDisconnect, read_body
from retinue.web.security import RequestIdentity, identity_of

_log = structlog.get_logger(__name__)

HEARTBEAT_S = 15.0
"""A stream without events gets a comment after this time, so that no proxy on the way closes it."""

_VERSION = re.compile(r"(?:1(?:\.0(?:\.\d+)?)?|0\.3(?:\.\d+)?)")
_NO_TRACE = TraceContext(id="")


class A2aEndpoint:
    """The endpoint as an ASGI app."""

    def __init__(self, service: A2aService, agent_of: AgentOf) -> None:
        self._service = service
        self._tasks = service.tasks
        self._agent_of = agent_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = identity_of(scope)
        body = await read_body(receive)
        if body is None:
            return
        # a client that leaves ends its request; the task goes on, and the client can ask for it
        with CancelOnDisconnect(receive):
            await self._answer(scope, body, identity, send)

    async def _answer(self, scope: Scope, body: bytes, identity: RequestIdentity, send: Send) -> None:
        request_id = None
        version = _read_version(scope, identity)
        is_legacy = not version or version.startswith("0")
        try:
            try:
                request = _parse(body)
                request_id = request.id
                if isinstance(request, Malformed):
                    raise request.error
                is_legacy = request.method in v03.METHODS
                _check_version(version)
                method = v03.METHODS.get(request.method, request.method)
                params = v03.upgrade_params(method, request.params) if is_legacy else request.params
                exchange = _Exchange(
                    self._service, self._agent_of(scope), identity, params, is_legacy=is_legacy
                )
                if method in _STREAMED:
                    await _send_stream(send, request_id, exchange.stream(method), is_legacy=is_legacy)
                    return
                reply = {"jsonrpc": "2.0", "id": request_id, "result": await exchange.run(method)}
            except OutOfMemoryError:
                raise
            except RetinueError as error:
                raise A2aError.of(error) from error
        except OutOfMemoryError:
            raise  # the security middleware answers it, with a status
        except A2aError as error:
            reply = render_fault(request_id, error, legacy=is_legacy)
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not in a response
            _log.exception("A2A request failed")
            reply = render_fault(request_id, _internal_error(), legacy=is_legacy)
        await _send_json(send, reply)


_STREAMED = frozenset({"SendStreamingMessage", "SubscribeToTask"})


class _Exchange:
    """One request: its method applied to its parameters, the result in its version."""

    def __init__(
        self, service: A2aService, agent: A2aAgent, identity: RequestIdentity, params: Any, *, is_legacy: bool
    ) -> None:
        self._service = service
        self._tasks = service.tasks
        self._agent = agent
        self._identity = identity
        self._params = params
        self._legacy = is_legacy

    async def run(self, method: str) -> Any:
        """The result of a method that answers once."""
        answer = _METHODS.get(method)
        if answer is None:
            raise unknown_method(method)
        return await answer(self)

    async def stream(self, method: str) -> AsyncGenerator[Any, None]:
        """The results of a method that answers with a stream."""
        if method == "SubscribeToTask":
            events = self._service.subscribe(read_id(read_params(self._params), "id"), self._caller())
        else:
            request = self._read_send()
            events = self._service.stream(request, self._caller(request.message.metadata, request.metadata))
        async for event in events:
            yield v03.downgrade_event(event) if self._legacy else event

    async def send(self) -> Any:
        request = self._read_send()
        event = await self._service.send(request, self._caller(request.message.metadata, request.metadata))
        return v03.downgrade_event(event) if self._legacy else event

    async def find(self) -> Any:
        params = read_params(self._params)
        length = read_history_length(params)
        return self._show(with_history(await self._tasks.find(read_id(params, "id"), self._caller()), length))

    async def list_page(self) -> Any:
        page = await self._tasks.list_page(read_list(self._params), self._caller())
        return {**page, "tasks": [self._show(task) for task in page["tasks"]]} if self._legacy else page

    async def cancel(self) -> Any:
        params = read_params(self._params)
        return self._show(
            await self._service.cancel(read_id(params, "id"), self._caller(params.get("metadata")))
        )

    async def set_push(self) -> Any:
        params = read_params(self._params)
        config = replace(read_push_config(params), legacy=self._legacy)
        task_id = read_id(params, "taskId")
        return self._show_push(task_id, *await self._tasks.set_push(task_id, config, self._caller()))

    async def find_push(self) -> Any:
        params = read_params(self._params)
        task_id = read_id(params, "taskId")
        config_id = params.get("id") or task_id
        found = await self._tasks.find_push(task_id, str(config_id), self._caller())
        return self._show_push(task_id, str(config_id), found)

    async def list_push(self) -> Any:
        task_id = read_id(read_params(self._params), "taskId")
        configs = [
            self._show_push(task_id, *config)
            for config in await self._tasks.list_push(task_id, self._caller())
        ]
        return configs if self._legacy else {"configs": configs, "nextPageToken": ""}

    async def delete_push(self) -> Any:
        params = read_params(self._params)
        await self._tasks.delete_push(read_id(params, "taskId"), read_id(params, "id"), self._caller())
        return None if self._legacy else {}

    async def card(self) -> Any:
        return await self._agent.render_card(self._identity.principal, self._legacy)

    def _read_send(self) -> Any:
        request = read_send(self._params)
        return replace(request, push=replace(request.push, legacy=self._legacy)) if request.push else request

    def _caller(self, *metadata: Any) -> Sender:
        """The caller, with the trace of the headers and of the metadata."""
        headers = self._identity.headers
        trace = parse_raw_trace_headers(headers)
        for document in metadata:
            if isinstance(document, Mapping) and document:
                trace = merge_traces(trace, parse_trace_meta(document))
        key, version = headers.get(b"idempotency-key"), headers.get(b"x-retinue-version")
        if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
            raise InvalidRequestError(
                f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_LENGTH}"
            )
        return Sender(
            self._identity,
            self._agent.name,
            trace or _NO_TRACE,
            self._list_skills,
            self._agent.is_named,
            None if key is None else key.decode("latin-1"),
            None if version is None else version.decode("latin-1"),
            self._agent.text_skills,
        )

    async def _list_skills(self) -> tuple[Skill, ...]:
        return await self._agent.list_skills(self._identity.principal)

    def _show(self, task: dict[str, Any]) -> dict[str, Any]:
        return v03.downgrade_task(task) if self._legacy else task

    def _show_push(self, task_id: str, config_id: str, config: PushConfig) -> dict[str, Any]:
        if self._legacy:
            return v03.downgrade_push(task_id, config_id, config)
        shown: dict[str, Any] = {"id": config_id, "taskId": task_id, "url": config.url}
        if config.token is not None:
            shown["token"] = config.token
        if config.scheme is not None:
            shown["authentication"] = {"scheme": config.scheme}
            if config.credentials is not None:
                shown["authentication"]["credentials"] = config.credentials
        return shown


_METHODS: Mapping[str, Callable[[_Exchange], Awaitable[Any]]] = {
    "SendMessage": _Exchange.send,
    "GetTask": _Exchange.find,
    "ListTasks": _Exchange.list_page,
    "CancelTask": _Exchange.cancel,
    "CreateTaskPushNotificationConfig": _Exchange.set_push,
    "GetTaskPushNotificationConfig": _Exchange.find_push,
    "ListTaskPushNotificationConfigs": _Exchange.list_push,
    "DeleteTaskPushNotificationConfig": _Exchange.delete_push,
    "GetExtendedAgentCard": _Exchange.card,
}


def _parse(body: bytes) -> Request | Malformed:
    is_batch, entries = parse_message(body)
    if is_batch:
        raise InvalidRequestError("A2A has no batches; send one request")
    return entries[0]


def _read_version(scope: Scope, identity: RequestIdentity) -> str:
    header = identity.headers.get(VERSION_HEADER.encode(), b"").decode("latin-1")
    return read_version(header, scope.get("query_string", b""))


def _check_version(version: str) -> None:
    """Raise A2aError for another version; none at all is that of the method."""
    if version and not _VERSION.fullmatch(version):
        raise version_not_supported(version)


def _internal_error() -> A2aError:
    return A2aError(-32603, "INTERNAL_ERROR", "internal error; see the log of the agent")


async def _send_json(send: Send, reply: Mapping[str, Any]) -> None:
    body = orjson.dumps(reply)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),
]


async def _send_stream(
    send: Send, request_id: Any, results: AsyncGenerator[Any, None], *, is_legacy: bool
) -> None:
    """Send each result as an event; an error before the first one is raised, a later one is an event."""
    first = await anext(results)
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    await _send_event(send, {"jsonrpc": "2.0", "id": request_id, "result": first})
    pending: asyncio.Task[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(_next(results))
            done, _ = await asyncio.wait({pending}, timeout=HEARTBEAT_S)
            if not done:
                await send({"type": "http.response.body", "body": b": still working\n\n", "more_body": True})
                continue
            result, pending = pending.result(), None
            if result is None:
                break
            await _send_event(send, {"jsonrpc": "2.0", "id": request_id, "result": result})
    except A2aError as error:
        await _send_event(send, render_fault(request_id, error, legacy=is_legacy))
    finally:
        if pending is not None:
            # its cancellation ends the generator
            pending.cancel()
        else:
            await results.aclose()
    await send({"type": "http.response.body", "body": b""})


async def _next(results: AsyncIterator[Any]) -> Any:
    return await anext(results, None)


async def _send_event(send: Send, reply: Mapping[str, Any]) -> None:
    body = b"data: " + orjson.dumps(reply) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})
