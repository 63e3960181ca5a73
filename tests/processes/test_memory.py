"""Resident memory of the programs of a small mesh."""

from __future__ import annotations

import re
from pathlib import Path

from tests.processes.running import execute, program, write_agent

AGENT_MB, HUB_MB = 120, 172
"""What an agent with one trivial skill and a hub once needed."""


def read_rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def test_an_agent_and_a_hub_need_less_memory_than_they_once_did(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        for _ in range(20):
            assert execute(url, "who")["result"] == "one"
        assert read_rss_mb(served.process.pid) < 0.85 * AGENT_MB
        assert read_rss_mb(hub.process.pid) < 0.85 * HUB_MB
