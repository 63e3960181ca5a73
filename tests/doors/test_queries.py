"""``query_capabilities`` over real sockets: of agents, through the hub, and as the hub's tool."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import orjson
from mcp.server.lowlevel import Server

from retinue import Can, open_directory
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Endpoint, Skill
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.mcp.clients import connect, texts
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Reply, System, Wire, publish

PYTHON = {"query_type": "specific", "query_parameters": {"capabilities": ["PYTHON", "fix_bug"]}}
BOTH = {"status": "success", "match_result": True, "matched_capabilities": ["PYTHON", "fix_bug"]}


def _coder() -> Agent:
    agent = Agent("coder", version="1.0.0", topics=["Python"])

    @agent.skill(tags=["fix-bug"], expose=True)
    def repair(code: str) -> str:
        """Repairs code."""
        return code

    return agent


async def _query(wire: Wire, url: str, payload: Any, **headers: str) -> Reply:
    return await wire.call(url, "query_capabilities", payload, **headers)


@requirement("W-02")
async def test_an_agent_answers_at_its_own_endpoint_and_through_the_hub(system: System, wire: Wire) -> None:
    served = await system.start_agent(_coder())
    hub = await system.start_hub()
    for url in (served.url, f"{hub.url}/agents/coder"):
        assert (await _query(wire, url, PYTHON)).result == BOTH
    through_tool = {**PYTHON, "agent": "coder"}
    assert (await _query(wire, hub.url, through_tool, authorization=system.token)).result == BOTH


async def test_the_reserved_skill_stands_in_no_card_list_or_search(system: System, wire: Wire) -> None:
    served = await system.start_agent(_coder())
    hub = await system.start_hub()
    assert b"query_capabilities" not in (await wire.get(f"{served.url}/agent-card")).body
    found = (await wire.call(hub.url, "find_skills", {"query": "query capabilities"})).result
    assert "query_capabilities" not in [row["skill"] for row in found["skills"]]
    async with connect(f"{served.url}/mcp") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["repair"]


async def test_a_malformed_question_is_invalid_parameters_on_the_wire(system: System, wire: Wire) -> None:
    served = await system.start_agent(_coder())
    hub = await system.start_hub()
    for url in (served.url, f"{hub.url}/agents/coder", hub.url):
        error = (await _query(wire, url, {"query_type": "specific"})).error
        assert error["data"]["type"] == "validation_error"
        assert error["data"]["errors"][0]["path"] == "query_parameters.capabilities"


async def test_the_hubs_tool_asks_an_agent_and_answers_for_the_hub_itself(system: System) -> None:
    await system.start_agent(_coder())
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        asked = await client.call_tool("query_capabilities", {**PYTHON, "agent": "coder"})
        assert orjson.loads(texts(asked)[0]) == BOTH
        own = await client.call_tool("query_capabilities", {"query_type": "summary"})
        actions = orjson.loads(texts(own)[0])["capabilities"]["actions"]
        assert "orchestrate" in [one["name"] for one in actions]
        assert "query_capabilities" not in [one["name"] for one in actions]


async def test_the_hub_answers_from_the_card_for_an_agent_that_does_not_know_the_question(
    system: System, wire: Wire
) -> None:
    """An agent of another make, whose ``/execute`` knows only the skills of its card."""

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        fault = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}
        is_card = scope["path"] == "/agent-card"
        body = encode_card(card) if is_card else orjson.dumps(fault)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serve_app(foreign) as url:
        record = AgentRecord(
            "foreign",
            "1.0.0",
            endpoints=(Endpoint("execute", url),),
            skills=(Skill("python"), Skill("fix_bug")),
        )
        card = render_card(record, scopes=frozenset({"mesh", "exposed"}))
        await publish(system.home, encode_card(card))
        hub = await system.start_hub()
        reply = await _query(wire, f"{hub.url}/agents/foreign", PYTHON)
        assert reply.result == {**BOTH, "live": False}


async def test_an_agent_asks_another_without_a_hub(system: System, wire: Wire) -> None:
    asker = Agent("asker", version="1.0.0")

    @asker.skill
    async def ask(ctx: Context) -> Any:
        return await ctx.call("query_capabilities", PYTHON, agent="coder")

    await system.start_agent(_coder())
    served = await system.start_agent(asker)
    assert (await wire.call(served.url, "ask")).result == BOTH


def _offering(name: str, *topics: str, confidence: float = 0.5) -> Agent:
    agent = Agent(name, version="1.0.0", topics=topics)
    agent.skill("solve")(lambda: name)
    agent.can(lambda capability: Can(confidence=confidence))
    return agent


BOTH_WANTED = {"capabilities": ["python", "debugging"]}


async def _start_three(system: System) -> None:
    """One dead, one matching half, two matching whole."""
    await system.start_agent(_offering("half", "python", confidence=1))
    await system.start_agent(_offering("unsure", "python", "debugging", confidence=0.2))
    await system.start_agent(_offering("sure", "python", "debugging", confidence=0.9))
    gone = AgentRecord(
        "gone",
        "1.0.0",
        endpoints=(Endpoint("execute", "http://127.0.0.1:9"),),
        topics=("python", "debugging"),
    )
    await publish(system.home, encode_card(render_card(gone, scopes=frozenset({"mesh", "exposed"}))))


@requirement("W-18")
async def test_all_are_asked_at_once_ranked_and_the_dead_one_is_named(system: System, wire: Wire) -> None:
    await _start_three(system)
    hub = await system.start_hub()
    asked = {"query_type": "specific", "query_parameters": BOTH_WANTED, "agent": "*", "timeout_s": 5}
    reply = (await _query(wire, hub.url, asked, authorization=system.token)).result
    assert [(row["agent"], row["match"]) for row in reply["answers"]] == [
        ("sure", 1.0),
        ("unsure", 1.0),
        ("half", 0.5),
    ]
    assert [row["agent"] for row in reply["silent"]] == ["gone"]
    assert "unreachable" in reply["silent"][0]["reason"]
    two = {**asked, "agent": ["half", "nobody"]}
    reply = (await _query(wire, hub.url, two, authorization=system.token)).result
    assert [row["agent"] for row in reply["answers"]] == ["half"]
    assert reply["silent"] == [{"agent": "nobody", "reason": "Unknown agent: nobody"}]


async def test_questions_do_not_change_the_figures_of_an_agents_work(system: System, wire: Wire) -> None:
    await _start_three(system)
    hub = await system.start_hub()
    asked = {"query_type": "summary", "agent": "*"}
    assert len((await _query(wire, hub.url, asked)).result["answers"]) == 3
    agents = (await wire.call(hub.url, "list_agents", {"includeMetrics": True})).result["agents"]
    assert not [row for row in agents if "metrics" in row]


async def test_a_skill_asks_all_through_the_hub_and_calls_the_best(system: System, wire: Wire) -> None:
    await _start_three(system)
    await system.start_hub()
    asker = Agent("asker", version="1.0.0")

    @asker.skill
    async def delegate(ctx: Context) -> Any:
        answers = await ctx.ask_agents(["python", "debugging"])
        assert answers.best is not None
        return await ctx.call("solve", agent=answers.best.agent), len(answers.silent)

    served = await system.start_agent(asker)
    assert (await wire.call(served.url, "delegate")).result == ["sure", 1]


async def test_a_skill_asks_named_agents_without_a_hub(system: System, wire: Wire) -> None:
    await _start_three(system)
    asker = Agent("asker", version="1.0.0")

    @asker.skill
    async def ask(ctx: Context) -> Any:
        answers = await ctx.ask_agents(["python"], agents=["half", "gone"])
        return [one.agent for one in answers.answers], [one.agent for one in answers.silent]

    served = await system.start_agent(asker)
    assert (await wire.call(served.url, "ask")).result == [["half"], ["gone"]]


async def test_a_program_asks_the_agents_of_a_directory(system: System) -> None:
    await _start_three(system)
    async with open_directory([str(system.state.registry)]) as directory:
        found = await directory.ask(["python", "debugging"])
    assert [one.agent for one in found.answers] == ["sure", "unsure", "half"]
    assert [one.agent for one in found.silent] == ["gone"]


async def test_partial_answers_come_back_before_the_caller_gives_up(system: System, wire: Wire) -> None:
    """An agent that never answers does not cost the answers of the others."""
    await _start_three(system)
    stuck = Agent("stuck", version="1.0.0")

    @stuck.can
    async def judge(capability: str) -> bool:
        await asyncio.Event().wait()
        return True

    await system.start_agent(stuck)
    hub = await system.start_hub()
    asked = {"query_type": "specific", "query_parameters": BOTH_WANTED, "agent": "*", "timeout_s": 0.5}
    reply = (await _query(wire, hub.url, asked)).result
    assert len(reply["answers"]) == 3
    assert {row["agent"] for row in reply["silent"]} == {"gone", "stuck"}


async def test_a_step_of_a_run_calls_only_agents_that_say_yes(system: System, wire: Wire) -> None:
    """The best of them where it calls one; all of them where it calls several."""
    said: dict[str, Can] = {
        "best": Can(confidence=0.9),
        "fair": Can(confidence=0.4),
        "full": Can(False, reason="the queue is full"),
    }
    for name, own in said.items():
        agent = Agent(name, version="1.0.0", scores={"execution": 0.9 if name == "full" else 0.5})
        agent.skill("execute", roles=["execute"], expose=True)(_echo(name))
        agent.can(_judge(own))
        await system.start_agent(agent)
    hub = await system.start_hub()

    async def run(step: dict[str, Any]) -> Any:
        asked = {"workflow": {"name": "w", "steps": [{"id": "a", **step}]}, "input": {"prompt": "x"}}
        return await wire.call(hub.url, "orchestrate_workflow", asked, authorization=system.token)

    assert (await run({"skill": "execute", "ask": True})).result["agents"] == ["best"]
    reply = await run({"parallel": {"mode": "all", "role": "execute", "prompt": "x"}, "ask": True})
    assert sorted(reply.result["agents"]) == ["best", "fair"], reply.result
    error = (await run({"skill": "execute", "ask": {"capabilities": ["cobol"]}, "agent": "full"})).error
    assert "full said no" in error["message"]


def _echo(name: str) -> Any:
    def execute(prompt: str = "") -> str:
        """Answers with its name."""
        return name

    return execute


def _judge(own: Can) -> Any:
    return lambda capability: own


async def test_the_hub_answers_from_the_card_for_an_imported_server(system: System, wire: Wire) -> None:
    """Its tools are skills; the question itself is never sent to it."""
    called: list[str] = []

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="fix_bug", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        called.append(params.name)
        return types.CallToolResult(content=[])

    server: Server[Any] = Server("foreign", on_list_tools=list_tools, on_call_tool=call_tool)
    url = await system.stack.enter_async_context(serve_app(server.streamable_http_app()))
    imports = ImportsTable.model_validate({"foreign": ImportTable(url=f"{url}/mcp")})
    system.settings = Settings(imports=imports)
    hub = await system.start_hub()
    await hub.wait_until_healthy("foreign")
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["fix-bug"]}}
    reply = await _query(wire, f"{hub.url}/agents/foreign", asked, authorization=system.token)
    assert (reply.result["match_result"], reply.result["live"]) == (True, False)
    everybody = await _query(wire, hub.url, {**asked, "agent": "*"}, authorization=system.token)
    assert [(row["agent"], row["live"]) for row in everybody.result["answers"]] == [("foreign", False)]
    assert called == []


async def test_an_mcp_client_asks_all_and_sees_only_what_is_exposed_to_it(system: System) -> None:
    await system.start_agent(_coder())
    await system.start_agent(_offering("inner", "python"))
    hub = await system.start_hub()
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["repair", "solve"]}}
    async with connect(f"{hub.url}/mcp") as client:
        reply = orjson.loads(texts(await client.call_tool("query_capabilities", {**asked, "agent": "*"}))[0])
    assert [row["agent"] for row in reply["answers"]] == ["coder"]
    assert reply["unable"] == 1


async def test_an_agent_of_another_make_is_not_asked_for_a_client_outside_the_mesh(
    system: System, wire: Wire
) -> None:
    """It would tell of skills that this hub does not expose."""
    told = {"status": "success", "match_result": True, "matched_capabilities": ["python"], "price": 1}

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        reply = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": told})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    url = await system.stack.enter_async_context(serve_app(foreign))
    card = {"name": "foreign", "url": url, "skills": [{"id": "python", "description": "Writes Python."}]}
    await publish(system.home, orjson.dumps(card))
    hub = await system.start_hub()
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["python"]}, "agent": "foreign"}
    assert (await _query(wire, hub.url, asked, authorization=system.token)).result == told
    async with connect(f"{hub.url}/mcp") as client:
        reply = orjson.loads(texts(await client.call_tool("query_capabilities", asked))[0])
    assert (reply["match_result"], reply["live"]) == (False, False)
