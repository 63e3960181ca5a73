"""Maps the arguments that policies read to Cedar values.

Cedar has no floats and no nulls, its lists are sets, and an object with the key ``__entity`` is an entity. So
each value is mapped to the type that the policy expects, and a value that has no exact form is refused: a
policy must never see another value than the skill. A null counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from retinue.policies.reads import Path, ValueType

MAX_BYTES = 64 * 1024
"""All projected texts of one call together."""

MAX_ELEMENTS = 1_000
"""Elements of a list."""

_LARGEST = 2**63 - 1
_PLACES = 4
_LARGEST_DECIMAL = Decimal(_LARGEST).scaleb(-_PLACES)


class UnmappableError(ValueError):
    """An argument has a value that a policy cannot read; the text names the argument and why."""


def project(arguments: Any, reads: Mapping[Path, ValueType]) -> dict[str, Any]:
    """The arguments that policies read, as Cedar values. Raises UnmappableError.

    An argument that is missing, or null, is left out.
    """
    projected: dict[str, Any] = {}
    size = 0
    for path, expected in reads.items():
        value, place = arguments, projected
        for depth, name in enumerate(path):
            if not isinstance(value, Mapping):
                raise UnmappableError(f"{_render(path[:depth])} is {_name(value)}, not an object")
            value = value.get(name)
            if value is None:
                break
            if depth < len(path) - 1:
                place = place.setdefault(name, {})
        if value is None:
            continue
        mapped, length = _map(value, expected, path)
        size += length
        if size > MAX_BYTES:
            raise UnmappableError(f"{_render(path)} is too long: policies read at most {MAX_BYTES:,} bytes")
        place[path[-1]] = mapped
    return projected


def _map(value: Any, expected: ValueType, path: Path) -> tuple[Any, int]:
    """The Cedar value, and its length in bytes where that matters."""
    if expected == "present":
        return True, 0
    if expected in ("texts", "integers"):
        if not isinstance(value, list):
            raise _mismatch(value, "a list", path)
        if len(value) > MAX_ELEMENTS:
            raise UnmappableError(f"{_render(path)} has more than {MAX_ELEMENTS:,} elements")
        inner: ValueType = "text" if expected == "texts" else "integer"
        mapped = [_map(element, inner, path) for element in value if element is not None]
        return [element for element, _ in mapped], sum(length for _, length in mapped)
    if expected == "text":
        if not isinstance(value, str):
            raise _mismatch(value, "a text", path)
        try:
            return value, len(value.encode())
        except UnicodeEncodeError:
            raise UnmappableError(f"{_render(path)} has half of a surrogate pair") from None
    if expected == "boolean":
        if not isinstance(value, bool):
            raise _mismatch(value, "true or false", path)
        return value, 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(value, "a number", path)
    if expected == "integer":
        return _map_integer(value, path), 0
    return {"__extn": {"fn": "decimal", "arg": _map_decimal(value, path)}}, 0


def _map_integer(value: float, path: Path) -> int:
    if isinstance(value, float):
        if not value.is_integer():
            raise UnmappableError(
                f'{_render(path)} is {value!r}, and the policy compares integers; write decimal("1.0")'
            )
        value = int(value)
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise UnmappableError(f"{_render(path)} is an integer of more than 64 bits")
    return value


def _map_decimal(value: float, path: Path) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise UnmappableError(f"{_render(path)} is {value!r}")
    number = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
    if abs(number) > _LARGEST_DECIMAL:
        raise UnmappableError(f"{_render(path)} is larger than {_LARGEST_DECIMAL:,.0f}")
    text = f"{number:.{_PLACES}f}"
    if Decimal(text) != number:
        raise UnmappableError(f"{_render(path)} is {value!r}, and policies compare at most {_PLACES} places")
    return text


def _mismatch(value: Any, expected: str, path: Path) -> UnmappableError:
    return UnmappableError(f"{_render(path)} is {_name(value)}, and the policy expects {expected}")


def _render(path: Path) -> str:
    return ".".join(path) if path else "the arguments"


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, Mapping) else "null"
