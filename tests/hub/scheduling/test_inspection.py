"""What stands still is noticed without waiting for its next time, and counted for the metrics."""

from __future__ import annotations

from retinue.core.errors import RegistryUnreachableError
from retinue.hub.scheduling.inspection import Inspection
from retinue.web.security import LOCAL_TOKEN
from tests.hub.scheduling.bench import TOKEN, WORK, Node, ScheduleBench

ON = f"on: webhook\n{WORK}"


def inspect(node: Node) -> Inspection:
    return Inspection(node.open_schedules, node.open_triggers, node.firing)


async def add_both(node: Node) -> None:
    for name, given in (("timed", {"schedule": {"every": "1h"}}), ("hooked", {"on": "webhook"})):
        await node.all.add(LOCAL_TOKEN, "nightly", name, **given)


async def test_active_and_paused_ones_are_counted(bench: ScheduleBench) -> None:
    node = bench.node(ON)
    inspection = inspect(node)
    await add_both(node)
    await node.all.change(LOCAL_TOKEN, "timed", "pause")
    await inspection.look()
    assert inspection.counts == {"active": 1, "paused": 1, "ended": 0, "broken": 0}


async def test_a_changed_definition_is_noticed_before_the_next_time_and_its_return_too(
    bench: ScheduleBench,
) -> None:
    node, elsewhere = bench.node(ON), bench.node(ON, home="two")
    await add_both(node)
    inspection, other = inspect(node), inspect(elsewhere)
    node.texts["nightly"] += "description: other\n"
    await other.look()
    assert other.counts["active"] == 2, "another state folder does not judge"
    await inspection.look()
    await other.look()
    assert inspection.counts == other.counts == {"active": 0, "paused": 0, "ended": 0, "broken": 2}
    assert all("was changed" in row["reason"] for row in await elsewhere.all.list_all(LOCAL_TOKEN))
    node.texts["nightly"] = ON
    await inspection.look()
    assert inspection.counts["active"] == 2


async def test_a_token_that_ended_pauses_all_that_acts_for_it(bench: ScheduleBench) -> None:
    node = bench.node(ON)
    await node.all.add(TOKEN, "nightly", "timed", schedule={"every": "1h"})
    await node.all.add(TOKEN, "nightly", "hooked", on="webhook")
    bench.ended[TOKEN.id] = "the token token:ci was revoked"
    inspection = inspect(node)
    await inspection.look()
    assert inspection.counts == {"active": 0, "paused": 0, "ended": 2, "broken": 0}
    rows = await node.all.list_all(LOCAL_TOKEN)
    assert {(row["status"], row["reason"]) for row in rows} == {("paused", "the token token:ci was revoked")}


async def test_a_registry_that_is_away_breaks_nothing(bench: ScheduleBench) -> None:
    node = bench.node(ON)
    await add_both(node)

    async def lose(*_: object) -> None:
        raise RegistryUnreachableError("http://registry.test", "connection refused")

    node.starter.library.get = lose  # type: ignore[method-assign,assignment]
    inspection = inspect(node)
    await inspection.look()
    assert inspection.counts["active"] == 2
