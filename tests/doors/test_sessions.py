"""Sessions at the endpoints: an argument, the context of A2A, the conversation of messages."""

from __future__ import annotations

from typing import Any

from retinue import Agent
from retinue.core.session_field import SESSION_SCHEMA
from retinue.web.issued_tokens import TokenFile
from tests.a2a.wire import send
from tests.doors.message_worker import say as say_message
from tests.doors.office import Office
from tests.doors.test_markdown_agents import start_researcher
from tests.requirements import requirement
from tests.support.thinking import say
from tests.system import System, Wire


@requirement("T-16")
async def test_calls_of_a_caller_with_one_session_are_one_conversation(office: Office) -> None:
    model, _ = await start_researcher(office.system, *[say("noted")] * 9, own="expose: true")
    await office.get("refresh_agents")
    _, text = TokenFile(office.system.state.keys).issue(("exposed",))
    other = {"authorization": f"Bearer {text}"}

    async def count(prompt: str, session: str | None, **headers: str) -> int:
        """The messages of the first request of a run."""
        arguments = {"prompt": prompt} | ({} if session is None else {"session": session})
        assert await office.get("researcher", arguments, **headers) == "noted"
        return len(model.requests[-1].messages)

    assert await count("My name is Ann", "s") == 1
    assert await count("Who am I?", "s") == 3
    assert await count("Who am I?", "s", **other) == 1
    assert await count("Who am I?", None) == 1
    assert await count("And now?", "s") == 5
    refused = await office.ask("researcher", {"prompt": "x", "session": 3})
    assert refused.error["data"]["type"] == "validation_error"


async def test_an_agent_may_keep_no_session(office: Office) -> None:
    model, _ = await start_researcher(office.system, *[say("noted")] * 9, own="session: false")
    await office.get("refresh_agents")
    for _ in range(2):
        await office.get("researcher", {"prompt": "x", "session": "s"})
    assert [len(request.messages) for request in model.requests] == [1, 1]


def make_listener() -> tuple[Agent, list[str | None]]:
    heard: list[str | None] = []
    agent = Agent("listener", version="1.0.0")

    @agent.skill(
        input_schema={
            "type": "object",
            "properties": {"prompt": {"type": "string"}, "talk": SESSION_SCHEMA},
            "required": ["prompt"],
        },
        expose=True,
    )
    async def hear(prompt: str, talk: str | None = None) -> str:
        """Hears."""
        heard.append(talk)
        return "heard"

    return agent, heard


async def test_the_context_of_a2a_is_the_session_of_a_skill_that_takes_one(
    system: System, wire: Wire
) -> None:
    agent, heard = make_listener()
    url = (await system.start_agent(agent)).url
    first: Any = (await send(wire, url, "one"))["task"]
    await send(wire, url, "two", contextId=first["contextId"])
    await send(wire, url, "three", contextId="mine")
    assert heard == [first["contextId"], first["contextId"], "mine"]
    data = {"data": {"prompt": "four", "talk": "own"}}
    await send(wire, url, data, contextId="mine")
    assert heard[3] == "own"


async def test_the_conversation_of_a_message_is_the_session_of_a_skill_that_takes_one(
    system: System, wire: Wire
) -> None:
    agent, heard = make_listener()
    url = (await system.start_agent(agent)).url
    task = {"task_type": "hear", "task_parameters": {"prompt": "x"}}
    await say_message(wire, url, "TASK_REQUEST", task)
    await say_message(wire, url, "TASK_REQUEST", task, conversation_id="c-1")
    assert heard == [None, "c-1"]
