"""Masks the fields of a JSON value that policies name by JSON Pointers, and their texts elsewhere in it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.guards.masking import MASKED_EMAIL, MAX_DEPTH
from retinue.guards.sensitive import SensitiveKind, find_sensitive

Pointer = tuple[str, ...]
"""The names on the way to a field; ``*`` is any name or element, ``**`` any number of them."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of a value: kinds of sensitive data, and the fields at these places."""

    kinds: tuple[SensitiveKind, ...] = ()
    pointers: tuple[Pointer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kinds or self.pointers)


MASKED_TEXT = "[redacted]"
MAX_STEPS = 32

_SHORT = 4
"""Shorter texts of masked fields are not looked for elsewhere, because they are in any text."""

_FEW = 200
"""Up to this number texts are looked for one by one, because searching the places of all is slower."""

_MASKED_NAME = re.compile(rf"{re.escape(MASKED_TEXT)}(?: \d+)?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_pointer(text: str) -> Pointer:
    """The pointer of a text such as ``/customers/*/name``; raises ValueError."""
    steps = text.split("/")[1:]
    if not text.startswith("/") or not steps[0] or len(steps) > MAX_STEPS:
        raise ValueError(f"{text!r} is no JSON Pointer of 1 to {MAX_STEPS} names, such as /customers/*/name")
    if any("~" in step.replace("~0", "").replace("~1", "") for step in steps):
        raise ValueError(f"{text!r} has a ~ that is neither ~0 nor ~1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def list_field_names(schema: Any) -> frozenset[str] | None:
    """The names of fields that a JSON Schema declares, at any depth; None without a schema."""
    if schema is None:
        return None
    names: set[str] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            properties = node.get("properties")
            if isinstance(properties, Mapping):
                names.update(properties)
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
    return frozenset(names)


class FieldMasks:
    """Masks the fields at ``pointers`` in the values of one call.

    ``names`` are those of fields that the schema of the values declares, None without a schema. Other names
    within a masked field are data, such as the keys of a table by customer, and are masked as well. The texts
    of fields that are masked once are masked in all values that follow. A text that may hold such fields, and
    is no JSON, is withheld as long as none of the fields is known.
    """

    def __init__(self, pointers: Sequence[Pointer], names: Collection[str] | None = None) -> None:
        self._pointers = tuple(pointers)
        self._names = frozenset(names or ())
        self._has_schema = names is not None
        self._texts: set[str] = set()
        self._lengths: dict[str, set[int]] = {}
        """The lengths of these texts by their first characters."""
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
        if self._texts:
            return self._replace_in_text(text)
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
        """The value with other leaves of the same types, and without names that are data."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            hidden: dict[str, Any] = {}
            for name, inner in value.items():
                hidden[self._hide_name(name, hidden)] = self._hide(inner, depth + 1)
            return hidden
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

    def _hide_name(self, name: str, taken: Mapping[str, Any]) -> str:
        if not name or name in self._names or _MASKED_NAME.fullmatch(name):
            return name
        self._is_changed = True
        # without a schema nobody knows whether a word such as "city" is data
        if self._has_schema or not _IDENTIFIER.fullmatch(name):
            self._keep(name)
        return _name_apart(MASKED_TEXT, taken)

    def _keep(self, text: str) -> None:
        if len(text) >= _SHORT and text not in self._texts:
            self._texts.add(text)
            self._lengths.setdefault(text[:_SHORT], set()).add(len(text))

    def _replace(self, value: Any, depth: int) -> Any:
        """The value without the texts of masked fields."""
        if not self._texts:
            return value
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            replaced: dict[str, Any] = {}
            for name, inner in value.items():
                shown = name if name in self._names else self._replace_in_text(name)
                replaced[_name_apart(shown, replaced)] = self._replace(inner, depth + 1)
            return replaced
        if isinstance(value, list | tuple):
            return [self._replace(inner, depth + 1) for inner in value]
        return self._replace_in_text(value) if isinstance(value, str) else value

    def _replace_in_text(self, text: str) -> str:
        if len(self._texts) <= _FEW and not any(known in text for known in self._texts):
            return text
        pieces, end = [], 0
        for start, stop in self._find_places(text):
            pieces += [text[end:start], MASKED_TEXT]
            end = stop
        if not end:
            return text
        self._is_changed = True
        return "".join([*pieces, text[end:]])

    def _find_places(self, text: str) -> list[tuple[int, int]]:
        """Where texts of masked fields are in a text; those that overlap are one place."""
        places: list[tuple[int, int]] = []
        for start in range(len(text) - _SHORT + 1):
            lengths = self._lengths.get(text[start : start + _SHORT])
            if lengths is None:
                continue
            longest = max(
                (length for length in lengths if text[start : start + length] in self._texts), default=0
            )
            if not longest:
                continue
            if places and start < places[-1][1]:
                places[-1] = (places[-1][0], max(places[-1][1], start + longest))
            else:
                places.append((start, start + longest))
        return places


def _name_apart(name: str, taken: Mapping[str, Any]) -> str:
    """The name with a number, if it is taken."""
    shown, number = name, len(taken)
    while shown in taken:
        number += 1
        shown = f"{name} {number}"
    return shown


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
