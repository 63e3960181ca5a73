"""Asks agents their own examples, under limits of time, money and calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from retinue.core.allowance import Allowance
from retinue.core.call import Call, Outcome, Principal, new_id
from retinue.core.record import HUB_NAME, Listing
from retinue.mesh.exams import ExamQuestion, ExamResult, digest_of, has_shape, judge, list_questions
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.observing.call_figures import AGENT_FAILURES

EXAMINER = Principal("exam", "run", frozenset({"exposed", "mesh"}))
"""The caller of every exam, as access lists and audit rows name it."""

_FURTHER_CALLS = 8
"""Calls that one question may cause."""

_AWAY = "agent_unreachable"


@dataclass(frozen=True, slots=True)
class ExamLimits:
    """What one exam may take: calls, seconds for each call, and dollars for each call."""

    calls: int = 5
    timeout_s: float = 10.0
    dollars: float = 0.05


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
        trace = new_trace().with_allowance(Allowance.of(None, limits.dollars))
        call = Call(
            id=new_id(),
            skill=question.skill,
            arguments=dict(question.arguments),
            principal=EXAMINER,
            endpoint="exam",
            trace=trace,
            agent=name,
            deadline=asyncio.get_running_loop().time() + limits.timeout_s,
            listing=listing.id,
        )
        return await self._dispatch(call)
