"""What a guard is, and the two that are built in: sensitive data, and instructions in foreign results."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from retinue.guards.fields import FieldMasks, Masks, list_field_names
from retinue.guards.instructing import find_instructions
from retinue.guards.masking import mask_value
from retinue.guards.sensitive import KINDS, SensitiveKind

GUARDS_GROUP = "retinue.guards"
"""The entry-point group of guards in other distributions."""

Action = Literal["off", "deny", "redact", "ask"]


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """What a guard is told of a call. ``source`` is where the agent is listed, ``is_foreign`` whether it
    belongs to others: it is imported, or a member of an open network.
    """

    agent: str
    skill: str
    caller: str
    arguments: Any
    source: str
    is_foreign: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guard says: ``deny`` with a reason for the caller, or ``redact`` with the value instead.

    With ``ask``, a person decides whether the call is made with these arguments; a result is denied.
    """

    action: Literal["deny", "redact", "ask"]
    reason: str
    value: Any = None


class Guard(Protocol):
    """Looks at calls and their results; each of the two functions may also be missing in an installed guard.

    None lets a value pass. An exception, and a time limit that is exceeded, deny.
    """

    def before(self, call: GuardedCall) -> Verdict | Awaitable[Verdict | None] | None:
        """Look at the arguments of a call before the skill runs, and at what its caller answers to the skill.

        An answer to a question is in ``call.arguments``; one that is no object is ``{"answer": …}``.
        """

    def after(self, call: GuardedCall, value: Any) -> Verdict | Awaitable[Verdict | None] | None:
        """Look at a result before the caller gets it."""


@dataclass(frozen=True, slots=True)
class SensitiveGuard:
    """Denies or masks secrets and personal data in arguments and results."""

    kinds: Collection[SensitiveKind] = ("key", "card", "iban")
    arguments: Action = "off"
    results: Action = "redact"
    exempt: Collection[str] = ()

    def before(self, call: GuardedCall) -> Verdict | None:
        return self._check(call.arguments, self.arguments, "arguments")

    def after(self, call: GuardedCall, value: Any) -> Verdict | None:
        return self._check(value, self.results, "result")

    def _check(self, value: Any, action: Action, where: str) -> Verdict | None:
        if action == "off":
            return None
        masked = mask_value(value, self.kinds, exempt=self.exempt)
        if not masked.is_changed:
            return None
        kinds = ", ".join(
            f"{_NAMES[kind]} ({masked.counts[kind]})" for kind in KINDS if kind in masked.counts
        )
        places = ", ".join(path or "the text" for path in masked.paths[:_SHOWN_PATHS])
        return Verdict(action, f"the {where} hold {kinds} at {places}", masked.value)


@dataclass(frozen=True, slots=True)
class InstructionGuard:
    """Denies results of foreign agents that give a model instructions, or fences them as data."""

    results: Action = "deny"

    def before(self, call: GuardedCall) -> None:
        return None

    def after(self, call: GuardedCall, value: Any) -> Verdict | None:
        if self.results == "off" or not call.is_foreign:
            return None
        instruction = next(find_instructions(value), None)
        if instruction is None:
            return None
        place = f" at {instruction.path}" if instruction.path else ""
        reason = f"the result{place} {instruction.rule}"
        return Verdict(self.results, reason, f"[withheld: {reason}]")


class MaskGuard:
    """Masks what one policy says, in one call: kinds of sensitive data, and fields.

    ``input_schema`` and ``output_schema`` are those of the skill, which declare the names of fields.
    """

    def __init__(
        self,
        arguments: Masks,
        results: Masks,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._arguments = _Masking(arguments, input_schema)
        self._results = _Masking(results, output_schema)

    def before(self, call: GuardedCall) -> Verdict | None:
        return self._arguments.mask(call.arguments)

    def after(self, call: GuardedCall, value: Any) -> Verdict | None:
        return self._results.mask(value)


class _Masking:
    def __init__(self, masks: Masks, schema: Mapping[str, Any] | None) -> None:
        self._kinds = masks.kinds
        names = list_field_names(schema) if masks.pointers else None
        self._fields = FieldMasks(masks.pointers, names) if masks.pointers else None

    def mask(self, value: Any) -> Verdict | None:
        changed = False
        if self._fields is not None:
            value, changed = self._fields.mask(value)
        if self._kinds:
            masked = mask_value(value, self._kinds)
            value, changed = masked.value, changed or masked.is_changed
        return Verdict("redact", "a policy masks fields", value) if changed else None


_NAMES: Mapping[SensitiveKind, str] = {
    "key": "keys or passwords",
    "card": "card numbers",
    "iban": "account numbers",
    "email": "mail addresses",
    "phone": "phone numbers",
}
_SHOWN_PATHS = 3
