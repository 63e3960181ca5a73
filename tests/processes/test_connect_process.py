"""A client's configuration as the program writes it: its token opens the hub that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson

from tests.processes.commands import retinue
from tests.processes.inside import inside
from tests.processes.running import execute


def _connect(home: Path, *arguments: str) -> str:
    return retinue("connect", *arguments, cwd=home, environment={"HOME": str(home)})


def test_what_is_written_reaches_the_running_hub(tmp_path: Path, port: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        printed = _connect(home, "gemini")
        assert "start the hub" not in printed
        entry = orjson.loads((home / ".gemini" / "settings.json").read_bytes())["mcpServers"]["retinue"]
        assert entry["httpUrl"] == f"{url}/mcp"
        token = entry["headers"]["Authorization"].removeprefix("Bearer ")
        assert "agents" in execute(url, "list_agents", {}, token)["result"]
        assert token not in printed
    _connect(home, "gemini", "--remove")
    assert not (home / ".gemini" / "settings.json").exists()


def test_the_program_that_a_client_starts_is_there(tmp_path: Path, retinue_home: Path) -> None:
    _connect(tmp_path, "claude-desktop")
    (file,) = tmp_path.rglob("claude_desktop_config.json")
    entry = orjson.loads(file.read_bytes())["mcpServers"]["retinue"]
    assert entry["env"] == {"RETINUE_HOME": str(retinue_home)}
    shown = subprocess.run(
        [entry["command"], *entry["args"][:-1], "--version"],
        env=entry["env"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert shown.stdout.startswith("retinue ")
