"""Stores large repeated values of a run once, with references in the other places.

A branch's value is the outcome of its step, a part of the branch's output, and a part of what its parent
waited for, each time under several keys. Within one run the later ones are stored as references. No run
refers to what another run stores: forks and deletions leave the references of a run intact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

SHARED_BYTES = 65_536
"""Smaller values are stored wherever they occur."""

_MAX_DEPTH = 8
"""Each level of nesting is encoded again; deeper ones are stored with what they are part of."""

Place = Sequence[str | int]
"""The keys and indices that lead to a part of a JSON value; () is the whole."""

Reference = tuple[Place, str, Place]
"""Where a part was left out, the recorded call that stores it, "" for the value itself, and where in it."""


def is_large(value: Any) -> bool:
    """Whether a JSON value may contain a value worth a reference."""
    return len(orjson.dumps(value)) >= SHARED_BYTES


class StoredValues:
    """The large values that a run has stored, by their JSON."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, Place]] = {}

    def add(self, call: str, value: Any, place: Place = ()) -> None:
        """Note a value that a recorded call stores at ``place`` of its output, with its parts."""
        self._pack(value, call, tuple(place), tuple(place), [])

    def pack(self, value: Any) -> tuple[Any, list[Reference]]:
        """The value with None in place of all that was stored, and the references for `unpack`."""
        left_out: list[Reference] = []
        return self._pack(value, None, (), (), left_out), left_out

    def _pack(
        self,
        value: Any,
        call: str | None,
        place: tuple[str | int, ...],
        start: tuple[str | int, ...],
        left_out: list[Reference],
    ) -> Any:
        """With ``call`` the stored parts are noted, so that equal parts refer to the first of them."""
        if not isinstance(value, str | list | dict) or len(place) - len(start) > _MAX_DEPTH:
            return value
        encoded = orjson.dumps(value)
        if len(encoded) < SHARED_BYTES:
            return value
        digest = blake2b(encoded).digest()
        known = self._known.get(digest)
        if known is not None:
            left_out.append((place, *known))
            return None
        if call is not None:
            self._known[digest] = (call, place)
        if isinstance(value, dict):
            return {
                key: self._pack(part, call, (*place, key), start, left_out) for key, part in value.items()
            }
        if isinstance(value, list):
            return [
                self._pack(part, call, (*place, index), start, left_out) for index, part in enumerate(value)
            ]
        return value


def pack_alone(value: Any) -> tuple[Any, list[Reference]]:
    """The value with None in place of large parts that occur in it before, and the references."""
    left_out: list[Reference] = []
    return StoredValues()._pack(value, "", (), (), left_out), left_out


def unpack(value: Any, references: Sequence[Reference], calls: Mapping[str, Any]) -> Any:
    """Put omitted values back, in place where possible; ``calls`` has the outputs of recorded calls."""
    for place, call, source in references:
        found = _find(value if call == "" else calls[call], source)
        if not place:
            return found
        _find(value, place[:-1])[place[-1]] = found
    return value


def _find(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value
