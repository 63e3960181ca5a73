"""``run.think``: the loop of the step think in workflows in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from retinue import Agent, LimitedError, OutputInvalidError, Run, workflow
from retinue.core.errors import InvalidSettingError, ModelError
from retinue.testing import ModelTurn, run_workflow
from retinue.testing import ScriptedModel as VendorModel
from retinue.testing.memory_runs import MemorySessions
from retinue.thinking.completion import CompletionRequest
from tests.requirements import requirement
from tests.support.thinking import ScriptedModel, say, use


def make_adder() -> Agent:
    agent = Agent("calc", version="1.0.0")

    @agent.skill(read_only=True)
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    return agent


@dataclass
class Sum:
    total: int
    how: str = ""


async def test_a_model_calls_skills_and_its_answer_is_the_value() -> None:
    @workflow
    async def ask(question: str, run: Run) -> str:
        answer: str = await run.think(question, tools="add", instructions="Be brief")
        return answer.upper()

    model = ScriptedModel(use(("calc__add", {"a": 1, "b": 2})), say("it is 3"))
    run = await run_workflow(
        ask, {"question": "1 + 2?"}, agents=[model.agent, make_adder()], crash_at_every_step=True
    )
    assert run.get() == "IT IS 3"
    assert model.requests[0].system.startswith("Be brief")
    assert [step.step for step in run.steps] == [
        "think/plan",
        "think/turn-1/model",
        "think/turn-1/call-1",
        "think/turn-2/model",
    ]
    assert len(model.requests) == 2


async def test_a_person_is_asked_before_the_calls_that_approve_names() -> None:
    @workflow
    async def ask(run: Run) -> str:
        answer: str = await run.think("1 + 2?", tools=["add"], approve="calc/*")
        return answer

    model = ScriptedModel(use(("calc__add", {"a": 1, "b": 2})), say("I do not know"))
    run = await run_workflow(ask, {}, agents=[model.agent, make_adder()], approvals={"add": "not today"})
    assert run.get() == "I do not know"
    assert "not today" in model.list_results()[0]


async def test_an_answer_is_of_the_type_that_is_asked_for() -> None:
    @workflow
    async def ask(run: Run) -> int:
        result: Sum = await run.think("1 + 2?", tools=[], into=Sum)
        return result.total

    model = ScriptedModel(say("", output={"total": 3}))
    run = await run_workflow(ask, agents=[model.agent])
    assert run.get() == 3
    schema = model.requests[0].output_schema
    assert schema is not None
    assert schema["required"] == ["total"]


async def test_a_limit_raises_its_error_with_the_last_answer() -> None:
    @workflow
    async def ask(run: Run) -> str:
        try:
            await run.think("Go on for ever", tools=["add"], limits={"turns": 2})
        except LimitedError as limited:
            return f"{limited.limit}: {limited.answer}"
        return ""

    model = ScriptedModel(*(use(("calc__add", {"a": n, "b": n})) for n in range(9)))
    run = await run_workflow(ask, agents=[model.agent, make_adder()], crash_at_every_step=True)
    assert run.get() == "turns: as far as I came"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([say("no", finish="refused")], ModelError),
        ([say("x")] * 3, OutputInvalidError),
    ],
)
async def test_failures_are_errors_of_their_own_class(script: list[Any], error: type[Exception]) -> None:
    caught: list[Exception] = []

    @workflow
    async def ask(run: Run) -> str:
        try:
            await run.think("?", tools=[], into=Sum)
        except error as failed:
            caught.append(failed)
        return "went on"

    run = await run_workflow(ask, agents=[ScriptedModel(*script).agent])
    assert run.get() == "went on"
    assert len(caught) == 1


async def test_two_models_think_at_the_same_time() -> None:
    @workflow
    async def ask(run: Run) -> list[str]:
        both = [run.think("a", tools=["add"], model="left"), run.think("b", tools=["add"], model="right")]
        answers: list[str] = await run.gather(*both)
        return answers

    left = ScriptedModel(
        use(("calc__add", {"a": 1, "b": 2}), ("calc__add", {"a": 1, "b": 3})), say("L"), name="left"
    )
    right = ScriptedModel(
        use(("calc__add", {"a": 2, "b": 2})), use(("calc__add", {"a": 3, "b": 2})), say("R"), name="right"
    )
    run = await run_workflow(ask, agents=[left.agent, right.agent, make_adder()], crash_at_every_step=True)
    assert run.get() == ["L", "R"]
    assert run.agents.count("calc") == 4
    assert len(left.requests) == 2
    assert len(right.requests) == 3


@requirement("T-15")
async def test_models_that_think_at_once_condense_read_and_remember_each_for_itself() -> None:
    pages = Agent("pages", version="1.0.0")

    @pages.skill(read_only=True)
    async def page(number: int) -> str:
        """Reads a page."""
        return f"page {number} " + "x" * 3_000

    @workflow
    async def ask(run: Run) -> list[str]:
        loops = [
            run.think(name, tools=["page"], model=name, session="s", context={"keep_results": 1_000})
            for name in ("left", "right")
        ]
        answers: list[str] = await run.gather(*loops)
        return answers

    def read(request: CompletionRequest) -> ModelTurn:
        text = str(request.messages[-1].to_json())
        link = text[text.index("artifact:sha256:") :][: len("artifact:sha256:") + 12]
        return ModelTurn(calls=[("read_result", {"link": link, "offset": 1_000, "length": 500})])

    calls: list[Any] = [ModelTurn(calls=[("pages__page", {"number": n})]) for n in range(7)]
    models = [VendorModel(*calls, read, name, name=name, context_window=4_000) for name in ("left", "right")]
    sessions = MemorySessions()
    run = await run_workflow(ask, agents=[*models, pages], crash_at_every_step=True, sessions=sessions)
    assert run.get() == ["left", "right"]
    assert run.agents.count("pages") == 14
    steps = [step.step for step in run.steps]
    assert {"think/condense-1", "think-2/condense-1", "think/turn-8/read", "think-2/turn-9/session"} <= {
        *steps
    }
    again = await run_workflow(ask, agents=[*models, pages], sessions=sessions)
    assert again.status == "done"
    assert [len(model.requests[-1].messages) > 2 for model in models] == [True, True]


async def test_a_race_of_models_is_refused_because_a_call_of_a_tool_would_end_it() -> None:
    @workflow
    async def ask(run: Run) -> str:
        answer: str = await run.race(run.think("a", tools=["add"]), run.think("b", tools=["add"]))
        return answer

    model = ScriptedModel(use(("calc__add", {"a": 1, "b": 2})), say("end"))
    run = await run_workflow(ask, agents=[model.agent, make_adder()])
    assert run.status == "failed"
    assert "race" in str(run.record.fault)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limits": {"turn": 3}}, "limits.turn"),
        ({"limits": {"turns": 0}}, "limits.turns"),
        ({"limits": {"time": 3}}, "3 has no unit"),
        ({"parallel": 0}, "parallel"),
        ({"context": {"compact_at": 1.0}}, "context.compact_at"),
        ({"tools": [""]}, "tools.0"),
    ],
)
async def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    @workflow
    async def ask(run: Run) -> str:
        with pytest.raises(InvalidSettingError, match=problem):
            await run.think("a", **options)
        return "refused"

    assert (await run_workflow(ask)).get() == "refused"
