"""Decides how a failed attempt affects an agent's health, and whether another agent may take the call."""

from __future__ import annotations

from retinue.core.call import Status
from retinue.core.errors import (
    AccessError,
    AgentUnreachableError,
    BusyError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    InputRequiredError,
    LookupFailedError,
    OutOfMemoryError,
    OutputInvalidError,
    RemoteFaultError,
    RequestError,
    RetinueError,
    SkillNotOfferedError,
    StoppingError,
    UnknownSkillError,
)
from retinue.core.record import Skill
from retinue.mesh.health.agent_stats import AgentStats

_BUSY = frozenset({BusyError.type, StoppingError.type, OutOfMemoryError.type})
"""The agent refused the call and has not run it."""

_FAILURES = _BUSY | {error.type for error in (ExecutionFailedError, OutputInvalidError, CallTimedOutError)}
"""Errors that count as failures of the agent; an untyped error may be its caller's fault."""

_NOT_THERE = frozenset({UnknownSkillError.type, SkillNotOfferedError.type})
"""The agent does not have the skill of its card; another agent may have taken its port."""


_REFUSALS = (RequestError, LookupFailedError, AccessError, GuardError, BusyError)


def status_of(error: RetinueError | None) -> Status:
    """The status of an outcome with this error."""
    if error is None:
        return "done"
    if isinstance(error, InputRequiredError):
        return "needs_input"
    return "refused" if isinstance(error, _REFUSALS) else "failed"


def may_fail_over(error: RetinueError, skill: Skill) -> bool:
    """Whether another agent may take the call: this one did not run it, or running it twice is harmless."""
    if isinstance(error, AgentUnreachableError):
        return not error.sent or skill.hints.idempotent or skill.hints.read_only
    if isinstance(error, RemoteFaultError) and error.remote_type in _BUSY:
        return not error.data.get("nested")  # refused further on: the agent has begun the call
    return isinstance(error, RemoteFaultError) and error.remote_type in _NOT_THERE


def is_stale_input(error: RetinueError) -> bool:
    """Whether the agent may have another schema than the known card, so that the card must be read again."""
    return isinstance(error, RemoteFaultError) and error.remote_type in ("validation_error", "unknown_skill")


def record_failure(stats: AgentStats, skill_id: str, spent_s: float, error: RetinueError) -> None:
    """End an attempt in ``stats`` with the evidence of ``error`` about the agent.

    A rejection shows that the agent is alive, unless it rejects a skill that its card offers.
    """
    if isinstance(error, AgentUnreachableError):
        stats.lost(error, certain=not error.sent)
    elif isinstance(error, CallTimedOutError):
        stats.timed_out(skill_id, spent_s)
    elif (error.remote_type if isinstance(error, RemoteFaultError) else error.type) in _FAILURES:
        stats.failed(skill_id, spent_s)
        if isinstance(error, RemoteFaultError) and error.remote_type in _BUSY:
            retry_after_s = error.data.get("retry_after_s")
            stats.note_busy(retry_after_s if isinstance(retry_after_s, int | float) else 1.0)
    elif isinstance(error, RemoteFaultError) and error.remote_type in _NOT_THERE:
        stats.abandoned()
    else:
        stats.refused()
