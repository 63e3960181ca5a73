"""Divides the budgets of a run among its steps and branches: calls, and what they may spend on models.

A run gets what its caller had left. Branches get equal shares, because their number is known. Steps of one
body are sequential, so each returns what it did not use. What was used is recorded with the outcome of a
step and the end of a run, so a replay counts the same. If it is unknown, the whole share counts as used. An
attempt that was interrupted with its node counts with its share, and the next attempt gets what is left.
"""

from __future__ import annotations

from dataclasses import replace

from retinue.core.allowance import Allowance, Amount, narrow
from retinue.core.usage import (
    NO_SOURCES,
    SOURCES,
    Sources,
    Usage,
    add_sources,
    add_usage,
    amount_of,
    as_further,
    read_sources,
    render_reserved,
    reserve_unknown,
)
from retinue.mesh.guard.budget import TraceBudget
from retinue.mesh.guard.spending import share_of
from retinue.workflows.runs.ports import StepCount
from retinue.workflows.runs.records import ChildOutcome, Origin, StepOutcome


class CallBudget:
    """The budgets of one body; without one in the origin, that is not limited."""

    def __init__(self, origin: Origin, within: CallBudget | None = None) -> None:
        self._origin = origin
        self._within = within
        self._calls = None if origin.calls_left is None else TraceBudget(origin.calls_left)
        if within is not None:
            self._calls = within._calls
        self._allowance = origin.allowance
        self._usage: Usage | None = None

    @property
    def used(self) -> int | None:
        """The number of calls made and caused; None without a budget."""
        return None if self._calls is None else self._calls.used

    @property
    def usage(self) -> Usage | None:
        """The amount spent on models; None for nothing without a limit."""
        return {} if self._usage is None and self._allowance is not None else self._usage

    @property
    def allowance(self) -> Allowance | None:
        """The amount that may still be spent on models; None for no limit."""
        own = None if self._allowance is None else self._allowance.minus(amount_of(self._usage))
        return own if self._within is None else narrow(own, self._within.allowance)

    @property
    def sources(self) -> Sources:
        """The agents whose results the body has taken in, where policies read that."""
        around = NO_SOURCES if self._within is None else self._within.sources
        if self._usage is None or SOURCES not in self._usage:
            return around
        return add_sources(read_sources(self._usage[SOURCES]) or NO_SOURCES, around)

    @property
    def is_tracked(self) -> bool:
        """Whether policies read what the body takes in."""
        return self._origin.is_tracked or self.sources != NO_SOURCES

    def narrow(self, *, tokens: int | None = None, dollars: float | None = None) -> CallBudget:
        """The budget of a part of the body that may spend at most this; what it spends counts here too."""
        return CallBudget(self._origin.with_allowance(Allowance.of(tokens, dollars)), self)

    def extend(self, *, tokens: int | None = None, dollars: float | None = None) -> None:
        """Replace the limits of a narrowed budget by other ones, which hold for all that it spends."""
        self._allowance = Allowance.of(tokens, dollars)

    def open_step(self, most: Allowance | None = None) -> StepBudget:
        """The budget of the next call, which may spend at most ``most`` on models."""
        return StepBudget(self, self._origin, self._calls, most)

    def divide(self, branches: int) -> Origin:
        """The origin of each of this number of branches; settle each with `settle_branch`."""
        origin, allowance = self._origin.with_sources(self.sources), self.allowance
        if allowance is not None:
            origin = origin.with_allowance(allowance.portion(1, branches))
        return origin if self._calls is None else origin.with_budget(self._calls.left // branches)

    def settle_branch(self, origin: Origin, ended: ChildOutcome | None) -> None:
        """Count what a branch with this origin used; its whole share if that is unknown."""
        if ended is None:
            self.settle_share(origin, None, None)
        else:
            self.settle_share(origin, ended.calls, ended.usage)

    def settle_share(self, origin: Origin, used: int | None, usage: Usage | None) -> None:
        """Count what was used of the share of this origin; all of it if that is unknown."""
        if self._calls is not None:
            self._calls.spend((origin.calls_left or 0) if used is None else used)
        if usage is None and origin.allowance is not None:
            usage = render_reserved(origin.allowance.amount, origin.allowance)
        self.spend(usage)

    def spend(self, usage: Usage | None) -> None:
        """Count what was spent on models."""
        if usage:
            self._usage = add_usage(self._usage, as_further(usage))
            if self._within is not None:
                self._within.spend(usage)


class StepBudget:
    """The share of one call: `begin` inside its effect, `count` for the recorded outcome."""

    def __init__(
        self, body: CallBudget, origin: Origin, calls: TraceBudget | None, most: Allowance | None
    ) -> None:
        self._body = body
        self._origin = origin
        self._calls = calls
        self._most = most
        self._share: int | None = None
        self._used: int | None = None
        self._allowance: Allowance | None = None
        self._earlier = 0
        self._has_begun = False
        self._usage: Usage | None = None

    @property
    def count(self) -> StepCount:
        """How the outcome of the call is counted."""
        is_limited = self._most is not None or self._body.allowance is not None
        return StepCount(self._record, self._close, self._note_earlier if is_limited else None)

    def begin(self) -> Origin:
        """The origin with this call's share; −1 calls if the budget is spent, so that the guard refuses."""
        origin = self._origin.with_sources(self._body.sources)
        self._has_begun = True
        self._allowance, _ = self._share_allowance()
        if self._allowance is not None or origin.allowance is not None:
            origin = origin.with_allowance(self._allowance)
        if self._calls is None:
            return origin
        self._share = self._calls.reserve() if self._calls.left else -1
        return origin.with_budget(self._share)

    def record_usage(self, calls_used: int | None, usage: Usage | None = None) -> None:
        """Set what the answer reports: the further calls that the call caused, and what it spent.

        None = unknown; a usage of None is nothing if the calls are known.
        """
        self._used = calls_used
        self._usage = {} if usage is None and calls_used is not None else usage

    @property
    def calls(self) -> int | None:
        """The number of calls including this one; None = unknown, or no budget."""
        if self._calls is None:
            return None
        if self._share is None or self._share < 0:
            return 0
        return None if self._used is None else 1 + min(max(self._used, 0), self._share)

    def _note_earlier(self, earlier: int) -> None:
        self._earlier = earlier

    def _share_allowance(self) -> tuple[Allowance | None, Amount]:
        """The amount that this attempt may spend, and that which interrupted attempts count as spent."""
        left = self._body.allowance
        if left is None:
            return self._most, Amount()
        share = share_of(left, self._most)
        lost = Amount(*(self._earlier * part for part in share.amount)).at_most(left.amount)
        return share.narrowed(left.minus(lost)).portion(1, 1), lost

    def _record(self, outcome: StepOutcome) -> StepOutcome:
        """The outcome with what the call used."""
        share, lost = self._share_allowance()
        if share is None and not self._usage:
            return replace(outcome, calls=self.calls)
        usage: Usage | None = None if share is None else render_reserved(lost, share)
        if self._has_begun:
            usage = add_usage(usage, self._usage)
            if share is not None:
                usage = add_usage(usage, reserve_unknown(self._usage, share))
        is_shown = share is None and outcome.fault is None  # the value has it
        return replace(outcome, calls=self.calls, usage=None if is_shown else usage or None)

    def _close(self, outcome: StepOutcome) -> None:
        """Return the unused share, by the recorded outcome, so that a replay counts the same."""
        self._body.spend(outcome.spent)
        if self._calls is None:
            return
        if outcome.calls is None:
            if self._share is None and self._calls.left:
                self._calls.reserve()
        elif self._share is None:
            self._calls.spend(outcome.calls)
        elif self._share >= 0:
            self._calls.settle(self._share, outcome.calls - 1)
