"""Results of skills as JSON values and content parts.

A skill may return a JSON value or content parts: ``Part.image(png)``, ``["as asked:", Part.image(png)]``,
or both: ``Answer({"width": 3}, parts=(Part.image(png),))``. Endpoints with content blocks (MCP) send the
parts. Other endpoints send the value or, without one, the parts as a list of objects.
"""

from __future__ import annotations

import math
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from retinue.core.call import Answer, Part
from retinue.core.errors import OutputInvalidError, Problem


def encode_result(where: str, value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """A result as a JSON value, converted by its declared type where there is one.

    Raises OutputInvalidError for values that JSON cannot represent, including NaN and infinity.
    """
    given = value
    try:
        if adapter is not None:
            value = adapter.serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        encoded = orjson.dumps(value)
    except (TypeError, ValueError, PydanticSerializationError) as error:
        problem = f"not a JSON value: {type(value).__name__} ({str(error).splitlines()[0]})"
        raise OutputInvalidError(where, [Problem("", problem)]) from error
    if adapter is None and not isinstance(value, str | int | float | bool | None):
        plain = orjson.loads(encoded)
    else:
        plain = value
    # orjson writes NaN and infinity as null, as pydantic does inside untyped parts: the number would be lost
    # silently.
    if b"null" in encoded:
        path = _find_nonfinite(value)
        path = _find_nonfinite(given) if path is None else path
        if path is not None:
            shown = ".".join(path)
            at = f" at {shown}" if shown else ""
            raise OutputInvalidError(
                where, [Problem(shown, f"not a JSON value: a float that is not finite{at}")]
            )
    return plain


def _find_nonfinite(value: Any) -> tuple[str, ...] | None:
    """The path of a number that JSON cannot represent; None where there is none."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending:
        path, one = pending.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return path
        pending.extend(((*path, str(key)), part) for key, part in _parts_of(one))
    return None


def _parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a result, for every type that pydantic and orjson serialise."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return [*value.__dict__.items(), *(value.__pydantic_extra__ or {}).items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return ()


def gives_parts(annotation: Any) -> bool:
    """Whether a return annotation contains content parts, so that no output schema is made of it."""
    if annotation in (Part, Answer):
        return True
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, typing.Union, types.UnionType) or origin is not None:
        return any(gives_parts(one) for one in typing.get_args(annotation))
    return False


def has_parts(value: Any) -> bool:
    """Whether a skill returned content parts."""
    kind = type(value)
    if kind is str or kind is dict:  # as nearly every value
        return False
    if isinstance(value, list | tuple):
        return any(isinstance(one, Part) for one in value)
    return isinstance(value, Part | Answer)


def as_parts(value: Any) -> tuple[Part, ...]:
    """A part, a text, or a list of both, as parts."""
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(one if isinstance(one, Part) else Part.text(str(one)) for one in several)


def as_answer(skill_id: str, value: Any) -> Answer:
    """The result of a skill as an answer; raises OutputInvalidError for a value that is not JSON."""
    if isinstance(value, Answer):
        plain = encode_result(skill_id, value.value)
        if plain is None and value.parts:
            plain = [part_as_json(part) for part in value.parts]
        return replace(value, value=plain)
    parts = as_parts(value)
    return Answer(value=[part_as_json(part) for part in parts], parts=parts)


def part_as_json(part: Part) -> dict[str, Any]:
    """A part as a JSON object, for endpoints without content blocks; bytes stay base64."""
    found: dict[str, Any] = {"kind": part.kind, "value": part.value, "mime": part.mime}
    if part.name:
        found["name"] = part.name
    return found
