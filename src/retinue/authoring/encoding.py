"""Results as JSON values: through their declared type, and never a number that became nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from retinue.core.errors import OutputInvalidError, Problem


def encode_result(where: str, value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """A result as a JSON value, through its declared type where there is one."""
    given = value
    try:
        if adapter is not None:
            value = adapter.serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        encoded = orjson.dumps(value)
    except (TypeError, ValueError, PydanticSerializationError) as error:
        problem = f"no JSON value: {type(value).__name__} ({str(error).splitlines()[0]})"
        raise OutputInvalidError(where, [Problem("", problem)]) from error
    if adapter is None and not isinstance(value, str | int | float | bool | None):
        plain = orjson.loads(encoded)
    else:
        plain = value
    # orjson writes NaN and the infinities as null, pydantic those in parts without a type of their own:
    # a number would silently become nothing
    if b"null" in encoded:
        path = _find_nonfinite(value)
        path = _find_nonfinite(given) if path is None else path
        if path is not None:
            shown = ".".join(path)
            at = f" at {shown}" if shown else ""
            raise OutputInvalidError(
                where, [Problem(shown, f"no JSON value: a float that is not finite{at}")]
            )
    return plain


def _find_nonfinite(value: Any) -> tuple[str, ...] | None:
    """Where a number stands that JSON cannot carry; None where all can be carried."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending:
        path, one = pending.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return path
        pending.extend(((*path, str(key)), part) for key, part in _parts_of(one))
    return None


def _parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """What a result is made of, in every form in which pydantic and orjson write it."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return [*value.__dict__.items(), *(value.__pydantic_extra__ or {}).items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return ()
