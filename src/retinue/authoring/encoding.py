"""Results as JSON values: through their declared type, and never a number that became nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from retinue.core.errors import OutputInvalidError, Problem


def encode_result(where: str, value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """A result as a JSON value, through its declared type where there is one."""
    given = value
    try:
        if adapter is not None:
            value = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
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
    if b"null" in encoded and (_has_nonfinite(value) or _has_nonfinite(given)):
        raise OutputInvalidError(where, [Problem("", "no JSON value: a float that is not finite")])
    return plain


def _has_nonfinite(value: Any) -> bool:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return True
        elif isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, list | tuple):
            pending.extend(one)
    return False
