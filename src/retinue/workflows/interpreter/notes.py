"""Things that happen in a run without a call, recorded so that whoever follows it sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import RetinueError, StepFailedError
from retinue.workflows.run_records import Fault
from retinue.workflows.runs import RunContext

_TIMEOUT_S = 60.0


async def note(
    context: RunContext, path: str, facts: Mapping[str, Any], error: RetinueError | None = None
) -> None:
    """Record that something happened at a path; with ``error``, that it failed."""

    async def effect() -> None:
        if error is not None:
            raise error

    await context.step(path, effect, timeout_s=_TIMEOUT_S, facts=facts)


async def fail(
    context: RunContext,
    path: str,
    error: RetinueError,
    *,
    step: str | None = None,
    skill: str | None = None,
    agent: str | None = None,
) -> StepFailedError:
    """Record a failure that needed no call; returns the error to raise. ``step`` is ``path`` if absent."""
    facts = {"kind": "fail", "skill": skill, "agent": agent, "below": below(path, step or path)}
    await note(context, path, facts, error)
    return StepFailedError(step or path, agent, Fault.from_error(error).to_json())


def below(path: str, step: str) -> str:
    """What a durable call's path adds to that of the step which it serves, such as ``/choose``.

    Stands in its facts, so that whoever draws a run need not guess what is a name and what is not.
    """
    return path.removeprefix(step) if path.startswith(step) else ""
