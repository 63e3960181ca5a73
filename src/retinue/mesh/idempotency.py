"""Keeps outcomes by idempotency key, so that a repeated request gets the first outcome.

A caller sends its request again with the same key when it does not know the outcome: its time was over, its
connection was lost, or its node died. A call that has ended is not run twice; one that is still running is
awaited. So a call with a key is run in a task of its own, which outlives the request that began it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from retinue.core.call import Answer, Call, Part
from retinue.core.errors import ExecutionFailedError, KeyConflictError, RetinueError

KEPT_S = 3600.0
KEPT_COUNT = 10_000
KEPT_BYTES = 64 * 1024 * 1024
STORED_COUNT = 1_000
STORED_BYTES = 8 * 1024 * 1024
"""The bounds in memory where outcomes are stored as well."""

Run = Callable[[], Awaitable[Answer]]


AFTER_TIME_OUT_S = 60.0
"""How long an execution goes on at most after the time of its last caller was over."""

PATIENCE = 10.0
"""How many times as long as that caller waited: the waits between attempts grow."""

AFTER_DISCONNECT_S = 1.0
"""How long it goes on after its last caller went away before that: to cancel it, or because it was lost."""

_ALMOST_S = 0.1
"""A caller that leaves this close to its deadline has run out of time."""

Key = tuple[str, str, str, str]
"""Principal, agent, skill and idempotency key."""


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """An outcome to be stored: the digest of the arguments, and the answer or failure as JSON."""

    arguments: bytes
    body: bytes


class StoredOutcomes(Protocol):
    """Stores outcomes by the digest of their `Key`; its failures do not reach the calls."""

    async def find(self, key: bytes) -> StoredOutcome | None:
        """The outcome of a key that is still kept, also of an earlier process."""

    async def keep(self, key: bytes, outcome: StoredOutcome) -> None:
        """Store the outcome of a key."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An execution or its outcome; ``waiting`` is the number of its callers.

    ``arguments`` is their digest.
    """

    arguments: bytes
    execution: asyncio.Task[Answer] | None = None
    waiting: int = 0
    given_up: asyncio.TimerHandle | None = None
    size_bytes: int = 0
    done_at: float | None = None


class OutcomeCache:
    """Runs a call with an idempotency key once, and gives its outcome to repetitions.

    Bounded in time, number and bytes; the oldest outcomes go first. It keeps answers and failures of skills
    that ran to their end. A call that was cancelled, rejected or timed out is run again. An execution without
    callers goes on for ``after_time_out_s`` or ``after_disconnect_s``, in which a repetition joins it.

    With ``stored`` an outcome is stored before it is answered, and is found again after a restart.
    """

    def __init__(
        self,
        *,
        stored: StoredOutcomes | None = None,
        kept_s: float = KEPT_S,
        count: int | None = None,
        size_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        after_time_out_s: float = AFTER_TIME_OUT_S,
        after_disconnect_s: float = AFTER_DISCONNECT_S,
    ) -> None:
        default_count, default_bytes = (
            (KEPT_COUNT, KEPT_BYTES) if stored is None else (STORED_COUNT, STORED_BYTES)
        )
        self._stored = stored
        self._kept_s = kept_s
        self._count = default_count if count is None else count
        self._limit_bytes = default_bytes if size_bytes is None else size_bytes
        self._clock = clock
        self._after_time_out_s = after_time_out_s
        self._after_disconnect_s = after_disconnect_s
        self._used_bytes = 0
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    async def run_once(self, agent: str, call: Call, run: Run) -> Answer:
        """The answer, or the first one where the key was used before; raises what ``run`` raised.

        An exception of ``run`` that is no RetinueError becomes an ExecutionFailedError. Raises
        KeyConflictError where the key was used with other arguments.
        """
        if call.idempotency_key is None:
            return await run()
        key = (call.principal.id, agent, call.skill, call.idempotency_key)
        arguments = _digest(call.arguments)
        while True:
            self._drop_old()
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(arguments)
                entry.execution = asyncio.create_task(self._execute(key, entry, run))
            elif entry.arguments != arguments:
                raise KeyConflictError(call.idempotency_key)
            assert entry.execution is not None
            await self._wait_for(entry, entry.execution, call)
            if not entry.execution.cancelled():
                return entry.execution.result()
            # It was given up before this caller came, so this one runs.
            self._forget(key, entry)

    async def _wait_for(self, entry: _Entry, execution: asyncio.Task[Answer], call: Call) -> None:
        """Wait for the end of an execution; the last caller to leave starts the time of its end."""
        if execution.done():
            return
        if entry.given_up is not None:
            entry.given_up.cancel()
            entry.given_up = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        entry.waiting += 1
        try:
            await asyncio.wait((execution,))
        finally:
            entry.waiting -= 1
            if not entry.waiting and not execution.done():
                left_s = self._after_disconnect_s
                if call.deadline is not None and loop.time() >= call.deadline - _ALMOST_S:
                    left_s = max(left_s, PATIENCE * (call.deadline - began))
                    left_s = min(left_s, self._after_time_out_s)
                entry.given_up = loop.call_later(left_s, execution.cancel)

    async def _execute(self, key: Key, entry: _Entry, run: Run) -> Answer:
        stored: StoredOutcome | None = None
        try:
            if self._stored is not None:
                stored = await self._stored.find(_digest(key))
            answer = await run() if stored is None else _read_outcome(stored, entry.arguments, key[3])
        except RetinueError as error:
            self._end_failed(key, entry, error)
            if stored is None and _is_outcome(error):
                await self._store(key, entry, error)
            raise
        except GeneratorExit:
            self._forget(key, entry)
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                self._forget(key, entry)
                raise
            failure = ExecutionFailedError.from_exception(error, key[2])
            self._end_failed(key, entry, failure)
            await self._store(key, entry, failure)
            raise failure from error
        finally:
            if entry.given_up is not None:
                entry.given_up.cancel()
        self._keep(key, entry, len(_encode([answer.value, [part.value for part in answer.parts]])))
        if stored is None:
            await self._store(key, entry, answer)
        return answer

    async def _store(self, key: Key, entry: _Entry, outcome: Answer | RetinueError) -> None:
        """Store an outcome, if it is JSON."""
        if self._stored is None:
            return
        try:
            body = _render_outcome(outcome)
        except TypeError:
            return
        # a cancellation comes too late: the execution has ended, and its outcome stands
        with contextlib.suppress(asyncio.CancelledError):
            await self._stored.keep(_digest(key), StoredOutcome(entry.arguments, body))

    def _end_failed(self, key: Key, entry: _Entry, error: RetinueError) -> None:
        execution = entry.execution
        if execution is not None:
            execution.add_done_callback(_retrieve)  # perhaps no caller reads it
        if _is_outcome(error):
            self._keep(key, entry, len(error.message))
        else:
            self._forget(key, entry)

    def _keep(self, key: Key, entry: _Entry, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            self._forget(key, entry)
            return
        entry.size_bytes = size_bytes + len(entry.arguments)
        entry.done_at = self._clock()
        self._used_bytes += entry.size_bytes
        self._entries.move_to_end(key)
        self._drop_old()

    def _forget(self, key: Key, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]

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


def _is_cancelled() -> bool:
    """Whether this task is being cancelled, rather than something that a skill awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieve(execution: asyncio.Task[Answer]) -> None:
    if not execution.cancelled():
        execution.exception()


def _is_outcome(error: RetinueError) -> bool:
    """Whether the skill itself failed, so that a repetition gets the same failure."""
    return isinstance(error, ExecutionFailedError) and not isinstance(error.__cause__, RetinueError)


def _render_outcome(outcome: Answer | RetinueError) -> bytes:
    """The outcome as JSON; raises TypeError."""
    if isinstance(outcome, RetinueError):
        return orjson.dumps(
            {"failure": {"message": outcome.message, "remedy": outcome.remedy, **outcome.data}}
        )
    return orjson.dumps({"answer": outcome}, default=_as_dict)


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _read_outcome(stored: StoredOutcome, arguments: bytes, key: str) -> Answer:
    """The stored answer; raises the stored failure, and KeyConflictError for other arguments."""
    if stored.arguments != arguments:
        raise KeyConflictError(key)
    outcome = orjson.loads(stored.body)
    if "failure" in outcome:
        raise ExecutionFailedError(**outcome["failure"])
    return read_answer(outcome["answer"])


def read_answer(stored: Mapping[str, Any]) -> Answer:
    """The answer of its JSON form."""
    parts = tuple(Part(**part) for part in stored["parts"])
    return Answer(**{**stored, "parts": parts, "warnings": tuple(stored["warnings"])})


def _digest(value: Any) -> bytes:
    return blake2b(_encode(value), digest_size=16).digest()


def _encode(value: Any) -> bytes:
    return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
