"""What the steps of one body may cause in further calls: a share of the run's budget for each.

The budget of a run is what its caller had left. Branches get equal parts of it, because their number is
known; steps of one body follow each other, so each gives back what it did not use. What a step used is
recorded with its outcome, and what a run used with its end: whoever executes it, and however often it is
taken up again, the same is counted. Of what is not known the whole share counts as used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.mesh.budget import Budget
from retinue.workflows.run_records import ChildOutcome, StepOutcome

Origin = Mapping[str, Any]
"""What a run was started with (``dispatching.render_origin``); ``calls_left`` is what it may cause."""


class Spending:
    """The budget of one body; without an origin, or one that names no budget, nothing is bounded."""

    def __init__(self, origin: Origin | None) -> None:
        self._origin = origin
        given = None if origin is None else origin.get("calls_left")
        self._budget = None if given is None else Budget(int(given))

    @property
    def used(self) -> int | None:
        """Calls made, and those that these have caused; None without a budget."""
        return None if self._budget is None else self._budget.used

    def open_step(self) -> StepSpending:
        """Before one call."""
        return StepSpending(self._origin, self._budget)

    def divide(self, branches: int) -> Origin | None:
        """The origin of each of so many branches, each then settled by `settle_branch`."""
        if self._budget is None or self._origin is None:
            return self._origin
        return {**self._origin, "calls_left": self._budget.left // branches}

    def settle_branch(self, origin: Origin | None, ended: ChildOutcome | None) -> None:
        """What a branch with this origin has used: its whole part where it does not tell."""
        if self._budget is None or origin is None:
            return
        told = None if ended is None else ended.calls
        self._budget.spend(int(origin["calls_left"] if told is None else told))


class StepSpending:
    """One call of a step: `begin` inside its effect, `close` with what became of it."""

    def __init__(self, origin: Origin | None, budget: Budget | None) -> None:
        self._origin = origin
        self._budget = budget
        self._share: int | None = None
        self._used: int | None = None

    def begin(self) -> Origin | None:
        """The origin with this call's share; −1 = not even this call, which the guard then refuses."""
        if self._budget is None or self._origin is None:
            return self._origin
        self._share = self._budget.reserve() if self._budget.left else -1
        return {**self._origin, "calls_left": self._share}

    def told(self, calls_used: int | None) -> None:
        """What the call has used beside itself; None = nobody knows."""
        self._used = calls_used

    @property
    def calls(self) -> int | None:
        """What the step has used, the call itself included; None = nobody knows, or there is no budget."""
        if self._budget is None:
            return None
        if self._share is None or self._share < 0:
            return 0
        return None if self._used is None else 1 + min(max(self._used, 0), self._share)

    def close(self, outcome: StepOutcome) -> None:
        """Give back what was not used, by what was recorded: alike whether or not the step ran here."""
        if self._budget is None:
            return
        if outcome.calls is None:
            if self._share is None and self._budget.left:
                self._budget.reserve()
        elif self._share is None:
            self._budget.spend(outcome.calls)
        elif self._share >= 0:
            self._budget.settle(self._share, outcome.calls - 1)
