"""The way back to an MCP client while its call runs: progress, log lines and questions, in both eras."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from retinue.core.errors import CannotAskError, InputRefusedError, InputRequiredError
from retinue.mesh.channel import Capability, LogLevel, Root
from retinue.mesh.schema import compile_schema
from retinue.surfaces.mcp.callers import Context
from retinue.surfaces.mcp.eras import is_modern
from retinue.surfaces.mcp.suspended import KEPT_S, Conversation

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
"""The levels of MCP's log lines, the least first."""

HEARTBEAT_S = 15.0
"""After so long without a word a client that asked for progress is told that its call still runs."""

_TICK = 1e-6
_ASKABLE: tuple[Capability, ...] = ("elicitation", "sampling", "roots")
_ANSWER = "answer"

R = TypeVar("R", bound=BaseModel)


class McpChannel:
    """What one request offers its call; a resumed call goes on with the request that resumed it.

    ``least_level`` None = no log lines for this client.
    """

    def __init__(
        self, context: Context, least_level: str | None, conversation: Conversation | None = None
    ) -> None:
        self._context = context
        self._least_level = least_level
        self._conversation = conversation
        self._told = 0.0
        self._has_total = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this client listens to, and what it declared that it can be asked for."""
        found: set[Capability] = set()
        meta = self._context.meta
        if meta and ("progress_token" in meta or "progressToken" in meta):
            found.add("progress")
        if self._least_level is not None:
            found.add("log")
        declared = self._context.session.client_capabilities
        if declared is not None and (self._conversation is not None or not is_modern(self._context)):
            found |= {one for one in _ASKABLE if getattr(declared, one) is not None}
        return frozenset(found)

    def move_to(self, context: Context, least_level: str | None) -> None:
        """Go on with another request of the same client."""
        self._context = context
        self._least_level = least_level

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Progress only ever grows (MCP), so that a fraction below the last one counts as that one."""
        if fraction is not None:
            self._has_total = True
            self._told = max(self._told + _TICK, fraction) if self._told else fraction
        else:
            self._told += _TICK
        await self._report(message)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        if self._least_level is None or LEVELS.index(level) < LEVELS.index(self._least_level):
            return
        said: Any = message if data is None else {"message": message, **data}
        params = types.LoggingMessageNotificationParams(level=level, data=said)
        await self._context.session.send_notification(
            types.LoggingMessageNotification(params=params), related_request_id=self._context.request_id
        )

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        # a form is an object; a single value is asked for as a form of one field
        is_form = schema.get("type") == "object"
        asked = dict(schema) if is_form else _form_of(schema)
        params = types.ElicitRequestFormParams(message=message, requested_schema=asked)
        result = await self._ask("elicitation", types.ElicitRequest(params=params), types.ElicitResult, key)
        if result.action != "accept":
            raise InputRefusedError(f"the question was answered with {result.action}: {message}")
        content = result.content or {}
        if problems := compile_schema(asked, "question").problems(content):
            raise InputRefusedError(f"the answer does not fit the question: {problems[0].message}")
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
        """From now on say in time that the call runs, where the client wants to hear of progress."""
        meta = self._context.meta
        if meta and ("progress_token" in meta or "progressToken" in meta):
            loop = asyncio.get_running_loop()
            self._heartbeat = loop.call_later(HEARTBEAT_S, self._beat)

    def stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _beat(self) -> None:
        self._told += _TICK
        self._beating = asyncio.create_task(self._report("still running"))
        self.start_heartbeat()

    async def _report(self, message: str) -> None:
        total = 1.0 if self._has_total else None
        await self._context.session.report_progress(self._told, total, message or None)

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


def _form_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {_ANSWER: dict(schema)}, "required": [_ANSWER]}


def _read(response: BaseModel, kind: type[R]) -> R:
    if isinstance(response, kind):
        return response
    try:
        return kind.model_validate(response.model_dump(by_alias=True))
    except ValidationError as error:
        raise InputRefusedError("the caller's answer is of another kind than the question") from error
