"""Adding, listing and changing schedules, with the rights of callers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import ANONYMOUS, Principal
from retinue.core.errors import (
    InvalidParametersError,
    InvalidRequestError,
    NotAllowedError,
    RetinueError,
    UnknownScheduleError,
    UnknownWorkflowError,
)
from retinue.web.security import LOCAL_TOKEN
from tests.hub.scheduling.bench import TOKEN, WAITS, WORK, ScheduleBench

HOUR = 3_600.0

OWN = f"""schedule: {{cron: "0 3 * * *", timezone: Europe/Berlin, input: {{day: 1}}, missed: skip}}
input: {{type: object, properties: {{day: {{type: integer}}}}, required: [day]}}
{WORK}"""


async def test_the_schedule_of_a_workflow_is_taken_and_its_keys_can_be_replaced(bench: ScheduleBench) -> None:
    node = bench.node(OWN)
    row = await node.add()
    assert (row["cron"], row["timezone"], row["missed"], row["input"]) == (
        "0 3 * * *",
        "Europe/Berlin",
        "skip",
        {"day": 1},
    )
    row = await node.add(every="15m", missed="all")
    assert (row["every"], row["missed"], row["input"]) == ("15m", "all", {"day": 1})
    assert "cron" not in row
    assert len(await node.book.list_all(LOCAL_TOKEN)) == 1, "the second one replaces the first"


async def test_a_schedule_gets_the_name_of_its_workflow_or_another(bench: ScheduleBench) -> None:
    node = bench.node()
    node.texts["do it, please"] = WORK
    assert (await node.book.add(LOCAL_TOKEN, "do it, please", None, "0 3 * * *"))[
        "schedule"
    ] == "do-it-please"
    assert (await node.book.add(LOCAL_TOKEN, "nightly", "mine", {"every": "1h"}))["schedule"] == "mine"


@pytest.mark.parametrize(
    ("text", "name", "given", "problem"),
    [
        (WORK, None, None, "workflow nightly has no schedule"),
        (WORK, None, "0 3 * *", "schedule.*has 4 fields"),
        (WORK, None, {"cron": "0 3 * * *", "timezone": "Mars"}, "schedule.*is no time zone"),
        (WORK, None, {"every": "1h", "missed": "never"}, "schedule.missed"),
        (WORK, None, {"at": "noon"}, "schedule.at"),
        (WORK, "no name!", "0 3 * * *", "'name' is no name of a schedule"),
        (OWN, None, {"input": {"day": "x"}}, "schedule.input: .*day"),
        (OWN, None, {"input": None}, "schedule.input: .*day"),
    ],
)
async def test_a_wrong_schedule_is_refused_with_the_field(
    bench: ScheduleBench, text: str, name: str | None, given: Any, problem: str
) -> None:
    node = bench.node(text)
    with pytest.raises((InvalidParametersError, InvalidRequestError), match=problem):
        await node.book.add(LOCAL_TOKEN, "nightly", name, given)
    assert await node.book.list_all(LOCAL_TOKEN) == []


async def test_only_stored_workflows_can_be_scheduled(bench: ScheduleBench) -> None:
    with pytest.raises(UnknownWorkflowError):
        await bench.node().book.add(LOCAL_TOKEN, "unknown", None, "0 3 * * *")


@pytest.mark.parametrize(
    "principal",
    [
        ANONYMOUS,
        Principal("jwt:ann", "token", frozenset({"mesh"})),
        Principal("agent-a", "mesh", frozenset({"mesh", "exposed"})),
        replace(TOKEN, agents=("a-*",)),
    ],
    ids=lambda principal: principal.id,
)
async def test_who_has_no_lasting_rights_adds_no_schedule(bench: ScheduleBench, principal: Principal) -> None:
    with pytest.raises(NotAllowedError):
        await bench.node().add(principal, every="1h")


async def test_a_paused_schedule_fires_nothing_and_goes_on_with_its_next_time(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h", missed="all")
    row = await node.book.change(LOCAL_TOKEN, "nightly", "pause")
    assert (row["status"], row["reason"]) == ("paused", "paused by local")
    bench.now += 3 * HOUR
    await node.look()
    row = await node.book.change(LOCAL_TOKEN, "nightly", "resume")
    assert row["status"] == "active"
    await node.look()
    assert await bench.list_runs() == []
    bench.now += HOUR
    await node.look()
    assert await bench.list_runs() == ["nightly:20261201T040000Z"]


async def test_a_removed_schedule_is_gone_and_its_runs_stay(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h")
    bench.now += HOUR
    await node.look()
    assert (await node.book.change(LOCAL_TOKEN, "nightly", "remove"))["status"] == "removed"
    assert await node.book.list_all(LOCAL_TOKEN) == []
    with pytest.raises(UnknownScheduleError):
        await node.book.change(LOCAL_TOKEN, "nightly", "resume")
    bench.now += HOUR
    await node.look()
    assert len(await bench.list_runs()) == 1


async def test_run_now_starts_a_run_and_leaves_the_next_time(bench: ScheduleBench) -> None:
    node = bench.node(WAITS)
    before = await node.add(every="1h")
    row = await node.book.change(LOCAL_TOKEN, "nightly", "run_now")
    assert row["run"].startswith("nightly:now-")
    assert (row["next"], row["last"]["status"]) == (before["next"], "running")
    bench.now += HOUR
    await node.look()
    assert (await node.show())["last"]["status"] == "skipped", "it is the run before"


async def test_a_schedule_beyond_the_rights_of_a_caller_does_not_exist_for_it(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h")
    assert await node.book.list_all(TOKEN) == []
    with pytest.raises(UnknownScheduleError):
        await node.book.change(TOKEN, "nightly", "remove")
    row = await node.add(TOKEN, every="2h")
    assert row["schedule"] == "nightly"
    assert [one["every"] for one in await node.book.list_all(TOKEN)] == ["2h"]
    names = [(one["schedule"], one["owner"]) for one in await node.book.list_all(LOCAL_TOKEN)]
    assert names == [("nightly", "local"), ("nightly~mesh", "token:ci")]
    assert (await node.book.change(LOCAL_TOKEN, "nightly~mesh", "pause"))["status"] == "paused"
    assert (await node.show(TOKEN))["status"] == "paused"


async def test_a_schedule_whose_owner_lost_the_rights_is_neither_resumed_nor_run(
    bench: ScheduleBench,
) -> None:
    node = bench.node()
    await node.add(TOKEN, every="1h")
    bench.ended["token:ci"] = "the token token:ci was revoked"
    assert (await node.show(TOKEN))["reason"] == "the token token:ci was revoked"
    await node.book.change(TOKEN, "nightly", "pause")
    for change in ("resume", "run_now"):
        with pytest.raises(NotAllowedError, match=r"token:ci: the token token:ci was revoked"):
            await node.book.change(TOKEN, "nightly", change)


async def test_a_broken_schedule_is_added_again_after_somebody_has_read_the_workflow(
    bench: ScheduleBench,
) -> None:
    node = bench.node()
    await node.add(every="1h")
    node.texts["nightly"] = WORK.replace("n: 1", "n: 2")
    for change in ("resume", "run_now"):
        with pytest.raises(RetinueError, match="was changed since the schedule was added") as caught:
            await node.book.change(LOCAL_TOKEN, "nightly", change)
        assert "retinue schedules add nightly" in caught.value.remedy
    assert (await node.add(every="1h"))["status"] == "active"


async def test_the_remedy_of_a_broken_or_ended_schedule_replaces_it(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.book.add(LOCAL_TOKEN, "nightly", "often", {"every": "1h"})
    node.texts["nightly"] = WORK.replace("n: 1", "n: 2")
    assert (await node.show())["reason"].endswith("retinue schedules add nightly --name often")
    bench.ended[LOCAL_TOKEN.id] = "the rights have ended"
    with pytest.raises(NotAllowedError) as caught:
        await node.book.change(LOCAL_TOKEN, "often", "resume")
    assert caught.value.remedy.endswith("retinue schedules add nightly --name often")


async def test_a_change_of_a_nested_workflow_breaks_the_schedule_too(bench: ScheduleBench) -> None:
    node = bench.node("name: nightly\nsteps:\n- {id: a, workflow: inner, with: {}}\n")
    node.texts["inner"] = WORK
    await node.add(every="1h")
    assert (await node.show())["status"] == "active"
    node.texts["inner"] = WORK.replace("n: 1", "n: 2")
    assert (await node.show())["status"] == "broken"
