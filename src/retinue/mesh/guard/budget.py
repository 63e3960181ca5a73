"""Limits the further calls of one call, and divides the budget among calls in flight.

How many calls a skill will make is unknown when it makes the first. So each call in flight gets a share that
leaves room for siblings, and returns the rest when it reports its usage. With L calls left, the n-th call in
flight gets L / (n + K): with K = 8 and L = 10,000 a hundred siblings still get a share, and 460 are admitted.
A chain must also be able to reach its maximum depth: where so many hops are possible that L / (K + 1) each
would run out, K is smaller.

Equal shares would need the number of siblings in advance. Handing over the whole budget would let each
sibling spend all of it. A central counter would need a process that all others can reach
(decision 0018).

A call that never reports its usage keeps its share, because it may still be running.
"""

from __future__ import annotations

from retinue.core.errors import BudgetSpentError

_ROOM = 8.0
"""K of the rule: the number of equal siblings that the first call in flight leaves room for."""

_SPARE = 8
"""1/8 of the rest is kept back where another agent may have to repeat the call."""


class TraceBudget:
    """The further calls that one call may cause, not counting itself.

    At any time, left + shares in flight + spent equals the whole budget.
    """

    __slots__ = ("_given", "_in_flight", "left")

    def __init__(self, calls: int) -> None:
        self._given = calls
        self._in_flight = 0
        self.left = calls

    @property
    def used(self) -> int:
        """The spent calls, including shares that were not returned."""
        return self._given - self.left

    def take(self) -> bool:
        """Take one call without a share; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True

    def spend(self, calls: int) -> None:
        """Subtract calls that were spent elsewhere."""
        self.left -= min(max(calls, 0), self.left)

    def reserve(self, hops: int | None = None, most: int | None = None) -> int:
        """Take one call, and return its share of the rest; raises BudgetSpentError.

        ``hops`` is how many hops the chain may continue below that call; with 0 it gets no share. None = the
        call has no siblings and gets half, so that it can be repeated. The share is at most ``most``.
        """
        if not self.take():
            raise BudgetSpentError("calls", "trace.calls")
        self._in_flight += 1
        if not self.left or (hops is not None and hops <= 0):
            return 0
        room = 1.0 if hops is None else min(_ROOM, self.left ** (1 / hops) - 1)
        share = int(self.left / (self._in_flight + room))
        if hops is not None and self._in_flight == 1:
            share = max(share, min(hops, self.left))
        if most is not None:
            share = min(share, most)
        self.left -= share
        return share

    def reserve_few(self, most: int) -> int:
        """Take one call of many that are alike, with a share of at most ``most``; raises BudgetSpentError."""
        if not self.take():
            raise BudgetSpentError("calls", "trace.calls")
        self._in_flight += 1
        share = min(most, int(self.left / (self._in_flight + _ROOM)))
        self.left -= share
        return share

    def reserve_rest(self, *, spare: bool = False) -> int:
        """Take all remaining calls, for a relayed call; with ``spare`` an eighth less."""
        self._in_flight += 1
        share = self.left - (self.left // _SPARE if spare else 0)
        self.left -= share
        return share

    def settle(self, share: int, used: int) -> None:
        """Return the unused part of a call's share."""
        self._in_flight -= 1
        self.left += share - min(max(used, 0), share)
