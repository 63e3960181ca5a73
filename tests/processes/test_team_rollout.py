"""A team changes its digest under load: no call fails, no chain mixes two digests, a killed hub goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.running import wait_until
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


async def test_a_hub_that_is_killed_in_the_middle_goes_on(upgrades: Upgrades) -> None:
    hub = upgrades.start_hub()
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


async def test_the_processes_of_a_hub_follow_one_weight(upgrades: Upgrades) -> None:
    upgrades.start_hub("--processes", "2")
    first, second = upgrades.pack("1.0.0"), upgrades.pack("1.1.0")
    assert await asyncio.to_thread(upgrades.begin_up(first).wait) == 0
    async with upgrades.loaded():
        up = upgrades.begin_up(second, "--steps", "50,100", "--hold", "1")
        assert await asyncio.to_thread(up.wait) == 0, up.output
        await upgrades.wait_for_version("1.1.0")
    assert (upgrades.failures, upgrades.list_mixed()) == ([], [])
