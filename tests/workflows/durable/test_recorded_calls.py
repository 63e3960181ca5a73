"""The recorded calls of a run that is taken up are read in pages, and each is given once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from retinue.workflows.durable.recorded_calls import PAGE_CALLS, EngineCall, RecordedCalls


class Journal:
    """A journal of ``count`` calls, without the numbers in ``gaps``; ``reads`` are the numbers asked for."""

    def __init__(self, count: int, gaps: Sequence[int] = ()) -> None:
        self._calls = [
            EngineCall(number, f"step-{number}", None, number)
            for number in range(1, count + 1)
            if number not in gaps
        ]
        self.reads: list[int] = []

    async def read(self, after: int, limit: int) -> list[EngineCall]:
        self.reads.append(after)
        await asyncio.sleep(0)
        return [call for call in self._calls if call.number > after][:limit]


@pytest.mark.parametrize("count", [0, 1, PAGE_CALLS - 1, PAGE_CALLS, PAGE_CALLS + 1, 3 * PAGE_CALLS])
async def test_each_call_is_given_once_and_the_end_is_known(count: int) -> None:
    journal = Journal(count)
    recorded = RecordedCalls(journal.read)
    for number in range(1, count + 1):
        assert await recorded.has_more()
        call = await recorded.take(number)
        assert call is not None
        assert (call.number, call.output) == (number, number)
    assert not await recorded.has_more()
    assert await recorded.take(count + 1) is None
    assert len(journal.reads) == count // PAGE_CALLS + 1


async def test_calls_that_are_taken_together_share_the_reads_and_may_have_gaps() -> None:
    """Of calls that ran together some were not recorded when their node died."""
    journal = Journal(2 * PAGE_CALLS, gaps=(2, PAGE_CALLS + 5))
    recorded = RecordedCalls(journal.read)
    numbers = range(1, 2 * PAGE_CALLS + 3)
    calls = await asyncio.gather(*(recorded.take(number) for number in numbers))
    missing = [number for number, call in zip(numbers, calls, strict=True) if call is None]
    assert missing == [2, PAGE_CALLS + 5, 2 * PAGE_CALLS + 1, 2 * PAGE_CALLS + 2]
    assert len(journal.reads) == 2


async def test_records_of_changes_are_listed_up_to_the_next_other_call() -> None:
    names = {1: "step", 2: "patched a", 3: "patched b", 5: "other"}
    calls = [EngineCall(number, name, None, True) for number, name in names.items()]

    async def read(after: int, limit: int) -> list[EngineCall]:
        return [call for call in calls if call.number > after][:limit]

    recorded = RecordedCalls(read)
    assert await recorded.list_patches(1) == []
    assert await recorded.list_patches(2) == ["patched a", "patched b"]
    assert await recorded.has_more(4), "a call of a group may have no record"
    assert not await recorded.has_more(6)
