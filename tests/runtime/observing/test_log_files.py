"""Files of the output of agents: no file grows beyond its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.runtime.observing.log_files import AgentLogs, time_to_check
from retinue.settings_tables import LogTable


async def test_no_file_of_an_agent_grows_beyond_the_limit_and_no_line_is_lost(tmp_path: Path) -> None:
    logs = AgentLogs(tmp_path / "logs", LogTable(file_bytes=2000, files=20))
    logs.name("child", "word-agent")
    for number in range(100):
        logs.take("child", f"line {number} {'x' * 50}")
    logs.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert len(files) > 5
    assert max(file.stat().st_size for file in files) <= 2000
    text = "".join(file.read_text() for file in files)
    assert all(f"line {number} " in text for number in range(100))


async def test_a_line_that_is_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    logs = AgentLogs(tmp_path / "logs", LogTable(file_bytes=1024, files=3))
    logs.name("child", "word-agent")
    for letter in "abc":
        logs.take("child", letter * 3000)
    logs.close()
    assert len(list((tmp_path / "logs").iterdir())) == 3
    assert "c" * 3000 in (tmp_path / "logs" / "word-agent.log").read_text()


@pytest.mark.parametrize(
    ("growth", "room", "wait_s"), [(0, 1000, 1.0), (100, 1000, 1.0), (1000, 1000, 0.5), (1e6, 1000, 0.05)]
)
def test_a_file_that_grows_fast_is_checked_often(growth: float, room: int, wait_s: float) -> None:
    assert time_to_check(growth, room) == wait_s
