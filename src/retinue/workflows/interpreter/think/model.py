"""One request of a step ``think`` to its model: the call of ``complete``, and what it used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.allowance import Allowance
from retinue.core.errors import InvalidParametersError, StepFailedError
from retinue.thinking.completion import COMPLETE, CompletionReply
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Retry
from retinue.workflows.interpreter.calls import Ask, CallSteps
from retinue.workflows.interpreter.frame import Frame

REPLACED_AFTER_S = 30.0
"""How long a model is waited for that another one can replace, if the step says nothing else."""

MODEL_RETRY = Retry(attempts=4, delay="2s", backoff=3.0)
"""How often a request is repeated, if the step says nothing else."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """The outcome of a request.

    ``reply`` is None where it failed, with ``failure``. ``most`` = what it might spend, ``time_s`` = how long
    all attempts took.
    """

    reply: CompletionReply | None
    usage: Mapping[str, Any] | None
    time_s: float
    most: Allowance
    failure: StepFailedError | None = None


async def ask_model(
    frame: Frame,
    choice: Choice,
    request: Mapping[str, Any],
    path: str,
    *,
    retry: Retry | None,
    most: Allowance,
    left_s: float,
    is_replaceable: bool,
    shown: Mapping[str, Any] | None = None,
) -> ModelTurn:
    """Make a request, with its retries; it is repeated alone, without the calls that came before it.

    It may spend ``most``. ``shown`` stands for the request in the events of the run.

    A model that is away is waited for as ``retry`` says; without it, one that ``is_replaceable`` by another
    for `REPLACED_AFTER_S`.
    """
    ask = Ask(
        step_id=path,
        arguments_for=lambda choice: request,
        skill=COMPLETE,
        agent=choice.agent,
        choice=choice,
        timeout_s=min(DEFAULT_STEP_TIMEOUT_S, left_s),
        retry=retry or MODEL_RETRY,
        accept=_find_problem,
        kind="model",
        as_mesh=True,
        wait_s=REPLACED_AFTER_S if is_replaceable and retry is None else None,
        shown=_describe(request) if shown is None else shown,
        heeds_agents_wait=True,
        most=most,
    )
    calls = CallSteps(frame)
    try:
        result = await calls.run(ask, path)
        reply, failure = CompletionReply.from_json(result.output), None
    except StepFailedError as failed:
        reply, failure = None, failed
    outcomes = calls.outcomes
    time_s = sum(outcome.ms or 0.0 for outcome in outcomes) / 1000
    if reply is None:
        return ModelTurn(None, None, time_s, most, failure)
    return ModelTurn(reply, outcomes[-1].value.get("usage"), time_s, most)


async def _find_problem(value: Any) -> str | None:
    try:
        CompletionReply.from_json(value)
    except InvalidParametersError as error:
        return f"it is no reply of a model: {error.message}"
    return None


def _describe(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request in the events of the run, which do not repeat the conversation."""
    return {
        "messages": len(request["messages"]),
        "tools": [tool["name"] for tool in request["tools"]],
        "tool_choice": request["tool_choice"],
        "max_tokens": request["max_tokens"],
    }
