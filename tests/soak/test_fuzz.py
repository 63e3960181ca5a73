"""Twenty thousand requests made by chance: no inner error, no growth, and no stall of another client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes.fuzzing import attacked_processes, good_client, resident_bytes, wait_for_rest

REQUESTS = 20_000
WARM_REQUESTS = 10_000
"""What is loaded and cached at first use adds 80 MB to a hub."""
MAX_GROWTH_BYTES = 8 * 1024 * 1024
"""Twice what a hub grows by, 4 MB, of which 0.3 MB are objects of Python. SQLite's page caches fill up with
the tables, by 1.5 MB; each connection's has a limit of 2 MB. The rest is free memory in the arenas of glibc,
which threads have of their own. Of 20,000 requests the first half added 2.1 MB, the second 1.6 MB."""
MAX_NEW_DESCRIPTORS = 20
"""Each thread that reads the database keeps a connection of up to three files; a leak would be thousands."""
MAX_STALL_S = 0.25


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", ["hub", "agent"])
def test_twenty_thousand_requests_made_by_chance(tmp_path: Path, retinue_home: Path, which: str) -> None:
    with attacked_processes(tmp_path, retinue_home) as processes:
        one = processes[which]
        # both kinds of client, so that what either needs is loaded
        with good_client(one.url, one.pid):
            asyncio.run(one.fuzz.run(seed=0, count=WARM_REQUESTS))
        open_before, bytes_before = wait_for_rest(one.pid), resident_bytes(one.pid)
        with good_client(one.url, one.pid) as client:
            asyncio.run(one.fuzz.run(seed=1, count=REQUESTS))
        opened, growth = wait_for_rest(one.pid) - open_before, resident_bytes(one.pid) - bytes_before
        for request, answer in one.fuzz.failures:
            print(request[:1000], answer)
        print(
            f"{which}: statuses {dict(sorted(one.fuzz.statuses.items()))}; {opened} descriptors and "
            f"{growth / 1024:.0f} kB more; the other client made {client.calls} calls, the slowest took "
            f"{client.gross_s * 1000:.0f} ms; without waiting for a processor {client.own_s * 1000:.0f} ms"
        )
        assert one.fuzz.failures == []
        assert "Traceback" not in one.running.output
        assert opened <= MAX_NEW_DESCRIPTORS
        assert growth < MAX_GROWTH_BYTES
        assert client.worst_s < MAX_STALL_S
