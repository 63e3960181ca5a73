"""Checks a definition when it is loaded, for faults that its text alone shows.

The first fault, by its place in the text, is raised as DefinitionError with source, line and remedy. This
module checks the shape; ``step_checks`` checks the relations between steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from retinue.core.errors import DefinitionError
from retinue.core.json_values import name_shape
from retinue.workflows.definitions.definition import (
    AskFirst,
    Compensation,
    Definition,
    Foreach,
    Loop,
    Parallel,
    Retry,
    Step,
    Timer,
    WaitFor,
    WorkflowSettings,
)
from retinue.workflows.definitions.documents import Document, Path
from retinue.workflows.definitions.starts import OnAgent, OnMessage, OnWebhook, Schedule, Triggers
from retinue.workflows.definitions.step_checks import StepChecks
from retinue.workflows.definitions.think import Think, ThinkContext, ThinkLimits
from retinue.workflows.definitions.values import StrictModel


def _list_keys(model: type[StrictModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


_KEYS: Mapping[str, tuple[str, ...]] = {
    "retry": _list_keys(Retry),
    "loop": _list_keys(Loop),
    "foreach": _list_keys(Foreach),
    "parallel": _list_keys(Parallel),
    "wait_for": _list_keys(WaitFor),
    "think": _list_keys(Think),
    "limits": _list_keys(ThinkLimits),
    "context": _list_keys(ThinkContext),
    "wait": _list_keys(Timer),
    "compensate": _list_keys(Compensation),
    "ask": _list_keys(AskFirst),
    "settings": _list_keys(WorkflowSettings),
    "schedule": _list_keys(Schedule),
    "on": _list_keys(Triggers),
    "webhook": _list_keys(OnWebhook),
    "message": _list_keys(OnMessage),
}
_SHAPES = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
    "bool_type": "true or false",
}


def check_document(document: Document) -> Definition:
    """The definition of a document in the canonical grammar; raises DefinitionError."""
    definition, faults = inspect_document(document)
    if definition is None or faults:
        raise faults[0]
    return definition


def inspect_document(document: Document) -> tuple[Definition | None, list[DefinitionError]]:
    """The definition, None where the grammar is violated, and the faults in the order of the text."""
    definition, faults = _apply_grammar(document)
    return definition, faults if definition is None else StepChecks(document, definition).list_faults()


def read_definition(document: Document) -> Definition:
    """As `check_document`, without the checks of the relations between steps."""
    definition, faults = _apply_grammar(document)
    if definition is None:
        raise faults[0]
    return definition


def _apply_grammar(document: Document) -> tuple[Definition | None, list[DefinitionError]]:
    if not isinstance(document.value, dict):
        return None, [document.fault((), "no workflow", "write an object with name and steps")]
    try:
        return Definition.from_json(document.value), []
    except ValidationError as error:
        return None, _list_faults(document, error)


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    from rapidfuzz import fuzz, process  # only for a wrong name

    found = process.extractOne(word, list(known), scorer=fuzz.ratio, score_cutoff=65)
    return None if found is None else str(found[0])


def unknown_key(document: Document, path: Path, known: Sequence[str]) -> DefinitionError:
    """The fault of a key that the grammar does not have."""
    key = str(path[-1])
    near = suggest(key, known)
    remedy = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
    return document.fault(path, f"unknown key {key!r}", remedy)


def _list_faults(document: Document, error: ValidationError) -> list[DefinitionError]:
    details = [dict(detail) for detail in error.errors(include_url=False)]
    # a missing key is more likely misspelt: the unknown key is reported first
    details.sort(key=lambda detail: detail["type"] == "missing")
    faults = [render_fault(document, detail) for detail in details]
    return sorted(faults, key=lambda fault: fault.line)


def render_fault(
    document: Document,
    detail: Mapping[str, Any],
    path: Path | None = None,
    form: str = "retinue docs workflows",
) -> DefinitionError:
    """The fault of a document that an error of pydantic describes in ``detail``.

    ``path`` is its place in the document, None for that of ``detail``; ``form`` is the command that tells
    more.
    """
    if path is None:
        path = tuple(key for key in detail["loc"] if key not in ("[key]", "dict[str,any]", "str"))
        path = tuple(key for key in path if not (isinstance(key, str) and key.startswith("list[")))
    kind = detail["type"]
    if kind == "extra_forbidden":
        parent = str(path[-2]) if len(path) > 1 else None
        if parent is None:
            return unknown_key(document, path, _list_keys(Definition))
        # a step has the key agent too, which is a text
        known = _list_keys(OnAgent) if path[:2] == ("on", "agent") else _KEYS.get(parent, _list_keys(Step))
        return unknown_key(document, path, known)
    if kind == "missing":
        return document.fault(path[:-1], f"{path[-1]!r} is missing", f"add {path[-1]}")
    if kind == "value_error":
        return document.fault(path, str(detail["ctx"]["error"]), f"{form} shows the form")
    if kind == "string_pattern_mismatch":
        return document.fault(
            path, f"{detail['input']!r} is no name", "use letters, digits, _ and -, beginning with a letter"
        )
    wanted = _SHAPES.get(kind)
    if wanted is None:
        problem = f"{_name_rule(str(detail['msg']))}; it is {_show(detail['input'])}"
    else:
        problem = f"it must be {wanted}; it is {name_shape(detail['input'])}"
    remedy = "quote texts that look like numbers; " if kind == "string_type" else ""
    return document.fault(path, problem, f"{remedy}{form} shows the form")


def _name_rule(message: str) -> str:
    """What a value must be, in a message of pydantic about it or about what holds it."""
    _, verb, rule = message.partition(" should ")
    return f"it must {rule}" if verb else message


def _show(value: Any) -> str:
    """A number or true or false itself, of other values the shape."""
    return json.dumps(value) if isinstance(value, bool | int | float) else name_shape(value)
