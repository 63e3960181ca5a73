"""An agent whose task waits, messages to it, and an inbox for what it sends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.storage.state import State
from tests.serving import serve_app
from tests.system import WAIT_S, Reply, System, Wire, open_system

ASYNC = {"prefer": "respond-async"}


@dataclass(slots=True)
class Worker:
    """An agent whose task waits until it is let go on."""

    agent: Agent
    go: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)


def make_worker() -> Worker:
    agent = Agent("worker", version="1.0.0", topics=["Python"])
    worker = Worker(agent)

    @agent.skill(similes=["FIX"], expose=True)
    async def repair(code: str, ctx: Context) -> str:
        """Repairs code."""
        await ctx.progress(0.5, "half way")
        worker.began.set()
        try:
            await worker.go.wait()
        except asyncio.CancelledError:
            worker.cancelled.set()
            raise
        return code.upper()

    @agent.skill(runs_code=True)
    async def execute(code: str) -> str:
        """Runs code."""
        return code

    @agent.skill
    async def fail() -> str:
        """Fails."""
        raise ValueError("broken")

    @agent.skill
    async def reveal(ctx: Context) -> str:
        """Says who asks."""
        return ctx.principal.id

    return worker


@dataclass(slots=True)
class Inbox:
    """A server that takes messages at ``url``."""

    url: str
    got: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def next(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.got.get()


async def open_inbox(stack: AsyncExitStack) -> Inbox:
    inbox = Inbox("")

    async def take(request: Request) -> Response:
        inbox.got.put_nowait(await request.json())
        return JSONResponse({})

    app = Router(routes=[Route("/inbox", take, methods=["POST"])])
    inbox.url = f"{await stack.enter_async_context(serve_app(app))}/inbox"
    return inbox


async def open_home(stack: AsyncExitStack, home: Path, **options: Any) -> System:
    return await stack.enter_async_context(open_system(State(home), messages=options))


async def say(wire: Wire, url: str, performative: str, payload: Any = None, /, **more: Any) -> Reply:
    headers = more.pop("headers", {})
    message = {"performative": performative, "payload": payload or {}, **more}
    return await wire.post(f"{url}/messages", message, **headers)


async def until_ended(wire: Wire, url: str, task_id: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = (await say(wire, url, "QUERY_REF", {"reference": task_id})).json
            if reply["performative"] != "TASK_ACCEPT":
                return reply


REPAIR = {"task_type": "repair", "task_parameters": {"code": "x"}}
