"""Commands against a running hub with one running agent."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.cli.conftest import Retinue
from tests.processes.running import Program, program
from tests.requirements import requirement

AGENT = '''
import asyncio

from retinue import Agent

agent = Agent("live-agent", version="1.4.0")


@agent.skill
async def greet(name: str) -> dict[str, str]:
    """Greets by name."""
    return {"name": f"Hello, {name}"}


@agent.skill
async def explode() -> str:
    raise ValueError("it\\nburst")


@agent.skill
async def wait_long(who: str) -> str:
    print(f"{who} waits", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print(f"{who} waited in vain", flush=True)
        raise
    return "done"
'''
FLOW = """
name: twice
steps:
  - {id: one, skill: greet, with: {name: "${{ input.who }}"}}
  - {id: two, skill: greet, with: {name: "${{ steps.one.output.name }}"}}
"""
LONG = "name: long\nsteps:\n  - {id: only, skill: wait_long, with: {who: run}}\n"


@dataclass(frozen=True)
class Live:
    """The running processes and their state folder."""

    home: Path
    served: Program
    url: str


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    (folder / "live.py").write_text(AGENT)
    home = folder / "home"
    environment = {"RETINUE_HOME": str(home)}
    with program("hub", "--bare", "--port", "0", cwd=folder, environment=environment) as hub:
        hub.wait_for("hub at")
        with program("serve", "live.py", cwd=folder, environment=environment) as served:
            served.wait_for("published")
            yield Live(home, served, served.url_in("live-agent"))


@pytest.fixture
def live(processes: Live, monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setenv("RETINUE_HOME", str(processes.home))
    return processes


def test_a_call_prints_its_result_and_nothing_else(live: Live, retinue: Retinue) -> None:
    called = retinue("call", "greet", '{"name": "Ada"}')
    assert (called.exit_code, called.stderr) == (0, "")
    assert called.stdout == '{\n  "name": "Hello, Ada"\n}\n'
    assert retinue("call", "greet", '{"name": "Ada"}', "--json").stdout == '{"name":"Hello, Ada"}\n'


def test_a_call_of_one_agent_in_one_version(live: Live, retinue: Retinue) -> None:
    asked = ("call", "greet", '{"name": "Ada"}')
    assert retinue(*asked, "--agent", "live-agent", "--version", ">=1,<2").exit_code == 0
    assert retinue(*asked, "--agent", "nobody").exit_code == 3


@requirement("P-13")
def test_bad_arguments_are_named_as_they_are_without_a_hub(live: Live, retinue: Retinue) -> None:
    refused = retinue("call", "greet", "{}", "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    error = orjson.loads(refused.stderr)["error"]
    assert error["type"] == "validation_error"
    assert error["data"]["errors"][0]["path"] == "name"


def test_a_near_miss_is_suggested_through_the_hub(live: Live, retinue: Retinue) -> None:
    refused = retinue("call", "greeet", "{}")
    assert refused.exit_code == 3
    assert refused.stderr == "error: Unknown skill: greeet — did you mean greet?\n"


@requirement("P-24")
def test_what_a_skill_raised_is_one_line(live: Live, retinue: Retinue) -> None:
    failed = retinue("call", "explode")
    assert failed.exit_code == 1
    assert failed.stderr == "error: Execution failed: it\n"


def test_a_call_that_takes_too_long_is_given_up(live: Live, retinue: Retinue) -> None:
    failed = retinue("call", "wait_long", '{"who": "call"}', "--timeout", "0.3")
    assert failed.exit_code == 6
    assert failed.stderr == "error: wait_long did not answer within 0.3 s (caller) — raise --timeout\n"
    live.served.wait_for("call waited in vain")


def test_agents_and_skills_are_listed_with_their_state(live: Live, retinue: Retinue) -> None:
    rows = orjson.loads(retinue("agents", "--json").stdout)["agents"]
    assert [(row["name"], row["url"]) for row in rows] == [("live-agent", live.url)]
    assert retinue("find", "greets", "--url").stdout == f"{live.url}\n"


@requirement("P-21")
def test_the_document_of_a_running_agent_has_a_command_that_runs(live: Live, retinue: Retinue) -> None:
    page = retinue("show", "live-agent", "--markdown").stdout
    assert page.startswith("# `live-agent`\n")
    command = next(
        line for line in page.splitlines() if line.startswith("$ retinue call") and "greet" in line
    )
    done = retinue(*shlex.split(command)[2:])
    assert orjson.loads(done.stdout) == {"name": "Hello, …"}


@requirement("P-15")
def test_a_run_shows_its_steps_and_prints_its_output(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    done = retinue("run", "flow.yaml", '{"who": "Ada"}')
    assert done.exit_code == 0
    assert orjson.loads(done.stdout) == {"name": "Hello, Hello, Ada"}
    began_one, one, began_two, two = done.stderr.splitlines()
    assert began_one.endswith("…")
    assert began_two.endswith("…")
    assert one.split()[:3] == ["one", "greet", "live-agent"]
    assert two.split()[:3] == ["two", "greet", "live-agent"]


@requirement("P-29")
def test_a_published_workflow_is_listed_and_run_by_name(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    assert retinue("publish", "flow.yaml").exit_code == 0
    assert "twice" in retinue("workflows").stdout
    assert retinue("run", "twice", '{"who": "Bo"}', "--json").stdout == '{"name":"Hello, Hello, Bo"}\n'
    near = retinue("run", "twise")
    assert (near.exit_code, near.stderr) == (3, "error: Unknown workflow: twise — did you mean twice?\n")
    assert retinue("forget", "workflows/twice").exit_code == 0


def test_a_step_that_fails_is_named(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    failed = retinue("run", "flow.yaml", "{}")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1].startswith("error: step one failed: expression 'input.who'")


def test_ctrl_c_ends_a_run_where_it_runs(live: Live, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    with program("run", "long.yaml", cwd=tmp_path) as running:
        live.served.wait_for("run waits")
        assert running.end(signal.SIGINT) == 130
        assert "Traceback" not in running.output
    live.served.wait_for("run waited in vain")


def test_doctor_sees_the_hub(live: Live, retinue: Retinue) -> None:
    reply = orjson.loads(retinue("doctor", "--json").stdout)
    assert reply["ok"]
    hub = next(check for check in reply["checks"] if check["check"] == "hub")
    assert "answers (pid" in hub["found"]
