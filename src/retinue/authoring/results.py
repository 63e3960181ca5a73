"""Converts results of skills to JSON values and content parts.

A skill may return a JSON value, or what pydantic makes one of (models, dataclasses, sets, dates, decimals,
enums, UUIDs, paths); or content parts: ``Part.image(png)``, ``["as asked:", Part.image(png)]``,
or both: ``Answer({"width": 3}, parts=(Part.image(png),))``. Endpoints with content blocks (MCP) send the
parts. Other endpoints send the value or, without one, what `core.parts` makes of the parts.
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
from pydantic_core import PydanticSerializationError, to_jsonable_python

from retinue.core.call import Answer, Part
from retinue.core.errors import OutputInvalidError

_PLAIN_ONLY = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
"""pydantic writes the other types of orjson, so that one value has one form, typed or not."""


def encode_result(where: str, value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """A result as a JSON value, converted by its declared type where there is one, else as pydantic does.

    Raises OutputInvalidError, with the path, for values that JSON cannot represent, including NaN and
    infinity.
    """
    original = value
    try:
        if adapter is not None:
            value = adapter.serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        try:
            encoded = orjson.dumps(value, option=_PLAIN_ONLY)
        except TypeError:
            value = to_jsonable_python(value, by_alias=True)
            encoded = orjson.dumps(value)
    except (TypeError, ValueError, PydanticSerializationError) as error:
        path, shape = _find_unserialisable(original) or ((), str(error).splitlines()[0])
        raise OutputInvalidError.not_json(where, ".".join(path), shape) from error
    if adapter is None and not isinstance(value, str | int | float | bool | None):
        plain = orjson.loads(encoded)
    else:
        plain = value
    # orjson writes NaN and infinity as null, as pydantic does inside untyped parts: the number would be lost
    # silently.
    if b"null" in encoded:
        path_found = _find_nonfinite(value)
        if path_found is None and value is not original:
            path_found = _find_nonfinite(original)
        if path_found is not None:
            raise OutputInvalidError.not_json(where, ".".join(path_found), "a float that is not finite")
    return plain


_MAX_PARTS = 100_000
"""The number of parts of a result that are examined to find one without a JSON form."""


def _find_unserialisable(value: Any) -> tuple[tuple[str, ...], str] | None:
    """The path of the first part that JSON cannot represent, and its shape; None if none is found."""
    pending: list[tuple[tuple[str, ...], Any, frozenset[int]]] = [((), value, frozenset())]
    for _ in range(_MAX_PARTS):
        if not pending:
            return None
        path, item, around = pending.pop()
        if id(item) in around:
            return path, "a value that contains itself"
        parts = [(str(key), part) for key, part in _parts_of(item)]
        if not parts and (shape := _unserialisable_shape(item)):
            return path, shape
        inside = around | {id(item)} if parts else around
        pending.extend(((*path, key), part, inside) for key, part in reversed(parts))
    return None


def _unserialisable_shape(value: Any) -> str:
    """The shape of a value without parts, if JSON cannot represent it; "" otherwise."""
    try:
        orjson.dumps(to_jsonable_python(value))
    except (TypeError, ValueError, PydanticSerializationError):
        if isinstance(value, bytes | bytearray):
            return "bytes that are not UTF-8; return Part.image, Part.audio or base64 text"
        if isinstance(value, str):
            return "a text with half of a surrogate pair"
        if isinstance(value, int):
            return "an integer of more than 64 bits"
        name = type(value).__qualname__
        return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    return ""


def _find_nonfinite(value: Any) -> tuple[str, ...] | None:
    """The path of a number that JSON cannot represent; None where there is none."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return path
        pending.extend(
            ((*path, str(key)), part)
            for key, part in _parts_of(item)
            if part is not None and not isinstance(part, str | int)  # most parts, and finite
        )
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
        return any(gives_parts(argument) for argument in typing.get_args(annotation))
    return False


def has_parts(value: Any) -> bool:
    """Whether a skill returned content parts."""
    kind = type(value)
    if kind is str or kind is dict:  # as nearly every value
        return False
    if isinstance(value, list | tuple):
        return any(isinstance(item, Part) for item in value)
    return isinstance(value, Part | Answer)


def as_parts(value: Any) -> tuple[Part, ...]:
    """A part, a text, or a list of both, as parts."""
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(item if isinstance(item, Part) else Part.text(str(item)) for item in several)


def as_answer(skill_id: str, value: Any) -> Answer:
    """The result of a skill as an answer; raises OutputInvalidError for a value that is not JSON."""
    if isinstance(value, Answer):
        return replace(value, value=encode_result(skill_id, value.value))
    return Answer(parts=as_parts(value))
