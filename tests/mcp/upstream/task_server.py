"""An MCP server whose tools run as tasks only (2025-11-25), made with the SDK's low level.

``python -m tests.mcp.upstream.task_server``: serves on the standard streams, with ``silent`` without saying
that it has tasks. The SDK of today serves none, so the server answers ``tools/call`` with a task in its
middleware.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import orjson
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

Context = ServerRequestContext[Any, Any]
RELATED = "io.modelcontextprotocol/related-task"
TOOLS = ("research", "ask", "hang", "late", "told", "fail", "stop", "expire")
POLL_MS = 20
NEVER_MS = 3_600_000
STAGES = ("gathering", "reading", "writing")


@dataclass
class Task:
    """One task, and what the server was asked about it."""

    id: str
    tool: str
    arguments: dict[str, Any]
    ttl: Any
    status: str = "working"
    message: str = ""
    polls: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether its result was asked for."""

    def render(self) -> dict[str, Any]:
        at = "2026-11-24T00:00:00Z"
        return {
            "taskId": self.id,
            "status": self.status,
            "statusMessage": self.message,
            "createdAt": at,
            "lastUpdatedAt": at,
            "ttl": self.ttl,
            "pollInterval": NEVER_MS if self.tool == "told" else POLL_MS,
        }


class TaskServer:
    """The server and its tasks; without ``offers_tasks`` it has the same tools and says nothing of tasks."""

    def __init__(self, *, offers_tasks: bool = True) -> None:
        self.tasks: dict[str, Task] = {}
        self.requests: list[str] = []
        """The methods that came, with the tool of a call."""
        self.may_create = asyncio.Event()
        """Whether a task of the tool ``late`` is created now."""
        self.server: Server[Any] = Server(
            "tasks", version="1.0.0", on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        self.server.middleware.append(self._create)
        for method, handler in (
            ("tasks/get", self._get),
            ("tasks/result", self._result),
            ("tasks/cancel", self._cancel),
        ):
            self.server.add_request_handler(method, types.GetTaskRequestParams, handler)
        if offers_tasks:
            options = self.server.create_initialization_options()
            options.capabilities.tasks = types.ServerTasksCapability(
                cancel=types.TasksCancelCapability(),
                requests=types.ServerTasksRequestsCapability(
                    tools=types.TasksToolsCapability(call=types.TasksCallCapability())
                ),
            )
            self.server.create_initialization_options = lambda *_, **__: options  # type: ignore[method-assign]

    async def _list_tools(self, context: Context, params: Any) -> types.ListToolsResult:
        required = types.ToolExecution(task_support="required")
        tools = [types.Tool(name=name, input_schema={"type": "object"}, execution=required) for name in TOOLS]
        tools.append(types.Tool(name="state", input_schema={"type": "object"}))
        return types.ListToolsResult(tools=tools)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """The tool ``state`` tells of every task; the others are refused, because they run as tasks only."""
        if params.name != "state":
            raise MCPError(types.METHOD_NOT_FOUND, f"Tool {params.name} requires task augmentation")
        rows = [
            {"tool": task.tool, "status": task.status, "polls": task.polls, "ttl": task.ttl}
            for task in self.tasks.values()
        ]
        return types.CallToolResult(
            content=[types.TextContent(text=orjson.dumps(rows).decode())], structured_content={"tasks": rows}
        )

    async def _create(self, ctx: Context, call_next: Any) -> Any:
        context, params = ctx, ctx.params or {}
        name = params.get("name", "")
        self.requests.append(f"{context.method} {name}".strip())
        if context.method != "tools/call" or "task" not in params:
            return await call_next(context)
        if name == "late":
            await self.may_create.wait()
        task_id = f"task-{len(self.tasks) + 1}"
        task = Task(task_id, name, params.get("arguments") or {}, params["task"].get("ttl"))
        self.tasks[task_id] = task
        if name == "ask":
            task.status, task.message = "input_required", "who is it for?"
        if name == "told":
            self._telling = asyncio.ensure_future(self._tell(context, task))
        return {"task": task.render()}

    async def _tell(self, context: Context, task: Task) -> None:
        """Tell the state until it was heard, because the client may not listen yet."""
        task.status, task.message = "completed", "told so"
        session: Any = context.session
        while not task.heard.is_set():
            await session._connection.notify("notifications/tasks/status", task.render())
            with suppress(TimeoutError):
                await asyncio.wait_for(task.heard.wait(), 0.05)

    async def _get(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        task = self.tasks[params.task_id]
        task.polls += 1
        if task.tool == "research":
            done = task.polls > len(STAGES)
            task.status = "completed" if done else "working"
            task.message = "done" if done else STAGES[task.polls - 1]
        elif task.tool == "fail":
            task.status, task.message = "failed", "the library is closed"
        elif task.tool == "stop":
            task.status, task.message = "cancelled", "out of quota"
        elif task.tool == "expire":
            raise MCPError(types.INVALID_PARAMS, "Task has expired")
        return task.render()

    async def _result(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        task = self.tasks[params.task_id]
        task.heard.set()
        text = f"{task.tool}: {task.arguments.get('topic', '')}"
        if task.tool == "ask":
            schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
            meta: Any = {RELATED: {"taskId": task.id}}
            question = types.ElicitRequestFormParams(
                message="Who is it for?", requested_schema=schema, _meta=meta
            )
            answer = await context.session.send_request(
                types.ElicitRequest(params=question),
                types.ElicitResult,
                metadata=ServerMessageMetadata(related_request_id=context.request_id),
            )
            assert dict(answer.meta or {}).get(RELATED) == {"taskId": task.id}
            task.status = "completed"
            text = f"for {(answer.content or {}).get('name')}"
        if task.status == "failed":
            raise MCPError(types.INTERNAL_ERROR, "Task has no result")
        return {"content": [{"type": "text", "text": text}], "_meta": {RELATED: {"taskId": task.id}}}

    async def _cancel(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        task = self.tasks[params.task_id]
        task.status, task.message = "cancelled", "by its client"
        return task.render()


async def main(*, offers_tasks: bool) -> None:
    """Serve on the standard streams."""
    server = TaskServer(offers_tasks=offers_tasks).server
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main(offers_tasks="silent" not in sys.argv))
