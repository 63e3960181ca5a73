"""Seed 002 against a hub, through the official MCP client (exchanges 2-1 … 2-21).

The tool definitions and replies of ``002/tools.json`` are the seed's own text, as JSON.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from retinue.storage.state import State
from tests.mcp.clients import MODES, connect, read_result, sessionless
from tests.requirements import requirement
from tests.seeds.seed_002 import NAMES, REPLIES, TOOLS, Models
from tests.system import System, Wire, open_system

TASK = "Create a React component for user authentication"
CUSTOM = {
    "name": "custom",
    "steps": [
        {"agent": "claude", "role": "plan"},
        {"agent": "gemini", "role": "execute"},
        {"agent": "claude", "role": "review"},
    ],
}
LIST_BYTES = 12 * 1024


@pytest.fixture
def models(system: System, wire: Wire) -> Models:
    return Models(system, wire)


async def list_tools(models: Models, mode: str = "auto", **options: Any) -> dict[str, Any]:
    hub = await models.open()
    async with connect(f"{hub.url}/mcp", mode, **options) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


@requirement("L-26")
@pytest.mark.parametrize("mode", MODES)
async def test_all_eight_tools_are_listed(models: Models, mode: str) -> None:
    """With agents and without; the legacy tools are listed too (exchange 2-1)."""
    assert set(NAMES) <= set(await list_tools(models, mode))
    await models.join_both()
    assert set(NAMES) <= set(await list_tools(models, mode))


@requirement("L-01")
@requirement("L-02")
@requirement("L-03")
@requirement("L-04")
@requirement("L-05")
@requirement("L-06")
@requirement("L-07")
@requirement("L-08")
@requirement("L-09")
@requirement("L-13")
@requirement("L-17")
@requirement("L-19")
@requirement("L-22")
@pytest.mark.parametrize("name", TOOLS)
async def test_tool_definitions_are_verbatim(models: Models, name: str) -> None:
    """Descriptions, types, enums, defaults and required; enums may grow at their end (exchange 2-2)."""
    await models.join_both()
    await models.join("mistral")
    await models.see_all()
    tool = (await list_tools(models))[name]
    assert tool.description == TOOLS[name]["description"]
    schema, seed = tool.input_schema, TOOLS[name]["inputSchema"]
    if name == "orchestrate_workflow":
        workflow = schema["properties"]["workflow"]
        assert workflow.pop("anyOf") == [{"type": "string"}, {"type": "object"}]
        workflow["type"] = "string"
    if name == "orchestrate":
        preferences = schema["properties"]["preferences"]["properties"]
        assert preferences["agent"]["enum"] == ["auto", "claude", "gemini", "mistral"]
    _cut_enums(schema, seed)
    assert set(schema) == set(seed)
    assert schema.get("required") == seed.get("required")
    assert {key: schema["properties"][key] for key in seed["properties"]} == seed["properties"]
    assert list(schema["properties"])[: len(seed["properties"])] == list(seed["properties"])


def _cut_enums(schema: Any, seed: Any) -> None:
    """Cut each enum to the length that the seed's has."""
    if isinstance(schema, dict) and isinstance(seed, dict):
        for key in schema.keys() & seed.keys():
            if key == "enum":
                schema[key] = schema[key][: len(seed[key])]
            else:
                _cut_enums(schema[key], seed[key])


@requirement("L-34")
async def test_the_fixed_tools_take_at_most_12_kb_of_the_list(models: Models) -> None:
    """Their whole entries, those for runs included."""
    hub = await models.open()
    assert "list_runs" not in await list_tools(models, authorization=models.system.token)
    hub.mesh.hub.tools.note_run()
    tools = await list_tools(models, authorization=models.system.token)
    assert "list_runs" in tools
    entries = [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools.values()]
    assert len(orjson.dumps(entries)) <= LIST_BYTES


@requirement("L-18")
@requirement("L-28")
@requirement("L-29")
@requirement("L-33")
async def test_plan_execute_asks_both_and_is_answered_from_the_cache_then(models: Models) -> None:
    """The best planner plans, the best executor executes; ``cache: false`` reads no cache (exchange 2-8)."""
    await models.join_both()
    arguments = {"prompt": TASK, "preferences": {"workflow": "plan-execute", "agent": "auto"}}
    first = await models.get("orchestrate", arguments)
    assert first["metadata"] == {
        "workflow": "plan-execute",
        "agents": ["claude", "gemini"],
        "cached": False,
        "duration": first["duration"],
    }
    assert first["duration"] >= 0
    assert (first["output"], first["details"]) == ("execute done", {"plan": "plan done"})
    assert models.order == ["claude.plan", "gemini.execute"]
    assert TASK in models.asked[0][2]
    assert "plan done" in models.asked[1][2]
    again = await models.get("orchestrate", arguments)
    assert (again["metadata"]["cached"], again["fromCache"], again["output"]) == (True, True, "execute done")
    assert again["agents"] == ["claude", "gemini"]
    assert len(models.asked) == 2
    arguments["preferences"]["cache"] = False  # type: ignore[index]
    unread = await models.get("orchestrate", arguments)
    assert unread["metadata"]["cached"] is False
    assert len(models.asked) == 4


@requirement("L-10")
@requirement("L-11")
@requirement("L-12")
@pytest.mark.parametrize("workflow", [CUSTOM, orjson.dumps(CUSTOM).decode()], ids=["object", "text"])
async def test_an_inline_workflow_calls_its_agents_in_order(models: Models, workflow: Any) -> None:
    """Each step gets the result before it; overrides change one step, in milliseconds (exchange 2-9)."""
    await models.join_both()
    arguments = {"workflow": workflow, "input": "Build a REST API"}
    found = await models.get("orchestrate_workflow", arguments)
    assert models.order == ["claude.plan", "gemini.execute", "claude.review"]
    assert "Build a REST API" in models.asked[0][2]
    assert "plan done" in models.asked[1][2]
    assert "execute done" in models.asked[2][2]
    assert (found["output"], found["agents"]) == ("review done", ["claude", "gemini"])
    models.asked.clear()
    overrides = {"agents": {"execute": "claude"}}
    await models.get("orchestrate_workflow", {**arguments, "overrides": overrides})
    assert models.order == ["claude.plan", "claude.execute", "claude.review"]
    models.asked.clear()
    await models.get("orchestrate_workflow", {**arguments, "context": {"framework": "Starlette"}})
    assert "Starlette" in models.asked[0][2]


async def test_an_override_of_a_time_limit_is_in_milliseconds(models: Models) -> None:
    await models.join("claude")
    await models.join("gemini", lambda role, prompt: models.hang())
    overrides = {"timeouts": {"execute": 50}}
    arguments = {"workflow": CUSTOM, "input": "Build a REST API", "overrides": overrides}
    refused = await models.refuse("orchestrate_workflow", arguments)
    assert "execute" in refused
    assert "0.05 s" in refused
    assert models.order == ["claude.plan", "gemini.execute"]
    await models.cut_off.wait()


@requirement("L-14")
@requirement("L-16")
async def test_a_vote_asks_both_at_once_and_names_its_rule(models: Models) -> None:
    """The result holds both ballots, the winner's text, and the rule of the decision (exchange 2-10)."""
    both = asyncio.Barrier(2)

    async def meet(text: str) -> str:
        await both.wait()  # each waits for the other, so that only calls at once come through
        return text

    await models.join("claude", lambda role, prompt: meet("SELECT 1;") if role == "execute" else "A")
    await models.join("gemini", lambda role, prompt: meet("select 1") if role == "execute" else "A")
    await models.open()
    arguments = {
        "prompt": "Optimize this SQL query",
        "agents": ["claude", "gemini"],
        "mode": "vote",
        "role": "execute",
    }
    found = await models.get("orchestrate_parallel", arguments)
    assert sorted(models.order) == ["claude.execute", "gemini.execute"]
    assert [(one["agent"], one["ok"]) for one in found["ballots"]] == [("claude", True), ("gemini", True)]
    assert found["decidedBy"] == "majority"
    assert (found["agent"], found["output"]) == ("gemini", "select 1")


async def test_list_workflows_has_the_entries_of_the_seed(models: Models) -> None:
    """The two entries are equal to the seed's, with claude and gemini (exchange 2-11)."""
    await models.join_both()
    rows = {one["name"]: one for one in (await models.get("list_workflows"))["workflows"]}
    for entry in REPLIES["list_workflows"]["workflows"]:
        assert rows[entry["name"]] == entry
    assert {"direct", "iterative", "code-review"} <= set(rows)
    custom = (await models.get("list_workflows", {"filter": "custom"}))["workflows"]
    assert custom == []
    detailed = (await models.get("list_workflows", {"filter": "built-in", "detailed": True}))["workflows"]
    seeds = {entry["name"]: entry for entry in REPLIES["list_workflows"]["workflows"]}
    for row in detailed:
        definition = row.pop("definition")
        assert definition["name"] == row["name"]
        if row["name"] in seeds:
            assert row == seeds[row["name"]]


@requirement("L-20")
@requirement("L-21")
async def test_list_agents_replies_as_the_seed_after_150_calls(system: System, wire: Wire) -> None:
    """The figures come from the audit log, so a restarted hub still has them (exchange 2-12)."""
    models = Models(system, wire)
    await models.join_both()
    assert models.hub is not None
    for number in range(150):
        row = {"type": "CALL:ENDED", "agent": "claude", "status": "done", "duration_ms": 2500.0}
        if number < 3:
            row |= {"status": "failed", "error": "execution_error"}
        models.hub.audit.append(row)
    assert len(models.hub.audit.recent(200)) >= 150
    models.hub = None
    hub = await models.open()
    expected = REPLIES["list_agents"]
    reply = await models.get("list_agents", {"includeMetrics": True})
    assert reply == expected
    assert "metrics" not in orjson.dumps(await models.get("list_agents")).decode()
    for role in ("review", "plan", "planning"):
        rows = (await models.get("list_agents", {"role": role}))["agents"]
        assert [row["name"] for row in rows] == ["claude", "gemini"]
    for role in ("execute", "execution"):
        rows = (await models.get("list_agents", {"role": role}))["agents"]
        assert [row["name"] for row in rows] == ["gemini", "claude"]
    assert "plan, execute, review" in await models.refuse("list_agents", {"role": "sing"})
    assert hub.mesh.figures.find("gemini").calls == 0


@requirement("L-23")
async def test_get_capabilities_replies_as_the_seed(models: Models) -> None:
    """Exactly, with a language in the requirements and without one (exchanges 2-13, 2-20)."""
    await models.join_both()
    requirements = {"language": "python", "contextSize": 1_000_000, "role": "execute"}
    reply = await models.get("get_capabilities", {"task": "Write code", "requirements": requirements})
    assert reply == REPLIES["get_capabilities"]
    task = {"task": "Process 1MB of text data", "requirements": {"contextSize": 1_000_000}}
    first, second = (await models.get("get_capabilities", task))["recommendations"]
    assert (first["agent"], first["warnings"]) == ("gemini", [])
    assert (second["agent"], second["warnings"]) == ("claude", ["Lower context window than required"])
    assert "Supports Python" not in first["reasons"] + second["reasons"]


@requirement("L-24")
@requirement("L-25")
async def test_the_legacy_tools_are_orchestrate_with_fixed_preferences(models: Models) -> None:
    """``execute_code`` asks gemini; ``execute_task`` plans, executes and echoes the id (exchange 2-14)."""
    await models.join_both()
    code = await models.get("execute_code", {"prompt": TASK})
    assert models.order == ["gemini.execute"]
    assert (code["metadata"]["workflow"], code["metadata"]["agents"]) == ("direct", ["gemini"])
    models.asked.clear()
    task = await models.get("execute_task", {"task": {"id": "t1", "prompt": TASK}})
    assert models.order == ["claude.plan", "gemini.execute"]
    assert (task["taskId"], task["metadata"]["workflow"]) == ("t1", "plan-execute")
    hub = await models.open()
    headers = {"authorization": models.system.token}
    run = (await models.wire.call(hub.url, "show_run", {"run": task["run"]}, **headers)).result
    assert run["input"] == {"prompt": TASK, "context": {"taskId": "t1"}}


@requirement("L-27")
@requirement("L-29")
@pytest.mark.parametrize("mode", MODES)
async def test_the_identity_lexical_is_name_version_and_top_level_metadata(
    retinue_home: Any, wire: Wire, mode: str
) -> None:
    """The raw reply has ``metadata`` where the seed's readers look for it (exchanges 2-15, 2-16)."""
    async with open_system(State(retinue_home), hub={"identity": "lexical"}) as system:
        models = Models(system, wire)
        await models.join_both()
        hub = await models.open()
        async with connect(f"{hub.url}/mcp", mode) as client:
            info = client.server_info
            assert info is not None
            assert (info.name, info.version) == ("lexical", "2.0.0")
            parsed = await client.call_tool("orchestrate", {"prompt": TASK})
            assert not parsed.is_error
        raw = (await _post_call(models, "orchestrate", {"prompt": TASK}))["result"]
        (block,) = raw["content"]
        result = orjson.loads(block["text"])
        assert block["text"] == orjson.dumps(result, option=orjson.OPT_INDENT_2).decode()
        assert {"agents", "fromCache", "duration"} <= set(result)
        assert set(raw["metadata"]) == {"workflow", "agents", "cached", "duration"}
        assert raw["metadata"] == raw["structuredContent"]["metadata"] == raw["_meta"]["lexical/metadata"]
        assert raw["metadata"]["cached"] is True


async def test_the_metadata_stands_at_the_top_level_only_for_the_identity_lexical(models: Models) -> None:
    await models.join_both()
    raw = (await _post_call(models, "orchestrate", {"prompt": TASK}))["result"]
    assert "metadata" not in raw
    assert raw["structuredContent"]["metadata"] == raw["_meta"]["lexical/metadata"]


async def _post_call(models: Models, tool: str, arguments: dict[str, Any]) -> Any:
    hub = await models.open()
    message, headers = sessionless("tools/call", {"name": tool, "arguments": arguments})
    return read_result((await models.wire.post(f"{hub.url}/mcp", message, **headers)).body)


@requirement("L-06")
@requirement("L-07")
@requirement("L-08")
@requirement("L-30")
@pytest.mark.parametrize("preferences", [None, {"workflow": "auto", "agent": "auto", "role": "auto"}])
async def test_without_a_workflow_one_is_chosen_and_the_reason_told(models: Models, preferences: Any) -> None:
    """``auto`` and absent are alike (exchanges 2-16, 2-17)."""
    await models.join_both()
    arguments: dict[str, Any] = {
        "prompt": "Write a Python web scraper",
        "options": {"timeout": 20_000, "retries": 1, "parallel": False},
    }
    if preferences is not None:
        arguments["preferences"] = preferences
    found = await models.get("orchestrate", arguments)
    assert (found["workflow"], found["choice"]["because"]) == ("direct", "it is one simple task")
    assert found["reasons"] == [
        "workflow: direct, because it is one simple task",
        "execute: gemini, best execution capability",
    ]


@requirement("L-31")
async def test_code_review_runs_its_four_steps(models: Models) -> None:
    """The steps run in the seed's order (exchange 2-18)."""
    await models.join_both()
    arguments = {"workflow": "code-review", "input": "Create a secure login system"}
    found = await models.get("orchestrate_workflow", arguments)
    assert models.order == ["gemini.execute", "claude.review", "claude.review", "gemini.execute"]
    assert "Create a secure login system" in models.asked[0][2]
    hub = await models.open()
    headers = {"authorization": models.system.token}
    run = (await models.wire.call(hub.url, "show_run", {"run": found["run"]}, **headers)).result
    assert [step["step"] for step in run["steps"]] == ["generate", "reviews", "apply-fixes"]


async def test_all_gives_each_result_in_the_order_asked(models: Models) -> None:
    """Each result names its agent, its success and its duration (exchange 2-19)."""
    await models.join_both()
    arguments = {
        "prompt": "Solve this algorithm problem",
        "agents": ["claude", "gemini"],
        "mode": "all",
    }
    found = await models.get("orchestrate_parallel", arguments)
    assert [(one["agent"], one["ok"], one["output"]) for one in found["output"]] == [
        ("claude", True, "execute done"),
        ("gemini", True, "execute done"),
    ]
    assert all(isinstance(one["duration"], int) for one in found["output"])
    assert found["agents"] == ["claude", "gemini"]


@pytest.mark.parametrize("tool", NAMES)
async def test_the_hubs_execute_takes_the_tools_with_flat_parameters(models: Models, tool: str) -> None:
    """The handler form of the seed (exchange 2-21)."""
    await models.join_both()
    given: dict[str, dict[str, Any]] = {
        "orchestrate": {"prompt": TASK},
        "orchestrate_workflow": {"workflow": "direct", "input": TASK},
        "orchestrate_parallel": {"prompt": TASK},
        "execute_code": {"prompt": TASK},
        "execute_task": {"task": {"prompt": TASK}},
    }
    params = given.get(tool, {})
    hub = await models.open()
    found = (await models.wire.call(hub.url, tool, params)).result
    if params:
        assert {"agents", "fromCache", "duration", "metadata"} <= set(found)
    else:
        assert set(found) & {"workflows", "agents", "recommendations"}
