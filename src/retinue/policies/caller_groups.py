"""The groups that tokens name for callers, beside those of ``groups.yaml``.

The token of a state folder names its groups in the token file, so they are known by the id of its caller
wherever a run or a chain acts for it. A JWT brings its groups along: they are remembered for the calls that
runs and agents make for its subject. Where they are not known, policies about groups deny.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache

from retinue.core.call import Principal

_SUBJECT = "jwt:"
_KEPT = 10_000
"""Subjects whose groups are remembered."""

FindGroups = Callable[[str], tuple[str, ...] | None]
"""The groups that the tokens of a caller name; None where they cannot be told."""


@dataclass(slots=True)
class CallerGroups:
    """The groups of callers; with ``has_claim`` a JWT names those of its subject."""

    find_of_tokens: FindGroups = lambda caller: ()
    has_claim: bool = False
    _subjects: LRUCache[str, tuple[str, ...]] = field(default_factory=lambda: LRUCache(_KEPT))

    def find(self, principal: Principal) -> tuple[str, ...] | None:
        """The groups of a principal; None where they are not known here."""
        if self.has_claim and principal.kind == "token" and principal.id.startswith(_SUBJECT):
            self._subjects[principal.id] = principal.groups
            return principal.groups
        return self.find_named(principal.id)

    def find_named(self, caller: str) -> tuple[str, ...] | None:
        """The groups of the principal with this id; None where they are not known here."""
        if caller.startswith(_SUBJECT):
            return self._subjects.get(caller) if self.has_claim else ()
        return self.find_of_tokens(caller)
