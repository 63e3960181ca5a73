"""The hub killed, or frozen and killed, at each stage of an upgrade: the next hub goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.crash.team_stages import BEFORE_THE_HUB, STAGES, WEIGHTS, Stages, opened_stages

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def stages(tmp_path: Path) -> AsyncIterator[Stages]:
    async with opened_stages(tmp_path) as stages:
        yield stages


@pytest.mark.parametrize(
    "killed_at",
    [
        ("start",),
        BEFORE_THE_HUB,
        WEIGHTS,
        *(pytest.param((stage,), marks=pytest.mark.crash) for stage in ("answers", "check", "drain")),
    ],
    ids=["start", "before the hub", "weights", "answers", "check", "drain"],
)
async def test_a_hub_that_is_killed_at_a_stage_goes_on_when_it_is_there_again(
    stages: Stages, killed_at: Sequence[str]
) -> None:
    for stage in killed_at:
        version, digest, up = await stages.begin_at(stage)
        await stages.restart_hub()
        stages.open(stage, version)
        assert await asyncio.to_thread(up.wait) == 0, up.output
        if stage == "drain":
            assert await stages.read_run() == [stages.serving] * 3
        await stages.check_end(version, digest)


@pytest.mark.crash
async def test_one_upgrade_survives_hubs_that_are_frozen_and_killed_at_all_its_stages(stages: Stages) -> None:
    version, digest = await asyncio.to_thread(stages.pack_next, is_locked=True)
    for stage in STAGES:
        stages.close(stage, version)
    await stages.hold_run()
    up = stages.begin(digest)
    for stage in STAGES:
        await stages.wait_for(stage, digest)
        await stages.freeze_hub()
        await stages.restart_hub()
        if stage != "start":  # in the next stage one program still waits
            stages.open(stage, version)
    assert await asyncio.to_thread(up.wait) == 0, up.output
    assert await stages.read_run() == [stages.serving] * 3
    await stages.check_end(version, digest)


@pytest.mark.crash
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
async def test_a_hub_that_is_killed_while_it_goes_back_has_gone_back_when_it_is_there_again(
    stages: Stages, frozen: bool
) -> None:
    version, digest, up, kept = await stages.begin_failing()
    if frozen:
        await stages.freeze_hub()
    await stages.restart_hub()
    stages.open("kept", version)
    await kept
    assert await asyncio.to_thread(up.wait) == 1
    assert "a program of it ended at 100 %" in up.output
    before = stages.serving
    await stages.wait_for_version(before)
    assert stages.read_row()["failed"]["digest"] == digest
    await stages.try_again(version, digest)
