"""Long work of the event loop lets others run between its slices."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from retinue.mesh.slices import run_in_slices, sort_in_slices


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=50))
def test_items_are_sorted_as_by_sorted(items: list[tuple[str, int]]) -> None:
    assert asyncio.run(sort_in_slices(items, lambda item: item[0])) == sorted(items, key=lambda item: item[0])


async def test_others_run_while_many_items_are_sorted() -> None:
    items = [str(number * 7919 % 100_003) for number in range(100_003)]
    sorting = asyncio.create_task(sort_in_slices(items, lambda item: item))
    turns = 0
    while not sorting.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert await sorting == sorted(items)


async def test_all_steps_are_taken() -> None:
    taken: list[int] = []
    await run_in_slices(map(taken.append, range(1_000)))
    assert taken == list(range(1_000))
