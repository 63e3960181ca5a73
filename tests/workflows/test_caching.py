"""Results that are kept: of a step, of a whole run, and no longer than they are good."""

from __future__ import annotations

import pytest

from retinue.workflows.caller import Kept, MemoryCache, cache_key
from retinue.workflows.runs.records import RunRecord
from retinue.workflows.runs.tree import draw_tree
from tests.workflows.running import Bench

STEP = "name: w\nsteps: [{id: a, skill: tell, cache: CACHE, with: {n: '${{ input.n }}'}}]"


async def tell(bench: Bench, text: str, n: int = 1, **more: str) -> RunRecord:
    return await bench.run(text, {"n": n}, **more)


@pytest.mark.parametrize("rule", ["true", "{ttl: 5m}"])
async def test_an_equal_call_of_the_step_is_not_made_again(bench: Bench, rule: str) -> None:
    bench.offer("tell", lambda given: {"n": given["n"], "calls": len(bench.called)})
    text = STEP.replace("CACHE", rule)
    assert (await tell(bench, text)).get() == {"n": 1, "calls": 1}
    record = await tell(bench, text)
    assert record.get() == {"n": 1, "calls": 1}
    tree = draw_tree(await bench.events(record.id), await bench.runs.list_steps(record.id), ended="done")
    assert tree[0]["cached"] is True
    assert (await tell(bench, text, 2)).get() == {"n": 2, "calls": 2}
    assert (await tell(bench, text.replace("name: w", "name: other"))).get() == {"n": 1, "calls": 3}


@pytest.mark.parametrize(
    ("settings", "rule", "calls"),
    [("step", "null", 1), ("step", "false", 2), ("none", "true", 1), ("none", "null", 2)],
)
async def test_the_settings_say_it_for_all_steps(bench: Bench, settings: str, rule: str, calls: int) -> None:
    bench.offer("tell", lambda given: given)
    text = STEP.replace("CACHE", rule).replace("name: w", f"name: w\nsettings: {{cache: {settings}}}")
    await tell(bench, text)
    await tell(bench, text)
    assert len(bench.called) == calls


async def test_a_whole_run_can_be_kept(bench: Bench) -> None:
    bench.offer("tell", lambda given: {"calls": len(bench.called)})
    text = STEP.replace("CACHE", "false").replace("name: w", "name: w\nsettings: {cache: workflow}")
    for n, calls in ((1, 1), (1, 1), (2, 2), (1, 1)):
        assert (await tell(bench, text, n)).get() == {"calls": calls}


async def test_failures_are_not_kept(bench: Bench) -> None:
    answers = ["", "said"]
    bench.offer("tell", lambda given: answers.pop(0))
    text = STEP.replace("CACHE", "true")
    assert (await tell(bench, text)).status == "failed"
    assert (await tell(bench, text)).get() == "said"


async def test_a_kept_result_ends_with_its_time_and_the_oldest_goes_first() -> None:
    now = 0.0
    cache = MemoryCache(clock=lambda: now, kept=2)
    await cache.put("a", {"v": 1}, 10)
    assert await cache.find("a") == Kept({"v": 1})
    now = 10.0
    assert await cache.find("a") is None
    for key in ("b", "c", "d"):
        await cache.put(key, key, 10)
    assert [await cache.find(key) for key in "bcd"] == [None, Kept("c"), Kept("d")]


async def test_nobody_can_change_what_is_kept() -> None:
    cache, value = MemoryCache(), {"list": [1]}
    await cache.put("a", value, 10)
    value["list"].append(2)
    found = await cache.find("a")
    assert found == Kept({"list": [1]})
    found.value["list"].append(3)
    assert await cache.find("a") == Kept({"list": [1]})


def test_a_key_does_not_depend_on_the_order_of_an_objects_keys() -> None:
    assert cache_key({"a": 1, "b": 2}, "x") == cache_key({"b": 2, "a": 1}, "x")
    assert cache_key("a", "bc") != cache_key("ab", "c")
