"""An agent is asked its own examples, and one that fails is left out of choice if the owner wants that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import Call, Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    ExecutionFailedError,
    PolicyDeniedError,
    RetinueError,
    SkillNotOfferedError,
)
from retinue.core.record import AgentRecord, Example, Hints, Listing, Skill
from retinue.core.trust import Trust
from retinue.hub.examiner import Examiner, ExamLimits
from retinue.mesh.exams import NOT_TRUSTED, ExamBook, ExamResult

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
COUNT = Skill(
    "count",
    input_schema=TEXT,
    examples=(Example("two words", result={"words": 2}), Example(arguments={"text": ""})),
    hints=Hints(read_only=True),
)
BUY = Skill("buy", input_schema=TEXT, examples=(Example("a house"),))
WIPE = Skill("wipe", examples=(Example(arguments={}),), hints=Hints(idempotent=True, destructive=True))
LISTING = Listing(AgentRecord("word", skills=(COUNT, BUY, WIPE)), "home", "agents/word", digest="d-1")


class Asked:
    """An agent that answers every call with one value or error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        if isinstance(self.answer, RetinueError):
            status = "refused" if isinstance(self.answer, PolicyDeniedError) else "failed"
            return Outcome(call.id, call.skill, status, "word", error=self.answer)  # type: ignore[arg-type]
        return Outcome(call.id, call.skill, "done", "word", value=self.answer)


async def examine(answer: Any, listing: Listing = LISTING, **limits: Any) -> tuple[ExamResult, list[Call]]:
    asked = Asked(answer)
    result = await Examiner(asked, ExamLimits(**limits), clock=lambda: 1.0).examine(listing, listing.name)
    return result, asked.calls


async def test_only_examples_of_skills_that_may_be_called_twice_are_asked_within_the_limits() -> None:
    result, calls = await examine({"words": 7}, dollars=0.5)
    assert result == ExamResult("passed", (), 2, 1.0, "d-1")
    assert [(call.skill, call.arguments) for call in calls] == [
        ("count", {"text": "two words"}),
        ("count", {"text": ""}),
    ]
    allowance = calls[0].trace.allowance
    assert allowance is not None
    assert allowance.dollars == 0.5
    assert len((await examine({"words": 7}, calls=1))[1]) == 1


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [
        ({"letters": 1}, "failed", "another shape"),
        (ExecutionFailedError("count"), "failed", "count: "),
        (PolicyDeniedError("count is forbidden"), "not_examined", "forbidden"),
        (AgentUnreachableError("word", "http://x", "gone", sent=False), "not_examined", "does not answer"),
    ],
)
async def test_a_failure_of_the_agent_fails_and_a_refusal_examines_nothing(
    answer: Any, status: str, problem: str
) -> None:
    result, _ = await examine(answer)
    assert result.status == status
    assert problem in result.problems[0]


@pytest.mark.parametrize(
    ("timeout_s", "status"), [(None, "not_examined"), (60.0, "not_examined"), (5.0, "failed")]
)
async def test_only_the_time_limit_of_the_skill_fails_an_agent(timeout_s: float | None, status: str) -> None:
    slow = replace(LISTING, record=AgentRecord("slow", skills=(replace(COUNT, timeout_s=timeout_s),)))
    result, _ = await examine(CallTimedOutError("count", 10.0, layer="caller"), slow)
    assert result.status == status


async def test_an_exam_that_the_agent_breaks_off_is_not_passed() -> None:
    answers = iter([Outcome("1", "count", "done", "word", value={"words": 2})])
    gone = AgentUnreachableError("word", "http://x", "gone", sent=False)

    async def dispatch(call: Call) -> Outcome:
        return next(answers, Outcome(call.id, call.skill, "failed", "word", error=gone))

    result = await Examiner(dispatch, ExamLimits()).examine(LISTING, "word")
    assert (result.status, result.asked, result.is_away) == ("not_examined", 1, True)
    book = ExamBook()
    book.policy = "warn"
    book.put(LISTING, result)
    assert book.to_json() == {}
    assert book.is_due(LISTING, result.at, 60.0)
    passed = ExamResult("passed", (), 1, 100.0, "d-1")
    book.put(LISTING, passed)
    book.put(LISTING, result)
    assert book.find(LISTING) == passed


async def test_a_skill_that_is_only_idempotent_is_asked_no_text_of_an_example() -> None:
    send = replace(COUNT, hints=Hints(idempotent=True))
    _, calls = await examine({"words": 2}, replace(LISTING, record=AgentRecord("s", skills=(send,))))
    assert [call.arguments for call in calls] == [{"text": ""}]


def test_an_agent_of_an_open_network_is_not_due() -> None:
    book = ExamBook()
    book.policy = "require"
    stranger = replace(LISTING, source_trust=Trust.NETWORK_MEMBER)
    assert not book.is_due(stranger, 0.0, 60.0)
    assert book.find(stranger) is NOT_TRUSTED
    assert not book.may_choose(stranger)


async def test_an_agent_without_such_examples_and_a_model_are_not_examined() -> None:
    bare = replace(LISTING, record=AgentRecord("bare", skills=(BUY, WIPE)))
    model = replace(LISTING, record=replace(LISTING.record, labels={"kind": "model"}))
    for listing in (bare, model):
        result, calls = await examine({"words": 2}, listing)
        assert (result.status, calls) == ("not_examined", [])


def test_a_new_digest_and_an_old_result_are_due_and_only_require_changes_the_choice() -> None:
    book = ExamBook()
    assert book.find(LISTING) is None
    book.policy = "warn"
    assert book.is_due(LISTING, 0.0, 60.0)
    book.put(LISTING, ExamResult("failed", ("count: no",), 1, 100.0, "d-1"))
    assert not book.is_due(LISTING, 159.0, 60.0)
    assert book.is_due(LISTING, 160.0, 60.0)
    assert book.is_due(LISTING, 700.0, 86_400.0), "a failure is repeated earlier"
    changed = replace(LISTING, digest="d-2")
    assert book.is_due(changed, 101.0, 60.0)
    stored = ExamBook()
    stored.policy = "require"
    stored.load({**book.to_json(), "x": {"status": "perhaps"}})
    assert stored.find(LISTING) == book.find(LISTING)
    assert book.select((LISTING,), "count") == (LISTING,)
    passed = replace(LISTING, key="agents/other")
    stored.put(passed, ExamResult("passed", (), 1, 100.0, "d-1"))
    assert stored.select((LISTING, passed), "count") == (passed,)
    with pytest.raises(SkillNotOfferedError) as raised:
        stored.select((LISTING, changed), "count")
    assert "word" in raised.value.remedy
    assert stored.count([LISTING, passed, changed]) == {"failed": 1, "passed": 1, "not_examined": 1}


async def test_the_exams_of_a_day_spend_no_more_than_its_money_and_the_next_day_has_its_own() -> None:
    now, asked = 86_400.0 * 20_000, []

    async def dispatch(call: Call) -> Outcome:
        assert call.trace.allowance is not None
        asked.append(call.trace.allowance.dollars)
        return Outcome(call.id, call.skill, "done", "word", value={"words": 1}, usage={"cost_usd": 0.04})

    examiner = Examiner(dispatch, ExamLimits(dollars=0.05, dollars_per_day=0.1), clock=lambda: now)
    await examiner.examine(LISTING, "word")
    await examiner.examine(LISTING, "word")
    assert asked == [0.05, 0.05, 0.02, 0.0]
    after_restart = Examiner(dispatch, ExamLimits(dollars=0.05, dollars_per_day=0.1), clock=lambda: now)
    after_restart.money.load(examiner.money.to_json())
    after_restart.money.load({"day": "today"})
    assert after_restart.money.reserve(0.05) == 0.0
    now += 86_400.0
    assert after_restart.money.reserve(0.05) == 0.05
