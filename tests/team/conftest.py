"""A team in a folder, and its commands over a state of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.commands.teams.commands import TeamCommands, open_teams
from retinue.runtime.commands.teams.source import read_source, write_lock
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.definition import LOCK_FILE
from retinue.team.lock import TeamLock, render_lock
from tests.services import docker_registry_url as docker_registry_url
from tests.services import each_registry_url as each_registry_url
from tests.services import registry_3_url as registry_3_url

DEFINITION = """
name = "words"
version = "{version}"
requires = ">=0.0.1"
[[agents]]
target = "agents/word/agent.py"
"""

WriteTeam = Callable[..., Path]


@pytest.fixture
def write_team(tmp_path: Path) -> WriteTeam:
    """Writes the folder of a team with a lock, without loading its agent."""

    def write(
        version: str = "1.0.0",
        *,
        name: str = "words",
        more: str = "",
        code: str = "agent = 1\n",
        imports: Mapping[str, object] | None = None,
        agent: str | None = None,
        data: int = 1,
    ) -> Path:
        folder = tmp_path / f"{name}-{version}"
        (folder / "agents" / "word").mkdir(parents=True, exist_ok=True)
        form = "" if data == 1 else f"data = {data}\n"
        text = form + DEFINITION.format(version=version).replace('"words"', f'"{name}"') + more
        (folder / "team.toml").write_text(text)
        (folder / "agents" / "word" / "agent.py").write_text(code)
        (folder / LOCK_FILE).unlink(missing_ok=True)
        files = {file.path: file.row.sha256 for file in read_source(folder).files}
        agents = {"agents/word/agent.py": {"name": agent or f"{name}-agent"}}
        lock = TeamLock.model_validate(
            {"schema": 1, "files": files, "agents": agents, "imports": imports or {}}
        )
        write_lock(folder, render_lock(lock))
        return folder

    return write


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state")
    state.prepare()
    return state


@pytest.fixture
async def teams(state: State, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TeamCommands]:
    monkeypatch.delenv("RETINUE_HUB", raising=False)
    async with open_teams(Settings(), state) as commands:
        yield commands


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    """A registry elsewhere."""
    return LayoutRegistry(tmp_path / "elsewhere")
