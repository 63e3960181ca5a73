"""``up`` killed, or frozen and killed, at each stage of an upgrade: the same ``up`` again ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.crash.team_stages import BEFORE_THE_HUB, STAGES, WEIGHTS, Stages, opened_stages
from tests.processes.freezing import freeze
from tests.processes.running import Program

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def stages(tmp_path: Path) -> AsyncIterator[Stages]:
    async with opened_stages(tmp_path) as stages:
        yield stages


def kill(up: Program, *, frozen: bool) -> None:
    """Kill a command that has not ended."""
    if frozen:
        freeze(up.process.pid)
    assert up.end(signal.SIGKILL) == -signal.SIGKILL, up.output


@pytest.mark.parametrize(
    "killed_at",
    [("unpack",), ("fetch", "environment"), ("start", "answers", "check", "drain"), WEIGHTS],
    ids=["unpack", "before the hub", "around the weights", "weights"],
)
async def test_after_up_is_killed_at_a_stage_the_same_up_succeeds(
    stages: Stages, killed_at: Sequence[str]
) -> None:
    for stage in killed_at:
        before = stages.read_row()
        version, digest, up = await stages.begin_at(stage)
        await asyncio.to_thread(kill, up, frozen=False)
        if stage in BEFORE_THE_HUB:
            # the hub puts back what the command has noted
            await stages.wait_for_row(before)
        stages.open(stage, version)
        up = stages.begin(digest)
        assert await asyncio.to_thread(up.wait) == 0, up.output
        if stage == "drain":
            assert await stages.read_run() == [stages.serving] * 3
        await stages.check_end(version, digest)


@pytest.mark.crash
async def test_one_upgrade_survives_commands_that_are_frozen_and_killed_at_all_its_stages(
    stages: Stages,
) -> None:
    version, digest = await asyncio.to_thread(stages.pack_next, is_locked=True)
    for stage in STAGES:
        stages.close(stage, version)
    await stages.hold_run()
    for stage in STAGES:
        up = stages.begin(digest)
        await stages.wait_for(stage, digest)
        await asyncio.to_thread(freeze, up.process.pid)
        if stage in BEFORE_THE_HUB:
            second = stages.begin(digest)
            assert await asyncio.to_thread(second.wait) != 0
            assert "another command changes the team pair" in second.output
        await asyncio.to_thread(kill, up, frozen=False)
        if stage != "start":  # in the next stage one program still waits
            stages.open(stage, version)
    up = stages.begin(digest)
    assert await asyncio.to_thread(up.wait) == 0, up.output
    assert await stages.read_run() == [stages.serving] * 3
    await stages.check_end(version, digest)


@pytest.mark.crash
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
async def test_the_hub_goes_back_without_up_and_the_same_up_tries_again(stages: Stages, frozen: bool) -> None:
    version, digest, up, kept = await stages.begin_failing()
    await asyncio.to_thread(kill, up, frozen=frozen)
    stages.open("kept", version)
    assert (await kept).get("result") == version
    await stages.wait_for_version(stages.serving)
    row = stages.read_row()
    assert row["failed"]["digest"] == digest
    assert "a program of it ended at 100 %" in row["failed"]["reason"]
    await stages.try_again(version, digest)
