"""``retinue top`` beside a running hub: one picture through a pipe, a live one at a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson

from tests.processes.commands import run_command
from tests.processes.running import WAIT_S, execute, program, wait_until, write_agent


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command("top", *arguments, cwd=cwd)


def test_without_a_hub_the_remedy_is_named(tmp_path: Path) -> None:
    refused = run(cwd=tmp_path)
    assert refused.returncode == 8
    assert "retinue hub --detach" in refused.stderr


def test_agents_and_calls_are_shown_once_through_a_pipe_and_live_at_a_terminal(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    (tmp_path / "retinue.toml").write_text(f"[[agents]]\ntarget = {str(agent)!r}\n")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP")
        url = hub.url_in("hub at")
        for _ in range(3):
            assert execute(url, "who")["result"] == "one"
        execute(url, "nobody")
        wait_until(
            lambda: orjson.loads(run("--json", cwd=tmp_path).stdout)["calls"]["count"] == 4,
            "the calls are read",
        )
        picture = orjson.loads(run("--json", cwd=tmp_path).stdout)
        assert (picture["calls"]["failed"], picture["calls"]["by_agent"]) == (1, {"one-agent": 3})
        assert picture["calls"]["p95_ms"] >= picture["calls"]["p50_ms"] > 0
        assert picture["calls"]["in_flight"] == 0
        assert [row["name"] for row in picture["agents"]] == ["one-agent"]
        shown = run(cwd=tmp_path).stdout
        assert "agents 1 (0 unavailable)" in shown
        assert "1 failed or refused" in shown
        heads = next(line for line in shown.splitlines() if line.startswith("AGENT"))
        cells = next(line for line in shown.splitlines() if line.startswith("one-agent"))
        assert len(heads.split()) == len(cells.split()), "each column has a value"
        assert "who → one-agent" in shown

        leader, follower = pty.openpty()
        live = subprocess.Popen(
            [sys.executable, "-m", "retinue", "top", "--interval", "0.2"],
            cwd=tmp_path,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "LINES": "40"},
        )
        os.close(follower)
        drawn, deadline = b"", time.monotonic() + WAIT_S
        try:
            while drawn.count(b"who \xe2\x86\x92 one-agent") < 6:
                assert time.monotonic() < deadline, drawn
                if select.select([leader], [], [], 0.2)[0]:
                    drawn += os.read(leader, 65536)
            live.send_signal(signal.SIGINT)
            wait_until(lambda: live.poll() is not None or not _drain(leader), "it ends")
            assert live.wait(WAIT_S) == 0
        finally:
            live.kill()
            live.wait()
            os.close(leader)


def _drain(descriptor: int) -> bool:
    """Read what a terminal would, so that the program can go on; True when nothing more comes."""
    try:
        return not (select.select([descriptor], [], [], 0.05)[0] and os.read(descriptor, 65536))
    except OSError:
        return True
