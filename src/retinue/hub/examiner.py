"""Asks agents their own examples, under limits of time, money and calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from retinue.core.allowance import Allowance, to_dollars
from retinue.core.call import EXAM, Call, Outcome, Principal, new_id
from retinue.core.record import HUB_NAME, Listing
from retinue.core.usage import amount_of
from retinue.mesh.exams import ExamQuestion, ExamResult, digest_of, has_shape, judge, list_questions
from retinue.mesh.guard.call_marks import mark_exam
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.observing.call_figures import AGENT_FAILURES

EXAMINER = Principal("exam", "run", frozenset({"exposed", "mesh"}))
"""The caller of every exam, as access lists and audit rows name it."""

_AWAY = "agent_unreachable"
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class ExamLimits:
    """What one exam may take: calls, seconds for each call, dollars for each call, and for all of a day."""

    calls: int = 5
    timeout_s: float = 10.0
    dollars: float = 0.05
    dollars_per_day: float = 1.0


class DailyMoney:
    """What exams have spent today (UTC) of ``dollars_per_day``.

    A call in flight, or one that timed out, counts with all it may spend. Another one that does not say what
    it spent counts with nothing.
    """

    def __init__(self, dollars_per_day: float, clock: Callable[[], float] = time.time) -> None:
        self._dollars_per_day = dollars_per_day
        self._clock = clock
        self._day = 0
        self._spent = 0.0

    def to_json(self) -> dict[str, float]:
        """The form in a file."""
        return {"day": self._day, "dollars": round(self._spent, 6)}

    def load(self, row: object) -> None:
        """Take what was stored; a row of another form is ignored."""
        if isinstance(row, Mapping):
            day, dollars = row.get("day"), row.get("dollars")
            if type(day) is int and isinstance(dollars, int | float) and dollars >= 0:
                self._day, self._spent = day, float(dollars)

    def reserve(self, dollars: float) -> float:
        """Reserve money for one call; returns how much it may spend, 0 where the day has none left."""
        today = int(self._clock() // _DAY_S)
        if today != self._day:
            self._day, self._spent = today, 0.0
        reserved = max(0.0, min(dollars, self._dollars_per_day - self._spent))
        self._spent += reserved
        return reserved

    def settle(self, reserved: float, spent: float) -> None:
        """Replace the reservation of a call by what it has spent."""
        self._spent = max(0.0, self._spent - reserved + spent)


class Examiner:
    """Asks one agent its examples at a time; ``dispatch`` makes a call."""

    def __init__(
        self,
        dispatch: Callable[[Call], Awaitable[Outcome]],
        limits: ExamLimits,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dispatch = dispatch
        self._limits = limits
        self._clock = clock
        self.money = DailyMoney(limits.dollars_per_day, clock)

    async def examine(self, listing: Listing, name: str) -> ExamResult:
        """Ask an agent, which ``name`` means alone; it never raises for what the agent does."""
        if listing.labels.get("kind") == "model" or listing.name == HUB_NAME:
            return judge(0, (), ("a language model has no exam",), digest_of(listing), self._clock())
        asked = 0
        problems: list[str] = []
        unasked: list[str] = []
        limited = {
            skill.id
            for skill in listing.record.skills
            if skill.timeout_s is None or skill.timeout_s > self._limits.timeout_s
        }
        for question in list_questions(listing.record, EXAMINER.scopes, self._limits.calls):
            outcome = await self._ask(question, listing, name)
            error = outcome.error
            if outcome.status == "done":
                asked += 1
                if question.expected is not None and not has_shape(outcome.value, question.expected):
                    problems.append(f"{question.skill}: its result has another shape than its example")
            elif error is not None and error.type == _AWAY:
                if problems:
                    break
                why, digest = f"it does not answer: {error.message}", digest_of(listing)
                return replace(judge(0, (), (why,), digest, self._clock()), asked=asked, is_away=True)
            elif error is not None and error.type == "timeout" and question.skill in limited:
                unasked.append(f"{question.skill}: it takes longer than an exam may")
            elif error is not None and (error.type in AGENT_FAILURES or error.type == "invalid_parameters"):
                asked += 1
                problems.append(f"{question.skill}: {error.message}")
            else:
                unasked.append(f"{question.skill}: {outcome.status if error is None else error.message}")
        return judge(asked, problems, unasked, digest_of(listing), self._clock())

    async def _ask(self, question: ExamQuestion, listing: Listing, name: str) -> Outcome:
        limits = self._limits
        reserved = self.money.reserve(limits.dollars)
        trace = mark_exam(new_trace().with_allowance(Allowance.of(None, reserved)))
        call = Call(
            id=new_id(),
            skill=question.skill,
            arguments=dict(question.arguments),
            principal=EXAMINER,
            endpoint=EXAM,
            trace=trace,
            agent=name,
            deadline=asyncio.get_running_loop().time() + limits.timeout_s,
            listing=listing.id,
        )
        outcome = await self._dispatch(call)
        self.money.settle(reserved, _find_spent(outcome, reserved))
        return outcome


def _find_spent(outcome: Outcome, reserved: float) -> float:
    """What a call has spent; a call whose end is unknown may have spent all that it was reserved."""
    if outcome.usage is None:
        is_unknown = outcome.error is not None and outcome.error.type == "timeout"
        return reserved if is_unknown else 0.0
    return to_dollars(amount_of(outcome.usage).microdollars)
