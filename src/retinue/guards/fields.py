"""Masks the fields of a JSON value that policies name by JSON Pointers, and their texts elsewhere in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.guards.masking import MASKED_EMAIL, MAX_DEPTH
from retinue.guards.sensitive import SensitiveKind, find_sensitive

Pointer = tuple[str, ...]
"""The names on the way to a field; ``*`` is any name or element, ``**`` any number of them."""


@dataclass(frozen=True, slots=True)
class Masks:
    """What is masked in a value: kinds of sensitive data, and the fields at these places."""

    kinds: tuple[SensitiveKind, ...] = ()
    pointers: tuple[Pointer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kinds or self.pointers)


MASKED_TEXT = "[redacted]"
MAX_STEPS = 32

_SHORT = 4
"""Shorter texts of masked fields are not looked for elsewhere, because they are in any text."""

_MANY = 200
"""Of more texts, only whole ones are looked for elsewhere, because each text is searched for each of them."""


def read_pointer(text: str) -> Pointer:
    """The pointer of a text such as ``/customers/*/name``; raises ValueError."""
    steps = text.split("/")[1:]
    if not text.startswith("/") or not steps[0] or len(steps) > MAX_STEPS:
        raise ValueError(f"{text!r} is no JSON Pointer of 1 to {MAX_STEPS} names, such as /customers/*/name")
    if any("~" in step.replace("~0", "").replace("~1", "") for step in steps):
        raise ValueError(f"{text!r} has a ~ that is neither ~0 nor ~1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


class FieldMasks:
    """Masks the fields at ``pointers`` in the values of one call.

    The texts of fields that are masked once are masked in all values that follow. A text that may hold such
    fields, and is no JSON, is withheld as long as none of the fields is known.
    """

    def __init__(self, pointers: Sequence[Pointer]) -> None:
        self._pointers = tuple(pointers)
        self._texts: set[str] = set()
        self._is_changed = False

    def mask(self, value: Any) -> tuple[Any, bool]:
        """The value that is left, and whether that is another one; raises ValueError for a deep value."""
        self._is_changed = False
        if isinstance(value, str):
            masked = self._mask_text(value)
        else:
            masked = self._replace(self._walk(value, self._pointers, 0), 0)
        return (masked, True) if self._is_changed else (value, False)

    def _mask_text(self, text: str) -> str:
        if text.lstrip()[:1] in ("{", "["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict | list):
                masked = self._replace(self._walk(value, self._pointers, 0), 0)
                return json.dumps(masked, ensure_ascii=False) if self._is_changed else text
        if 0 < len(self._texts) <= _MANY:
            return str(self._replace(text, 0))
        self._is_changed = True
        return "[withheld]"

    def _walk(self, value: Any, pointers: Sequence[Pointer], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if not all(pointers):
            return self._hide(value, depth)
        if isinstance(value, Mapping):
            return {
                name: self._walk(inner, _follow(pointers, name), depth + 1) for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                self._walk(inner, _follow(pointers, str(place)), depth + 1)
                for place, inner in enumerate(value)
            ]
        return value

    def _hide(self, value: Any, depth: int) -> Any:
        """The value with other leaves of the same types."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            return {name: self._hide(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(inner, depth + 1) for inner in value]
        if value is None or value in ("", MASKED_TEXT, MASKED_EMAIL):
            return value
        self._is_changed = True
        if isinstance(value, bool):
            return False
        if isinstance(value, int | float):
            self._keep(str(value))
            return 0
        self._keep(str(value))
        return MASKED_EMAIL if _is_address(str(value)) else MASKED_TEXT

    def _keep(self, text: str) -> None:
        if len(text) >= _SHORT:
            self._texts.add(text)

    def _replace(self, value: Any, depth: int) -> Any:
        """The value without the texts of masked fields."""
        if not self._texts:
            return value
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            return {name: self._replace(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._replace(inner, depth + 1) for inner in value]
        if not isinstance(value, str):
            return value
        texts = [value] if value in self._texts else []
        if not texts and len(self._texts) <= _MANY:
            texts = [text for text in self._texts if text in value]
        for text in sorted(texts, key=len, reverse=True):
            self._is_changed = True
            value = value.replace(text, MASKED_TEXT)
        return value


def _follow(pointers: Sequence[Pointer], name: str) -> tuple[Pointer, ...]:
    """What is left of the pointers that lead through this name; an empty pointer leads to its value."""
    left: dict[Pointer, None] = {}
    for pointer in pointers:
        while pointer[:1] == ("**",):
            left[pointer] = None
            pointer = pointer[1:]
        if not pointer:
            left[()] = None  # ** at the end is all that is below
        elif pointer[0] in ("*", name):
            left[pointer[1:]] = None
    return tuple(left)


def _is_address(text: str) -> bool:
    return any(finding.end - finding.start == len(text) for finding in find_sensitive(text, ["email"]))
