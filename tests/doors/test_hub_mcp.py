"""The hub's own ``/mcp``: its tools, those of every agent, its resources and prompts, by who asks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.workflows.definitions.loading import load_definition
from tests.mcp.clients import connect, texts
from tests.requirements import requirement
from tests.system import WAIT_S, Hub, System, open_system

FIXED = [
    "call_skill",
    "call_read_only_skill",
    "orchestrate",
    "orchestrate_workflow",
    "orchestrate_parallel",
    "execute_code",
    "execute_task",
    "list_workflows",
    "list_agents",
    "get_capabilities",
    "find_skills",
    "query_capabilities",
    "send_message",
]
MAX_FIXED_BYTES = 12 * 1024

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


def _agent(name: str, *exposed: str, mesh: tuple[str, ...] = ()) -> Agent:
    agent = Agent(name, version="1.0.0")

    def add(skill: str, expose: bool) -> None:
        @agent.skill(skill, expose=expose)
        async def say(text: str = "") -> str:
            """Says what it was told, and by whom."""
            return f"{name}:{skill} {text}".strip()

    for skill in exposed:
        add(skill, True)
    for skill in mesh:
        add(skill, False)
    return agent


async def _names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]


@both_eras
@requirement("S-01")
async def test_a_hub_lists_its_own_tools_and_those_of_every_agent(system: System, mode: str) -> None:
    """Its own under their names, the others as ``<agent>__<skill>``, with who they are in title and _meta."""
    await system.start_agent(_agent("one", "fs:read_file", "say", mesh=("inner",)))
    await system.start_agent(_agent("two", "say"))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp", mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [*FIXED, "one__fs_read_file", "one__say", "two__say"]
        tool = tools["one__fs_read_file"]
        assert tool.title == "one: fs:read_file"
        assert tool.meta == {"retinue/skill": "fs:read_file", "retinue/agent": "one"}
        for name in ("one__fs_read_file", "one__fs:read_file", "one.fs:read_file"):
            assert texts(await client.call_tool(name, {"text": "x"}))[0] == "one:fs:read_file x"
        with pytest.raises(MCPError, match="Unknown tool: one__inner"):
            await client.call_tool("one__inner")
    async with connect(f"{hub.url}/mcp", mode, authorization=system.token) as client:
        assert "one__inner" in await _names(client)
        assert "show_agent" in await _names(client)
        assert texts(await client.call_tool("one__inner"))[0] == "one:inner"


async def test_the_same_tools_stand_under_the_agents_path_of_the_hub(system: System) -> None:
    """The hub is an agent as well: ``/agents/retinue/mcp``."""
    hub = await system.start_hub()
    async with connect(f"{hub.url}/agents/retinue/mcp") as client:
        assert await _names(client) == FIXED


async def test_the_directory_tools_answer_with_the_view_of_who_asks(system: System) -> None:
    """``call_skill`` reaches no further than the list; ``find_skills`` shows no more."""
    await system.start_agent(_agent("one", "say", mesh=("inner",)))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        called = await client.call_tool("call_skill", {"skill": "say", "arguments": {"text": "hi"}})
        assert texts(called)[0] == "one:say hi"
        for name in ("inner", "inexistent"):
            refused = await client.call_tool("call_skill", {"skill": name})
            assert refused.is_error
            assert texts(refused) == [
                f"Unknown skill: {name} — search with find_skills, or with: retinue find"
            ]
        found = await client.call_tool("find_skills", {"query": "says"})
        assert [row["skill"] for row in orjson.loads(texts(found)[0])["skills"]] == ["say"]
        (row,) = orjson.loads(texts(await client.call_tool("list_agents", {"detailed": True}))[0])["agents"]
        assert (row["name"], row["skills"]) == ("one", ["say"])


async def test_the_read_only_caller_calls_what_is_marked_read_only(system: System) -> None:
    """It is annotated as read-only and refuses all else with the remedy; hidden skills do not exist."""

    def make(name: str, *, read_only: bool) -> Agent:
        agent = Agent(name, version="1.0.0")

        @agent.skill("look", expose=True, read_only=read_only)
        async def look(text: str = "") -> str:
            """Looks at things."""
            return f"{name} looks {text}".strip()

        return agent

    reader = make("reader", read_only=True)

    @reader.skill(expose=True)
    async def change() -> str:
        """Changes things."""
        return "changed"

    @reader.skill(read_only=True)
    async def inner() -> str:
        """Seen by the mesh only."""
        return "inner"

    await system.start_agent(reader)
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        annotations = tools["call_read_only_skill"].annotations
        assert annotations is not None
        assert annotations.read_only_hint is True
        assert tools["call_skill"].annotations is None

        async def call(**arguments: Any) -> str:
            return texts(await client.call_tool("call_read_only_skill", arguments))[0]

        assert await call(skill="look", arguments={"text": "on"}) == "reader looks on"
        assert "skill change of agent reader is not marked read-only — call it with call_skill" in await call(
            skill="change"
        )
        assert "Unknown skill: inner" in await call(skill="inner")
        await system.start_agent(make("writer", read_only=False))
        await hub.mesh.directory.refresh()
        refused = await call(skill="look")
        assert (
            "skill look of agent writer is not marked read-only — name one of these agents: reader" in refused
        )
        assert await call(skill="look", agent="reader") == "reader looks"


async def test_pinned_tools_stay_in_the_short_list(retinue_home: Path) -> None:
    """``hub.listed``: globs over the names of tools; the others are counted and found."""
    listed = {"listed": ["big__skill_1?", "none__*"]}
    async with open_system(State(retinue_home), hub=listed) as system:
        await system.start_agent(_agent("big", *(f"skill_{number}" for number in range(45))))
        hub = await system.start_hub()
        async with connect(f"{hub.url}/mcp") as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == [*FIXED, *(f"big__skill_{n}" for n in range(10, 20))]
            (finder,) = [tool for tool in tools if tool.name == "find_skills"]
            assert "35 more tools of 1 agent are not in this list" in (finder.description or "")
            for name in ("big__skill_12", "big__skill_40"):
                assert not (await client.call_tool(name)).is_error


async def test_a_search_costs_a_model_at_most_six_kilobytes(system: System) -> None:
    """Compact JSON, once, of the best rows; sentences are whole, and schemas come on demand."""
    agent = Agent("wordy", version="1.0.0")
    text = "Books a table for guests. " + "It takes many things into account, such as the weather. " * 40

    def add(number: int) -> None:
        @agent.skill(f"book_{number}", description=text, expose=True, read_only=number % 2 == 0)
        async def book(city: str, guests: int = 2, **wishes: str) -> str:
            return city

    for number in range(30):
        add(number)
    await system.start_agent(agent)
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        found = await client.call_tool("find_skills", {"query": "book a table"})
        (shown,) = texts(found)
        assert found.structured_content is None
        reply = orjson.loads(shown)
        assert shown == orjson.dumps(reply).decode()
        assert (len(reply["skills"]), reply["more"]) == (5, 25)
        row = reply["skills"][0]
        assert row["description"].startswith("Books a table for guests. It takes many")
        assert row["description"].endswith("the weather.")
        assert row["call"] == f"{row['skill']}(city: string, guests?: integer)"
        assert row.get("read_only", False) is (int(row["skill"].removeprefix("book_")) % 2 == 0)
        many = texts(await client.call_tool("find_skills", {"query": "book a table", "limit": 30}))[0]
        assert len(many) <= 6_000
        reply = orjson.loads(many)
        assert len(reply["skills"]) + reply["more"] == 30
        detailed = await client.call_tool("find_skills", {"skill": "book_2", "detailed": True})
        (row,) = orjson.loads(texts(detailed)[0])["skills"]
        assert row["input_schema"]["required"] == ["city"]
        assert (row["description"], row["read_only"]) == (text, True)


@requirement("P-23")
@pytest.mark.parametrize(
    ("tool", "given", "told"),
    [
        (
            "call_skill",
            {"skill": "say", "input": {"text": "hi"}},
            "unknown field 'input' — there are: skill, arguments, agent, version",
        ),
        (
            "call_skill",
            {"skil": "say"},
            "missing required field 'skill'; unknown field 'skil' — did you mean",
        ),
        ("find_skills", {"text": "say"}, "unknown field 'text' — there are: query, skill, agent, version"),
        ("list_agents", {"rol": "plan"}, "unknown field 'rol' — did you mean 'role'?"),
        ("orchestrate_workflow", {"workflow": "w", "input": 1, "id": "r"}, "unknown field 'id' — there are"),
    ],
)
async def test_every_tool_of_the_hub_refuses_arguments_that_it_does_not_know(
    system: System, tool: str, given: dict[str, Any], told: str
) -> None:
    await system.start_agent(_agent("one", "say"))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        refused = await client.call_tool(tool, given)
    assert refused.is_error
    assert texts(refused)[0].startswith(f"Invalid parameters: {told}")


async def test_no_skill_of_the_hub_takes_arguments_that_it_does_not_know(system: System) -> None:
    hub = await system.start_hub()
    skills = hub.mesh.hub.agent.skills
    assert len(skills) > 10
    assert [
        one.id for one in skills if (one.input_schema or {}).get("additionalProperties") is not False
    ] == []


async def test_every_argument_of_start_run_is_described_and_the_form_of_a_workflow_can_be_copied(
    system: System,
) -> None:
    hub = await system.start_hub()
    arguments = {
        f"{skill.id}.{name}": schema.get("description", "")
        for skill in hub.mesh.hub.agent.skills
        if skill.id == "start_run"
        for name, schema in (skill.input_schema or {})["properties"].items()
    }
    assert [name for name, told in arguments.items() if not told] == []
    form = arguments["start_run.workflow"]
    definition = load_definition(orjson.loads(form[form.index("{") :]))
    assert definition.name == "w"


async def test_a_misspelt_skill_is_told_with_the_right_one_in_the_text(system: System) -> None:
    await system.start_agent(_agent("one", "greet"))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        refused = await client.call_tool("call_skill", {"skill": "gret"})
        assert texts(refused) == ["Unknown skill: gret — did you mean greet?"]


async def test_call_skill_leaves_a_skill_its_own_time(system: System) -> None:
    system.settings = Settings(timeouts={"door_s": 0.2})
    agent = Agent("slow-agent", version="1.0.0")

    @agent.skill(expose=True, timeout_s=20)
    async def work() -> str:
        """Takes longer than other skills may."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.4)
        return "done"

    await system.start_agent(agent)
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp") as client:
        assert texts(await client.call_tool("call_skill", {"skill": "work"})) == ["done"]


async def test_the_fixed_tools_cost_a_client_little(system: System) -> None:
    """At most 12 kB together, for whoever asks."""
    hub = await system.start_hub()
    for token in (None, system.token):
        async with connect(f"{hub.url}/mcp", authorization=token) as client:
            tools = (await client.list_tools()).tools
            size = len(
                orjson.dumps(
                    [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
                )
            )
            assert size <= MAX_FIXED_BYTES


async def test_past_forty_only_the_fixed_tools_are_listed_and_the_others_stay_callable(
    system: System,
) -> None:
    """``find_skills`` says how many more there are; a session's list keeps its form."""
    await system.start_agent(_agent("big", *(f"skill_{number}" for number in range(40))))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp", "legacy") as before:
        assert len(await _names(before)) == len(FIXED) + 40
        await system.start_agent(_agent("more", "say"))
        await hub.mesh.directory.refresh()
        assert len(await _names(before)) == len(FIXED) + 41
        async with connect(f"{hub.url}/mcp", "legacy") as after:
            tools = (await after.list_tools()).tools
            assert [tool.name for tool in tools] == FIXED
            (finder,) = [tool for tool in tools if tool.name == "find_skills"]
            assert "41 more tools of 2 agents are not in this list" in (finder.description or "")
            for name in ("big__skill_7", "more.say"):
                assert not (await after.call_tool(name)).is_error
    async with connect(f"{hub.url}/mcp") as modern:
        assert await _names(modern) == FIXED


@pytest.mark.parametrize(("listing", "count"), [("all", 41), ("search", 0)])
async def test_the_setting_decides_what_is_listed(retinue_home: Path, listing: str, count: int) -> None:
    """``hub.listing``: all of them, or the fixed ones however few there are."""
    async with open_system(State(retinue_home), hub={"listing": listing}) as system:
        await system.start_agent(_agent("big", *(f"skill_{number}" for number in range(41))))
        hub = await system.start_hub()
        async with connect(f"{hub.url}/mcp") as client:
            assert len(await _names(client)) == len(FIXED) + count
            assert not (await client.call_tool("big__skill_0")).is_error


async def _changes(hub: Hub, system: System, mode: str, change: Any) -> list[str]:
    """What a client of the hub hears while ``change`` happens: the kinds of lists."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.put_nowait("tools")

    async with asyncio.timeout(WAIT_S), connect(f"{hub.url}/mcp", mode, message_handler=hear) as client:
        await _names(client)
        if mode == "legacy":
            await change()
            await hub.mesh.directory.refresh()
            return [await heard.get(), *(await _names(client))]
        async with client.listen(tools_list_changed=True) as events:
            await change()
            await hub.mesh.directory.refresh()
            await anext(events)
            return ["tools", *(await _names(client))]


@both_eras
async def test_a_client_hears_of_an_agent_that_joins_changes_and_leaves(system: System, mode: str) -> None:
    """In both eras, and the list is then another one."""
    hub = await system.start_hub()
    joined = await _changes(hub, system, mode, lambda: system.start_agent(_agent("one", "say")))
    assert joined == ["tools", *FIXED, "one__say"]
    changed = await _changes(hub, system, mode, lambda: system.start_agent(_agent("one", "say", "sing")))
    assert changed == ["tools", *FIXED, "one__say", "one__sing"]
    left = await _changes(hub, system, mode, lambda: system.home.delete("agents/one", "v1"))
    assert left == ["tools", *FIXED]


@requirement("S-02")
async def test_every_agent_is_a_resource_and_every_workflow_a_prompt(system: System) -> None:
    """``agent:<name>`` tells what the caller may know; a prompt says how its workflow is run."""
    await system.start_agent(_agent("one", "say", mesh=("inner",)))
    await system.start_agent(_agent("quiet", mesh=("inner",)))
    hub = await system.start_hub()
    await hub.mesh.hub.prompts.refresh()
    async with connect(f"{hub.url}/mcp") as client:
        uris = [str(one.uri) for one in (await client.list_resources()).resources]
        assert "agent:one" in uris
        assert "agent:quiet" not in uris
        (contents,) = (await client.read_resource("agent:one")).contents
        told = orjson.loads(contents.text)  # type: ignore[union-attr]
        assert [skill["id"] for skill in told["card"]["skills"]] == ["say"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["agent:{name}"]
        reference = types.ResourceTemplateReference(uri="agent:{name}")
        completed = await client.complete(reference, {"name": "name", "value": "on"})
        assert completed.completion.values == ["one"]
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert "plan-build-test" in prompts
        said = (await client.get_prompt("plan-build-test", {"input": "textwrap"})).messages[0].content
        assert "orchestrate_workflow" in said.text  # type: ignore[union-attr]
        assert "textwrap" in said.text  # type: ignore[union-attr]


def _worker() -> Agent:
    agent = Agent("worker", version="1.0.0", logging=True)

    @agent.skill(expose=True)
    async def numbers() -> list[int]:
        return [1, 2]

    @agent.skill(expose=True)
    async def fail(ctx: Context) -> str:
        raise ValueError("it broke")

    @agent.skill(expose=True)
    async def draw() -> Part:
        return Part("image", "aGk=", "image/png")

    @agent.skill(expose=True)
    async def long() -> str:
        return "x" * 300_000

    return agent


async def test_results_and_failures_are_the_same_by_both_ways(system: System) -> None:
    """Over ``/execute`` and over the agent's ``/mcp``; parts travel only where they can."""
    await system.start_agent(_worker())
    hub = await system.start_hub()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        return None

    async with connect(f"{hub.url}/mcp") as client:
        for tool in ("numbers", "fail", "long"):
            attended = await client.call_tool(f"worker__{tool}", progress_callback=note)
            plain = await client.call_tool(f"worker__{tool}")
            assert attended.structured_content == plain.structured_content
            assert attended.is_error == plain.is_error
            assert texts(attended)[0] == texts(plain)[0]
        (image,) = (await client.call_tool("worker__draw", progress_callback=note)).content
        assert (image.type, image.data) == ("image", "aGk=")  # type: ignore[union-attr]
