"""The tools of a step think: which skills they are, how calls are judged, and what the model reads."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from retinue import Agent, Context, LimitedError, NotAllowedError, Part
from retinue.testing import WorkflowRun, run_workflow
from retinue.thinking.completion import CompletionReply, CompletionRequest
from tests.requirements import requirement
from tests.support.thinking import ScriptedModel, say, think, use
from tests.workflows.running import Bench
from tests.workflows.think.scripts import add_model


def make_agent(name: str, *skills: str) -> Agent:
    """An agent whose skills give their id."""
    agent = Agent(name, version="1.0.0")

    def add(skill: str) -> None:
        @agent.skill(skill, description=f"Does {skill.replace('_', ' ')}.", read_only=True)
        async def function(what: str = "") -> str:
            return f"{name}: {skill} {what}".strip()

    for skill in skills:
        add(skill)
    return agent


async def run_script(model: ScriptedModel, *agents: Agent, **options: Any) -> WorkflowRun:
    return await run_workflow(think(**options), agents=[model.agent, *agents])


def names_of(request: CompletionRequest) -> list[str]:
    return [tool.name for tool in request.tools]


FILES = ("read_file", "read_folder", "write_file", "delete_file")


@pytest.mark.parametrize(
    ("tools", "deny", "listed"),
    [
        (["read_file"], [], ["files__read_file"]),
        (["files/read_file"], [], ["files__read_file"]),
        (["files/read_*"], [], ["files__read_file", "files__read_folder"]),
        (["*/*_file"], ["*/*delete*"], ["files__read_file", "files__write_file"]),
        (["read_*"], ["read_folder"], ["files__read_file"]),
        (["write_file", "read_*"], [], ["files__write_file", "files__read_file", "files__read_folder"]),
        (["*/*"], ["files/*", "thinker/*"], []),
        (["search"], [], ["find_skills"]),
        ([], [], []),
        (["unheard_of", "read_file"], [], ["files__read_file"]),
        ("read_file", [], ["files__read_file"]),
    ],
)
async def test_tools_are_named_by_id_by_agent_and_skill_and_by_glob(
    tools: Any, deny: list[str], listed: list[str]
) -> None:
    model = ScriptedModel(say("ok"))
    await run_script(model, make_agent("files", *FILES), tools=tools, deny=deny)
    assert names_of(model.requests[0]) == listed


async def test_without_tools_the_model_may_search() -> None:
    model = ScriptedModel(say("ok"))
    await run_script(model, make_agent("files", *FILES))
    assert names_of(model.requests[0]) == ["find_skills"]


async def test_a_skill_that_the_model_finds_is_a_tool_from_the_next_request_on() -> None:
    model = ScriptedModel(
        use(("find_skills", {"what": "read a folder"})), use(("files__read_folder", {"what": "x"})), say("ok")
    )
    run = await run_script(model, make_agent("files", *FILES), deny=["*/*delete*"])
    first, second, third = map(names_of, model.requests)
    assert first == ["find_skills"]
    assert second[:2] == ["find_skills", "files__read_folder"]
    assert "files__delete_file" not in second
    assert third == second
    found, made = model.list_outcomes()
    assert "files__read_folder: Does read folder. (files: read_folder)" in found[0]
    assert "files: read_folder x" in made[0]
    assert [step.step for step in run.steps][2:4] == ["research/turn-1/found", "research/turn-2/model"]


async def test_a_skill_that_two_searches_of_a_turn_find_is_one_tool() -> None:
    searches = [("find_skills", {"what": what}) for what in ("read a folder", "read folder")]
    model = ScriptedModel(use(*searches), say("ok"))
    await run_script(model, make_agent("files", "read_folder"))
    assert names_of(model.requests[1]) == ["find_skills", "files__read_folder"]
    assert all("files__read_folder: Does" in text for text in model.list_results())


async def test_a_search_that_finds_nothing_says_so() -> None:
    model = ScriptedModel(use(("find_skills", {"what": "zebra"})), say("ok"))
    await run_script(model)
    assert model.list_outcomes() == [("No tool was found.", False)]


async def test_at_most_20_named_skills_are_listed_and_only_the_others_of_them_are_found() -> None:
    many = make_agent("many", *(f"sort_{n}" for n in range(30)))
    model = ScriptedModel(use(("find_skills", {"what": "sort"})), say("ok"))
    await run_script(model, many, make_agent("foreign", "sort_list"), tools=["many/*"])
    first, second = map(names_of, model.requests)
    assert len(first) == 21
    assert first[0] == "find_skills"
    assert len(second) > 21
    assert all(name.startswith("many__") for name in second[1:])


ANIMALS = ("cat", "dog", "fox", "owl", "bee", "ant")


async def test_at_most_20_skills_are_found() -> None:
    agents = [
        make_agent(name, *(f"{verb}_{name}" for verb in ("feed", "walk", "sell", "buy", "wash")))
        for name in ANIMALS
    ]
    searches = [use(("find_skills", {"what": name})) for name in ANIMALS]
    model = ScriptedModel(*searches, say("ok"))
    await run_script(model, *agents)
    assert [len(names_of(request)) for request in model.requests] == [1, 6, 11, 16, 21, 21, 21]
    assert ["No further tools can be added" in text for text in model.list_results()] == [False] * 4 + [
        True
    ] * 2


async def test_an_unknown_tool_and_wrong_arguments_come_back_with_what_was_meant() -> None:
    model = ScriptedModel(
        use(
            ("files__read_fil", {}),
            ("files__read_file", {"wha": "x", "what": 3}),
            ("files__read_file", '{"what": '),
            ("find_skills", {"query": "x"}),
        ),
        say("ok"),
    )
    run = await run_script(model, make_agent("files", *FILES), tools=["search", "files/*"])
    unknown, wrong, broken, search = model.list_outcomes()
    assert unknown[0].startswith("There is no tool 'files__read_fil'. Did you mean files__read_file")
    assert unknown[1]
    assert "what" in wrong[0]
    assert wrong[1]
    assert broken == ("The arguments are no JSON object.", True)
    assert "'what'" in search[0]
    assert run.get() == "ok"
    assert run.agents == ["thinker", "thinker"]


async def test_wrong_calls_count_as_calls() -> None:
    model = ScriptedModel(use(*((f"no_{n}", {}) for n in range(3))), use(("no_4", {})), say("ok"))
    run = await run_script(model, tools=[], limits={"calls": 3})
    assert run.record.fault is not None
    assert run.record.fault.data["cause"]["data"]["limit"] == "calls"


async def test_no_call_of_a_message_that_was_cut_is_made() -> None:
    model = ScriptedModel(use(("files__write_file", {"what": "half"}), finish="length"), say("ok"))
    run = await run_script(model, make_agent("files", *FILES), tools=["files/*"])
    ((text, is_error),) = model.list_outcomes()
    assert is_error
    assert "cut" in text
    assert run.agents == ["thinker", "thinker"]


async def test_results_come_in_the_order_of_the_calls_each_exactly_once() -> None:
    model = ScriptedModel(
        use(
            ("files__read_file", {"what": "1"}),
            ("unknown", {}),
            ("find_skills", {"what": "zebra"}),
            ("files__read_file", {"what": "2"}),
        ),
        say("ok"),
    )
    await run_script(model, make_agent("files", *FILES), tools=["search", "files/*"])
    message = model.requests[-1].messages[-1].to_json()
    assert [result["id"] for result in message["results"]] == ["c1", "c2", "c3", "c4"]


@requirement("T-11")
async def test_the_third_equal_call_is_told_and_the_fifth_ends_the_loop() -> None:
    call = ("files__read_file", {"what": "x"})
    model = ScriptedModel(*(use(call) for _ in range(9)))
    run = await run_script(model, make_agent("files", *FILES), tools=["files/*"])
    assert run.record.fault is not None
    cause = run.record.fault.data["cause"]
    assert (cause["type"], cause["data"]["limit"]) == (LimitedError.type, "repeats")
    assert run.agents.count("files") == 2
    assert not run.record.is_extendable
    results = model.list_results()
    assert ["Not made: this is call" in text for text in results] == [False, False, True, True, True]


@requirement("T-11")
async def test_the_same_unknown_tool_again_and_again_ends_the_loop() -> None:
    model = ScriptedModel(*(use(("no_such_tool", {})) for _ in range(9)))
    run = await run_script(model, tools=[])
    assert run.record.limited is not None
    assert run.record.limited.limit == "repeats"
    assert len(model.requests) == 6


async def test_equal_calls_of_a_polling_skill_are_made() -> None:
    agent = Agent("jobs", version="1.0.0")

    @agent.skill(tags=["polling"], read_only=True)
    async def state() -> str:
        """Tells the state of the job."""
        return "running"

    model = ScriptedModel(*(use(("jobs__state", {})) for _ in range(6)), say("ok"))
    run = await run_script(model, agent, tools=["jobs/*"])
    assert run.get() == "ok"
    assert run.agents.count("jobs") == 6


async def test_a_tool_that_fails_refuses_or_asks_gives_an_error_to_the_model() -> None:
    agent = Agent("shop", version="1.0.0")

    class Seat(BaseModel):
        seat: str

    @agent.skill
    async def fail() -> str:
        """Fails."""
        raise ValueError("out of stock")

    @agent.skill
    async def refuse() -> str:
        """Refuses."""
        raise NotAllowedError("not for you")

    @agent.skill
    async def ask(ctx: Context) -> str:
        """Asks."""
        return (await ctx.elicit("Which seat?", Seat)).seat

    model = ScriptedModel(use(("shop__fail", {}), ("shop__refuse", {}), ("shop__ask", {})), say("ok"))
    run = await run_script(model, agent, tools=["shop/*"])
    failed, refused, asked = model.list_outcomes()
    assert all(is_error for _, is_error in (failed, refused, asked))
    assert "execution_error: ValueError: out of stock" in failed[0]
    assert "not_allowed: not for you" in refused[0]
    assert "elicitation" in asked[0]
    assert run.get() == "ok"


async def test_an_image_reaches_the_model_as_an_image() -> None:
    agent = Agent("camera", version="1.0.0")

    @agent.skill
    async def take() -> Part:
        """Takes a picture."""
        return Part.image(b"\x89PNG")

    model = ScriptedModel(use(("camera__take", {})), say("ok"))
    await run_script(model, agent, tools=["camera/*"])
    (result,) = model.requests[-1].messages[-1].to_json()["results"]
    assert [part["type"] for part in result["content"]] == ["text", "image"]


async def test_no_more_calls_than_parallel_are_made_at_once() -> None:
    import asyncio

    running = most = 0
    agent = Agent("slow", version="1.0.0")

    @agent.skill(read_only=True)
    async def wait(number: int) -> str:
        """Waits."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return str(number)

    model = ScriptedModel(use(*(("slow__wait", {"number": n}) for n in range(6))), say("ok"))
    await run_script(model, agent, tools=["slow/*"], parallel=2)
    assert most == 2


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


async def test_a_skill_whose_schema_changed_is_not_called_any_more(bench: Bench) -> None:
    bench.offer("send", "sent", agent="mail", input_schema=TEXT)

    def change() -> CompletionReply:
        schema = {**TEXT, "properties": {"text": {"type": "string"}, "to": {"type": "string"}}}
        bench.offer("send", "sent to all", agent="mail", input_schema=schema)
        return use(("mail__send", {"text": "hello"}))

    requests = add_model(bench, change, say("ok"))
    record = await bench.run(dict(think(tools=["mail/*"])))
    (result,) = requests[-1].messages[-1].to_json()["results"]
    assert result["is_error"]
    assert "mail/send has changed since this run began to use it" in result["content"][0]["text"]
    assert "send" not in bench.called
    assert record.get() == "ok"


async def test_a_skill_that_left_gives_an_error_and_no_other_agents_skill(bench: Bench) -> None:
    bench.offer("send", "sent", agent="mail", input_schema=TEXT)

    def leave() -> CompletionReply:
        del bench.caller._offers["send"]["mail"]
        bench.offer("send", "sent by another", agent="other", input_schema=TEXT)
        return use(("mail__send", {"text": "hello"}))

    requests = add_model(bench, leave, say("ok"))
    record = await bench.run(dict(think(tools=["send"])))
    (result,) = requests[-1].messages[-1].to_json()["results"]
    assert result["is_error"]
    assert "agent mail is away" in result["content"][0]["text"]
    assert "send" not in bench.called
    assert record.get() == "ok"
