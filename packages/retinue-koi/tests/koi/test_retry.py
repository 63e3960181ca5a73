"""``with_retry``: how often, with which pauses, and what is left when nothing helps."""

from __future__ import annotations

import pytest

from retinue_koi.outbox import with_retry
from tests.requirements import requirement


@requirement("K-34")
async def test_a_call_is_repeated_with_growing_pauses_until_it_works() -> None:
    pauses: list[float] = []
    attempts = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    @with_retry(sleep=sleep)
    async def send(word: str) -> str:
        attempts.append(word)
        if len(attempts) < 4:
            raise OSError("away")
        return word

    assert await send("hello") == "hello"
    assert len(attempts) == 4
    assert pauses == [1.0, 2.0, 4.0]


@requirement("K-34")
async def test_the_last_error_is_raised_and_others_are_not_retried() -> None:
    attempts = []

    async def sleep(pause_s: float) -> None:
        return None

    @with_retry(retries=2, exceptions=OSError, sleep=sleep)
    async def send(error: Exception) -> None:
        attempts.append(error)
        raise error

    with pytest.raises(OSError, match="away"):
        await send(OSError("away"))
    assert len(attempts) == 3
    with pytest.raises(ValueError, match="wrong"):
        await send(ValueError("wrong"))
    assert len(attempts) == 4
