"""Keeps outcomes by idempotency key, so that a repeated request gets the first outcome.

A caller whose node died sends its request again with the same key. A call that has ended is not run twice;
one that is still running is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.call import Answer, Call
from retinue.core.errors import ExecutionFailedError, KeyConflictError, RetinueError

KEPT_S = 3600.0
KEPT_COUNT = 10_000
KEPT_BYTES = 64 * 1024 * 1024

Run = Callable[[], Awaitable[Answer]]


@dataclass(slots=True)
class _Entry:
    arguments: bytes
    outcome: asyncio.Future[Answer]
    size_bytes: int = 0
    done_at: float | None = None


class OutcomeCache:
    """Runs a call with an idempotency key once, and gives its outcome to repetitions.

    Bounded in time, number and bytes; the oldest outcomes go first. It keeps answers and failures of skills
    that ran to their end. A call that was cancelled, rejected or timed out is run again.
    """

    def __init__(
        self,
        *,
        kept_s: float = KEPT_S,
        count: int = KEPT_COUNT,
        size_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept_s = kept_s
        self._count = count
        self._limit_bytes = size_bytes
        self._clock = clock
        self._used_bytes = 0
        self._entries: OrderedDict[tuple[str, str, str, str], _Entry] = OrderedDict()

    async def run_once(self, agent: str, call: Call, run: Run) -> Answer:
        """The answer, or the first one where the key was used before; raises what ``run`` raised.

        Raises KeyConflictError where the key was used with other arguments.
        """
        if call.idempotency_key is None:
            return await run()
        key = (call.principal.id, agent, call.skill, call.idempotency_key)
        arguments = _encode(call.arguments)
        while True:
            self._drop_old()
            known = self._entries.get(key)
            if known is None:
                return await self._run_first(key, arguments, run)
            if known.arguments != arguments:
                raise KeyConflictError(call.idempotency_key)
            try:
                return await asyncio.shield(known.outcome)
            except asyncio.CancelledError:
                if not known.outcome.cancelled():
                    raise
                # The first call was cancelled before it ended, so this one runs.

    async def _run_first(self, key: tuple[str, str, str, str], arguments: bytes, run: Run) -> Answer:
        entry = self._entries[key] = _Entry(arguments, asyncio.get_running_loop().create_future())
        try:
            answer = await run()
        except RetinueError as error:
            if isinstance(error, ExecutionFailedError):
                entry.outcome.set_exception(error)
                entry.outcome.exception()  # marks it as retrieved; perhaps no repetition ever reads it
                self._keep(key, entry, len(error.message))
            else:
                self._forget(key, entry)
            raise
        except BaseException:
            self._forget(key, entry)
            raise
        entry.outcome.set_result(answer)
        self._keep(key, entry, len(_encode([answer.value, [part.value for part in answer.parts]])))
        return answer

    def _keep(self, key: tuple[str, str, str, str], entry: _Entry, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            del self._entries[key]
            return
        entry.size_bytes = size_bytes + len(entry.arguments)
        entry.done_at = self._clock()
        self._used_bytes += entry.size_bytes
        self._entries.move_to_end(key)
        self._drop_old()

    def _forget(self, key: tuple[str, str, str, str], entry: _Entry) -> None:
        del self._entries[key]
        entry.outcome.cancel()

    def _drop_old(self) -> None:
        """Drop what ended longest ago first; keep running calls."""
        oldest = self._clock() - self._kept_s
        for key, entry in list(self._entries.items()) if self._is_full(oldest) else ():
            if entry.done_at is None:
                continue
            if not self._is_over(entry, oldest):
                return
            del self._entries[key]
            self._used_bytes -= entry.size_bytes

    def _is_full(self, oldest: float) -> bool:
        first = next((entry for entry in self._entries.values() if entry.done_at is not None), None)
        return first is not None and self._is_over(first, oldest)

    def _is_over(self, entry: _Entry, oldest: float) -> bool:
        return (
            len(self._entries) > self._count
            or self._used_bytes > self._limit_bytes
            or (entry.done_at is not None and entry.done_at < oldest)
        )


def _encode(value: Any) -> bytes:
    return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
