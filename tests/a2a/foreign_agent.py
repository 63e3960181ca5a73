"""An agent of the SDK of A2A, served as its documentation says; as a program: its port, then 0.3 or 1.0."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn
from a2a.helpers import new_text_message, new_text_part
from a2a.helpers.proto_helpers import new_data_part, new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TaskState
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

SKILLS = {
    "say": "Says it in capitals",
    "count": "Gives data",
    "mixed": "Gives text, data and a file",
    "slow": "Works in three steps",
    "greet": "Asks for a name",
    "fail": "Fails",
    "reject": "Rejects the task",
    "hang": "Never ends",
    "reply": "Answers with a message",
    "login": "Asks for a login",
    "echo": "Gives what it got",
}


class Executor(AgentExecutor):
    """Runs a skill by its name in the metadata of the message."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.began, self.stopped = asyncio.Event(), asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        said = MessageToDict(message)
        skill = said.get("metadata", {}).get("skill", "say")
        text = " ".join(part["text"] for part in said["parts"] if "text" in part)
        if skill == "reply":
            await event_queue.enqueue_event(
                new_text_message(f"message: {text}", context_id=context.context_id)
            )
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        elif skill == "say":
            skill = "greeted"
        work = TaskUpdater(event_queue, task.id, task.context_id)
        await work.start_work()

        def reason(words: str) -> Any:
            return work.new_agent_message([new_text_part(words)])

        parts: list[Part] = [new_text_part(text.upper())]
        if skill == "slow":
            for step in ("one", "two", "three"):
                await work.update_status(TaskState.TASK_STATE_WORKING, message=reason(step))
        elif skill == "count":
            parts = [new_data_part({"letters": len(text), "ratio": 0.5})]
        elif skill == "echo":
            parts = [new_data_part(said)]
        elif skill == "mixed":
            parts = [new_text_part("see"), new_data_part([1, 2]), Part(raw=b"png", media_type="image/png")]
        elif skill == "greet":
            await work.requires_input(message=reason("Who are you?"))
            return
        elif skill == "greeted":
            parts = [new_text_part(f"Hello, {text}!")]
        elif skill == "login":
            await work.requires_auth(message=reason("log in at example.org"))
            return
        elif skill == "fail":
            await work.failed(message=reason("the disk is full"))
            return
        elif skill == "reject":
            await work.reject(message=reason("not today"))
            return
        elif skill == "hang":
            await work.update_status(TaskState.TASK_STATE_WORKING, message=reason("hanging"))
            self.began.set()
            await asyncio.Event().wait()
        await work.add_artifact(parts)
        await work.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self.cancelled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()
        self.stopped.set()


def card_of(url: str, version: str = "1.0", *, streams: bool = True) -> AgentCard:
    """The card of the agent, with one interface of this version."""
    skills = [
        AgentSkill(id=name, name=name.title(), description=text, tags=["test"], examples=[f"please {name}"])
        for name, text in SKILLS.items()
    ]
    return AgentCard(
        name="Foreign Agent",
        description="An agent of the SDK",
        version="2.1.0",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)],
        capabilities=AgentCapabilities(streaming=streams),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=skills,
    )


def app_of(card: AgentCard, executor: Executor, token: str | None = None) -> Starlette:
    """The agent's endpoints; with ``token`` it wants that bearer token."""
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=True),
    ]
    app = Starlette(routes=routes)
    if token is None:
        return app

    async def check(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("authorization") != f"Bearer {token}":
            await JSONResponse({"detail": "no"}, 401)(scope, receive, send)
            return
        await app(scope, receive, send)

    return check  # type: ignore[return-value]


if __name__ == "__main__":
    PORT, VERSION = int(sys.argv[1]), sys.argv[2]
    served = app_of(card_of(f"http://127.0.0.1:{PORT}/a2a", VERSION), Executor())
    uvicorn.run(served, host="127.0.0.1", port=PORT, log_level="warning")
