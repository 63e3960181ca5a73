"""Who calls, as the history counts it: issued callers each for themselves, members of the mesh as one.

Whoever has a token of the mesh names itself, and may start a run for whomever it names. So the caller of a
run counts as an issued one only if this hub has seen its token.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.mesh.history.records import Hashes

MAX_CALLERS = 1_000

K = TypeVar("K")
V = TypeVar("V")


class Callers:
    """Hashes callers with a key of the state."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._issued: OrderedDict[str, None] = OrderedDict()

    def note(self, principal: Principal) -> None:
        """Remember a caller that shows an issued token, so that its runs count as its own calls."""
        if principal.kind == "token":
            self._issued[principal.id] = None
            self._issued.move_to_end(principal.id)
            trim(self._issued, MAX_CALLERS)

    def hash(self, principal: Principal) -> int:
        """The hash of a caller."""
        self.note(principal)
        return self.hash_id(
            principal.id, is_member=names_itself(principal), is_in_run=principal.kind == "run"
        )

    def hash_id(self, caller: str, *, is_member: bool, is_in_run: bool) -> int:
        """The hash of a caller's id; one that a run names is a member unless its token was seen."""
        is_made_up = is_in_run and _is_issued(caller) and caller not in self._issued
        return self._hashes.of_caller(caller, is_member=is_member or is_made_up)


def names_itself(principal: Principal) -> bool:
    """Whether the caller chose its id: it has a token of the mesh, and is not the owner's own command.

    A run has the id of the caller that started it.
    """
    is_run_of_token = principal.kind == "run" and _is_issued(principal.id)
    if principal.kind in ("local", "anonymous", "token") or is_run_of_token:
        return False
    return principal.id not in (LOCAL.id, ANONYMOUS.id)


def _is_issued(caller: str) -> bool:
    """Whether an id has the form of those of issued tokens."""
    return caller.startswith(("token:", "jwt:"))


def trim(held: OrderedDict[K, V], limit: int) -> None:
    """Drop the oldest of more than ``limit`` values."""
    while len(held) > limit:
        held.popitem(last=False)
