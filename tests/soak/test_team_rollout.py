"""2,000 calls and 20 runs during the upgrade of a team: a good one, and three that must go back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.ports import reserved_port
from tests.processes.running import Program, wait_until
from tests.processes.upgrades import Upgrades

CALLS = 2_000
RUNS = 20
HOLD_S = 5
CANARY = 0.25
"""The greatest share of the calls that a digest has which goes back."""

OLD_S, SLOW_S = 0.05, 0.17

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture
def upgrades(tmp_path: Path) -> Iterator[Upgrades]:
    with ExitStack() as stack, reserved_port() as port:
        made = Upgrades(tmp_path, stack, port)
        hub = made.start_hub()
        assert made.begin_up(made.pack("1.0.0", pause_s=OLD_S)).wait() == 0
        yield made
        assert "Traceback" not in hub.output


async def upgrade(upgrades: Upgrades, digest: str, death: Path | None = None) -> Program:
    """Upgrade under load; the command has ended, and so have all calls and runs."""
    async with upgrades.loaded(workers=12), aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        up = upgrades.begin_up(digest, "--hold", str(HOLD_S))

        async def start_runs() -> None:
            for _ in range(RUNS):
                group.create_task(upgrades.run_both(session))
                await asyncio.sleep(1.0)

        group.create_task(start_runs())
        if death is not None:
            await asyncio.to_thread(upgrades.wait_for_stage, "serve", 1)
            await asyncio.to_thread(death.touch)
        await asyncio.to_thread(wait_until, lambda: up.process.poll() is not None, "its end", limit_s=300)
        while len(upgrades.answers) + len(upgrades.failures) < CALLS:
            await asyncio.sleep(0.1)
    assert len(upgrades.runs) == RUNS
    return up


def check_back(upgrades: Upgrades, up: Program, digest: str, reason: str) -> None:
    assert up.wait() == 1, up.output
    assert reason in up.output
    row = upgrades.read_row()
    assert (row["version"], row["failed"]["digest"]) == ("1.0.0", digest)
    assert {answer[0] for answer in upgrades.answers[-50:]} == {"1.0.0"}
    assert len(upgrades.failures) <= CANARY * CALLS
    assert upgrades.count("1.1.0") <= CANARY * len(upgrades.answers)
    assert all(isinstance(run, list) for run in upgrades.runs), upgrades.runs


async def test_a_good_digest_fails_no_call_and_no_run_mixes_two_digests(upgrades: Upgrades) -> None:
    digest = upgrades.pack("1.1.0", pause_s=OLD_S)
    up = await upgrade(upgrades, digest)
    assert up.wait() == 0, up.output
    assert upgrades.read_row()["active"] == digest
    assert upgrades.failures == []
    assert upgrades.list_mixed() == []
    assert upgrades.count("1.1.0") > 0
    for version, first, second in upgrades.runs:
        assert second == [first, first] == [version, version]


async def test_a_digest_that_fails_its_check_gets_no_call(upgrades: Upgrades) -> None:
    digest = upgrades.pack("1.1.0", checked="1.1.1", pause_s=OLD_S)
    up = await upgrade(upgrades, digest)
    check_back(upgrades, up, digest, "check.calls[0] tell gives another result")
    assert (upgrades.count("1.1.0"), upgrades.failures) == (0, [])


async def test_a_slow_digest_goes_back(upgrades: Upgrades) -> None:
    digest = upgrades.pack("1.1.0", pause_s=SLOW_S)
    check_back(upgrades, await upgrade(upgrades, digest), digest, "p95 is")
    assert upgrades.failures == []


async def test_a_digest_whose_program_ends_at_25_per_cent_goes_back(
    upgrades: Upgrades, tmp_path: Path
) -> None:
    death = tmp_path / "death"
    digest = upgrades.pack("1.1.0", pause_s=OLD_S, death=str(death))
    check_back(upgrades, await upgrade(upgrades, digest, death), digest, "a program of it ended at 25 %")
