"""Where a prompt goes, and what it is when a step writes none (SPEC 7, seed 002)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.chaining import resolve_root
from retinue.workflows.interpreter.texts import text_of

PROMPT = "prompt"


def address_prompt(schema: Mapping[str, Any] | None) -> str | None:
    """The property that takes the prompt: ``prompt``, else the only required text; None when neither."""
    declared = resolve_root(schema or {})
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
    """The task that the workflow was given, and what the step before made of it."""
    task = scope.input
    if isinstance(task, Mapping):
        task = task.get(PROMPT, task.get("task", task.get("input", "")))
    parts = [text_of(task)]
    if scope.outputs:
        step_id, output = scope.outputs[-1]
        parts.append(f"Result of {step_id}:\n{text_of(output)}")
    return "\n\n".join(part for part in parts if part)
