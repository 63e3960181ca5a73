"""JSON values that cross a durable call: nobody shares them, and nothing in them is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from retinue.core.errors import OutputInvalidError, Problem


def copy_json(value: Any, what: str) -> Any:
    """A deep copy through JSON text, so that nobody shares it; raises OutputInvalidError."""
    return orjson.loads(encode_json(value, what))


def encode_json(value: Any, what: str) -> bytes:
    """The JSON text of a value; raises OutputInvalidError where JSON cannot carry it."""
    try:
        encoded = orjson.dumps(
            value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
        )
    except TypeError as error:
        problem = str(error)
        if "64-bit" in problem:
            problem = "an integer beyond 64 bits: carry such a number as text"
        raise OutputInvalidError(what, [Problem("", problem)]) from None
    # orjson writes NaN and infinity as null: only then is it worth looking for them.
    if b"null" in encoded and _holds_no_number(value):
        raise OutputInvalidError(what, [Problem("", "NaN and infinity are no JSON")])
    return encoded


def _holds_no_number(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return True
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return False
