"""Calls one agent over A2A's JSON-RPC, versions 1.x and 0.3.

A call is a message. An agent that streams is followed to the end of its task; of others, and where a stream
breaks, the task is asked for until it ends. A question of the task goes to the caller's channel, and the
cancellation of a call to the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from retinue.a2a.codec.exchange import (
    VERSION_HEADER,
    TaskState,
    find_question,
    method_of,
    read_result,
    read_warnings,
    render_answer,
    render_call,
    without_waiting,
)
from retinue.core.call import Answer, TextPiece, TraceContext
from retinue.core.durations import render_duration
from retinue.core.errors import (
    AgentUnreachableError,
    ExecutionFailedError,
    InputRequiredError,
    InvalidRequestError,
    NotAuthenticatedError,
    OutOfMemoryError,
    ParseError,
    RemoteFaultError,
    RetinueError,
    TooLargeError,
)
from retinue.core.record import Skill
from retinue.core.usage import read_usage
from retinue.mesh.channel import Channel
from retinue.web.codec.jsonrpc import ErrorReply, find_guard_error, parse_response, render_request
from retinue.web.codec.sse import EventParser
from retinue.web.codec.trace import USAGE_KEY, render_trace_headers, render_trace_meta
from retinue.web.http_client import HttpClient
from retinue.web.transport import MAX_RESPONSE_BYTES, ResponseTooLargeError, TransportError

FIRST_POLL_S = 0.02
LAST_POLL_S = 2.0
CANCEL_S = 5.0
LATE_CANCEL_S = 30.0
"""How long a cancelled call waits in the background for the id of the task that it began."""

QUIET_S = 60.0
"""How long the task of a broken stream may show no change."""

ABANDONED_S = 2.0
"""The same where the agent says that nothing executes the task."""

MAX_QUESTIONS = 50
"""Questions of one task; one more ends the call."""

_UNBOUNDED_S = 3600.0
_STREAM = "text/event-stream"
_UNSUPPORTED = frozenset({-32004, -32601})
_TASK_NOT_FOUND = -32001
_STRUCT = "type.googleapis.com/google.protobuf.Struct"
_ERROR_KEY = "error"
"""Key in the metadata of the last message of a failed task, where the agent is one of Retinue."""


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where an agent is asked and how; ``headers`` go with every request."""

    name: str
    url: str
    version: str = "1.0"
    streams: bool = False
    has_schemas: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class A2aClient:
    """Calls the skills of one agent. ``http`` holds the URL guard and the limits.

    A task whose stream broke is given up if it shows no change for ``quiet_s``, or ``abandoned_s`` where the
    agent lets nobody follow it.
    """

    def __init__(
        self,
        http: HttpClient,
        place: AgentPlace,
        *,
        quiet_s: float = QUIET_S,
        abandoned_s: float = ABANDONED_S,
    ) -> None:
        self._quiet_s = quiet_s
        self._abandoned_s = abandoned_s
        self._http = http
        self._place = place
        self._late = set[asyncio.Task[None]]()

    async def call(self, skill: Skill, arguments: Any, trace: TraceContext, channel: Channel) -> Answer:
        """One call of a skill; the dispatcher enforces the time limit.

        Raises AgentUnreachableError, NotAuthenticatedError, InputRequiredError, RemoteFaultError with the
        agent's error, ExecutionFailedError and the GuardError of a process further down the chain.
        """
        place = self._place
        meta = render_trace_meta(trace)
        headers = render_trace_headers(trace)
        params = render_call(skill, arguments, place.version, meta, has_schema=place.has_schemas)
        task = TaskState()
        try:
            await self._send(params, headers, task, channel)
            for _ in range(MAX_QUESTIONS):
                if task.state != "INPUT_REQUIRED":
                    break
                question, schema, is_text = find_question(task)
                answer = await channel.elicit(question, schema)
                if is_text and isinstance(answer, Mapping):
                    answer = answer.get("answer", "")
                await self._send(render_answer(answer, task, place.version, meta), headers, task, channel)
        except (asyncio.CancelledError, InputRequiredError):
            await self._cancel(task, headers)
            raise
        if not task.has_ended:
            await self._cancel(task, headers)
        return self._finish(task)

    def _finish(self, task: TaskState) -> Answer:
        name = self._place.name
        if task.state == "COMPLETED":
            value, parts = read_result(task.list_results(), has_schema=self._place.has_schemas)
            usage = read_usage(task.metadata.get(USAGE_KEY))
            return Answer(value=value, parts=parts, usage=usage, warnings=read_warnings(task.metadata))
        if task.state == "AUTH_REQUIRED":
            raise NotAuthenticatedError(
                f"agent {name} asks for a login: {task.text or 'no reason given'}",
                remedy="import it again with --header or --token-env",
            )
        if task.state == "INPUT_REQUIRED":
            raise ExecutionFailedError(f"agent {name} asked more than {MAX_QUESTIONS} questions")
        facts = task.status_metadata.get(_ERROR_KEY)
        if isinstance(facts, Mapping):
            code = facts.get("code")
            message = str(facts.get("message") or task.text)
            raise _as_error(name, code if isinstance(code, int) else -32603, message, facts)
        said = {"FAILED": "failed", "REJECTED": "rejected the task", "CANCELED": "cancelled the task"}
        reason = f": {task.text}" if task.text else ""
        raise RemoteFaultError(name, -32603, f"agent {name} {said.get(task.state, 'ended')}{reason}")

    async def _send(
        self, params: Mapping[str, Any], headers: Mapping[str, str], task: TaskState, channel: Channel
    ) -> None:
        """Send a message, and return when its task has ended or waits for its client."""
        task.state = ""
        quiet_s: float | None = None
        if self._place.streams:
            try:
                await self._follow("SendStreamingMessage", params, headers, task, channel)
            except RemoteFaultError as error:
                if error.code not in _UNSUPPORTED or task.state:
                    raise
                await self._begin(params, headers, task)
            except AgentUnreachableError as error:
                if task.id is None or not error.sent:
                    raise
                # some agents end the task of a broken stream without a word, so the wait needs a reason
                await channel.progress(None, f"the stream of {self._place.name} broke: asking for its task")
                quiet_s = await self._follow_again(headers, task, channel)
        else:
            await self._begin(params, headers, task)
        await self._poll(headers, task, channel, quiet_s)

    async def _follow_again(self, headers: Mapping[str, str], task: TaskState, channel: Channel) -> float:
        """Follow a task whose stream broke; returns how long it may show no change afterwards."""
        try:
            await self._follow("SubscribeToTask", {"id": task.id}, headers, task, channel)
        except AgentUnreachableError:
            return self._quiet_s  # asking for the task shows whether the agent is back
        except RemoteFaultError as error:
            return self._abandoned_s if error.code == _TASK_NOT_FOUND else self._quiet_s
        return self._quiet_s

    async def _poll(
        self, headers: Mapping[str, str], task: TaskState, channel: Channel, quiet_s: float | None
    ) -> None:
        """Ask for a task until it has ended or waits for its client.

        Raises AgentUnreachableError if it shows no change for ``quiet_s``; None = it may.
        """
        place, now = self._place, asyncio.get_running_loop().time
        wait_s, changed_at, last = FIRST_POLL_S, now(), None
        while not task.has_ended and not task.is_waiting:
            if task.id is None:
                raise RemoteFaultError(place.name, -32006, f"agent {place.name} sent no result")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, LAST_POLL_S)
            before = task.text
            reply = await self._ask("GetTask", {"id": task.id}, headers)
            task.take(reply, place.name)
            if reply != last:
                changed_at, last = now(), reply
            elif quiet_s is not None and now() - changed_at >= quiet_s:
                await self._cancel(task, headers)
                cause = f"its stream broke, and task {task.id} shows no change for {render_duration(quiet_s)}"
                raise AgentUnreachableError(place.name, place.url, cause, sent=True)
            if task.text != before and not task.has_ended:
                await channel.progress(None, task.text)

    async def _begin(self, params: Mapping[str, Any], headers: Mapping[str, str], task: TaskState) -> None:
        """Send a message without a stream; a call that is cancelled meanwhile is cancelled at the agent."""
        ready = without_waiting(params, self._place.version)
        asking = asyncio.create_task(self._ask("SendMessage", ready, headers))
        try:
            task.take(await asyncio.shield(asking), self._place.name)
        except asyncio.CancelledError:
            if task.id is None:
                # the caller does not wait for it: an agent may answer only when the task has ended
                late = asyncio.create_task(self._cancel_late(asking, task, headers))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            raise

    async def _cancel_late(
        self, asking: asyncio.Task[Any], task: TaskState, headers: Mapping[str, str]
    ) -> None:
        """Cancel a task when the agent has sent its id, which is not known yet."""
        # RuntimeError: the client was closed, because the process ends
        with suppress(RetinueError, TimeoutError, RuntimeError):
            async with asyncio.timeout(LATE_CANCEL_S):
                task.take(await asking, self._place.name)
            await self._cancel(task, headers)

    async def _follow(
        self,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        task: TaskState,
        channel: Channel,
    ) -> None:
        async with aclosing(self._stream(method, params, headers)) as events:
            async for event in events:
                if task.take(event, self._place.name):
                    progress = task.metadata.get("progress")
                    fraction = float(progress) if isinstance(progress, int | float) else None
                    if (piece := TextPiece.from_json(task.metadata.get("text"))) is not None:
                        await channel.stream_text(piece)
                    elif task.text or fraction is not None:
                        await channel.progress(fraction, task.text)
                if task.has_ended or task.is_waiting:
                    return

    async def _stream(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[Any, None]:
        """The results of a streamed request. Raises as `call`."""
        place = self._place
        body = render_request(method_of(method, place.version), params, "1")
        parser = EventParser()
        total = 0
        try:
            async with self._http.stream(
                "POST", place.url, headers={**self._headers(headers), "accept": _STREAM}, body=body
            ) as response:
                if not response.headers.get("content-type", "").startswith(_STREAM):
                    yield self._read(response.status, await response.read())
                    return
                while chunk := await response.read_some():
                    total += len(chunk)
                    if total > MAX_RESPONSE_BYTES:
                        raise ResponseTooLargeError(place.url, MAX_RESPONSE_BYTES)
                    for event in parser.feed(chunk):
                        if event.data:
                            yield self._read(response.status, event.data)
        except (TooLargeError, ResponseTooLargeError) as error:
            raise RemoteFaultError(place.name, -32603, f"agent {place.name}: {error}") from error
        except TransportError as error:
            raise AgentUnreachableError(place.name, place.url, error.cause, sent=error.sent) from error

    async def _ask(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The result of one request. Raises as `call`."""
        place = self._place
        try:
            reply = await self._http.request(
                "POST",
                place.url,
                headers=self._headers(headers),
                body=render_request(method_of(method, place.version), params, "1"),
                timeout_s=_UNBOUNDED_S,
                what=method,
            )
        except ResponseTooLargeError as error:
            raise RemoteFaultError(place.name, -32603, f"agent {place.name}: {error.cause}") from error
        except TransportError as error:
            raise AgentUnreachableError(place.name, place.url, error.cause, sent=error.sent) from error
        return self._read(reply.status, reply.body)

    def _read(self, status: int, body: bytes) -> Any:
        place = self._place
        if status in (401, 403):
            raise NotAuthenticatedError(
                f"agent {place.name} refuses the credentials (status {status})",
                remedy="import it again with --header or --token-env",
            )
        try:
            found = parse_response(body)
        except OutOfMemoryError as error:
            cause = f"no memory here to read its reply of {len(body):,} bytes"
            raise AgentUnreachableError(place.name, place.url, cause, sent=True) from error
        except (ParseError, InvalidRequestError) as error:
            if status >= 500 or status in (404, 429):
                cause = f"it answers with status {status}"
                raise AgentUnreachableError(place.name, place.url, cause, sent=status != 404) from error
            message = f"agent {place.name} answered {status} with no JSON-RPC reply"
            raise RemoteFaultError(place.name, -32603, message) from error
        if isinstance(found, ErrorReply):
            raise _as_error(place.name, found.code, found.message, _facts_of(found.data))
        return found.value

    def _headers(self, trace: Mapping[str, str]) -> dict[str, str]:
        place = self._place
        version = {} if place.version == "0.3" else {VERSION_HEADER: place.version}
        # what the import is configured with wins over the trace
        return {"content-type": "application/json", **version, **trace, **place.headers}

    async def _cancel(self, task: TaskState, headers: Mapping[str, str]) -> None:
        """Ask the agent to cancel the task, which may have ended already."""
        if task.id is None or task.has_ended:
            return
        with suppress(RetinueError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await asyncio.shield(asyncio.ensure_future(self._ask("CancelTask", {"id": task.id}, headers)))


def _as_error(agent: str, code: int, message: str, facts: Any) -> RetinueError:
    return find_guard_error(code, message, facts) or RemoteFaultError(agent, code, message, facts)


def _facts_of(data: Any) -> Any:
    """The facts of an error: 1.x has them in a list of typed details."""
    if not isinstance(data, list):
        return data
    structs = (
        detail.get("value")
        for detail in data
        if isinstance(detail, Mapping) and detail.get("@type") == _STRUCT
    )
    return next(structs, None) or {"details": data}


def read_card_flags(card: bytes) -> tuple[bool, bool]:
    """Whether the agent of a card streams, and whether its card publishes schemas."""
    from retinue.cards.a2a_card import EXTENSION

    found = orjson.loads(card)
    capabilities = found.get("capabilities") if isinstance(found, dict) else None
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    extensions = capabilities.get("extensions")
    named = (
        [extension.get("uri") for extension in extensions if isinstance(extension, dict)]
        if isinstance(extensions, list)
        else []
    )
    return capabilities.get("streaming") is True, EXTENSION in named
