"""The paths of the README and of guides, over real processes: their console blocks are typed here.

Three things differ from what a reader types: the hub takes any free port (by its setting), the
addresses of agent and registry are those that they really got, and ``kill`` kills none but this hub.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from retinue.workflows.definitions.loading import load_definition
from tests.deploy.services import PASSWORD as DATABASE_PASSWORD
from tests.deploy.services import count_nodes, postgres_with_password
from tests.docs.pages import README, ROOT, Section, list_sections
from tests.docs.shell import AGENT, HUB, REGISTRY, Shell
from tests.mcp import clients
from tests.processes.running import execute, wait_until
from tests.requirements import requirement
from tests.services import docker_registry

GUIDES = ROOT / "docs" / "guides"
PATHS = {
    "Write an agent": README,
    "Start a hub and connect a client": README,
    "Write an agent in Markdown": README,
    "Start a hub": GUIDES / "running-a-mesh.md",
    "Use your own registry": GUIDES / "running-a-mesh.md",
    "Combine agents": GUIDES / "running-a-mesh.md",
    "Survive a crash": GUIDES / "running-a-mesh.md",
    "Connect a client": GUIDES / "mcp-clients.md",
    "Try it with a server of your own": GUIDES / "importing-mcp-servers.md",
    "The best of all": GUIDES / "asking.md",
    "See one at work": GUIDES / "koi.md",
    "In five commands": ROOT / "docs" / "production.md",
}
"""Title of a section → the page that has it."""
QUICK_AGENTS = """
from retinue import Agent

planner, builder, reviewer = Agent("quick-plan"), Agent("quick-build"), Agent("quick-review")


@planner.skill
async def create_plan(requirements: str) -> dict[str, str]:
    return {"plan": f"plan to {requirements}"}


@builder.skill
async def generate_code(plan: str, feedback: str = "") -> dict[str, str]:
    return {"code": f"{plan}: {'second' if feedback else 'first'} draft"}


@reviewer.skill
async def review_code(code: str) -> dict[str, str | int]:
    failed = int("first" in code)
    return {"review": f"{code}: {failed} failed", "feedback": "again" if failed else "", "failed": failed}
"""
CODERS = """
from retinue import Agent, Can


def make(name, topics, confidence):
    agent = Agent(name, topics=topics)

    @agent.skill
    def repair(code: str) -> str:
        return f"{name}: {code.replace('retrun', 'return')}"

    agent.can(lambda capability: Can(confidence=confidence))
    return agent


half = make("half", ["Python"], 1.0)
unsure = make("unsure", ["Python", "Debugging"], 0.2)
sure = make("sure", ["Python", "Debugging"], 0.9)
"""

MODEL = """
from retinue.testing import ModelTurn, ScriptedModel

TEXT = {"text": "to be or not to be"}


def answer(request):
    result = request.messages[-1].results[0].content[0].value
    return f"It has {result.splitlines()[1]} words."


agent = ScriptedModel(
    ModelTurn(calls=[("find_skills", {"what": "count the words of a text"})]),
    ModelTurn(calls=[("word-agent__count_words", TEXT)]),
    answer,
    name="claude",
)
"""
"""A model agent in place of one with a key: it searches, calls what it found, and answers."""


def section(title: str) -> Section:
    return next(part for part in list_sections(PATHS[title]) if part.title == title)


def list_other_commands(page: Path) -> list[str]:
    """The commands of a page outside the sections whose commands are typed here."""
    return [
        command
        for part in list_sections(page)
        if PATHS.get(part.title) != page
        for block in part.commands()
        for command in block
    ]


def test_every_command_of_the_readme_stands_where_a_test_runs_it() -> None:
    # those of the installation are run by the tests of the packages
    assert {command.split()[0] for command in list_other_commands(README)} == {"make", "export"}
    installation = {command.split()[0] for command in list_other_commands(GUIDES / "installing.md")}
    assert installation == {"make", "export", "uvx", "pipx"}
    written = section("Write an agent").commands()[0]
    assert list_other_commands(GUIDES / "running-a-mesh.md") == written[:2]
    assert [len(section(title).commands()) for title in PATHS] == [2, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 1]


def test_the_commands_of_the_readme_for_a_client_are_those_of_the_guides() -> None:
    ((hub, connect),) = section("Start a hub and connect a client").commands()
    assert hub == section("Start a hub").commands()[0][0]
    assert [[connect]] == section("Connect a client").commands()


def test_the_path_that_the_readme_exports_has_the_program() -> None:
    assert (Path(sys.executable).parent / "retinue").is_file()


@requirement("P-10")
def test_write_an_agent_three_commands_to_an_answer_and_any_language_can_call_it(shell: Shell) -> None:
    (new, serve, call), (request,) = section("Write an agent").commands()
    shell.type(new)
    assert sorted(path.name for path in Path("my-agent").iterdir()) == [
        "README.md",
        "agent.json",
        "agent.py",
        "pytest.ini",
        "test_agent.py",
    ]
    shell.type(serve)
    assert orjson.loads(shell.type(call)) == {"text": "Hello, Ada!"}
    assert orjson.loads(shell.type(request)) == {
        "jsonrpc": "2.0",
        "result": {"text": "Hello, Ada!"},
        "id": "1",
    }


def test_run_a_mesh_the_hub_starts_its_agents_and_finds_yours(shell: Shell) -> None:
    new, serve, _ = section("Write an agent").commands()[0]
    ((hub, agents, find),) = section("Start a hub").commands()
    shell.type(new)
    shell.type(serve)
    shell.type(hub)

    def available() -> list[str]:
        rows = [line.split() for line in shell.type(agents).splitlines()[1:]]
        return sorted(name for name, _, status, *_ in rows if status == "available")

    # an agent is listed at once, and asked whether it is there a moment later
    wait_until(lambda: available() == ["build-agent", "my-agent", "plan-agent", "test-agent"], agents)
    assert [line.split()[:2] for line in shell.type(find).splitlines()[1:]] == [["create_plan", "plan-agent"]]


@requirement("P-03")
def test_a_registry_of_your_own_takes_the_place_of_the_folder(shell: Shell, tmp_path: Path) -> None:
    ((publish, find),) = section("Use your own registry").commands()
    shell.type(section("Write an agent").commands()[0][0])
    with docker_registry(tmp_path) as url:
        shell.map_address(REGISTRY, url)
        assert shell.type(publish).startswith("agents/my:v1@sha256:")
        assert [line.split()[:2] for line in shell.type(find).splitlines()[1:]] == [["greet", "my-agent"]]
        assert shell.type(f"{find} --url") == f"{AGENT}\n"


@requirement("S-03")
async def test_connect_your_client_the_configuration_that_is_written_leads_to_the_first_tool_call(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    connecting = section("Connect a client")
    ((connect,),), (shown,) = connecting.commands(), connecting.blocks("json")
    new, serve, _ = section("Write an agent").commands()[0]
    shell.type(new)
    shell.type(serve)
    shell.type(section("Start a hub").commands()[0][0])
    shell.type(connect)
    written = orjson.loads((tmp_path / ".claude.json").read_bytes())
    server = written["mcpServers"]["retinue"]
    token = server["headers"]["Authorization"].removeprefix("Bearer rtn_local_")
    as_shown = orjson.dumps(written, option=orjson.OPT_INDENT_2).decode().replace(token, "…")
    assert orjson.loads(shell.to_shown(as_shown)) == orjson.loads(shown)
    authorization = server["headers"]["Authorization"]
    async with clients.connect(server["url"], "auto", authorization=authorization) as client:
        assert {"list_agents", "my-agent__greet"} <= {tool.name for tool in (await client.list_tools()).tools}
        found = await client.call_tool("list_agents", {})
        greeted = await client.call_tool("my-agent__greet", {"name": "Ada"})
    assert found.structured_content is not None
    assert [agent["name"] for agent in found.structured_content["agents"]] == ["my-agent"]
    assert greeted.structured_content == {"text": "Hello, Ada!"}


async def test_an_agent_in_markdown_answers_with_a_tool_that_it_found_and_claude_code_has_it(
    shell: Shell, fresh_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    monkeypatch.setenv("RETINUE_HUB__MODELS", "[]")
    ((words, researcher, call),) = section("Write an agent in Markdown").commands()
    (text,) = section("Write an agent in Markdown").blocks("markdown")
    (code,) = section("Write an agent").blocks("python")
    for name, content in {"words.py": code, "researcher.md": text, "model.py": MODEL}.items():
        (fresh_folder / name).write_text(content, encoding="utf-8")
    ((hub, connect),) = section("Start a hub and connect a client").commands()
    shell.type(hub)
    shell.type(connect)
    shell.start("serve", "model.py")
    shell.type(words)
    shell.type(researcher)
    assert orjson.loads(shell.type(call)) == "It has 6 words."
    server = orjson.loads((tmp_path / ".claude.json").read_bytes())["mcpServers"]["retinue"]
    authorization = server["headers"]["Authorization"]
    prompt = orjson.loads(call.split("'")[1])
    async with clients.connect(server["url"], "auto", authorization=authorization) as client:
        answered = await client.call_tool("researcher__researcher", prompt)
    assert clients.texts(answered) == ["It has 6 words."]


@requirement("S-03")
async def test_bring_your_servers_three_commands_to_the_answer_of_a_foreign_server_and_one_moves_a_client(
    shell: Shell, fresh_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    page = section("Try it with a server of your own")
    (hub, import_, call), (replace,) = page.commands()
    (server,) = page.blocks("python")
    (fresh_folder / "sums.py").write_text(server, encoding="utf-8")
    shell.type(hub)
    assert shell.type(import_) == "sums: 1 skills: add\n"
    assert orjson.loads(shell.type(call)) == {"result": 5}
    config = tmp_path / ".cursor" / "mcp.json"
    config.parent.mkdir()
    entry = {"command": sys.executable, "args": [str(fresh_folder / "sums.py")]}
    config.write_bytes(before := orjson.dumps({"mcpServers": {"adder": entry}}))
    shell.type(replace)
    ((name, left),) = orjson.loads(config.read_bytes())["mcpServers"].items()
    assert name == "retinue"
    authorization = left["headers"]["Authorization"]
    async with clients.connect(left["url"], "auto", authorization=authorization) as client:
        added = await client.call_tool("adder__add", {"a": 20, "b": 22})
    assert added.structured_content == {"result": 42}
    shell.type(f"{replace.removesuffix(' --replace --yes')} --remove")
    assert config.read_bytes() == before


@requirement("W-18")
def test_ask_before_you_call_two_commands_rank_all_agents_and_delegate_to_the_best(
    shell: Shell, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    ask, delegate = section("The best of all").commands()[0]
    (fresh_folder / "coders.py").write_text(CODERS, encoding="utf-8")
    shell.type(section("Start a hub").commands()[0][0])
    for name in ("half", "unsure", "sure"):
        shell.start("serve", f"coders.py:{name}")
    rows = [line.split() for line in shell.type(ask).splitlines()]
    assert [row[:3] for row in rows[1:]] == [
        ["sure", "100%", "yes"],
        ["unsure", "100%", "yes"],
        ["half", "50%", "yes"],
    ]
    assert orjson.loads(shell.type(delegate)) == "sure: return 1"
    assert "sure is the best of 3" in shell.said


@requirement("P-15")
def test_combine_agents_the_workflow_finds_an_agent_for_each_step_and_loops_until_it_holds(
    shell: Shell, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    (block,) = section("Combine agents").blocks("yaml")
    ((run,),) = section("Combine agents").commands()
    (fresh_folder / "flow.yaml").write_text(block, encoding="utf-8")
    (fresh_folder / "quick.py").write_text(QUICK_AGENTS, encoding="utf-8")
    shell.type(section("Start a hub").commands()[0][0])
    for name in ("planner", "builder", "reviewer"):
        shell.start("serve", f"quick.py:{name}")
    output: Mapping[str, str] = orjson.loads(shell.type(run))
    plan = "plan to write tests for textwrap"
    assert output == {"plan": plan, "review": f"{plan}: second draft: 0 failed"}
    ended = [line.split() for line in shell.said.splitlines() if line.endswith(" s")]
    agents = [words[2] for words in ended]
    assert agents == ["quick-plan", *["quick-build", "quick-review"] * 2]


@pytest.mark.timeout(600)
def test_survive_a_crash_a_run_whose_hub_was_killed_goes_on_with_the_next_one(
    shell: Shell, fresh_folder: Path
) -> None:
    (block,) = section("Survive a crash").blocks("yaml")
    ((run, kill, left, again, follow),) = section("Survive a crash").commands()
    assert len(block.splitlines()) == 10
    (fresh_folder / "tonight.yaml").write_text(block, encoding="utf-8")
    hub = section("Start a hub").commands()[0][0]
    shell.type(hub)
    shell.type(run)
    (running,) = shell.list_started("retinue run")
    running.wait_for(" s")
    shell.type(kill)
    assert running.wait() != 0
    assert "the next hub or worker resumes it" in running.output
    seen = shell.type(left).splitlines()
    assert seen[0].split()[:2] == ["tonight", "running"]
    done = {line.split()[0] for line in seen if " done " in line}
    assert done
    assert again == hub
    shell.type(again)
    output = orjson.loads(shell.type(follow))
    # what had ended before the kill is told once, as everything else is
    ended = sorted(line.split()[0] for line in shell.said.splitlines() if line.endswith(" s"))
    assert ended == [f"each#{item}/{step}" for item in (1, 2, 3) for step in ("build", "check", "plan")]
    assert done <= set(ended)
    assert [review.split(" tests of ")[1].split()[0] for review in output["reviews"]] == [
        "colorsys",
        "html",
        "bisect",
    ]


def test_the_workflow_of_the_guide_loads() -> None:
    (block,) = section("Combine agents").blocks("yaml")
    definition = load_definition(block, source="running-a-mesh.md")
    assert [step.id for step in definition.steps] == ["plan", "refine"]


@requirement("K-24")
@requirement("K-29")
async def test_join_a_koi_network_the_official_client_sees_the_tools_of_both_agents(shell: Shell) -> None:
    (demo,), _, (listing, _) = section("See one at work").commands()
    shell.type(demo)
    names = {tool["name"] for tool in orjson.loads(shell.type(listing))["tools"]}
    assert names == {"helpful-agent.calculate", "creative-agent.make_acrostic"}
    async with clients.connect(shell.to_real("http://127.0.0.1:9000/mcp")) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"helpful-agent__calculate", "creative-agent__make_acrostic"}
        called = await client.call_tool("helpful-agent__calculate", {"input": "2 + 3"})
        assert clients.texts(called) == ["5.0"]


@pytest.mark.timeout(600)
def test_run_in_production_five_commands_to_a_hub_and_a_worker_on_postgres_and_their_backup(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((new, hub, worker, ready, backup),) = section("In five commands").commands()
    token = shell.type(new).strip()
    with postgres_with_password() as url:
        shell.map_address("postgresql://retinue@db.example/retinue", url)
        shell.addresses["--port 9101"] = "--port 0"
        monkeypatch.setenv("PGPASSWORD", DATABASE_PASSWORD)
        shell.type(hub)
        shell.type(worker)
        wait_until(lambda: orjson.loads(shell.type(ready)) == {"status": "ready"}, "the hub is ready")
        real = shell.to_real(HUB)
        assert execute(real, "list_agents")["error"]["data"]["type"] == "not_authenticated"
        assert execute(real, "list_agents", token=token)["result"] == {"agents": []}
        wait_until(lambda: count_nodes(real, token) == 2, "hub and worker share the database")
        shell.type(backup)
        assert {"keys", "retinue.db"} <= {path.name for path in Path("mesh-backup").iterdir()}
