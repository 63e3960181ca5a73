"""What a skill may return besides a JSON value: content parts, alone or beside a value.

``return Part.image(png)`` · ``return ["as asked:", Part.image(png)]`` ·
``return Answer({"width": 3}, parts=(Part.image(png),))``. Doors with content blocks (MCP, A2A) show the
parts; elsewhere the value is what counts, or, where there is none, the parts as a list of objects.
"""

from __future__ import annotations

import types
import typing
from dataclasses import replace
from typing import Any

from retinue.authoring.encoding import encode_result
from retinue.core.call import Answer, Part


def gives_parts(annotation: Any) -> bool:
    """Whether a return annotation names content parts, so that no schema of its own is made of it."""
    if annotation in (Part, Answer):
        return True
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, typing.Union, types.UnionType) or origin is not None:
        return any(gives_parts(one) for one in typing.get_args(annotation))
    return False


def has_parts(value: Any) -> bool:
    """Whether a skill returned content parts."""
    kind = type(value)
    if kind is str or kind is dict:  # as nearly every value is
        return False
    if isinstance(value, list | tuple):
        return any(isinstance(one, Part) for one in value)
    return isinstance(value, Part | Answer)


def as_parts(value: Any) -> tuple[Part, ...]:
    """A part, a text, or a list of both, as parts."""
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(one if isinstance(one, Part) else Part.text(str(one)) for one in several)


def as_answer(skill_id: str, value: Any) -> Answer:
    """What a skill returned, as an answer; raises OutputInvalidError for a value that is no JSON."""
    if isinstance(value, Answer):
        plain = encode_result(skill_id, value.value)
        if plain is None and value.parts:
            plain = [part_as_json(part) for part in value.parts]
        return replace(value, value=plain)
    parts = as_parts(value)
    return Answer(value=[part_as_json(part) for part in parts], parts=parts)


def part_as_json(part: Part) -> dict[str, Any]:
    """A part where there are no content blocks; bytes stay base64."""
    said: dict[str, Any] = {"kind": part.kind, "value": part.value, "mime": part.mime}
    if part.name:
        said["name"] = part.name
    return said
