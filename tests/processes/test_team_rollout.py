"""A team changes its digest under load: no call fails, no chain mixes two digests, a killed hub goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.processes.running import WAIT_S, wait_until
from tests.processes.upgrades import Upgrades, serving_versions


@pytest.fixture
def upgrades(tmp_path: Path, port: int) -> Iterator[Upgrades]:
    with ExitStack() as stack:
        yield Upgrades(tmp_path, stack, port, api=stack.enter_context(serving_versions()))


async def test_a_good_digest_takes_over_and_one_whose_program_ends_loses_its_calls(
    upgrades: Upgrades,
) -> None:
    hub = upgrades.start_hub()
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    death = upgrades.folder / "death"
    third = upgrades.pack("1.2.0", death=str(death))
    assert await asyncio.to_thread(upgrades.begin_up(first).wait) == 0
    async with upgrades.loaded():
        up = upgrades.begin_up(second, "--steps", "50,100", "--hold", "1", key="second")
        assert await asyncio.to_thread(up.wait) == 0, up.output
        await upgrades.wait_for_version("1.1.0")
        assert await upgrades.read_key() == "second"
        up = upgrades.begin_up(second, key="third")
        assert await asyncio.to_thread(up.wait) == 0, up.output
        assert await upgrades.read_key() == "third"

        up = upgrades.begin_up(third, "--steps", "25,100", "--hold", "20")
        await asyncio.to_thread(upgrades.wait_for_stage, "serve", 0)
        await asyncio.to_thread(wait_until, lambda: upgrades.count("1.2.0") > 0, "a call of the new digest")
        await asyncio.to_thread(death.touch)
        assert await asyncio.to_thread(up.wait) == 1
        assert "a program of it ended at 25 %" in up.output
        await asyncio.to_thread(wait_until, lambda: not upgrades.read_row()["rollout"], "the end of it")
        await upgrades.wait_for_version("1.1.0")
    assert upgrades.failures == []
    # both agents and the import of a chain are of one digest
    assert {tuple(answer) for answer in upgrades.answers} == {
        (version,) * 3 for version in ("1.0.0", "1.1.0", "1.2.0")
    }
    row = upgrades.read_row()
    assert (row["active"], row["failed"]["digest"]) == (second, third)
    assert "Traceback" not in hub.output


async def test_runs_of_a_digest_that_drains_go_on_when_the_team_goes_back_to_it(upgrades: Upgrades) -> None:
    upgrades.start_hub()
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    assert await asyncio.to_thread(upgrades.begin_up(first, key="one").wait) == 0
    upgrades.gate.touch()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        group.create_task(upgrades.run_both(session, "held"))
        up = upgrades.begin_up(second, "--steps", "100", "--hold", "0", "--drain", "3600", key="one")
        assert await asyncio.to_thread(up.wait) == 0, up.output
        assert upgrades.read_row()["rollout"]["stage"] == "drain"
        async with upgrades.loaded(workers=2):
            back = upgrades.begin_back("--steps", "50,100", "--hold", "2", "--drain", "60", key="one")
            assert await asyncio.to_thread(back.wait) == 0, back.output
            await upgrades.wait_for_version("1.0.0")
        await asyncio.to_thread(wait_until, lambda: not upgrades.read_row()["rollout"], "the end of it")
        await asyncio.to_thread(upgrades.gate.unlink)
    assert "1.0.0: 50 %" in back.output
    ((before, during, after),) = upgrades.runs
    assert before == during, "the same process answers"
    assert (before[0], after) == ("1.0.0", ["1.0.0"] * 3)
    assert (upgrades.failures, upgrades.list_mixed()) == ([], [])
    row = upgrades.read_row()
    assert (row["active"], row["before"]) == (first, second)


async def test_a_hub_that_is_killed_in_the_middle_goes_on(upgrades: Upgrades) -> None:
    hub = upgrades.start_hub()
    upgrades.every = "1h"
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    assert await asyncio.to_thread(upgrades.begin_up(first).wait) == 0
    up = upgrades.begin_up(second, "--steps", "50,100", "--hold", "5")
    for stage, step in (("start", 0), ("serve", 0)):
        await asyncio.to_thread(upgrades.wait_for_stage, stage, step)
        hub.end(signal.SIGKILL)
        assert upgrades.read_row()["rollout"], "it goes on with the next hub"
        hub = upgrades.start_hub()
    async with upgrades.loaded():
        assert await asyncio.to_thread(up.wait) == 0, up.output
    assert "the hub has ended" in up.output
    row = upgrades.read_row()
    assert (row["active"], row["before"]) == (second, first)
    assert upgrades.list_mixed() == []
    assert (await upgrades.read_schedule())["status"] == "active"


async def test_a_schedule_fires_once_each_time_during_a_rollout_whose_command_is_killed(
    upgrades: Upgrades,
) -> None:
    upgrades.start_hub()
    upgrades.every = "1s"
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    assert await asyncio.to_thread(upgrades.begin_up(first).wait) == 0
    up = upgrades.begin_up(second, "--steps", "50,100", "--hold", "2")
    # lists show the workflow of the new digest, and the schedule was added with that of the old one
    await asyncio.to_thread(upgrades.wait_for_stage, "serve", 1)
    up.end(signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not upgrades.read_row()["rollout"], "the end of it")
    outputs: dict[str, Any] = {}
    async with asyncio.timeout(WAIT_S):
        while not any(output[0] == "1.1.0" for output in outputs.values()):
            outputs = await upgrades.list_outputs()
    done = {time: [*output[:2], *output[2]] for time, output in outputs.items() if output != "running"}
    assert {tuple(output) for output in done.values()} == {("1.0.0",) * 5, ("1.1.0",) * 5}
    times = [datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for time in sorted(outputs)]
    assert [(after - before).total_seconds() for before, after in pairwise(times)] == [1.0] * (len(times) - 1)
    assert (await upgrades.read_schedule())["status"] == "active"


async def test_the_processes_of_a_hub_follow_one_weight(upgrades: Upgrades) -> None:
    upgrades.start_hub("--processes", "2")
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    assert await asyncio.to_thread(upgrades.begin_up(first).wait) == 0
    async with upgrades.loaded():
        up = upgrades.begin_up(second, "--steps", "50,100", "--hold", "1")
        assert await asyncio.to_thread(up.wait) == 0, up.output
        await upgrades.wait_for_version("1.1.0")
    assert (upgrades.failures, upgrades.list_mixed()) == ([], [])
