"""An agent as a process: published while it runs, replaced without a restart, skipped when dead."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from tests.processes.commands import retinue, run_command
from tests.processes.inside import InsideProgram, inside
from tests.processes.running import WAIT_S, execute, get, program, wait_until, write_agent
from tests.requirements import requirement


@requirement("P-19")
def test_serve_publishes_its_agent_and_forgets_it_on_a_clean_exit(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        with program("serve", str(agent), cwd=tmp_path) as served:
            served.wait_for("published")
            assert get(f"{url}/v2/_catalog")[1] == {"repositories": ["agents/one"]}
            assert execute(url, "who")["result"] == "one"
            assert served.end(signal.SIGINT) == 0
        assert get(f"{url}/v2/_catalog")[1] == {"repositories": []}
        assert "agent one-agent is away since" in execute(url, "who")["error"]["message"]


def test_an_agent_whose_terminal_is_closed_is_forgotten(tmp_path: Path, retinue_home: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    # whatever the tests themselves are run under: a child of nohup would not hear it
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ours, terminal = pty.openpty()
    log = tmp_path / "log"
    owns = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, "
    serves = f"[sys.executable, '-m', 'retinue', 'serve', {str(agent)!r}])"
    with log.open("w") as output:
        served = subprocess.Popen(
            [sys.executable, "-c", owns + serves],
            cwd=tmp_path,
            stdin=terminal,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    os.close(terminal)
    try:
        wait_until(lambda: "published" in log.read_text(), "the agent is published")
        os.close(ours)  # the kernel tells the session of this terminal
        assert served.wait(WAIT_S) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
        served.kill()
        served.wait(WAIT_S)
    assert "stopping: SIGHUP" in log.read_text()
    assert not list((retinue_home / "registry" / "agents").iterdir())


def test_an_agent_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = program("serve", str(agent), cwd=tmp_path)
        with running as served:
            signal.signal(signal.SIGHUP, before)
            url = served.url_in("one-agent")
            served.wait_for("published")
            served.send(signal.SIGHUP)
            assert execute(url, "who")["result"] == "one"
            assert served.end() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_skill_that_blocks_its_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    agent = tmp_path / "blocking.py"
    agent.write_text(
        "import time\n\nfrom retinue import Agent\n\n"
        "agent = Agent('blocking-agent')\n\n\n"
        "@agent.skill(timeout_s=0.1)\n"
        "def block() -> None:\n"
        "    time.sleep(600)\n"
    )
    with program("serve", str(agent), cwd=tmp_path) as served:
        url = served.url_in("blocking-agent")
        served.wait_for("published")
        assert "did not answer within" in execute(url, "block")["error"]["message"]
        assert served.end(signal.SIGINT) == 0


def test_two_agents_on_one_port_the_second_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    one = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    two = write_agent(tmp_path, "two-agent", "1.0.0", "other", "two")
    with inside("serve", str(one), "--no-publish", cwd=tmp_path) as first:
        url = first.url_in("one-agent")
        port = url.rpartition(":")[2]
        refused = run_command("serve", str(two), "--no-publish", "--port", port, cwd=tmp_path)
        assert refused.returncode != 0
        assert "in use" in refused.stderr
        assert len((refused.stdout + refused.stderr).splitlines()) == 1
        assert execute(url, "who")["result"] == "one"


@requirement("P-19")
def test_a_replaced_agent_is_used_at_the_next_call_without_a_restart(tmp_path: Path) -> None:
    old = write_agent(tmp_path, "one-agent", "1.0.0", "who", "old")
    new = write_agent(tmp_path, "one-agent", "2.0.0", "who", "new")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        with ExitStack() as stack:
            first = stack.enter_context(program("serve", str(old), cwd=tmp_path))
            first.wait_for("published")
            assert execute(url, "who")["result"] == "old"
            second = stack.enter_context(program("serve", str(new), cwd=tmp_path))
            second.wait_for("published")
            assert execute(url, "who")["result"] == "new"
            # the old one's clean exit must not take the new one's card away
            assert first.end() == 0
            assert execute(url, "who")["result"] == "new"
            rows = execute(url, "list_agents", {"detailed": True})["result"]["agents"]
            assert [(row["name"], row["version"]) for row in rows] == [("one-agent", "2.0.0")]


def test_an_agent_that_stopped_moments_ago_is_away_and_one_that_was_removed_is_unknown(
    tmp_path: Path,
) -> None:
    agent = write_agent(tmp_path, "odd-agent", "1.0.0", "who", "odd")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        with inside("serve", str(agent), cwd=tmp_path) as served:
            served.wait_for("published")
            assert served.end() == 0
        for at in (url, f"{url}/agents/odd-agent"):
            error = execute(at, "who")["error"]
            assert re.search(r"odd-agent is away since [\d.]+ s", error["message"]), error
            assert error["data"]["type"] == "agent_unreachable"
            assert error["data"]["retry_after_s"] > 0
        with inside("serve", str(agent), cwd=tmp_path) as served:
            served.wait_for("published")
            assert execute(url, "who")["result"] == "odd"
            retinue("forget", "odd-agent", cwd=tmp_path)
            assert execute(url, "who")["error"]["message"] == "Unknown skill: who"
        assert execute(url, "who")["error"]["message"] == "Unknown skill: who"


@requirement("P-18")
@requirement("P-30")
def test_a_killed_agent_is_skipped_and_shown_as_unavailable_since_when_and_why(tmp_path: Path) -> None:
    one = write_agent(tmp_path, "a-agent", "1.0.0", "who", "a")
    two = write_agent(tmp_path, "b-agent", "1.0.0", "who", "b")
    often = {"RETINUE_DIRECTORY__REFRESH_S": "0.5"}
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=often) as hub,
        program("serve", str(one), cwd=tmp_path) as first,
        program("serve", str(two), cwd=tmp_path) as second,
    ):
        url = hub.url_in("hub at")
        first.wait_for("published")
        second.wait_for("published")
        assert execute(url, "who")["result"] == "a"
        first.end(signal.SIGKILL)
        for _ in range(3):
            assert execute(url, "who")["result"] == "b"

        def rows() -> dict[str, dict[str, str]]:
            return {
                row["name"]: row
                for row in execute(url, "list_agents", {"detailed": True})["result"]["agents"]
            }

        wait_until(lambda: rows()["a-agent"]["status"] == "unavailable", "the hub notices")
        assert rows()["a-agent"]["since"]
        assert rows()["a-agent"]["last_error"]
        wait_until(lambda: rows()["b-agent"]["status"] == "available", "the other one is asked")
        with program("agents", cwd=tmp_path) as listing:
            assert listing.wait() == 0
            listing.wait_for("warning: a-agent: ")
            shown = [line for line in listing.lines if "unavailable since" in line]
            assert len(shown) == 1, "told once"
            assert re.search(r"a-agent\t.*unavailable since \d+ (s|min) ago", shown[0])


@requirement("P-26")
def test_each_call_is_one_line_of_json_at_the_hub_and_at_the_agent(tmp_path: Path) -> None:
    """What a log collector reads from the output of both programs."""
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")

    def calls(running: InsideProgram) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in running.lines if line.startswith("{")]
        return [line for line in lines if line.get("event") == "call" and line["skill"] in ("who", "nobody")]

    with (
        inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        inside("serve", str(agent), cwd=tmp_path) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        assert execute(url, "who")["result"] == "one"
        assert "error" in execute(url, "nobody")
        for running, expected in ((hub, ["who", "nobody"]), (served, ["who"])):
            wait_until(lambda: len(calls(running)) == len(expected), "the lines are written")  # noqa: B023
            assert [line["skill"] for line in calls(running)] == expected
        (at_hub, refused), (at_agent,) = calls(hub), calls(served)
    known = {"timestamp", "level", "event", "id", "skill", "agent", "caller", "door", "status", "duration_ms"}
    for line in (at_hub, refused, at_agent):
        assert known <= line.keys()
    assert at_hub["trace_id"] == at_agent["trace_id"]
    assert (at_hub["status"], refused["status"]) == ("done", "refused")
    assert refused["error"] == "skill_not_offered"


@requirement("P-26")
def test_the_line_of_a_call_that_ended_just_before_the_agent_is_written(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with program("serve", str(agent), "--no-publish", cwd=tmp_path) as served:
        url = served.url_in("one-agent 1.0.0 at")
        assert execute(url, "who")["result"] == "one"
        assert served.end() == 0
    assert any('"skill":"who"' in line for line in served.lines), served.output


def test_an_agent_without_a_hub_finds_others_through_the_registry(tmp_path: Path) -> None:
    other = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    asking = tmp_path / "asking.py"
    asking.write_text(
        "from retinue import Agent, Context\n\n"
        "agent = Agent('asking-agent')\n\n\n"
        "@agent.skill\n"
        "async def ask(ctx: Context) -> str:\n"
        "    return 'heard ' + await ctx.call('who')\n"
    )
    with (
        inside("serve", str(other), cwd=tmp_path) as first,
        inside("serve", str(asking), cwd=tmp_path) as second,
    ):
        first.wait_for("published")
        url = second.url_in("asking-agent")
        second.wait_for("published")
        assert execute(url, "ask")["result"] == "heard one"


@requirement("S-07")
def test_lists_that_change_are_published_and_slips_of_the_pen_are_told(tmp_path: Path) -> None:
    write_agent(tmp_path, "one-agent", "1.0.0", "who", "one").rename(tmp_path / "one.py")
    lists = tmp_path / "agent.json"

    def expose(*skills: str) -> None:
        block = {"entry": "one.py:agent", "mcp": {"expose_tools": skills}}
        lists.write_text(json.dumps(block))

    expose("whu")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        with inside("serve", str(lists), cwd=tmp_path) as served:
            served.wait_for("warning: mcp.expose_tools: 'whu' matches nothing")
            assert execute(url, "who")["error"]["code"] == -32601
            expose("who")
            served.wait_for("lists reloaded")
            wait_until(lambda: execute(url, "who").get("result") == "one", "the hub has the new card")
            assert served.end() == 0
        assert get(f"{url}/v2/_catalog")[1] == {"repositories": []}


def test_a_changed_file_is_loaded_anew_and_a_broken_one_is_not(tmp_path: Path, port: int) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "before")
    arguments = ("--no-publish", "--reload", "--port", str(port))
    with program("serve", str(agent), *arguments, cwd=tmp_path) as served:
        url = served.url_in("one-agent")
        assert execute(url, "who")["result"] == "before"
        whole = agent.read_text()
        agent.write_text(whole + "\ndef broken(:\n")
        served.wait_for("waiting for a change")
        agent.write_text(whole.replace("before", "after"))

        def answers_anew() -> bool:
            try:
                return bool(execute(url, "who").get("result") == "after")
            except urllib3.exceptions.HTTPError:
                return False

        wait_until(answers_anew, "the new code answers")


def test_a_changed_file_is_loaded_anew_while_an_old_call_blocks_a_thread(tmp_path: Path, port: int) -> None:
    agent = tmp_path / "blocking.py"
    source = (
        "import time\n\nfrom retinue import Agent\n\n"
        "agent = Agent('blocking-agent')\n\n\n"
        "@agent.skill(timeout_s=0.1)\n"
        "def block() -> None:\n"
        "    time.sleep(600)\n\n\n"
        "@agent.skill\n"
        "def who() -> str:\n"
        "    return 'before'\n"
    )
    agent.write_text(source)
    arguments = ("--no-publish", "--reload", "--port", str(port))
    with program("serve", str(agent), *arguments, cwd=tmp_path) as served:
        url = served.url_in("blocking-agent")
        assert "did not answer within" in execute(url, "block")["error"]["message"]
        agent.write_text(source.replace("before", "after"))
        served.wait_for("a file changed; restarting")

        def answers_anew() -> bool:
            try:
                return bool(execute(url, "who").get("result") == "after")
            except urllib3.exceptions.HTTPError:
                return False

        wait_until(answers_anew, "the new code answers")
        assert served.process.poll() is None


def test_the_earlier_of_two_agents_of_one_name_is_found_again_when_the_later_is_killed(
    tmp_path: Path,
) -> None:
    one = write_agent(tmp_path, "twin-agent", "1.0.0", "who", "one")
    two = write_agent(tmp_path, "twin-agent", "1.1.0", "who", "two")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub, ExitStack() as stack:
        url = hub.url_in("hub at")
        first = stack.enter_context(program("serve", str(one), cwd=tmp_path))
        at = first.url_in("twin-agent 1.0.0 at")
        first.wait_for("published")
        second = stack.enter_context(program("serve", str(two), cwd=tmp_path))
        assert at in second.wait_for("another twin-agent answers at")
        second.wait_for("published")
        wait_until(lambda: execute(url, "who").get("result") == "two", "the later one answers")
        second.end(signal.SIGKILL)
        first.wait_for("again: the agent that replaced it is gone")
        assert execute(url, "who")["result"] == "one"
