"""What the steps of one body may cause in further calls: a share of the run's budget for each.

The budget of a run is what its caller had left. Branches get equal parts of it, because their number is
known; steps of one body follow each other, so each gives back what it did not use. A recorded step
keeps what it used, so that a resumed run does not start from the full budget again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.mesh.budget import Budget
from retinue.workflows.runs import StepOutcome

Origin = Mapping[str, Any]
"""What a run was started with (``dispatching.render_origin``); ``calls_left`` is what it may cause."""


class Spending:
    """The budget of one body; without an origin, or one that names no budget, nothing is bounded."""

    def __init__(self, origin: Origin | None) -> None:
        self._origin = origin
        given = None if origin is None else origin.get("calls_left")
        self._budget = None if given is None else Budget(int(given))

    @property
    def used(self) -> int:
        """Calls made, and those that these have caused."""
        return 0 if self._budget is None else self._budget.used

    def open_step(self) -> StepSpending:
        """Before one call."""
        return StepSpending(self._origin, self._budget)

    def divide(self, branches: int) -> Origin | None:
        """The origin of each of so many branches, which are then `settle`-d together."""
        if self._budget is None or self._origin is None:
            return self._origin
        return {**self._origin, "calls_left": self._budget.left // branches}

    def settle(self, used: int) -> None:
        """What the branches have used."""
        if self._budget is not None:
            self._budget.spend(used)


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
        """What the call has used; None = nobody knows."""
        self._used = calls_used

    def close(self, outcome: StepOutcome) -> None:
        """Give back what was not used; of a step that was not run again, count what was recorded."""
        if self._budget is None:
            return
        if self._share is not None:
            if self._used is not None and self._share >= 0:
                self._budget.settle(self._share, self._used)
        elif outcome.fault is None:
            self._budget.spend(1 + int(outcome.value.get("calls", 0)))
        elif self._budget.left > 0:
            self._budget.reserve()
