"""A step with a skill: choose an agent, call it, try again where that can help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import ExpressionError, InputRequiredError, InvalidParametersError, StepFailedError
from retinue.workflows.caller import Caller, Choice
from retinue.workflows.chaining import chain_arguments
from retinue.workflows.definition import Step
from retinue.workflows.notes import fail
from retinue.workflows.runs import RunContext, StepOutcome
from retinue.workflows.scope import Scope
from retinue.workflows.spending import Spending
from retinue.workflows.templates import render_value

CHOOSE_TIMEOUT_S = 60.0


class SkillSteps:
    """Runs the skill steps of one body.

    The choice is recorded on its own, so that a step which runs twice goes to the same agent. Only
    when that one is unreachable another is chosen, once for each attempt; the idempotency key
    ``<run>/<path>`` stays that of the attempt. A ``retry`` is a new attempt with a key of its own:
    the author asks for the work to be done again.
    """

    def __init__(
        self,
        context: RunContext,
        ambient: Mapping[str, Any],
        scope: Scope,
        caller: Caller,
        spending: Spending,
    ) -> None:
        self._context = context
        self._scopes = frozenset(ambient.get("scopes", ()))
        self._spending = spending
        self._scope = scope
        self._caller = caller

    async def run(self, step: Step, path: str) -> Any:
        """The step's output; raises StepFailedError."""
        given = await self._render_given(step, path)
        attempts = step.retry.attempts if step.retry else 1
        choice: Choice | None = None
        for attempt in range(1, attempts + 1):
            here = path if attempt == 1 else f"{path}@{attempt}"
            if attempt > 1 and step.retry:
                await self._context.sleep(f"{here}/wait", step.retry.delay_before(attempt))
            choice, outcome = await self._attempt(step, here, choice, given, attempt)
            if outcome.fault is None:
                return outcome.value["value"]
            if not outcome.fault.retryable or attempt == attempts:
                raise StepFailedError(path, choice.agent if choice else step.agent, outcome.fault.to_json())
            if outcome.fault.on_error == "unreachable":
                choice = None
        raise AssertionError("a retry has at least one attempt")

    async def _render_given(self, step: Step, path: str) -> Any:
        """The arguments of a step with ``with``; None without."""
        if step.with_ is None:
            return None
        try:
            given = render_value(step.with_, self._scope.variables)
            if not isinstance(given, Mapping):
                raise ExpressionError(str(step.with_), "gives no object", remedy="with needs an object")
        except ExpressionError as error:
            raise await fail(self._context, path, error, skill=step.skill) from None
        return given

    async def _attempt(
        self, step: Step, here: str, choice: Choice | None, given: Any, attempt: int
    ) -> tuple[Choice | None, StepOutcome]:
        if choice is None:
            outcome = await self._choose(step, f"{here}/choose", attempt)
            if outcome.fault is not None:
                return None, outcome
            choice = Choice.from_json(outcome.value)
        outcome = await self._call(step, here, here, choice, given, attempt)
        if outcome.fault is None or outcome.fault.on_error != "unreachable" or step.agent is not None:
            return choice, outcome
        chosen = await self._choose(step, f"{here}/again/choose", attempt)
        other = None if chosen.fault is not None else Choice.from_json(chosen.value)
        if other is None or (other.agent, other.url) == (choice.agent, choice.url):
            return choice, outcome
        return other, await self._call(step, f"{here}/again", here, other, given, attempt)

    async def _choose(self, step: Step, path: str, attempt: int) -> StepOutcome:
        skill = step.skill or ""

        async def effect() -> Any:
            return (await self._caller.choose(skill, step.agent, step.version, self._scopes)).to_json()

        facts = {"kind": "choose", "skill": skill, "attempt": attempt}
        return await self._context.step(path, effect, timeout_s=CHOOSE_TIMEOUT_S, facts=facts)

    async def _call(
        self, step: Step, path: str, key_path: str, choice: Choice, given: Any, attempt: int
    ) -> StepOutcome:
        skill = step.skill or ""
        try:
            arguments = given if given is not None else self._chain(step, choice)
        except InvalidParametersError as error:
            raise await fail(self._context, path, error, skill=skill, agent=choice.agent) from None

        spending = self._spending.open_step()

        async def effect() -> Any:
            outcome = await self._caller.call(
                choice,
                skill,
                arguments,
                run_id=self._context.run_id,
                path=path,
                idempotency_key=f"{self._context.run_id}/{key_path}",
                timeout_s=step.timeout_s,
                trace=spending.begin(),
            )
            spending.told(outcome.calls_used)
            if outcome.error is not None:
                raise outcome.error
            if outcome.status != "done":
                raise InputRequiredError(f"{skill} did not finish: {outcome.status}")
            return {
                "value": outcome.value,
                "agent": choice.agent,
                "warnings": list(outcome.warnings),
                "calls": outcome.calls_used or 0,
            }

        facts = {
            "kind": "call",
            "skill": skill,
            "agent": choice.agent,
            "version": choice.version,
            "attempt": attempt,
        }
        outcome = await self._context.step(path, effect, timeout_s=step.timeout_s, facts=facts)
        spending.close(outcome)
        return outcome

    def _chain(self, step: Step, choice: Choice) -> Any:
        return chain_arguments(step.id, step.skill or "", choice.input_schema, self._scope)
