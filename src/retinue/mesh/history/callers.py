"""Who calls, as the history counts it: issued callers each for themselves, members of the mesh as one.

Whoever has a token of the mesh names itself, and may start a run for whomever it names. So the calls of a run
count as those of an issued caller only if this hub saw who started it; its searches may read as that caller.
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

    def hash_reader(self, principal: Principal) -> int:
        """The hash of a caller as whom a search learns."""
        return self._hashes.of_caller(principal.id, is_member=names_itself(principal))

    def hash(self, principal: Principal) -> int:
        """The hash of a caller as whom searches and calls are kept."""
        is_in_run = principal.kind == "run"
        return self.hash_id(principal.id, is_member=names_itself(principal), is_in_run=is_in_run)

    def hash_id(self, caller: str, *, is_member: bool, is_in_run: bool) -> int:
        """The hash of a caller's id; an issued one that only a run names is a member of the mesh."""
        if is_in_run and _is_issued(caller):
            return self._hashes.of_caller(f"run {caller}", is_member=True)
        return self._hashes.of_caller(caller, is_member=is_member)


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
