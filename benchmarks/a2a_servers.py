"""The servers of ``benchmarks.a2a``: an agent as it is served, and echo servers of the A2A SDK."""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from benchmarks.agent_apps import PLAIN, open_agent_app
from retinue.authoring.agent import Agent
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.protocols import A2aPart
from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of


async def agent_server(stack: AsyncExitStack, home: Path, url: str) -> ASGIApp:
    """An agent with one skill, with its store, behind every check; A2A and messages."""
    agent = Agent("echo-agent", version="1.0.0")

    @agent.skill
    async def echo(text: str) -> str:
        """Gives back what it was given."""
        return text

    parts = [*PLAIN, MessagesPart(), A2aPart()]
    return await stack.enter_async_context(open_agent_app(agent, home, parts, url))


def sdk_server(url: str, *, with_tasks: bool) -> ASGIApp:
    """The SDK's own echo: a message, or a task in its store in memory."""
    from a2a.helpers import new_task_from_user_message, new_text_message
    from a2a.server.agent_execution import AgentExecutor
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_jsonrpc_routes
    from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
    from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
    from starlette.applications import Starlette

    class Echo(AgentExecutor):
        async def execute(self, context: Any, event_queue: Any) -> None:
            text = context.get_user_input()
            if not with_tasks:
                await event_queue.enqueue_event(new_text_message(text))
                return
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
            updater = TaskUpdater(event_queue, task.id, task.context_id)
            await updater.add_artifact(new_text_message(text).parts)
            await updater.complete()

        async def cancel(self, context: Any, event_queue: Any) -> None:
            raise NotImplementedError

    card = AgentCard(
        name="echo",
        description="echo",
        version="1",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="echo", tags=["echo"])],
    )
    handler = DefaultRequestHandler(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)
    return Starlette(routes=create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True))


async def main(kind: str) -> int:
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    stop = Stop()
    stop.on_signals()
    with tempfile.TemporaryDirectory() as home:
        async with AsyncExitStack() as stack:
            if kind == "agent":
                app = await agent_server(stack, Path(home) / "state", url)
            else:
                app = sdk_server(url, with_tasks=kind == "sdk-tasks")
            async with serving(app, listener, stop):
                print(url, flush=True)
                await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(sys.argv[1])))
