"""The state shared by the steps of one body, and the notes that they record in the run.

A note is a durable call without an effect on the mesh: it makes a decision or a failure visible in the
events of the run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Any

from retinue.approvals.records import ApprovalStore
from retinue.core.call import MAX_KEY_LENGTH, Principal
from retinue.core.errors import CallTimedOutError, ExpressionError, RetinueError, StepFailedError
from retinue.mesh.artifacts import ArtifactStore
from retinue.workflows.caller import Cache, Caller, Choice, MemoryCache
from retinue.workflows.definitions.definition import Step, WorkflowSettings
from retinue.workflows.definitions.run_forms import Bundled
from retinue.workflows.expressions.scope import Scope, StepState
from retinue.workflows.expressions.templates import holds, parse_condition, render
from retinue.workflows.interpreter.call_budget import CallBudget
from retinue.workflows.runs.ports import RunContext, SessionStore
from retinue.workflows.runs.records import Fault, Limit, Reach, RunRequest, as_json

NOTE_TIMEOUT_S = 60.0
CLOCK_TIMEOUT_S = 60.0


def _steady_clock() -> Callable[[], float]:
    began_at = time.time() - time.monotonic()
    return lambda: began_at + time.monotonic()


@dataclass(frozen=True, slots=True)
class Tools:
    """The services that steps use; ``clock`` gives seconds since 1970 and is read inside effects only.

    ``artifacts`` holds the files that steps save; None where there is no store. ``check_start`` raises
    PolicyDeniedError where policies forbid that a principal starts the workflow of this name.

    By default it is not moved by a change of the system's clock while the process runs, so that no limit
    is over too early or too late.
    """

    caller: Caller
    cache: Cache = field(default_factory=MemoryCache)
    clock: Callable[[], float] = field(default_factory=_steady_clock)
    open_approvals: Callable[[], Awaitable[ApprovalStore]] | None = None
    artifacts: ArtifactStore | None = None
    open_sessions: Callable[[], Awaitable[SessionStore]] | None = None
    check_start: Callable[[Principal, str], None] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The output of a step, further facts for its entry, and the arguments of its call."""

    output: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    arguments: Any = None


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt that may have had its effect, although it did not give the result of its call.

    ``step`` and ``path`` are those of its step and its own, ``key_path`` that of its idempotency key.
    ``value`` is what it gave, if ``is_answered``. ``is_open`` = its agent can be asked for the outcome, by
    the same call with the same key. ``was_lost`` = the agent may have died in it, and then knows no outcome.
    """

    step: str
    path: str
    key_path: str
    choice: Choice
    skill: str
    sent: Any
    value: Any = None
    is_answered: bool = False
    is_open: bool = False
    was_lost: bool = False

    def moved_below(self, prefix: str) -> Trial:
        """The attempt of a child run, with paths relative to the parent."""
        step, path, key_path = (f"{prefix}/{own}" for own in (self.step, self.path, self.key_path))
        return replace(self, step=step, path=path, key_path=key_path)


@dataclass(frozen=True, slots=True)
class Undo:
    """The compensation of a done step: the call, and its arguments or the values they are chained from.

    ``agent`` executed the step and is preferred for the compensation. ``fault`` = why the arguments could
    not be computed; the step is not compensated then. ``as_mesh`` = a nested workflow with the scopes of
    the mesh executed the step. ``trial`` = an attempt that may have had its effect, in place of the result of
    the step; for an open one, ``entries`` are the entries of steps that ``with`` reads. ``key_path`` is the
    key of the compensation itself, where its outcome was unknown.
    """

    path: str
    step_id: str
    agent: str | None
    call: Mapping[str, Any]
    arguments: Mapping[str, Any] | None = None
    fault: Fault | None = None
    input: Any = None
    sent: Any = None
    output: Any = None
    as_mesh: bool = False
    trial: Trial | None = None
    entries: tuple[tuple[str, StepState], ...] = ()
    loop: Mapping[str, Any] = field(default_factory=dict)
    key_path: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to the stored form, in which only set values are stored next to those of every step."""
        absent = {key for key in ("arguments", "fault", "trial", "key_path") if getattr(self, key) is None}
        absent |= {key for key in ("as_mesh", "entries", "loop") if not getattr(self, key)}
        return {key: value for key, value in as_json(self).items() if key not in absent}

    def moved_below(self, prefix: str, *, as_mesh: bool = False) -> Undo:
        """The compensation of a child run, with paths relative to the parent."""
        return replace(
            self,
            path=f"{prefix}/{self.path}",
            as_mesh=as_mesh or self.as_mesh,
            trial=None if self.trial is None else self.trial.moved_below(prefix),
            key_path=None if self.key_path is None else f"{prefix}/{self.key_path}",
        )


RunSteps = Callable[[tuple[Step, ...], str], Awaitable[None]]
"""Runs nested steps in the same body; their paths begin with the prefix."""


@dataclass(slots=True)
class Frame:
    """The state of one body.

    ``undo`` has the compensations of done steps, in the order of the steps. ``trials`` are the attempts of
    the latest call that may have had an effect besides that of its result.
    """

    context: RunContext
    request: RunRequest
    scope: Scope
    tools: Tools
    settings: WorkflowSettings
    nested: Bundled
    run_steps: RunSteps
    limits: tuple[Limit, ...] = ()
    undo: list[Undo] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    budget: CallBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = CallBudget(self.request.origin)
        self.limits = self.request.origin.limits

    def branch(self, context: RunContext, request: RunRequest) -> Frame:
        """The state of a part of this body with another context, and with a budget of its own."""
        part = Frame(context, request, self.scope, self.tools, self.settings, self.nested, self.run_steps)
        part.limits = self.limits
        return part

    @property
    def scopes(self) -> frozenset[str]:
        return self.request.origin.scopes

    @property
    def caller(self) -> str:
        return self.request.origin.caller

    @property
    def reach(self) -> Reach:
        return self.request.origin.reach

    def record_usage(self) -> None:
        """Report what the body used of its budgets, at its end."""
        self.context.record_usage(self.budget.used, self.budget.usage)

    def name(self, path: str) -> str:
        """A path of this body, unique among all runs."""
        return f"{self.context.run_id}/{path}"

    def key(self, path: str) -> str:
        """The idempotency key of an effect: its name, shortened by a digest if it is too long for a key."""
        name = self.name(path)
        if len(name) <= MAX_KEY_LENGTH:
            return name
        digest = sha256(name.encode()).hexdigest()
        return f"{name[: MAX_KEY_LENGTH - len(digest) - 1]}~{digest}"

    async def holds(self, condition: str, path: str) -> bool:
        """Evaluate a condition; raises StepFailedError for an error, which is recorded at ``path``."""
        try:
            return await holds(parse_condition(condition), self.scope.variables)
        except ExpressionError as error:
            raise await record_failure(self.context, path, error) from None

    async def render(self, value: Any, path: str, *, step: str | None = None, field: str = "") -> Any:
        """Replace the templates of the value of a field; raises StepFailedError for an error, as `holds`."""
        try:
            return await render(value, self.scope.variables, field)
        except ExpressionError as error:
            raise await record_failure(self.context, path, error, step=step) from None

    async def add_limit(self, path: str, seconds: float, setting: str) -> None:
        """Limit the step at ``path``, or the run for "", to ``seconds`` from now."""
        if not path:
            now, owner = await self.read_clock(path, "settings/max_duration"), self.context.run_id
        else:
            now, owner = await self.read_clock(path, f"{path}/limit"), self.name(path)
        self.limits = (*self.limits, Limit(owner, now + seconds, seconds, setting))

    async def bound(
        self, path: str, timeout_s: float, *, step: str | None = None
    ) -> tuple[float, Limit | None]:
        """The seconds that a durable call may take, and the limit that reduced them, if one did.

        ``step`` is the path of the step that the call serves, by default ``path``. Raises StepFailedError
        if the time is already over.
        """
        left_s, nearest = await self.time_left(path, step=step)
        return (left_s, nearest) if left_s < timeout_s else (timeout_s, None)

    async def time_left(self, path: str, *, step: str | None = None) -> tuple[float, Limit | None]:
        """The seconds until the nearest limit, and that limit; infinite without one. Raises as `bound`."""
        if not self.limits:
            return inf, None
        nearest = min(self.limits, key=lambda limit: limit.at)
        left_s = nearest.at - await self.read_clock(step or path, f"{path}/clock")
        left_s = min(left_s, nearest.seconds)
        if left_s <= 0:
            raise StepFailedError(step or path, None, overdue(step or path, nearest))
        return left_s, nearest

    async def sleep(self, path: str, seconds: float, *, step: str) -> None:
        """Sleep for a step, at most for the time that is left."""
        bounded_s, _ = await self.bound(path, seconds, step=step)
        await self.context.sleep(path, bounded_s)

    def is_overdue(self, error: StepFailedError) -> bool:
        """Whether a limit around the step caused the failure, so that its on_error does not apply."""
        owner = error.cause.get("data", {}).get("limit_of")
        return owner is not None and any(limit.owner == owner for limit in self.limits)

    async def read_clock(self, step: str, path: str) -> float:
        """The seconds since 1970 when this durable call was first made, at ``path`` below that of a step."""

        async def effect() -> float:
            return self.tools.clock()

        facts = {"kind": "clock", "below": below(path, step)}
        outcome = await self.context.step(path, effect, timeout_s=CLOCK_TIMEOUT_S, facts=facts)
        return float(outcome.value)


def overdue(path: str, limit: Limit) -> dict[str, Any]:
    """The fault of a step that a limit around it cut off."""
    error = CallTimedOutError(f"step {path}", limit.seconds, layer="workflow", setting=limit.setting)
    fault = as_json(Fault.from_error(error))
    return {**fault, "data": {**fault["data"], "limit_of": limit.owner}}


async def add_note(
    context: RunContext, path: str, facts: Mapping[str, Any], error: RetinueError | None = None
) -> None:
    """Record a fact at a path; with ``error``, a failure."""

    async def effect() -> None:
        if error is not None:
            raise error

    await context.step(path, effect, timeout_s=NOTE_TIMEOUT_S, facts=facts)


async def record_failure(
    context: RunContext,
    path: str,
    error: RetinueError,
    *,
    step: str | None = None,
    skill: str | None = None,
    agent: str | None = None,
) -> StepFailedError:
    """Record a failure without a call; returns the error to raise. ``step`` is ``path`` by default."""
    facts = {"kind": "fail", "skill": skill, "agent": agent, "below": below(path, step or path)}
    await add_note(context, path, facts, error)
    return StepFailedError(step or path, agent, as_json(Fault.from_error(error)))


def below(path: str, step: str) -> str:
    """The part of a durable call's path after that of the step which it serves, such as ``/choose``.

    It is among the facts of the call, so that readers of events can tell it from the name of a step.
    """
    return path.removeprefix(step) if path.startswith(step) else ""
