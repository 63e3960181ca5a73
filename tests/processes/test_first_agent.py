"""From nothing to an answered call in three commands, over real processes (README, "Write an agent")."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.processes.running import program


def _retinue(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retinue", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def test_new_serve_call(tmp_path: Path) -> None:
    _retinue(tmp_path, "new", "my-agent")
    with program("serve", "my-agent/agent.json", cwd=tmp_path) as served:
        served.wait_for("published")
        called = _retinue(tmp_path, "call", "greet", '{"name": "Ada"}')
        assert called.stdout == '{\n  "text": "Hello, Ada!"\n}\n'
        assert called.stderr == ""
        assert served.end(signal.SIGINT) == 0
        assert "Traceback" not in served.output


def test_a_served_agent_starts_again_when_its_file_changes(tmp_path: Path) -> None:
    _retinue(tmp_path, "new", "my-agent")
    agent = tmp_path / "my-agent" / "agent.py"
    with program("serve", "my-agent", "--reload", cwd=tmp_path) as served:
        served.wait_for("published")
        agent.write_text(agent.read_text("utf-8").replace("Hello", "Salve"))
        served.wait_for("a file changed")
        served.lines.clear()
        served.wait_for("published")
        called = _retinue(tmp_path, "call", "greet", '{"name": "Ada"}', "--json")
        assert called.stdout == '{"text":"Salve, Ada!"}\n'
        agent.write_text("this is no Python\n")
        served.wait_for("waiting for a change")
        served.lines.clear()
        agent.write_text(
            "from retinue import Agent\n\nagent = Agent('my-agent')\n\n\n@agent.skill\n"
            "def greet() -> str:\n    return 'mended'\n"
        )
        served.wait_for("published")
        assert served.end(signal.SIGINT) == 0
