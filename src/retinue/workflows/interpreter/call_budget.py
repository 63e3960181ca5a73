"""Divides the call budget of a run among its steps and branches.

A run gets the budget that its caller had left. Branches get equal shares, because their number is known.
Steps of one body are sequential, so each returns its unused calls. Usage is recorded with the outcome of a
step and the end of a run, so a replay counts the same. If it is unknown, the whole share counts as used.
"""

from __future__ import annotations

from retinue.mesh.guard.budget import TraceBudget
from retinue.workflows.runs.records import ChildOutcome, Origin, StepOutcome


class CallBudget:
    """The call budget of one body; without one in the origin, calls are not limited."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._budget = None if origin.calls_left is None else TraceBudget(origin.calls_left)

    @property
    def used(self) -> int | None:
        """The number of calls made and caused; None without a budget."""
        return None if self._budget is None else self._budget.used

    def open_step(self) -> StepBudget:
        """The budget of the next call."""
        return StepBudget(self._origin, self._budget)

    def divide(self, branches: int) -> Origin:
        """The origin of each of this number of branches; settle each with `settle_branch`."""
        if self._budget is None:
            return self._origin
        return self._origin.with_budget(self._budget.left // branches)

    def settle_branch(self, origin: Origin, ended: ChildOutcome | None) -> None:
        """Count the calls of a branch with this origin; its whole share if they are unknown."""
        self.settle_share(origin, None if ended is None else ended.calls)

    def settle_share(self, origin: Origin, used: int | None) -> None:
        """Count the calls that were used of the share of this origin; all of it if they are unknown."""
        if self._budget is not None:
            self._budget.spend((origin.calls_left or 0) if used is None else used)


class StepBudget:
    """The share of one call: `begin` inside its effect, `close` with the recorded outcome."""

    def __init__(self, origin: Origin, budget: TraceBudget | None) -> None:
        self._origin = origin
        self._budget = budget
        self._share: int | None = None
        self._used: int | None = None

    def begin(self) -> Origin:
        """The origin with this call's share; −1 if the budget is spent, so that the guard refuses."""
        if self._budget is None:
            return self._origin
        self._share = self._budget.reserve() if self._budget.left else -1
        return self._origin.with_budget(self._share)

    def record_usage(self, calls_used: int | None) -> None:
        """Set the number of further calls that the call caused; None = unknown."""
        self._used = calls_used

    @property
    def calls(self) -> int | None:
        """The number of calls including this one; None = unknown, or no budget."""
        if self._budget is None:
            return None
        if self._share is None or self._share < 0:
            return 0
        return None if self._used is None else 1 + min(max(self._used, 0), self._share)

    def close(self, outcome: StepOutcome) -> None:
        """Return the unused share, by the recorded outcome, so that a replay counts the same."""
        if self._budget is None:
            return
        if outcome.calls is None:
            if self._share is None and self._budget.left:
                self._budget.reserve()
        elif self._share is None:
            self._budget.spend(outcome.calls)
        elif self._share >= 0:
            self._budget.settle(self._share, outcome.calls - 1)
