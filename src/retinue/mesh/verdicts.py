"""What a failed attempt tells: of the agent's health, and of whether another one may take the call."""

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
    OutputInvalidError,
    RemoteFaultError,
    RequestError,
    RetinueError,
    SkillNotOfferedError,
    UnknownSkillError,
)
from retinue.core.record import Skill
from retinue.mesh.pulse import Pulse

_FAILURES = frozenset(
    error.type for error in (ExecutionFailedError, OutputInvalidError, CallTimedOutError, BusyError)
)
"""What says that the agent did not deliver; an untyped fault may as well be its caller's."""

_NOT_THERE = frozenset({UnknownSkillError.type, SkillNotOfferedError.type})
"""The agent has not what its card offers; another one may have taken its port."""


_REFUSALS = (RequestError, LookupFailedError, AccessError, GuardError, BusyError)


def status_of(error: RetinueError | None) -> Status:
    """What an outcome with this error is called."""
    if error is None:
        return "done"
    if isinstance(error, InputRequiredError):
        return "needs_input"
    return "refused" if isinstance(error, _REFUSALS) else "failed"


def may_go_elsewhere(error: RetinueError, skill: Skill) -> bool:
    """Whether another agent may take the call: this one did not run it, or twice does no harm."""
    if isinstance(error, AgentUnreachableError):
        return not error.sent or skill.hints.idempotent or skill.hints.read_only
    return isinstance(error, RemoteFaultError) and error.remote_type in {BusyError.type, *_NOT_THERE}


def is_stale_input(error: RetinueError) -> bool:
    """The agent knows another schema than its card here: read the card again, once."""
    return isinstance(error, RemoteFaultError) and error.remote_type in ("validation_error", "unknown_skill")


def tell_failure(pulse: Pulse, skill_id: str, spent_s: float, error: RetinueError) -> None:
    """End the attempt of ``pulse`` with what ``error`` says of the agent.

    A refusal says that it lives, unless it is of a skill that its card offers.
    """
    if isinstance(error, AgentUnreachableError):
        pulse.lost(error, certain=not error.sent)
    elif isinstance(error, CallTimedOutError):
        pulse.timed_out(skill_id, spent_s)
    elif (error.remote_type if isinstance(error, RemoteFaultError) else error.type) in _FAILURES:
        pulse.failed(skill_id, spent_s)
    elif isinstance(error, RemoteFaultError) and error.remote_type in _NOT_THERE:
        pulse.abandoned()
    else:
        pulse.refused()
