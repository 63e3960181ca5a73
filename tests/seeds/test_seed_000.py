"""Seed 000, exchange by exchange, over every endpoint that carries messages (exchanges 0-1a … 0-5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from tests.mcp.clients import read_result, sessionless
from tests.requirements import requirement
from tests.seeds.seed_000 import (
    ACTION,
    BLOCKS,
    INFORMATION,
    QUERY,
    list_blocks,
    load_block,
    make_jules,
    read_block,
    read_seeds,
    read_template,
)
from tests.system import Hub, Served, System, Wire

SUMMARY = {"query_type": "summary"}


@dataclass(frozen=True, slots=True)
class World:
    """Jules, served, and a hub that knows it."""

    jules: Served
    hub: Hub
    wire: Wire


Carrier = Callable[[World, dict[str, Any]], Awaitable[dict[str, Any]]]
"""One way of a message to Jules and of the reply back."""


async def post(world: World, url: str, message: dict[str, Any]) -> dict[str, Any]:
    reply = await world.wire.post(url, message)
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    return found


async def by_tool(world: World, message: dict[str, Any]) -> dict[str, Any]:
    """The hub's MCP tool."""
    tool = {"name": "send_message", "arguments": {"message": addressed(message)}}
    sent, headers = sessionless("tools/call", tool)
    reply = read_result((await world.wire.post(f"{world.hub.url}/mcp", sent, **headers)).body)
    found: dict[str, Any] = orjson.loads(reply["result"]["content"][0]["text"])
    return found


async def by_execute(world: World, message: dict[str, Any]) -> dict[str, Any]:
    arguments = {"message": addressed(message)}
    found: dict[str, Any] = (await world.wire.call(world.hub.url, "send_message", arguments)).result
    return found


async def by_a2a(world: World, url: str, message: dict[str, Any]) -> dict[str, Any]:
    """A data part of an A2A message."""
    sent = {"messageId": "a2a-1", "role": "ROLE_USER", "parts": [{"data": message}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}
    reply = await world.wire.post(url, call, a2a_version="1.0")
    (part,) = reply.result["message"]["parts"]
    found: dict[str, Any] = part["data"]
    return found


def addressed(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "receiver": {"agent_id": "jules"}}


CARRIERS: dict[str, Carrier] = {
    "the agent's /messages": lambda w, m: post(w, f"{w.jules.url}/messages", m),
    "the hub's /messages": lambda w, m: post(w, f"{w.hub.url}/messages", addressed(m)),
    "/agents/jules/messages": lambda w, m: post(w, f"{w.hub.url}/agents/jules/messages", m),
    "MCP send_message": by_tool,
    "A2A DataPart": lambda w, m: by_a2a(w, f"{w.jules.url}/", m),
    "A2A DataPart through the hub": lambda w, m: by_a2a(w, f"{w.hub.url}/", addressed(m)),
    "A2A DataPart at the hub's path": lambda w, m: by_a2a(w, f"{w.hub.url}/agents/jules/", m),
    "/execute send_message": by_execute,
}

EVERY_CARRIER = pytest.mark.parametrize("carry", CARRIERS.values(), ids=list(CARRIERS))


@pytest.fixture
async def world(system: System, wire: Wire) -> World:
    return World(await system.start_agent(make_jules()), await system.start_hub(), wire)


def query(payload: Any, **more: Any) -> dict[str, Any]:
    return {"performative": "QUERY_CAPABILITIES", "payload": payload, **more}


def specific(*capabilities: str, **more: str) -> dict[str, Any]:
    return query({"query_type": "specific", "query_parameters": {"capabilities": capabilities, **more}})


def test_the_blocks_are_those_of_the_seed() -> None:
    for text in read_seeds():
        assert list_blocks(text) == [read_block(name) for name in BLOCKS]


@requirement("W-02")
@requirement("W-03")
@requirement("W-04")
@requirement("W-09")
@requirement("W-11")
@requirement("W-16")
@EVERY_CARRIER
async def test_a_summary_has_the_topics_in_order_and_the_visible_actions(
    world: World, carry: Carrier
) -> None:
    for payload in (SUMMARY, {**SUMMARY, "query_parameters": {}}):
        reply = await carry(world, query(payload))
        assert reply["performative"] == "INFORM_CAPABILITIES"
        assert reply["payload"] == load_block("summary.json")


@requirement("W-05")
@requirement("W-06")
@requirement("W-12")
@requirement("W-19")
@EVERY_CARRIER
async def test_the_template_of_a_specific_query_is_answered_as_the_seed_shows(
    world: World, carry: Carrier
) -> None:
    template = read_template("specific")
    for match_type in ("all", "any", None):
        payload = orjson.loads(orjson.dumps(template))
        payload["query_parameters"]["match_type"] = match_type
        if match_type is None:
            del payload["query_parameters"]["match_type"]
        assert (await carry(world, query(payload)))["payload"] == load_block("specific.json")


@requirement("W-07")
@requirement("W-13")
@EVERY_CARRIER
async def test_action_details_show_the_whole_action(world: World, carry: Carrier) -> None:
    template = read_template("action_details")
    assert template["query_parameters"] == {"action_name": ACTION}
    payload = (await carry(world, query(template)))["payload"]
    action = payload["action"]
    assert (payload["status"], action["name"]) == ("success", ACTION)
    assert action["description"] == "Receives an MCP TASK_REQUEST..."
    assert action["input_schema"]["required"] == ["code_to_debug"]
    assert payload["capabilities"]["actions"][0] == action
    for name in ("FLY", "ERASE_EVERYTHING"):
        unknown = await carry(
            world, query({"query_type": "action_details", "query_parameters": {"action_name": name}})
        )
        assert unknown["performative"] == "INFORM_CAPABILITIES"
        assert (unknown["payload"]["status"], unknown["payload"]["error_code"]) == (
            "failure",
            "unknown_action",
        )


@EVERY_CARRIER
@pytest.mark.parametrize(
    "payload",
    [
        {"query_type": "summary | specific | action_details", "query_parameters": {}},
        {},
        {"query_type": "specific"},
        {"query_type": "specific", "query_parameters": {"capabilities": [], "match_type": "any"}},
        {"query_type": "specific", "query_parameters": {"capabilities": ["python"], "match_type": "most"}},
        {"query_type": "specific", "query_parameters": {"capabilities": ["python", ""]}},
        {"query_type": "action_details", "query_parameters": {}},
        {"query_type": "summary", "query_parameters": []},
    ],
    ids=["literal", "empty", "no list", "empty list", "match_type", "empty word", "no name", "a list"],
)
async def test_a_malformed_query_is_not_understood_with_status_200(
    world: World, carry: Carrier, payload: Any
) -> None:
    reply = await carry(world, query(payload))
    assert reply["performative"] == "NOT_UNDERSTOOD"
    assert reply["payload"]["reason_code"] == "invalid_payload_structure"
    assert "query_" in reply["payload"]["reason_text"]


@requirement("W-17")
@requirement("W-25")
@EVERY_CARRIER
async def test_matching_folds_the_spelling_and_echoes_what_was_asked(world: World, carry: Carrier) -> None:
    asked = await carry(world, specific("Database-Interaction", "PYTHON", "fix code"))
    assert asked["payload"]["matched_capabilities"] == ["Database-Interaction", "PYTHON", "fix code"]
    assert asked["payload"]["match_result"] is True
    partly = (await carry(world, specific("python", "cooking", "erase_everything")))["payload"]
    assert partly == {
        "status": "success",
        "match_result": False,
        "matched_capabilities": ["python"],
        "missing_capabilities": ["cooking", "erase_everything"],
    }
    either = (await carry(world, specific("python", "cooking", match_type="any")))["payload"]
    assert either["match_result"] is True


@requirement("W-08")
@requirement("W-10")
@requirement("W-14")
@requirement("W-15")
@requirement("W-19")
@EVERY_CARRIER
async def test_eddy_asks_jules_with_the_least_and_with_the_whole_envelope(
    world: World, carry: Carrier
) -> None:
    least = specific("python", "debugging", match_type="all")
    whole = {
        **least,
        "mcp_version": "0.1.0",
        "message_id": "msg_eddy_jules_grpc_req_001",
        "sender": {"agent_id": "Eddy"},
        "receiver": {"agent_id": "jules"},
        "reply_with": "token-1",
        "language": "application/json",
        "ontology": QUERY,
        "timestamp": "2026-11-22T12:00:00Z",
    }
    for message, sender in ((least, "anonymous"), (whole, "Eddy")):
        reply = await carry(world, message)
        assert reply["payload"] == {
            "status": "success",
            "match_result": True,
            "matched_capabilities": ["python", "debugging"],
        }
        assert (reply["sender"], reply["receiver"]) == ({"agent_id": "jules"}, {"agent_id": sender})
        assert (reply["ontology"], reply["mcp_version"]) == (INFORMATION, "0.1.0")
        assert reply["language"] == "application/json"
        assert reply["message_id"] not in ("", reply["in_reply_to"])
        assert reply["timestamp"].endswith("Z")
    # the message_id, although reply_with was given
    assert reply["in_reply_to"] == "msg_eddy_jules_grpc_req_001"


async def test_the_payload_is_that_of_the_mcp_tool_query_capabilities(world: World) -> None:
    for payload in (SUMMARY, read_template("specific"), read_template("action_details")):
        reply = await post(world, f"{world.jules.url}/messages", query(payload))
        tool = {"name": "query_capabilities", "arguments": {**payload, "agent": "jules"}}
        sent, headers = sessionless("tools/call", tool)
        called = read_result((await world.wire.post(f"{world.hub.url}/mcp", sent, **headers)).body)
        assert orjson.loads(called["result"]["content"][0]["text"]) == reply["payload"]


@requirement("W-20")
@EVERY_CARRIER
async def test_a_task_runs_the_skill_and_informs_of_its_result(world: World, carry: Carrier) -> None:
    request = {
        "performative": "TASK_REQUEST",
        "message_id": "task-1",
        "reply_with": "token-1",
        "sender": {"agent_id": "Eddy"},
        "payload": {
            "task_type": ACTION,
            "task_description": "Debug this",
            "task_parameters": {"code_to_debug": "x => 1", "programming_language": "python"},
            "priority": "high",
        },
    }
    reply = await carry(world, request)
    assert (reply["performative"], reply["in_reply_to"]) == ("INFORM_RESULT", "token-1")
    assert reply["payload"]["task_status"] == "success"
    assert reply["payload"]["result_details"] == {"fixed_code": "x = 1", "language": "python"}


@requirement("W-18")
@requirement("W-20")
async def test_eddy_asks_three_agents_and_delegates_to_the_best(
    world: World, system: System, wire: Wire
) -> None:
    """One of the agents is dead, one matches half (exchange 0-6)."""
    await system.start_agent(Agent("half", version="1.0.0", topics=["Python"]))
    dead = await system.start_agent(Agent("dead", version="1.0.0", topics=["Python", "Debugging"]))
    await dead.stop()
    asked = specific("python", "debugging")

    async def ask(name: str) -> dict[str, Any]:
        return await post(world, f"{world.hub.url}/messages", {**asked, "receiver": {"agent_id": name}})

    replies = dict(zip(("half", "jules"), await asyncio.gather(ask("half"), ask("jules")), strict=True))
    assert replies["jules"]["payload"]["match_result"] is True
    assert replies["half"]["payload"]["matched_capabilities"] == ["python"]
    # all at once, ranked, the dead one named
    everybody = (await ask("*"))["payload"]
    assert [one["agent"] for one in everybody["answers"]] == ["jules", "half"]
    assert [one["agent"] for one in everybody["silent"]] == ["dead"]
    task = {"performative": "TASK_REQUEST", "payload": {"task_parameters": {"code_to_debug": "x => 1"}}}
    accepted = await wire.post(f"{world.hub.url}/messages", addressed(task), prefer="respond-async")
    assert (accepted.status, accepted.json["performative"]) == (202, "TASK_ACCEPT")
    found = await wait_for_end(world, accepted.json["payload"]["task_id_assigned"])
    assert found["performative"] == "INFORM_RESULT"
    assert found["payload"]["result_details"]["fixed_code"] == "x = 1"


async def wait_for_end(world: World, task_id: str) -> dict[str, Any]:
    """The message that ended a task, asked for until it comes."""
    question = {"performative": "QUERY_REF", "payload": {"reference": task_id}}
    async with asyncio.timeout(60):
        while (reply := await post(world, f"{world.hub.url}/messages", question))[
            "performative"
        ] == "TASK_ACCEPT":
            await asyncio.sleep(0)
    return reply
