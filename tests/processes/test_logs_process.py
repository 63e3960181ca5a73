"""``retinue logs`` beside a running hub: its calls, what its agents print, and new lines as they come."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.processes.running import WAIT_S, execute, program, run_apart, wait_until

AGENT = '''
from retinue import Agent

agent = Agent("chatty-agent", version="1.0.0")


@agent.skill
async def say(word: str) -> str:
    """Prints a word."""
    print("said", word, flush=True)
    return word


@agent.skill
async def fail() -> str:
    """Fails."""
    raise KeyError("nothing there")
'''


@dataclass
class Mesh:
    """A hub with one agent."""

    folder: Path
    hub: str
    agent: str

    def logs(self, *arguments: str) -> list[dict[str, Any]]:
        """The lines of ``retinue logs`` through a pipe."""
        return [orjson.loads(line) for line in self.read(*arguments).splitlines()]

    def calls(self) -> list[dict[str, Any]]:
        """The calls of the skill ``say``."""
        return [row for row in self.logs() if row["event"] == "call" and row["skill"] == "say"]

    def read(self, *arguments: str) -> str:
        done = run_apart("logs", *arguments, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    (tmp_path / "chatty.py").write_text(AGENT)
    (tmp_path / "retinue.toml").write_text(f"[[agents]]\ntarget = {str(tmp_path / 'chatty.py')!r}\n")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP")
        yield Mesh(tmp_path, hub.url_in("hub at"), hub.url_in("chatty-agent at"))


def test_a_call_through_the_hub_is_one_row_and_a_direct_one_is_too(mesh: Mesh) -> None:
    execute(mesh.hub, "say", {"word": "through"})
    execute(mesh.agent, "say", {"word": "direct"})
    wait_until(lambda: "said direct" in mesh.read("--text"), "the output of the agent is written")
    wait_until(lambda: len(mesh.calls()) == 2, "both calls are there")
    rows = mesh.logs()
    calls = {row["source"]: row for row in mesh.calls()}
    assert len(calls) == 2
    assert calls["hub"]["skill"] == calls["chatty-agent"]["skill"] == "say"
    assert {"caller", "trace_id", "duration_ms", "status"} <= calls["hub"].keys()
    printed = [row["line"] for row in rows if row["event"] == "output"]
    assert [line for line in printed if line.startswith("said")] == ["said through", "said direct"]
    # of one trace
    (found,) = mesh.logs("--trace", calls["hub"]["trace_id"])
    assert found == calls["hub"]
    # as text
    shown = mesh.read("--text")
    assert re.search(r"^\d\d:\d\d:\d\d say → chatty-agent  \d+ ms  done$", shown, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d chatty-agent │ said through$", shown, re.MULTILINE)


def test_failures_alone_can_be_asked_for_and_an_agent_of_another_name_has_no_lines(mesh: Mesh) -> None:
    execute(mesh.hub, "say", {"word": "well"})
    execute(mesh.hub, "fail")
    wait_until(lambda: bool(mesh.logs("--failed")), "the failure is written")
    (failed,) = [row for row in mesh.logs("--failed") if row["event"] == "call"]
    assert (failed["skill"], failed["status"], failed["agent"]) == ("fail", "failed", "chatty-agent")
    assert mesh.logs("--agent", "other-agent") == []
    wait_until(
        lambda: {row["source"] for row in mesh.logs("--agent", "chatty-agent")} == {"hub", "chatty-agent"},
        "the output of the agent is written, too",
    )
    assert len(mesh.logs("-n", "1")) == 1


def test_following_at_a_terminal_shows_each_new_call_as_one_line_until_ctrl_c(mesh: Mesh) -> None:
    execute(mesh.hub, "say", {"word": "before"})
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", "logs", "-f", "-n", "0"],
        cwd=mesh.folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + WAIT_S
    try:
        # called again and again: nothing says that the command has begun to follow
        while b"said word" not in shown or not re.search(
            rb"say \xe2\x86\x92 chatty-agent  \d+ ms  done", shown
        ):
            assert time.monotonic() < deadline, shown
            execute(mesh.hub, "say", {"word": "word"})
            if select.select([leader], [], [], 0.2)[0]:
                shown += os.read(leader, 65536)
        assert b"before" not in shown
        assert b'"event"' not in shown, "text at a terminal"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_a_reader_that_goes_away_ends_the_following_quietly(mesh: Mesh) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", "logs", "-f", "-n", "0"],
        cwd=mesh.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    def has_ended() -> bool:
        execute(mesh.hub, "say", {"word": "word"})
        return process.poll() is not None

    try:
        wait_until(has_ended, "the command ends at its next line")
        assert process.returncode == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
