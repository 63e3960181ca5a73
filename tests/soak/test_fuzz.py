"""Twenty thousand requests made by chance: no inner error, no growth, and no stall of another client."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.processes.fuzzing import Fuzz, good_client, resident_bytes, wait_for_rest
from tests.processes.running import program
from tests.processes.test_fuzz import ECHO

REQUESTS = 20_000
WARM_REQUESTS = 6_000
MAX_GROWTH_BYTES = 8 * 1024 * 1024
MAX_NEW_DESCRIPTORS = 20
"""Each thread that reads the database keeps a connection of up to three files; a leak would be thousands."""
MAX_STALL_S = 0.25
AT_REST_S = 5.0
"""Without an attack, other programs of the machine delay a client too; that is no fault of the server."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", ["hub", "agent"])
def test_twenty_thousand_requests_made_by_chance(tmp_path: Path, retinue_home: Path, which: str) -> None:
    (tmp_path / "echo_agent.py").write_text(ECHO)
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", "echo_agent.py", cwd=tmp_path) as served,
    ):
        served.wait_for("published")
        running, url = (
            (hub, hub.url_in("hub at")) if which == "hub" else (served, served.url_in("echo-agent"))
        )
        pid = running.process.pid
        fuzz = Fuzz(url, State(retinue_home).local_token())
        asyncio.run(fuzz.run(seed=0, count=WARM_REQUESTS))
        open_before, bytes_before = wait_for_rest(pid), resident_bytes(pid)
        with good_client(url) as at_rest:
            threading.Event().wait(AT_REST_S)
        with good_client(url) as client:
            asyncio.run(fuzz.run(seed=1, count=REQUESTS))
        opened, growth = wait_for_rest(pid) - open_before, resident_bytes(pid) - bytes_before
        noise_s = max(client.noise_s, at_rest.worst_s)
        print(
            f"{which}: statuses {dict(sorted(fuzz.statuses.items()))}; {opened} descriptors and "
            f"{growth / 1024:.0f} kB more; the other client made {client.calls} calls, "
            f"the slowest took {client.worst_s * 1000:.0f} ms "
            f"(at rest: {noise_s * 1000:.0f} ms)"
        )
        assert fuzz.failures == []
        assert "Traceback" not in running.output
        assert opened <= MAX_NEW_DESCRIPTORS
        assert growth < MAX_GROWTH_BYTES
        assert client.worst_s < MAX_STALL_S + noise_s
