"""``foreach`` and ``switch``: many times the same, and one way of several."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.errors import StepFailedError
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

FOREACH = """
name: w
steps:
  - {id: seed, skill: tell, with: {base: 10}}
  - id: each
    foreach: {in: "${{ input.items }}", concurrency: 2}
    steps:
      - {id: a, skill: work, with: {n: "${{ loop.item + steps.seed.output.base }}", at: "${{ loop.index }}"}}
      - {id: b, skill: tell, with: {a: "${{ steps.a.output }}"}}
"""


@requirement("P-31")
async def test_each_item_runs_the_nested_steps_and_the_outputs_keep_the_order_of_the_items(
    bench: Bench,
) -> None:
    bench.offer("tell", lambda given: given)

    async def work(given: Any) -> Any:
        for _ in range(10 - given["n"] % 10):  # the first items take longest
            await asyncio.sleep(0)
        return given["n"] * given["at"]

    bench.offer("work", work)
    record = await bench.run(FOREACH, {"items": [1, 2, 3]}, run_id="r")
    assert record.get() == [{"a": 11}, {"a": 24}, {"a": 39}]
    children = [r.id for r in await bench.runs.list_all(children=True) if r.parent_id == "r"]
    assert sorted(children) == ["r/each#1", "r/each#2", "r/each#3"]


async def test_no_more_items_run_at_once_than_the_cap_says(bench: Bench) -> None:
    running, most = 0, 0

    async def work(given: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 1

    bench.offer("tell", lambda given: given)
    bench.offer("work", work)
    record = await bench.run(FOREACH, {"items": list(range(9))})
    assert len(record.get()) == 9
    assert most == 2


async def test_no_items_give_no_outputs(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    assert (await bench.run(FOREACH, {"items": []})).get() == []


@pytest.mark.parametrize(("items", "problem"), [(3, "gives no list"), (list(range(1001)), "1,001 items")])
async def test_what_is_no_list_or_too_long_fails_the_step(bench: Bench, items: Any, problem: str) -> None:
    bench.offer("tell", lambda given: given)
    with pytest.raises(StepFailedError, match=f"step each failed: .*{problem}"):
        (await bench.run(FOREACH, {"items": items})).get()


async def test_after_a_failed_item_none_begins_and_those_at_work_end(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    bench.offer("work", failing(ValueError("item one"), then=1))
    record = await bench.run(FOREACH, {"items": [1, 2, 3, 4, 5, 6]})
    with pytest.raises(StepFailedError, match=r"step each#1/a .*item one"):
        record.get()
    assert bench.called.count("work") <= 3


async def test_a_failed_item_can_be_passed_over_inside(bench: Bench) -> None:
    bench.offer("work", failing(ValueError("x"), then={"fine": True}))
    record = await bench.run(
        """
        name: w
        steps:
          - id: each
            foreach: {in: [1, 2, 3], concurrency: 1}
            steps: [{id: a, skill: work, on_error: continue, with: {n: "${{ loop.item }}"}}]
        """
    )
    assert record.get() == [None, {"fine": True}, {"fine": True}]


async def test_a_loop_in_a_foreach_still_knows_the_item(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - id: each
            foreach: "${{ input.items }}"
            steps:
              - id: l
                loop: {max: 2}
                steps: [{id: a, skill: tell, with: {v: "${{ loop.item }}${{ loop.index }}"}}]
        """,
        {"items": ["x", "y"]},
    )
    assert record.get() == [{"v": "x2"}, {"v": "y2"}]


SWITCH = """
name: w
steps:
  - id: route
    switch: input.kind
    branches:
      bug: [{id: fix, skill: tell, with: {did: fix}}]
      "3": [{id: three, skill: tell, with: {did: three}}]
      "true": [{id: yes, skill: tell, with: {did: yes}}]
      default: [{id: other, skill: tell, with: {did: other}}, {id: more, skill: tell, with: {did: more}}]
"""


@pytest.mark.parametrize(
    ("kind", "did", "paths"),
    [
        ("bug", "fix", ["route.fix"]),
        (3, "three", ["route.three"]),
        (True, "yes", ["route.yes"]),
        ("else", "more", ["route.other", "route.more"]),
    ],
)
async def test_a_switch_runs_the_branch_that_is_called_as_the_value_is(
    bench: Bench, kind: Any, did: str, paths: list[str]
) -> None:
    bench.offer("tell", lambda given: given)
    record = await bench.run(SWITCH, {"kind": kind})
    assert record.get() == {"did": did}
    events = await bench.events(record.id)
    started = [e.step for e in events if e.kind == "step_started" and e.facts["kind"] == "call"]
    assert started == paths
    assert next(e.facts["branch"] for e in events if e.facts.get("kind") == "switch") in (
        str(kind),
        "true",
        "default",
    )


async def test_a_switch_without_a_branch_for_the_value_does_nothing(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    switch = "{id: s, switch: input.k, branches: {a: [{id: x, skill: tell}]}}"
    record = await bench.run(
        f"name: w\nsteps: [{switch}, {{id: y, skill: tell, with: {{n: 1}}}}]", {"k": "b"}
    )
    assert record.get() == {"n": 1}
