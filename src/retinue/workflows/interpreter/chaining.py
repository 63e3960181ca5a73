"""Chaining without ``with`` (SPEC 7, seed 001): what the next skill is sent.

Exactly the properties that its input schema declares, out of the nearest output; the whole output
only if the schema declares none or allows others explicitly. A required one that is missing is
looked up in earlier outputs, nearest first, then in the workflow's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import InvalidParametersError, Problem
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
    """The arguments of a step that has no ``with``.

    ``taken`` are some that are settled: only what is required beside them is looked up. A ``prompt``
    stands in for the property that takes one, where nothing else is found for it.
    Raises InvalidParametersError that names the step, the field and where it was looked for.
    """
    declared = resolve_root(schema or {})
    required = [name for name in declared.get("required", ()) if isinstance(name, str)]
    if taken is not None:
        arguments = dict(taken)
    else:
        found = _take_nearest(declared, required, scope, prompt)
        if not isinstance(found, dict):
            return found
        arguments = found
    for name in required:
        if name not in arguments:
            arguments[name] = _look_up(name, step_id, skill, declared, scope, prompt)
    return arguments


def resolve_root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that the root points to, for schemas which keep all of theirs under ``$defs``."""
    pointer = schema.get("$ref")
    if not isinstance(pointer, str) or not pointer.startswith("#/"):
        return schema
    found: Any = schema
    for part in pointer[2:].split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else schema


def _take_nearest(declared: Mapping[str, Any], required: list[str], scope: Scope, prompt: str | None) -> Any:
    properties = declared.get("properties")
    nearest = scope.find_nearest() if scope.outputs else scope.input
    takes_all = not properties or declared.get("additionalProperties") not in (None, False)
    if not isinstance(nearest, Mapping):
        # a null, or what is no object where one is wanted, could only be refused: nothing is sent then
        fits = nearest is not None and declared.get("type") != "object"
        if takes_all and not required and not properties and fits and prompt is None:
            return nearest
        arguments: dict[str, Any] = {}
    elif takes_all:
        arguments = dict(nearest)
    else:
        arguments = {name: value for name, value in nearest.items() if name in (properties or {})}
    takes_prompt = not properties or "prompt" in properties
    # the workflow's own prompt says less than this one, which quotes the step before
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
    """Whether a required property is the one that takes a prompt: the only text among them."""
    properties = declared.get("properties") or {}
    texts = [
        one
        for one in declared.get("required", ())
        if isinstance(properties.get(one), Mapping) and properties[one].get("type") == "string"
    ]
    return name == "prompt" or texts == [name]
