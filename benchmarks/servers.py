"""The servers that are measured: a bare echo, an agent, and the registry endpoint of a hub."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from benchmarks.agent_apps import PLAIN, open_agent_app
from retinue.authoring.agent import Agent
from retinue.mesh.asking.query import Can
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.server import pull as oci
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of
from retinue.web.rejections import REGISTRY_PATH
from retinue.web.security import SecurityMiddleware, SecuritySettings


def bare_app() -> ASGIApp:
    """What the web framework alone costs: read JSON, write JSON."""

    async def echo(request: Request) -> Response:
        asked = orjson.loads(await request.body())
        reply = {"jsonrpc": "2.0", "result": asked["params"], "id": asked["id"]}
        return Response(orjson.dumps(reply), media_type="application/json")

    return Starlette(routes=[Route("/execute", echo, methods=["POST"])])


async def retinue_app(stack: AsyncExitStack, home: Path) -> ASGIApp:
    """The same echo as a skill, with both schemas, behind every check of an agent's endpoint."""
    agent = Agent("echo-agent", version="1.0.0")

    @agent.skill
    async def echo(text: str, count: int) -> dict[str, str | int]:
        """Gives back what it was given."""
        return {"text": text, "count": count}

    return await stack.enter_async_context(open_agent_app(agent, home, [*PLAIN, MessagesPart()]))


async def crowd_app(stack: AsyncExitStack, home: Path, agents: int, think_s: float) -> ASGIApp:
    """Many agents at ``/0``, ``/1``, … of one process, whose judgement takes so many seconds."""

    async def make(number: int) -> ASGIApp:
        agent = Agent(f"agent-{number}", version="1.0.0", topics=["python", "debugging"])

        @agent.can
        async def judge(capability: str) -> Can:
            await asyncio.sleep(think_s / 2)  # asked for two capabilities
            return Can(confidence=number / agents)

        return await stack.enter_async_context(open_agent_app(agent, home))

    return Starlette(routes=[Mount(f"/{number}", await make(number)) for number in range(agents)])


def registry_app(folder: Path) -> ASGIApp:
    """The hub's registry endpoint over a folder, behind every check."""
    layouts = LayoutRegistry(folder)
    settings = SecuritySettings(any_media_type=(REGISTRY_PATH,))
    return SecurityMiddleware(Starlette(routes=oci.routes(layouts, layouts)), settings)


async def main(kind: str, *arguments: str) -> int:
    listener = bind("127.0.0.1", 0)
    stop = Stop()
    stop.on_signals()
    with tempfile.TemporaryDirectory() as home:
        async with AsyncExitStack() as stack:
            if kind == "registry":
                app = registry_app(Path(arguments[0]))
            elif kind == "crowd":
                app = await crowd_app(stack, Path(arguments[0]), int(arguments[1]), float(arguments[2]))
            else:
                app = bare_app() if kind == "bare" else await retinue_app(stack, Path(home))
            async with serving(app, listener, stop):
                print(url_of(listener), flush=True)
                await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(*sys.argv[1:])))
