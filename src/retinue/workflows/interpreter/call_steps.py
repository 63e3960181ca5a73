"""Steps that call an agent: by ``skill``, or by ``role`` with a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retinue.core.errors import ExpressionError, InvalidParametersError, Problem, UnknownRoleError
from retinue.core.json_values import text_of
from retinue.mesh.directory.routing import parse_role
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import AUTO, DEFAULT_ROLE, Step, read_cache_ttl
from retinue.workflows.expressions.templates import holds, parse_condition, render
from retinue.workflows.interpreter.arguments import address_prompt, chain_arguments, default_prompt
from retinue.workflows.interpreter.calls import Accept, Ask, CallSteps
from retinue.workflows.interpreter.frame import Frame, StepResult, record_failure


async def run_call(frame: Frame, step: Step, path: str) -> StepResult:
    """Call the step's skill, or an agent that has its role."""
    try:
        fields = None if step.with_ is None else await render_with(step.with_, frame.scope.variables)
    except ExpressionError as error:
        raise await record_failure(frame.context, path, error, skill=step.skill) from None
    agent = await read_name(frame, step.agent, path)
    role = None if step.skill else await read_role(frame, step.role, path)
    prompt = None if step.prompt is None else text_of(await frame.render(step.prompt, path, field="prompt"))
    cache = step.cache if step.cache is not None else frame.settings.cache == "step"
    ask = Ask(
        step_id=step.id,
        arguments_for=_arguments_for(frame, step, fields, prompt),
        skill=step.skill,
        role=role,
        agent=agent,
        version=step.version,
        timeout_s=step.timeout_s,
        retry=step.retry or frame.settings.retry,
        cache_ttl_s=read_cache_ttl(cache),
        allow_empty=step.allow_empty,
        accept=_acceptance(frame, step),
        undo=None if step.compensate is None else step.compensate.skill,
        ask_first=step.ask,
    )
    result = await CallSteps(frame).run(ask, path)
    if role is None:
        return result
    return StepResult(result.output, {**result.facts, "text": text_of(result.output)}, result.arguments)


async def read_name(frame: Frame, name: str | None, path: str) -> str | None:
    """The agent that a step names; None for any."""
    if name is None or name == AUTO:
        return None
    value = await frame.render(name, path)
    return None if value in (None, "", AUTO) else str(value)


async def read_role(frame: Frame, role: str | None, path: str) -> str:
    """The role of a step, by default ``execute``."""
    value = None if role is None else await frame.render(role, path)
    try:
        return parse_role(DEFAULT_ROLE if value in (None, "", AUTO) else str(value))
    except UnknownRoleError as error:
        raise await record_failure(frame.context, path, error) from None


def _arguments_for(
    frame: Frame, step: Step, fields: Mapping[str, Any] | None, prompt: str | None
) -> Callable[[Choice], Any]:
    """The arguments for a chosen agent (specification 7.3): ``with``, the prompt, the rest chained."""
    scope = frame.scope

    def for_skill(choice: Choice) -> Any:
        if fields is not None:
            return fields
        return chain_arguments(step.id, step.skill or "", choice.input_schema, scope)

    def for_role(choice: Choice) -> Any:
        if prompt is None and fields is None:
            return chain_arguments(step.id, choice.skill, choice.input_schema, scope, default_prompt(scope))
        arguments = dict(fields or {})
        if prompt is not None:
            place = address_prompt(choice.input_schema)
            if place is None:
                raise _no_place(step.id, choice)
            arguments.setdefault(place, prompt)
        if fields is not None:
            return arguments
        return chain_arguments(step.id, choice.skill, choice.input_schema, scope, taken=arguments)

    return for_skill if step.skill else for_role


def _no_place(step_id: str, choice: Choice) -> InvalidParametersError:
    message = f"step {step_id}: {choice.skill} of {choice.agent} has no place for a prompt"
    error = InvalidParametersError([Problem("prompt", message)])
    error.remedy = "give with, or call it by skill"
    return error


def _acceptance(frame: Frame, step: Step) -> Accept | None:
    """Checks a value with the step's ``validate``, as if it were the step's output."""
    if step.validate_ is None:
        return None
    condition = parse_condition(step.validate_)

    async def accept(value: Any) -> str | None:
        variables = frame.scope.variables
        own = {"output": value, "text": text_of(value)}
        seen = {**variables, "steps": {**variables["steps"], step.id: own}}
        return None if await holds(condition, seen) else f"it does not fulfil {step.validate_}"

    return accept


async def render_with(value: Any, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Render ``with`` to an object; raises ExpressionError."""
    rendered = await render(value, variables, "with")
    if not isinstance(rendered, Mapping):
        raise ExpressionError(str(value), "gives no object", remedy="with needs an object")
    return rendered
