"""Checks the constant part of a step's arguments against the input schema of its skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import SchemaRefusedError
from retinue.core.record import Schema
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.documents import Path
from retinue.workflows.expressions.templates import iterate_templates
from retinue.workflows.output_shapes import resolve_reference


def find_argument_faults(skill: str, arguments: Mapping[str, Any], schema: Schema) -> list[tuple[Path, str]]:
    """The faults as paths within ``given`` with their problems; values with templates are not judged."""
    try:
        if not any(True for _ in iterate_templates(arguments)):
            return sorted(
                _find_faults(skill, arguments, schema), key=lambda fault: _place_of(arguments, fault[0])
            )
        return [*_find_wrong_keys(arguments, schema), *_find_wrong_values(skill, arguments, schema)]
    except SchemaRefusedError:
        return []  # the skill's author sees that where the skill is called


def _find_faults(skill: str, value: Any, schema: Schema | bool) -> list[tuple[Path, str]]:
    problems = compile_schema(schema, f"input of {skill}").problems(value, schema)
    return [
        (_read_path(problem.path, value), f"{problem.message}{problem.hint and f' — {problem.hint}'}")
        for problem in problems
    ]


def _place_of(arguments: Mapping[str, Any], path: Path) -> int:
    """The position of the argument that a path leads to; before all others for the whole."""
    return list(arguments).index(str(path[0])) if path else -1


def _find_wrong_keys(arguments: Mapping[str, Any], schema: Schema) -> list[tuple[Path, str]]:
    root = resolve_reference(schema, schema)
    required = root.get("required", ())
    missing = [key for key in required if key not in arguments]
    faults: list[tuple[Path, str]] = [((), f"missing required field {key!r}") for key in missing]
    properties = root.get("properties", {})
    if root.get("additionalProperties") is False and "patternProperties" not in root:
        faults += [((key,), f"unknown field {key!r}") for key in arguments if key not in properties]
    return faults


def _find_wrong_values(skill: str, arguments: Mapping[str, Any], schema: Schema) -> list[tuple[Path, str]]:
    root = resolve_reference(schema, schema)
    definitions = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    faults: list[tuple[Path, str]] = []
    for key, value in arguments.items():
        declared = root.get("properties", {}).get(key)
        if not isinstance(declared, Mapping) or any(True for _ in iterate_templates(value)):
            continue
        # judged within an object, so that the messages name the field
        alone = {**definitions, "type": "object", "properties": {key: declared}}
        faults += _find_faults(skill, {key: value}, alone)
    return faults


def _read_path(dotted: str, value: Any) -> Path:
    """The dotted path of a problem as keys and positions, as far as the value has them."""
    path: list[str | int] = []
    for part in dotted.split(".") if dotted else ():
        if isinstance(value, Mapping) and part in value:
            path.append(part)
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            path.append(int(part))
            value = value[int(part)]
        else:
            break
    return tuple(path)
