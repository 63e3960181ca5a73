"""What one call may still spend on further calls, and how that is divided among those in flight.

How many calls a skill will make is not known when it makes the first. So each call in flight gets a
share that leaves room for siblings, and what it did not spend comes back when it has told what it did.
Of L calls left the n-th in flight gets L / (n + K): with K = 8 and L = 10,000 a hundred siblings still get
something, and 460 pass. A chain must be able to reach its greatest depth as well: where so many hops are
still possible that L / (K + 1) each would not last, K is smaller.

Equal shares would need the number of siblings; handing over everything would let each sibling spend it
all; asking one process for each call would need one that everybody reaches (docs/decisions/0018).

A call whose end nobody told keeps its share for good: it may still be running.
"""

from __future__ import annotations

from retinue.core.errors import BudgetSpentError

_ROOM = 8.0
"""K of the rule: how many equal siblings the first call in flight leaves room for."""

_SPARE = 8
"""One part in so many is kept back where another agent may have to repeat the call."""


class Budget:
    """The further calls that one call may cause, itself not counted.

    At any time: left + shares in flight + spent = what was given.
    """

    __slots__ = ("_given", "_in_flight", "left")

    def __init__(self, calls: int) -> None:
        self._given = calls
        self._in_flight = 0
        self.left = calls

    @property
    def used(self) -> int:
        """What was spent, the shares that nobody gave back included."""
        return self._given - self.left

    def take(self) -> bool:
        """Take one call without a share; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True

    def spend(self, calls: int) -> None:
        """Take what was spent elsewhere."""
        self.left -= min(max(calls, 0), self.left)

    def reserve(self, hops: int | None = None) -> int:
        """Take one call and its share, which is returned; raises BudgetSpentError.

        ``hops`` = how many more the chain may go on below that call: none, no share. None = it has no
        siblings, and gets half, so that it can be repeated.
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
        self.left -= share
        return share

    def reserve_rest(self, *, spare: bool = False) -> int:
        """Everything that is left, for one who goes on in our place; with ``spare`` an eighth less."""
        self._in_flight += 1
        share = self.left - (self.left // _SPARE if spare else 0)
        self.left -= share
        return share

    def settle(self, share: int, used: int) -> None:
        """A call has ended and told how much of its share it used."""
        self._in_flight -= 1
        self.left += share - min(max(used, 0), share)
