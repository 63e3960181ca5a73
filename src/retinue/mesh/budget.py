"""What one call may still spend on further calls, and how that is divided among those in flight.

How many calls a skill will make is not known when it makes the first. So each call in flight gets a
share that leaves room for siblings (half for the first, a third of the rest for the second, …: of L calls the
n-th gets L / n(n + 1)), and what it did not spend comes back when it has told what it did. Equal shares
would need the number of siblings; handing over everything would let each sibling spend it all.

A call whose end nobody told keeps its share for good: it may still be running.
"""

from __future__ import annotations

from retinue.core.errors import BudgetSpentError

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

    def reserve(self) -> int:
        """Take one call and its share, which is returned; raises BudgetSpentError."""
        if not self.take():
            raise BudgetSpentError("calls", "trace.calls")
        self._in_flight += 1
        share = self.left // (self._in_flight + 1)
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
