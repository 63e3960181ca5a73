"""A short row of the fuzz of every endpoint; the long one is in ``tests/soak/test_fuzz.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.processes.fuzzing import Fuzz, good_client, wait_for_rest
from tests.processes.running import program

ECHO = """
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> str:
    \"\"\"Gives the text back.\"\"\"
    return text
"""
REQUESTS = 400
NEW_DESCRIPTORS = 8
"""Databases and connections that are opened at first use."""
STALL_S = 1.5
"""Loose, because other tests share the machine; the long row measures."""


@pytest.mark.timeout(120)
def test_requests_made_by_chance_bring_no_inner_error_and_leave_nothing_open(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "echo_agent.py").write_text(ECHO)
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", "echo_agent.py", cwd=tmp_path) as served,
    ):
        served.wait_for("published")
        token = State(retinue_home).local_token()
        for running, url in ((hub, hub.url_in("hub at")), (served, served.url_in("echo-agent"))):
            fuzz = Fuzz(url, token)
            asyncio.run(fuzz.run(seed=0, count=REQUESTS // 2))  # what is loaded at first use stays open
            pid = running.process.pid
            before = wait_for_rest(pid)
            with good_client(url) as client:
                asyncio.run(fuzz.run(seed=1, count=REQUESTS))
            assert fuzz.failures == []
            assert fuzz.statuses[200] > REQUESTS / 20
            assert client.calls > 0
            assert client.worst_s < STALL_S + client.noise_s
            assert wait_for_rest(pid) <= before + NEW_DESCRIPTORS
            assert "Traceback" not in running.output
