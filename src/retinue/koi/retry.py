"""Retries with growing pauses, for messages that are sent once and must arrive (K-34)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog

_log = structlog.get_logger("retinue.koi")

P = ParamSpec("P")
R = TypeVar("R")

MAX_PAUSE_S = 60.0


def with_retry(
    retries: int = 3,
    delay: float = 1.0,
    backoff: float = 2.0,
    exceptions: type[Exception] | tuple[type[Exception], ...] = Exception,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate an async function to be called again when it raises one of ``exceptions``.

    ``retries`` are attempts after the first. The pauses are ``delay`` seconds, then ``backoff`` times as long
    each, at most a minute. The last error is raised.
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            pause_s = delay
            for attempt in range(1, retries + 1):
                try:
                    return await function(*args, **kwargs)
                except exceptions as error:
                    _log.warning("retried", attempt=attempt, of=retries, in_s=pause_s, reason=str(error))
                await sleep(pause_s)
                pause_s = min(pause_s * backoff, MAX_PAUSE_S)
            return await function(*args, **kwargs)

        return retried

    return decorate
