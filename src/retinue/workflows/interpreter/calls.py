"""One call of a step: choose an agent, call it, retry.

The choice is recorded on its own, so that a repeated call goes to the same agent. Only if that agent is
unreachable, another one is chosen, once per attempt, with the same idempotency key ``<run>/<path>``. Each
attempt of a ``retry`` has a key of its own, because the work is to be done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from retinue.core.errors import (
    AgentUnreachableError,
    CircuitOpenError,
    EmptyOutputError,
    ExpressionError,
    InputRequiredError,
    InvalidParametersError,
    LookupFailedError,
    OutputInvalidError,
    Problem,
    RetinueError,
    StepFailedError,
    UnknownAgentError,
    UnknownSkillError,
    is_callers_time,
)
from retinue.workflows.caller import Choice, cache_key
from retinue.workflows.definitions.definition import Retry
from retinue.workflows.interpreter.call_budget import StepBudget
from retinue.workflows.interpreter.frame import Frame, Result, add_note, below, overdue, record_failure
from retinue.workflows.runs.records import Fault, Origin, StepOutcome, as_json, read_json
from retinue.workflows.runs.replay_rules import step_timed_out

CHOOSE_TIMEOUT_S = 60.0

AGAIN_S = 0.5
"""The interval at which a missing agent is looked for."""

Accept = Callable[[Any], Awaitable[str | None]]
"""The problem of a value, None if it is accepted."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What to call, a ``skill`` or an agent with a ``role``, and how.

    ``arguments_for`` gives the arguments for the chosen agent, or raises InvalidParametersError or
    ExpressionError. ``accept`` gives the problem of a value, None if it is accepted. ``agent`` is required,
    ``prefer`` only preferred. ``is_expected`` = worth waiting for if it is missing
    (`RunContext.agent_wait_s`). ``as_mesh`` = called with the scopes of the mesh.
    """

    step_id: str
    arguments_for: Callable[[Choice], Any]
    skill: str | None = None
    role: str | None = None
    agent: str | None = None
    prefer: str | None = None
    version: str | None = None
    timeout_s: float = CHOOSE_TIMEOUT_S
    retry: Retry | None = None
    cache_ttl_s: float | None = None
    allow_empty: bool = False
    accept: Accept | None = None
    kind: str = "call"
    is_expected: bool = True
    as_mesh: bool = False

    @property
    def target(self) -> str:
        return self.skill or self.role or ""


class CallSteps:
    """Makes the calls of one body."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def run(self, ask: Ask, path: str) -> Result:
        """Make a call with its retries; raises StepFailedError."""
        attempts = ask.retry.attempts if ask.retry else 1
        choice: Choice | None = None
        for attempt in range(1, attempts + 1):
            here = path if attempt == 1 else f"{path}@{attempt}"
            if attempt > 1 and ask.retry:
                await self._frame.sleep(f"{here}/wait", ask.retry.delay_before(attempt), step=path)
            trial = _Attempt(self._frame, ask, path, here, attempt)
            choice, outcome = await trial.run(choice)
            fault = outcome.fault
            if fault is None:
                fault = await self._refuse(ask, path, here, outcome.value["value"])
            if fault is None:
                given = outcome.value
                facts = {"agent": given["agent"], "cached": bool(given.get("cached"))}
                return Result(given["value"], facts, trial.sent)
            if not fault.retryable or attempt == attempts or "limit_of" in fault.data:
                raise StepFailedError(path, choice.agent if choice else ask.agent, as_json(fault))
            if fault.on_error == "unreachable":
                choice = None
        raise AssertionError("a retry has at least one attempt")

    async def _refuse(self, ask: Ask, path: str, here: str, value: Any) -> Fault | None:
        """The fault of a value that is not accepted, retryable; None if it is accepted."""
        error: RetinueError
        try:
            problem = None if ask.accept is None else await ask.accept(value)
            if problem is None:
                return None
            error = OutputInvalidError(f"step {ask.step_id}", [Problem("", problem)])
            fault = Fault.from_error(error)
            fault = Fault(fault.type, fault.message, fault.remedy, True, "failed", fault.data)
        except ExpressionError as broken:
            error, fault = broken, Fault.from_error(broken)
        place = f"{here}/validate"
        await add_note(self._frame.context, place, {"kind": "fail", "below": below(place, path)}, error)
        return fault


class _Attempt:
    """One attempt: a call to one agent, and to another one if the first is unreachable."""

    def __init__(self, frame: Frame, ask: Ask, path: str, here: str, attempt: int) -> None:
        self._frame = frame
        self._ask = ask
        self._path = path
        self._here = here
        self._attempt = attempt
        self.sent: Any = None

    async def run(self, choice: Choice | None) -> tuple[Choice | None, StepOutcome]:
        timeout_s, limit = await self._frame.bound(self._here, self._ask.timeout_s, step=self._path)
        if choice is None:
            outcome = await self._choose(f"{self._here}/choose")
            if outcome.fault is not None:
                return None, outcome
            choice = read_json(Choice, outcome.value)
        outcome = await self._call(self._here, choice, timeout_s)
        if outcome.fault is not None and outcome.fault.on_error == "unreachable":
            other = None if self._ask.agent else await self._find_other(choice)
            # A call that was not sent may be made once more, even to the same agent.
            if other is not None or not outcome.fault.data.get("sent"):
                choice = other or choice
                outcome = await self._call(f"{self._here}/again", choice, timeout_s, patient=True)
        if limit is not None and outcome.fault is not None and outcome.fault.on_error == "timeout":
            outcome = StepOutcome(fault=read_json(Fault, overdue(self._path, limit)))
        return choice, outcome

    async def _find_other(self, choice: Choice) -> Choice | None:
        """Choose another agent than the one that did not answer; None if there is no other."""
        chosen = await self._choose(f"{self._here}/again/choose")
        other = None if chosen.fault is not None else read_json(Choice, chosen.value)
        is_other = other is not None and (other.agent, other.url) != (choice.agent, choice.url)
        return other if is_other else None

    async def _choose(self, path: str) -> StepOutcome:
        ask, caller, origin = self._ask, self._frame.tools.caller, self._as_asked(self._frame.request.origin)

        async def find(agent: str | None) -> Choice:
            if ask.skill is None:
                named = [agent] if agent else ()
                return (await caller.list_role(ask.role or "", named, origin.scopes, origin.caller))[0]
            return await caller.choose(ask.skill, agent, ask.version, origin.scopes, origin.caller)

        async def find_best() -> Choice:
            if ask.prefer is not None and ask.agent is None:
                with suppress(LookupFailedError):
                    return await find(ask.prefer)
            return await find(ask.agent)

        async def effect() -> Any:
            while True:
                try:
                    return as_json(await find_best())
                except LookupFailedError:
                    if not await self._wait_for_agents():
                        raise

        facts = {"kind": "choose", "skill": ask.target, "attempt": self._attempt}
        facts |= {"below": below(path, self._path)}
        return await self._frame.context.step(path, effect, timeout_s=CHOOSE_TIMEOUT_S, facts=facts)

    def _as_asked(self, origin: Origin) -> Origin:
        return origin.as_mesh() if self._ask.as_mesh else origin

    async def _wait_for_agents(self) -> bool:
        """Wait a moment for missing agents; False if the time for that is over."""
        if not self._ask.is_expected or not self._frame.context.agent_wait_s:
            return False
        await asyncio.sleep(AGAIN_S)
        return True

    async def _call(
        self, path: str, choice: Choice, timeout_s: float, *, patient: bool = False
    ) -> StepOutcome:
        ask, context = self._ask, self._frame.context
        skill = ask.skill or choice.skill
        try:
            arguments = ask.arguments_for(choice)
        except (InvalidParametersError, ExpressionError) as error:
            raise await record_failure(
                context, path, error, step=self._path, skill=skill, agent=choice.agent
            ) from None
        self.sent = arguments
        budget = self._frame.budget.open_step()

        async def effect() -> Any:
            return await self._obtain(path, choice, skill, arguments, timeout_s, budget, patient=patient)

        facts: dict[str, Any] = {"kind": ask.kind, "skill": skill, "agent": choice.agent}
        facts |= {"version": choice.version, "attempt": self._attempt, "input": arguments}
        facts["below"] = below(path, self._path)
        if ask.skill is None:
            facts["role"] = ask.role
        outcome = await context.step(
            path, effect, timeout_s=timeout_s, facts=facts, count=lambda: budget.calls
        )
        budget.close(outcome)
        return outcome

    async def _obtain(
        self,
        path: str,
        choice: Choice,
        skill: str,
        arguments: Any,
        timeout_s: float,
        budget: StepBudget,
        *,
        patient: bool,
    ) -> Mapping[str, Any]:
        """Make the call, or take the cached value of an equal one."""
        ask, cache = self._ask, self._frame.tools.cache
        key = ""
        if ask.cache_ttl_s is not None:
            origin = self._frame.request.origin
            place = [self._frame.request.name.partition("/")[0], ask.step_id]
            key = cache_key(place, origin.rights, choice.agent, choice.version, skill, arguments)
            kept = await cache.find(key)
            if kept is not None:
                return {"value": kept.value, "agent": choice.agent, "cached": True}
        call = partial(
            self._frame.tools.caller.call,
            choice,
            skill,
            arguments,
            run_id=self._frame.context.run_id,
            path=path,
            idempotency_key=self._frame.key(self._here),
            timeout_s=timeout_s,
            origin=self._as_asked(budget.begin()),
        )
        outcome = await call()
        while _found_nobody(outcome.error, patient=patient) and await self._wait_for_agents():
            outcome = await call()
        budget.record_usage(outcome.calls_used)
        if is_callers_time(outcome.error):
            # The agent knows only that its caller's time was over; the limit is that of this step.
            raise step_timed_out(self._path, timeout_s)
        if outcome.error is not None:
            raise outcome.error
        if outcome.status != "done":
            raise InputRequiredError(f"{skill} did not finish: {outcome.status}")
        if not ask.allow_empty and self._is_empty(outcome.value, choice):
            raise EmptyOutputError(skill)
        if ask.cache_ttl_s is not None:
            await cache.put(key, outcome.value, ask.cache_ttl_s)
        return {"value": outcome.value, "agent": choice.agent, "warnings": list(outcome.warnings)}

    def _is_empty(self, value: Any, choice: Choice) -> bool:
        return is_nothing(value) if self._ask.skill is None else is_no_answer(value, choice.output_schema)


def _found_nobody(error: RetinueError | None, *, patient: bool) -> bool:
    """Whether an agent was missing before the call began; if ``patient``, also unreachable."""
    if isinstance(error, AgentUnreachableError):
        return patient and not error.sent
    if isinstance(error, CircuitOpenError):
        return patient and not error.relayed
    return isinstance(error, UnknownAgentError | UnknownSkillError)


def is_nothing(value: Any) -> bool:
    """Whether a value is null, blank text, or a collection of such values."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(is_nothing(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_nothing(inner) for inner in value)
    return value is None


def is_no_answer(value: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether a value is blank text, or a null that the output schema does not allow."""
    if isinstance(value, str):
        return not value.strip()
    return value is None and not _allows_null(schema or {})


def _allows_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if "const" in schema and schema["const"] is None:
        return True
    if None in (schema.get("enum") or ()):
        return True
    inner = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(isinstance(one, Mapping) and _allows_null(one) for one in inner)
