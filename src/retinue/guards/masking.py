"""Masks the sensitive parts of a JSON value, whose shape and types stay.

The texts of the parsed value are searched, never its JSON, so that an escape hides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.text import is_secret_name
from retinue.guards.sensitive import KINDS, SensitiveKind, find_sensitive, is_card

MASKED_EMAIL = "redacted@example.invalid"
MAX_DEPTH = 128
"""Deeper values do not come over any wire."""


@dataclass(frozen=True, slots=True)
class Masked:
    """A value without its sensitive parts, how many of each kind it had, and at which paths (``a.0.b``)."""

    value: Any
    counts: Mapping[SensitiveKind, int] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        return bool(self.counts)


def mask_text(text: str, kinds: Collection[SensitiveKind] = KINDS) -> Masked:
    """A text in which each sensitive part is replaced by its kind in brackets."""
    findings = find_sensitive(text, kinds)
    if not findings:
        return Masked(text)
    pieces, end = [], 0
    for finding in findings:
        is_whole = finding.kind == "email" and finding.end - finding.start == len(text)
        # the value of a field with the format of an address stays an address
        pieces += [text[end : finding.start], MASKED_EMAIL if is_whole else f"[{finding.kind}]"]
        end = finding.end
    return Masked("".join([*pieces, text[end:]]), Counter(finding.kind for finding in findings), ("",))


def mask_value(
    value: Any, kinds: Collection[SensitiveKind] = KINDS, *, exempt: Collection[str] = ()
) -> Masked:
    """A JSON value without its sensitive parts; values at the paths in ``exempt`` stay.

    A ``*`` in such a path stands for each element or name. A number that is the number of a card becomes 0.
    The value of a secret name (``password``) is masked as a whole if keys are.
    """
    masking = _Masking(frozenset(kinds), tuple(tuple(path.split(".")) for path in exempt))
    changed = masking.mask(value, ())
    return Masked(changed, dict(masking.counts), tuple(masking.paths)) if masking.counts else Masked(value)


class _Masking:
    def __init__(self, kinds: frozenset[SensitiveKind], exempt: tuple[tuple[str, ...], ...]) -> None:
        self.counts: Counter[SensitiveKind] = Counter()
        self.paths: list[str] = []
        self._kinds = kinds
        self._exempt = exempt

    def mask(self, value: Any, path: tuple[str, ...], *, is_secret: bool = False) -> Any:
        if len(path) > MAX_DEPTH:
            raise ValueError(f"the value is nested over {MAX_DEPTH} levels")
        if any(_fits(path, exempt) for exempt in self._exempt):
            return value
        if isinstance(value, str):
            return self._mask_text(value, path, is_secret)
        if isinstance(value, Mapping):
            changed: dict[str, Any] = {}
            for name, inner in value.items():
                hides = is_secret or ("key" in self._kinds and is_secret_field(name))
                changed[self._mask_name(name, path, changed)] = self.mask(
                    inner, (*path, name), is_secret=hides
                )
            return changed
        if isinstance(value, list | tuple):
            return [
                self.mask(inner, (*path, str(place)), is_secret=is_secret)
                for place, inner in enumerate(value)
            ]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and is_secret and path and _HOLDS_NUMBERS.search(path[-1]):
            self._note("key", path)
            return 0
        if is_number and "card" in self._kinds and is_card(str(value)):
            self._note("card", path)
            return 0
        return value

    def _mask_text(self, text: str, path: tuple[str, ...], is_secret: bool) -> str:
        if is_secret and text:
            self._note("key", path)
            return "[key]"
        masked = mask_text(text, self._kinds)
        for kind, count in masked.counts.items():
            self._note(kind, path, count)
        return str(masked.value)

    def _mask_name(self, name: str, path: tuple[str, ...], taken: Mapping[str, Any]) -> str:
        """A name is text as well: a mapping by mail address has them as its names."""
        masked = mask_text(name, self._kinds)
        changed, number = str(masked.value), 1
        while masked.is_changed and changed in taken:
            number += 1
            changed = f"{masked.value} {number}"
        for kind, count in masked.counts.items():
            self._note(kind, (*path, changed), count)
        return changed

    def _note(self, kind: SensitiveKind, path: tuple[str, ...], count: int = 1) -> None:
        self.counts[kind] += count
        shown = ".".join(path)
        if shown not in self.paths:
            self.paths.append(shown)


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret: ``api_key`` does, ``key`` and ``page_token`` do not."""
    return is_secret_name(name) and not _NO_SECRET.search(name)


_NO_SECRET = re.compile(
    r"^(?:key|sig|signature|pass|pat|auth)$|page|next|previous|cursor|continu|sync|count|usage|max|min|limit"
    r"|public|primary|foreign|partition|sort|cache|idempotency|type|name|hint|url|uri|expir|_id$|Id$",
    re.IGNORECASE,
)
"""Names of fields that hold no secret, although a part of the name says so elsewhere."""
_HOLDS_NUMBERS = re.compile(r"pass|pwd|secret|\bpin\b", re.IGNORECASE)


def _fits(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(path) == len(pattern) and all(
        step in ("*", name) for name, step in zip(path, pattern, strict=True)
    )
