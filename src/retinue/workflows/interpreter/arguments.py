"""Builds the arguments of a step without ``with``: chained values, prompts (specification 7.2).

Chaining takes the properties that the input schema declares from the nearest output; the whole output only
if the schema declares none and is not closed, or allows others explicitly. A required property that is
missing there is looked up in earlier outputs, nearest first, then in the workflow's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import InvalidParametersError, Problem
from retinue.core.json_values import find_reference, text_of
from retinue.core.text import fence
from retinue.workflows.expressions.scope import Scope


def chain_arguments(
    step_id: str,
    skill: str,
    schema: Mapping[str, Any] | None,
    scope: Scope,
    prompt: str | None = None,
    *,
    taken: Mapping[str, Any] | None = None,
) -> Any:
    """Chain the arguments of a step without ``with``.

    With ``taken`` given, only further required properties are looked up. ``prompt`` is the value of the
    property for prompts if nothing else is found for it. Raises InvalidParametersError with the step, the
    field and the places that were searched.
    """
    declared = _resolve_root(schema or {})
    required = [name for name in declared.get("required", ()) if isinstance(name, str)]
    if taken is not None:
        arguments = dict(taken)
    else:
        chained = _take_nearest(declared, required, scope, prompt)
        if not isinstance(chained, dict):
            return chained
        arguments = chained
    for name in required:
        if name not in arguments:
            arguments[name] = _look_up(name, step_id, skill, declared, scope, prompt)
    return arguments


def _resolve_root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a ``$ref`` at the root points to, else the schema itself."""
    target = find_reference(schema, schema.get("$ref"))
    return target if isinstance(target, Mapping) else schema


def _take_nearest(declared: Mapping[str, Any], required: list[str], scope: Scope, prompt: str | None) -> Any:
    properties = declared.get("properties")
    nearest = scope.find_nearest() if scope.outputs else scope.input
    extra = declared.get("additionalProperties")
    takes_all = extra is not False if not properties else extra not in (None, False)
    if not isinstance(nearest, Mapping):
        # Other values could only be rejected by the schema: send no arguments then.
        fits = nearest is not None and declared.get("type") != "object"
        if takes_all and not required and not properties and fits and prompt is None:
            return nearest
        arguments: dict[str, Any] = {}
    elif takes_all:
        arguments = dict(nearest)
    else:
        arguments = {name: value for name, value in nearest.items() if name in (properties or {})}
    takes_prompt = "prompt" in properties if properties else takes_all
    # The default prompt contains the workflow's own prompt and the previous result.
    if prompt is not None and takes_prompt and not (scope.outputs and "prompt" in arguments):
        arguments["prompt"] = prompt
    return arguments


def _look_up(
    name: str, step_id: str, skill: str, declared: Mapping[str, Any], scope: Scope, prompt: str | None
) -> Any:
    for _, output in reversed(scope.outputs):
        if isinstance(output, Mapping) and name in output:
            return output[name]
    if isinstance(scope.input, Mapping) and name in scope.input:
        return scope.input[name]
    if prompt is not None and _is_text(declared, name):
        return prompt
    steps = ", ".join(earlier for earlier, _ in reversed(scope.outputs))
    looked = (f"the outputs of {steps} or " if steps else "") + "the workflow's input"
    error = InvalidParametersError(
        [Problem(name, f"step {step_id}: {skill} needs {name!r}, which is not in {looked}")]
    )
    error.remedy = f"give it: with: {{{name}: …}}"
    raise error


def _is_text(declared: Mapping[str, Any], name: str) -> bool:
    """Whether a required property takes the prompt: it is named so, or the only text."""
    properties = declared.get("properties") or {}
    texts = [
        name
        for name in declared.get("required", ())
        if isinstance(properties.get(name), Mapping) and properties[name].get("type") == "string"
    ]
    return name == "prompt" or texts == [name]


PROMPT = "prompt"


def address_prompt(schema: Mapping[str, Any] | None) -> str | None:
    """The property for the prompt: ``prompt``, else the only required text, else None."""
    declared = _resolve_root(schema or {})
    properties = declared.get("properties")
    if not isinstance(properties, Mapping) or not properties or PROMPT in properties:
        return PROMPT
    texts = [
        name
        for name in declared.get("required", ())
        if isinstance(properties.get(name), Mapping) and properties[name].get("type") == "string"
    ]
    return str(texts[0]) if len(texts) == 1 else None


def default_prompt(scope: Scope) -> str:
    """The task of the workflow and the result of the previous step."""
    task = scope.input
    if isinstance(task, Mapping):
        task = task.get(PROMPT, task.get("task", task.get("input", "")))
    parts = [text_of(task)]
    if scope.outputs:
        step_id, output = scope.outputs[-1]
        parts.append(fence(f"the result of step {step_id}", text_of(output)))
    return "\n\n".join(part for part in parts if part)
