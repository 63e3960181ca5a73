"""Decides whether a failed call is sent again.

A call that certainly did not run is sent again, and so is one whose repetition is safe, because it only reads
or has an idempotency key.
"""

from __future__ import annotations

from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    OutOfMemoryError,
    RemoteFaultError,
    RetinueError,
    StoppingError,
)

_FIRST_WAIT_S = 0.1
_GROWTH = 3.0
"""The wait before the second repetition is so many times as long as that before the first."""

_BUSY_TYPES = frozenset({BusyError.type, StoppingError.type, OutOfMemoryError.type})


def find_wait(error: RetinueError, repeated: int, *, is_repeatable: bool) -> float | None:
    """How long to wait before a call to a hub is sent again; None where it must not be.

    ``repeated`` is the number of earlier repetitions. ``error`` is as the hub sent it: an
    AgentUnreachableError is about the hub itself.
    """
    if isinstance(error, AgentUnreachableError):
        return _FIRST_WAIT_S * _GROWTH**repeated if is_repeatable or not error.sent else None
    if isinstance(error, RemoteFaultError) and error.remote_type in _BUSY_TYPES:
        facts = error.data
        wait_s = facts.get("retry_after_s")
        has_begun = facts.get("nested") is True  # a further call of the skill was refused
        return float(wait_s) if isinstance(wait_s, int | float) and not has_begun else None
    return None
