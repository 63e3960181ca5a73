"""Commands against a running hub with one running agent."""

from __future__ import annotations

import re
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
        await asyncio.Event().wait()
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
WAITS = """
name: asks
steps:
  - {id: one, skill: greet, with: {name: Ada}}
  - id: approval
    wait_for:
      topic: ship
      message: Ship it?
      schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
"""


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
    assert failed.stderr == "error: Execution failed: ValueError: it (skill explode)\n  burst\n"


def test_a_call_that_takes_too_long_is_given_up(live: Live, retinue: Retinue) -> None:
    failed = retinue("call", "wait_long", '{"who": "call"}', "--timeout", "0.3")
    assert failed.exit_code == 6
    assert failed.stderr == "error: wait_long did not answer within 0.3 s (caller) — raise --timeout\n"
    live.served.wait_for("call waited in vain")


def test_a_card_with_the_url_of_another_agent_is_published_with_a_warning(
    live: Live, retinue: Retinue, tmp_path: Path
) -> None:
    (card := Path("word.json")).write_bytes(
        orjson.dumps({"name": "word-agent", "url": live.url, "skills": [{"id": "count"}]})
    )
    published = retinue("publish", str(card), "--registry", str(tmp_path / "registry"))
    assert published.exit_code == 0
    assert "at the url of this card another agent answers: live-agent" in published.stderr


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
    one, two = done.stderr.splitlines()
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


def test_a_step_that_fails_is_named_with_file_and_line(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    failed = retinue("run", "flow.yaml", '{"who": 5}')
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1].startswith(
        "error: flow.yaml:4: step one (agent live-agent) failed:"
    )


def test_the_mesh_is_asked_before_a_run_and_by_a_check(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    refused = retinue("run", "flow.yaml", "{}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: flow.yaml:4: steps[0].with.name: the input has no input.who")
    assert retinue("workflows", "check", "flow.yaml").exit_code == 0
    wrong = FLOW.replace('greet, with: {name: "${{ input.who }}"}', "greet, with: {name: 5, nam: x}")
    wrong = wrong.replace('skill: greet, with: {name: "${{ steps', 'skill: great, with: {name: "${{ steps')
    Path("wrong.yaml").write_text(wrong)
    done = retinue("workflows", "check", "wrong.yaml")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("wrong.yaml:4:36: steps[0].with.name: greet refuses it: field 'name' must be")
    assert lines[1].startswith("wrong.yaml:4:45: steps[0].with.nam: greet refuses it: unknown field 'nam'")
    assert lines[2] == "wrong.yaml:5:15: steps[1].skill: Unknown skill: great — did you mean greet?"
    published = retinue("publish", "wrong.yaml")
    assert published.exit_code == 0
    assert "warning: wrong.yaml:5:15: steps[1].skill: Unknown skill: great" in published.stderr
    stored = retinue("run", "twice", '{"who": "Bo"}')
    assert "workflows/twice:v1:4: steps[0].with.name" in stored.stderr
    assert retinue("forget", "workflows/twice").exit_code == 0


def test_ctrl_c_ends_a_run_where_it_runs(live: Live, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    with program("run", "long.yaml", cwd=tmp_path) as running:
        live.served.wait_for("run waits")
        assert running.end(signal.SIGINT) == 130
        assert "Traceback" not in running.output
    live.served.wait_for("run waited in vain")


@requirement("L-35")
def test_a_run_is_listed_shown_repeated_and_its_id_is_a_key(live: Live, retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    asked = ("run", "flow.yaml", '{"who": "Ada"}', "--id", "ada", "--json")
    first = retinue(*asked)
    assert retinue(*asked).stdout == first.stdout
    listed = orjson.loads(retinue("runs", "--workflow", "twice", "--status", "done", "--json").stdout)
    assert "ada" in [row["run"] for row in listed["runs"]]
    assert any(line.split()[:3] == ["ada", "twice", "done"] for line in retinue("runs").stdout.splitlines())
    shown = retinue("runs", "ada").stdout.splitlines()
    assert shown[0].startswith("twice  done  ada  20")
    assert shown[0].endswith(" s")
    assert shown[1].split()[:4] == ["one", "done", "greet", "live-agent"]
    assert shown[2].strip() == 'input: {"name":"Ada"}'
    assert shown[3].strip() == 'output: {"name":"Hello, Ada"}'
    assert shown[-1] == 'output: {"name":"Hello, Hello, Ada"}'
    tree = orjson.loads(retinue("runs", "ada", "--json").stdout)
    assert [node["step"] for node in tree["steps"]] == ["one", "two"]
    again = retinue("rerun", "ada", "--from", "two")
    assert orjson.loads(again.stdout) == {"name": "Hello, Hello, Ada"}
    assert [line.split()[0] for line in again.stderr.splitlines()] == ["two"]
    followed = retinue("runs", "ada", "--follow")
    assert orjson.loads(followed.stdout) == {"name": "Hello, Hello, Ada"}
    assert [line.split()[0] for line in followed.stderr.splitlines()] == ["one", "two"]
    conflict = retinue("run", "flow.yaml", '{"who": "Bo"}', "--id", "ada")
    assert "Run ada exists with another workflow or input" in conflict.stderr


def test_a_run_is_cancelled_says_what_it_did_and_waits_for_a_person_when_it_goes_on(
    live: Live, retinue: Retinue, tmp_path: Path
) -> None:
    (tmp_path / "flow.yaml").write_text(WAITS)
    with program("run", "flow.yaml", "--id", "asks", cwd=tmp_path) as running:
        running.wait_for("Ship it? — answer: retinue signal asks ship VALUE")
        cancelled = retinue("cancel", "asks")
        assert cancelled.stdout == "asks  cancelled\n"
        assert cancelled.stderr.splitlines() == [
            "done before: one (greet at live-agent)",
            "resume it with: retinue resume asks",
        ]
        assert running.wait() != 0
        assert "done before: one" in running.output
    refused = retinue("signal", "asks", "ship")
    assert "Run asks has ended: cancelled" in refused.stderr
    with program("resume", "asks", cwd=tmp_path) as running:
        running.wait_for("Ship it?")
        assert "waiting" in retinue("runs", "asks").stdout
        wrong = retinue("signal", "asks", "ship", "maybe")
        assert wrong.exit_code == 2
        assert "Invalid parameters" in wrong.stderr
        given = retinue("signal", "asks", "ship", '{"ok": true}')
        assert given.stderr == "sent to step approval\n"
        assert running.wait() == 0
        assert '"ok": true' in running.output


def test_a_run_that_waits_names_the_topic_and_a_message_if_there_is_one(
    live: Live, retinue: Retinue, tmp_path: Path
) -> None:
    for name, message in (("plain", ""), ("told", ", message: 'Ship it?'")):
        (tmp_path / "flow.yaml").write_text(
            f"name: flow\nsteps:\n  - {{id: go, wait_for: {{topic: ship{message}}}}}\n"
        )
        with program("run", "flow.yaml", "--id", name, cwd=tmp_path) as running:
            running.wait_for("answer: retinue signal")
            shown = [line.strip() for line in retinue("runs", name).stdout.splitlines()]
            assert ("waits for ship: Ship it?" if message else "waits for ship") in shown
            retinue("signal", name, "ship")
            assert running.wait() == 0


def test_steps_are_given_to_other_agents_and_limits_from_the_command_line(
    live: Live, retinue: Retinue
) -> None:
    Path("flow.yaml").write_text(FLOW)
    asked = ("run", "flow.yaml", '{"who": "Ada"}')
    assert retinue(*asked, "--agent", "one=live-agent", "--timeout", "2=5m").exit_code == 0
    for option, words in (
        (("--agent", "one=nobody"), "Unknown agent: nobody"),
        (("--agent", "three=live-agent"), "Unknown step: three — there are: one, two"),
        (("--timeout", "one=soon"), "is no duration"),
        (("--agent", "one"), "is not a pair"),
    ):
        refused = retinue(*asked, *option)
        assert refused.exit_code != 0
        assert words in refused.stderr


MODEL = """
from retinue.testing import ModelTurn, ScriptedModel

turns = [ModelTurn(calls=[("live-agent__greet", {"name": str(n)})]) for n in range(3)]
agent = ScriptedModel(*turns, "the end", last="so far", name="thinker")
"""
THINKS = """
name: thinks
steps:
  - {id: research, think: {prompt: Greet all, tools: [greet], limits: {turns: 2}}}
"""


def test_a_run_that_reached_a_limit_shows_its_last_answer_and_goes_on_with_more(
    live: Live, retinue: Retinue, tmp_path: Path
) -> None:
    Path("thinks.yaml").write_text(THINKS)
    (tmp_path / "model.py").write_text(MODEL)
    with program("serve", "model.py", cwd=tmp_path) as model:
        model.wait_for("published")
        limited = retinue("run", "thinks.yaml", "--id", "thinking")
        assert (limited.exit_code, limited.stdout) == (1, "")
        shown = limited.stderr.splitlines()
        assert [line.split()[:3] for line in shown[:2]] == [
            ["research/turn-1/model", "complete", "thinker"],
            ["research/turn-1/call-1", "greet", "live-agent"],
        ]
        assert "  last answer: so far" in shown
        assert shown[-1].startswith("error: the limit of turns is reached (2)")
        assert "retinue resume thinking --limit turns=N" in shown[-1]
        assert "\tlimited\t" in retinue("runs").stdout
        tree = retinue("runs", "thinking").stdout
        assert 'last answer: "so far"' in tree
        assert "go on with more: retinue resume thinking --limit turns=N" in tree
        for wrong in ("turns", "turns=3", "turn=9"):
            assert retinue("resume", "thinking", "--limit", wrong).exit_code == 2
        done = retinue("resume", "thinking", "--limit", "turns=9,time=20m")
        assert (done.exit_code, orjson.loads(done.stdout)) == (0, "the end")


def test_a_file_in_the_folder_of_custom_workflows_runs_by_its_name(live: Live, retinue: Retinue) -> None:
    folder = live.home / "workflows"
    folder.mkdir()
    (folder / "mine.yaml").write_text(FLOW)
    (folder / "broken.yaml").write_text("name: broken\nsteps: [{id: a}]\n")
    listed = retinue("workflows")
    assert any(line.split()[:2] == ["mine", "custom"] for line in listed.stdout.splitlines())
    assert "warning: broken: " in listed.stderr
    assert "broken.yaml:2" in listed.stderr
    assert retinue("run", "mine", '{"who": "Bo"}', "--json").stdout == '{"name":"Hello, Hello, Bo"}\n'


def test_doctor_sees_the_hub(live: Live, retinue: Retinue) -> None:
    reply = orjson.loads(retinue("doctor", "--json").stdout)
    assert reply["ok"]
    hub = next(check for check in reply["checks"] if check["check"] == "hub")
    assert "answers (pid" in hub["found"]


def test_doctor_says_what_the_tools_cost_a_client(live: Live, retinue: Retinue) -> None:
    """Who has the token is shown more; the estimate says how it was made."""
    reply = orjson.loads(retinue("doctor", "--json").stdout)
    found = next(check for check in reply["checks"] if check["check"] == "tool list")["found"]
    counts = [int(number) for number in re.findall(r"(\d+) tools, about [\d,]+ tokens", found)]
    assert len(counts) == 2
    assert counts[0] < counts[1]
    assert "JSON bytes / 4" in found
