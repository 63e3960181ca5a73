"""Guards over every endpoint: a secret reaches no caller, and none of the arguments reaches the skill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import InvalidSettingError
from retinue.settings import Settings
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming
from tests.doors.test_policies import NUMBERS, read_approval
from tests.mcp.clients import connect, sessionless, texts
from tests.system import Reply, System, Wire

KEY = "ghp_" + "a1B2" * 9
CARD = "4111 1111 1111 1111"


def use_guards(system: System, **tables: Any) -> None:
    system.settings = Settings.model_validate({"guards": tables})


def make_desk(notes: list[str]) -> Agent:
    desk = Agent("desk", version="1.0.0")

    @desk.skill(expose=True)
    async def note(text: str, ctx: Context) -> str:
        """Writes a note."""
        notes.append(text)
        await ctx.progress(0.5, f"noting {KEY}")
        return f"noted {text}, signed {KEY}"

    @desk.skill(expose=True)
    async def count() -> dict[str, int]:
        """Counts."""
        return {"card": int(CARD.replace(" ", ""))}

    return desk


async def test_keys_leave_on_no_way_and_cards_do_not_reach_the_skill(system: System, wire: Wire) -> None:
    use_guards(system, secrets={"use": "sensitive", "arguments": "redact"})
    notes: list[str] = []
    desk = await system.start_agent(make_desk(notes))
    hub = await system.start_hub()
    arguments = {"text": f"card {CARD}"}
    asked, headers = sessionless("tools/call", {"name": "desk__note", "arguments": arguments})
    envelope = {
        "message_id": f"m-{next(NUMBERS)}",
        "performative": "TASK_REQUEST",
        "receiver": {"agent_id": "desk"},
        "payload": {"task_type": "note", "task_parameters": arguments},
    }
    steps = {"name": "w", "steps": [{"id": "a", "skill": "note", "with": arguments}]}
    part = naming("note", **arguments)
    at_agent, agent_headers = sessionless("tools/call", {"name": "note", "arguments": arguments})
    replies = {
        "MCP at the hub of the agent": await wire.post(
            f"{hub.url}/agents/desk/mcp", at_agent, **agent_headers
        ),
        "MCP of the agent": await wire.post(f"{desk.url}/mcp", at_agent, **agent_headers),
        "/execute": await wire.call(hub.url, "note", arguments),
        "/execute of the agent": await wire.call(desk.url, "note", arguments),
        "call_skill": await wire.call(hub.url, "call_skill", {"skill": "note", "arguments": arguments}),
        "a workflow": await wire.call(hub.url, "orchestrate_workflow", {"workflow": steps, "input": {}}),
        "MCP": await wire.post(f"{hub.url}/mcp", asked, **headers),
        "REST": await wire.post(f"{hub.url}/agents/desk/tools/call/note", arguments),
        "messages": await wire.post(f"{hub.url}/messages", envelope),
        "A2A": await ask_a2a(wire, hub.url, "SendMessage", {"message": message(part)}),
    }
    for way, reply in replies.items():
        assert KEY.encode() not in reply.body, way
        assert b"signed [key]" in reply.body, (way, reply.body)
    assert notes == ["card [card]"] * len(replies)
    async with connect(f"{hub.url}/mcp", authorization=system.token) as client:
        heard: list[str | None] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        assert KEY not in texts(await client.call_tool("desk__note", arguments, progress_callback=hear))[0]
    assert heard == ["noting [key]"]


async def test_a_denied_call_names_the_guard_the_field_and_the_remedy(system: System, wire: Wire) -> None:
    use_guards(system, secrets={"use": "sensitive", "arguments": "deny"})
    notes: list[str] = []
    await system.start_agent(make_desk(notes))
    hub = await system.start_hub()
    error = (await wire.call(hub.url, "note", {"text": CARD})).error
    assert error["message"] == (
        "desk/note is denied: the arguments hold card numbers (1) at text (guards.secrets)"
    )
    assert error["data"]["type"] == "policy_denied"
    assert error["data"]["policies"] == ["guards.secrets"]
    assert "[guards]" in error["data"]["remedy"]
    assert notes == []
    assert CARD not in str(error)


async def test_a_result_that_fits_its_schema_no_more_is_withheld(system: System, wire: Wire) -> None:
    use_guards(system, secrets={"use": "sensitive"})
    await system.start_agent(make_desk([]))
    hub = await system.start_hub()
    # a number that is a card becomes 0, which fits
    assert (await wire.call(hub.url, "count")).result == {"card": 0}


async def test_skills_that_no_glob_names_are_left(system: System, wire: Wire) -> None:
    use_guards(system, secrets={"use": "sensitive", "skills": ["desk/count", "other/*"]})
    await system.start_agent(make_desk([]))
    hub = await system.start_hub()
    assert KEY in (await wire.call(hub.url, "note", {"text": "a"})).result


@pytest.mark.parametrize(
    ("table", "field", "remedy"),
    [
        ({"use": "sensitiv"}, "guards.g.use", "sensitive"),
        ({"use": "instructions", "arguments": "deny"}, "guards.g.arguments", "leave it out"),
        ({"use": "sensitive", "options": {"a": 1}}, "guards.g.options", "kinds"),
    ],
)
async def test_a_wrong_table_stops_the_hub_with_one_line(
    system: System, table: dict[str, Any], field: str, remedy: str
) -> None:
    use_guards(system, g=table)
    with pytest.raises(InvalidSettingError) as refused:
        await system.start_hub()
    assert field in refused.value.message
    assert remedy in refused.value.remedy


async def test_a_guard_asks_a_person_once_for_a_call_also_where_the_agent_has_guards_too(
    system: System, wire: Wire
) -> None:
    use_guards(system, secrets={"use": "sensitive", "arguments": "ask", "results": "off"})
    notes: list[str] = []
    desk = await system.start_agent(make_desk(notes))
    hub = await system.start_hub(durable=True)
    arguments = {"text": f"card {CARD}"}
    reads, headers = sessionless("tools/call", {"name": "note", "arguments": arguments})
    ways: dict[str, Callable[[], Awaitable[Reply]]] = {
        "/execute": lambda: wire.call(hub.url, "note", arguments),
        "MCP at the hub of the agent": lambda: wire.post(f"{hub.url}/agents/desk/mcp", reads, **headers),
    }
    owner = {"authorization": f"Bearer {system.state.owner_token()}"}
    for way, ask in ways.items():
        notes.clear()
        refused = await ask()
        assert b"the arguments hold card numbers (1) at text (guards.secrets)" in refused.body, way
        approval = read_approval(refused)
        await wire.call(hub.url, "answer_approval", {"approval": approval, "verdict": "yes"}, **owner)
        done = await ask()
        assert notes == [f"card {CARD}"], (way, done.body)
        assert read_approval(await ask()) != approval
        assert len(notes) == 1
    assert (await wire.call(hub.url, "note", {"text": "plain"})).result.startswith("noted plain")
    # an agent that is called directly keeps no approvals
    refused = await wire.call(desk.url, "note", arguments)
    assert b"this process cannot ask" in refused.body
    assert len(notes) == 2
