"""The one retry policy of model calls; the retries of the vendors' libraries are off.

An attempt is repeated after a rate limit, a server error or a lost connection: after the time that the
provider named, else after 1, 2, 4 … seconds. A wait that would outlast the caller's deadline is not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from retinue.core.errors import BusyError, ModelError
from retinue.llm.completion import Completion, Model, OnText, Prompt

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0

_log = structlog.get_logger("retinue.llm")


async def complete_with_retries(
    model: Model,
    prompt: Prompt,
    on_text: OnText,
    *,
    retries: int,
    deadline: float | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Completion:
    """The answer of ``model``, after at most ``retries`` further attempts.

    ``deadline`` is a time of the event loop. Raises the error of the last attempt.
    """
    wait_s = FIRST_WAIT_S
    for left in range(retries, -1, -1):
        try:
            return await model.complete(prompt, on_text)
        except (BusyError, ModelError) as error:
            if not left or (pause_s := _find_pause(error, wait_s)) is None:
                raise
            now = asyncio.get_running_loop().time()
            if deadline is not None and now + pause_s >= deadline:
                raise
            _log.info("model call repeated", error=error.type, after_s=round(pause_s, 3), left=left)
            await sleep(pause_s)
            wait_s *= 2
    raise AssertionError("the last attempt returns or raises")


def _find_pause(error: BusyError | ModelError, wait_s: float) -> float | None:
    """The seconds to wait before the next attempt; None for an error that repeating does not mend."""
    if isinstance(error, ModelError) and error.reason != "unavailable":
        return None
    asked_s = error.retry_after_s
    pause_s = asked_s or wait_s
    return pause_s if pause_s <= LONGEST_WAIT_S else None
