"""The step think: its loop, its journal, and its answers."""

from __future__ import annotations

from retinue import Agent, OutputInvalidError
from retinue.testing import run_workflow
from tests.support.thinking import ScriptedModel, say, think, use


def make_files() -> Agent:
    agent = Agent("files", version="1.0.0")

    @agent.skill(read_only=True)
    async def read_file(path: str) -> str:
        """Reads a file."""
        return f"content of {path}"

    @agent.skill
    async def write_file(path: str, text: str) -> str:
        """Writes a file."""
        return "written"

    return agent


async def test_a_model_calls_tools_at_once_and_answers() -> None:
    model = ScriptedModel(
        use(("files__read_file", {"path": "a"}), ("files__read_file", {"path": "b"})), say("both read")
    )
    run = await run_workflow(
        think("Read ${{ input.what }}", tools=["files/read_*"]),
        {"what": "a and b"},
        agents=[model.agent, make_files()],
    )
    assert run.get() == "both read"
    first = model.requests[0]
    assert [tool.name for tool in first.tools] == ["files__read_file"]
    assert first.messages[0].to_json()["content"] == [{"type": "text", "text": "Read a and b"}]
    assert ["content of a" in text for text in model.list_results()] == [True, False]
    assert [step.step for step in run.steps] == [
        "research/plan",
        "research/turn-1/model",
        "research/turn-1/call-1",
        "research/turn-1/call-2",
        "research/turn-2/model",
    ]


ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def test_an_answer_is_the_object_that_its_schema_asks_for() -> None:
    model = ScriptedModel(say('{"answer": "42"}', output={"answer": "42"}))
    run = await run_workflow(think(tools=[], output=ANSWER), agents=[model.agent])
    assert run.get() == {"answer": "42"}
    assert model.requests[0].output_schema == ANSWER


async def test_an_answer_that_breaks_its_schema_is_told_twice_and_fails_with_the_text_kept() -> None:
    model = ScriptedModel(say("41", output={"answer": 41}), say("no JSON"), say("still none"))
    run = await run_workflow(think(tools=[], output=ANSWER), agents=[model.agent])
    assert len(model.requests) == 3
    told = str(model.requests[1].messages[-1].to_json())
    assert "breaks its schema" in told
    assert run.status == "failed"
    assert run.record.fault is not None
    cause = run.record.fault.data["cause"]
    assert cause["type"] == OutputInvalidError.type
    assert cause["data"]["answer"] == "still none"


async def test_a_model_may_correct_an_answer_that_breaks_its_schema() -> None:
    model = ScriptedModel(say("41", output={"answer": 41}), say("", output={"answer": "41"}))
    run = await run_workflow(think(tools=[], output=ANSWER), agents=[model.agent])
    assert run.get() == {"answer": "41"}


async def test_an_answer_that_was_cut_is_told_and_taken_at_last() -> None:
    cut = say("word " * 50, finish="length")
    model = ScriptedModel(cut, say("short"))
    assert (await run_workflow(think(tools=[]), agents=[model.agent])).get() == "short"
    assert "too long" in str(model.requests[1].messages[-1].to_json())
    model = ScriptedModel(cut, cut, cut)
    assert (await run_workflow(think(tools=[]), agents=[model.agent])).get() == "word " * 50


async def test_a_refusal_of_the_model_fails_the_step() -> None:
    model = ScriptedModel(say("I do not do that", finish="refused"))
    run = await run_workflow(think(tools=[]), agents=[model.agent])
    assert run.record.fault is not None
    assert run.record.fault.data["cause"]["data"] == {"agent": "thinker", "reason": "refused"}


async def test_no_finished_step_is_made_again_wherever_a_run_is_interrupted() -> None:
    read = [("files__read_file", {"path": name}) for name in "abc"]
    script = [
        *(use(*read, ("files__write_file", {"path": str(n), "text": "x"})) for n in range(5)),
        say("done"),
    ]
    model = ScriptedModel(*script)
    run = await run_workflow(
        think(tools=["files/*"]), agents=[model.agent, make_files()], crash_at_every_step=True
    )
    assert run.get() == "done"
    assert len(model.requests) == 6
    keys = [step.step for step in run.steps]
    assert len(keys) == len(set(keys)) == 1 + 6 + 5 * 4
    assert len(run.calls) == 6 + 5 * 4
