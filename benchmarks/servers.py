"""The servers that are measured: a bare echo, an agent, and the registry endpoint of a hub."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.mesh.asking.query import Can
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.server import pull as oci
from retinue.parts.shown_agents import OwnAgent
from retinue.runtime.agent_process import agent_app
from retinue.runtime.messages import Messages
from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of
from retinue.settings import load_settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.security import SecurityMiddleware


def bare_app() -> ASGIApp:
    """What the web framework alone costs: read JSON, write JSON."""

    async def echo(request: Request) -> Response:
        asked = orjson.loads(await request.body())
        reply = {"jsonrpc": "2.0", "result": asked["params"], "id": asked["id"]}
        return Response(orjson.dumps(reply), media_type="application/json")

    return Starlette(routes=[Route("/execute", echo, methods=["POST"])])


def retinue_app(home: Path, http: HttpClient) -> ASGIApp:
    """The same echo as a skill, with both schemas, behind every check of an agent's endpoint."""
    agent = Agent("echo-agent", version="1.0.0")

    @agent.skill
    async def echo(text: str, count: int) -> dict[str, str | int]:
        """Gives back what it was given."""
        return {"text": text, "count": count}

    dispatcher, settings, state = local_dispatcher(agent), load_settings(), State(home)
    url = "http://127.0.0.1"
    messages = Messages(dispatcher, OwnAgent(agent, dispatcher.access, url), settings, state)
    return agent_app(
        agent, dispatcher, settings, state, host="127.0.0.1", url=url, http=http, messages=messages
    )


def crowd_app(home: Path, http: HttpClient, agents: int, think_s: float) -> ASGIApp:
    """Many agents at ``/0``, ``/1``, … of one process, whose judgement takes so many seconds."""

    def make(number: int) -> ASGIApp:
        agent = Agent(f"agent-{number}", version="1.0.0", topics=["python", "debugging"])

        @agent.can
        async def judge(capability: str) -> Can:
            await asyncio.sleep(think_s / 2)  # asked for two capabilities
            return Can(confidence=number / agents)

        dispatcher = local_dispatcher(agent)
        settings, state = load_settings(), State(home)
        return agent_app(
            agent, dispatcher, settings, state, host="127.0.0.1", url="http://127.0.0.1", http=http
        )

    return Starlette(routes=[Mount(f"/{number}", make(number)) for number in range(agents)])


def registry_app(folder: Path) -> ASGIApp:
    """The hub's registry endpoint over a folder, behind every check."""
    layouts = LayoutRegistry(folder)
    return SecurityMiddleware(Starlette(routes=oci.routes(layouts, layouts)))


async def main(kind: str, *arguments: str) -> int:
    listener = bind("127.0.0.1", 0)
    stop = Stop()
    stop.on_signals()
    with tempfile.TemporaryDirectory() as home:
        if kind == "registry":
            app = registry_app(Path(arguments[0]))
        elif kind == "crowd":
            app = crowd_app(Path(arguments[0]), HttpClient(), int(arguments[1]), float(arguments[2]))
        else:
            app = bare_app() if kind == "bare" else retinue_app(Path(home), HttpClient())
        async with serving(app, listener, stop):
            print(url_of(listener), flush=True)
            await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(*sys.argv[1:])))
