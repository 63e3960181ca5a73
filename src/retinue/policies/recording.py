"""Records the arguments that policies read of a call, without secrets, for replays of other policies.

The row of one call has the paths whose values are known. A value that is masked or too long is not kept, and
a replay that needs it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.core.call import Call
from retinue.guards.masking import mask_value
from retinue.guards.sensitive import SensitiveKind
from retinue.policies.decision import Engine
from retinue.policies.entities import CALL, Caller, Resource
from retinue.policies.reads import Path

MASKED_KINDS: tuple[SensitiveKind, ...] = ("key", "card", "iban")
"""What is masked, as the guard ``sensitive`` does by default; policies about mail addresses need these."""

MAX_CHARACTERS = 256
"""Longer texts are not kept."""

MAX_ELEMENTS = 32

SEPARATOR = "\x1f"
"""Between the names of a path, because a name may have dots."""

Append = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True, eq=False)
class InputRecorder:
    """Passes what policies read of each call to ``append``."""

    append: Append
    _engine: Engine | None = None
    _reads: dict[tuple[Resource, frozenset[Caller]], Mapping[Path, bool]] = field(default_factory=dict)

    def record(self, engine: Engine, call: Call, resource: Resource, callers: Sequence[Caller] = ()) -> None:
        """Record one call of ``callers``, where some policy reads arguments of its skill."""
        if engine is not self._engine:
            self._engine = engine
            self._reads.clear()
        bound = (engine.find_bound(caller) for caller in callers)
        key = (resource, frozenset(caller for caller in bound if caller is not None))
        reads = self._reads.get(key)
        if reads is None:
            reads = self._reads[key] = find_value_reads(engine, *key)
        if not reads:
            return
        self.append(
            {"call": call.id, "digest": engine.policies.digest, **render_inputs(call.arguments, reads)}
        )


def find_value_reads(
    engine: Engine, resource: Resource, bound: Collection[Caller] = ()
) -> Mapping[Path, bool]:
    """The arguments of a skill that policies read, with whether they read the value or only ask for it.

    ``bound`` are the callers that have policies of their teams.
    """
    reads: dict[Path, bool] = {}
    for caller in bound or (None,):
        for policy in engine.select(resource, CALL, caller):
            for path, kind in policy.reads.arguments.items():
                reads[path] = reads.get(path, False) or kind != "present"
    return reads


def render_inputs(arguments: Any, reads: Mapping[Path, bool]) -> dict[str, Any]:
    """The values at these paths, and why others are not kept; paths have their names joined by `SEPARATOR`.

    ``absent`` are paths without a value, ``present`` those with one that no policy reads, such as records
    whose attributes are read. ``hidden`` are read and not kept, with the reason.
    """
    values: dict[str, Any] = {}
    absent: dict[str, None] = {}
    present: dict[str, None] = {}
    hidden: dict[str, str] = {}
    for path, is_read in reads.items():
        value = arguments
        for depth, part in enumerate(path, 1):
            value = value.get(part) if isinstance(value, Mapping) else None
            name = SEPARATOR.join(path[:depth])
            if value is None:
                absent[name] = None
                break
            if depth < len(path) or not is_read:
                present[name] = None
            elif (problem := _find_problem(path, value)) is not None:
                hidden[name] = problem
            else:
                values[name] = value
    rendered = {"values": values, "absent": list(absent), "present": list(present), "hidden": hidden}
    return {key: part for key, part in rendered.items() if part}


def _find_problem(path: Path, value: Any) -> str | None:
    """Why a value is not kept; None for one that is."""
    if isinstance(value, str):
        if len(value) > MAX_CHARACTERS:
            return "too long"
    elif isinstance(value, list):
        if len(value) > MAX_ELEMENTS or any(
            isinstance(entry, str) and len(entry) > MAX_CHARACTERS for entry in value
        ):
            return "too long"
        if any(isinstance(entry, Mapping | list) for entry in value):
            return "not plain"
    elif isinstance(value, Mapping):
        return "not plain"
    # by its names too, because the value of a field "password" is a secret whatever it looks like
    nested: Any = value
    for name in reversed(path):
        nested = {name: nested}
    return "masked" if mask_value(nested, MASKED_KINDS).is_changed else None
