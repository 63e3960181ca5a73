"""Programs call skills of a mesh through its hub, over real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import retinue
from retinue import Agent, Context, Part
from retinue.client.received_parts import ReceivedPart
from retinue.client.sync_connection import LoopThread
from retinue.core.errors import (
    AgentUnreachableError,
    BudgetSpentError,
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    InvalidSettingError,
    NotAuthenticatedError,
    OutputInvalidError,
    SkillNotOfferedError,
    UnknownAgentError,
    VersionConflictError,
)
from retinue.storage.contexts import ContextFile, HubContext, find_configuration_folder
from retinue.web.issued_tokens import TokenFile
from tests.client.hubs import use_expired_token
from tests.client.scripted_hub import CutError, FaultError, ScriptedHub
from tests.ports import reserved_port
from tests.serving import serve_app
from tests.system import WAIT_S, System

PIXEL = b"\x89PNG fake"


class Plan(BaseModel):
    title: str
    steps: list[str]


@dataclass
class Size:
    words: int


def word_agent() -> Agent:
    agent = Agent("word-agent", version="1.2.0")
    agent_calls: list[str] = []

    @agent.skill
    def count_words(text: str) -> int:
        """Counts the words of a text."""
        return len(text.split())

    @agent.skill
    def measure(text: str) -> dict[str, int]:
        """Measures a text."""
        return {"words": len(text.split())}

    @agent.skill
    def make_plan(title: str) -> dict[str, Any]:
        """Plans something."""
        return {"title": title, "steps": ["one", "two"]}

    @agent.skill
    def break_down() -> str:
        """Breaks."""
        raise ValueError("no words left")

    @agent.skill
    def draw(count: int = 1) -> Any:
        """Draws images."""
        return retinue.Answer(parts=tuple(Part.image(PIXEL) for _ in range(count)))

    @agent.skill
    def choose(agent: str, timeout_s: int = 1) -> str:
        """Takes parameters of the names of options."""
        return f"{agent} {timeout_s}"

    @agent.skill
    async def count_further(ctx: Context) -> int:
        """Tells how many further calls it may cause."""
        return ctx.calls_left

    @agent.skill
    def note_once(text: str) -> int:
        """Counts its calls."""
        agent_calls.append(text)
        return len(agent_calls)

    return agent


async def test_skills_are_found_with_their_schemas_and_reasons(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        hits = await mesh.find("count the words of a text", limit=2, why="word-agent")
        assert (hits[0].skill, hits[0].agent, hits[0].version) == ("count_words", "word-agent", "1.2.0")
        assert hits[0].input_schema["required"] == ["text"]
        assert len(hits) == len(list(hits)) <= 2
        assert hits.why
        assert "word-agent" in [row["name"] for row in await mesh.agents()]
        assert (await mesh.show("word-agent"))["card"]["version"] == "1.2.0"
        with pytest.raises(UnknownAgentError):
            await mesh.show("nobody")


async def test_arguments_are_a_mapping_or_keywords(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.call("count_words", {"text": "one two"}) == 2
        assert await mesh.call("count_words", text="one two three") == 3
        assert await mesh.call("count_words", text="one", agent="word-agent", version=">=1,<2") == 1
        with pytest.raises(InvalidParametersError, match="as a mapping and as text="):
            await mesh.call("count_words", {"text": "a"}, text="b")
        with pytest.raises(InvalidParametersError, match="are a list"):
            await mesh.call("count_words", ["a"])  # type: ignore[call-overload]


async def test_an_option_that_is_a_parameter_too_needs_the_mapping(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        for options in ({"agent": "word-agent"}, {"agent": "word-agent", "timeout_s": 5}):
            with pytest.raises(
                InvalidParametersError, match="an option of the call and a parameter of choose"
            ) as at:
                await mesh.call("choose", **options)
            assert "mapping" in at.value.remedy
        assert await mesh.call("choose", {"agent": "a", "timeout_s": 2}, agent="word-agent") == "a 2"


async def test_a_result_becomes_a_model_or_a_dataclass(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        plan = await mesh.call("make_plan", title="tests", into=Plan)
        assert plan == Plan(title="tests", steps=["one", "two"])
        assert await mesh.call("measure", text="one two", into=Size) == Size(2)
        with pytest.raises(
            OutputInvalidError, match="the result of measure does not fit Plan: field 'title'"
        ):
            await mesh.call("measure", text="one", into=Plan)
        with pytest.raises(InvalidSettingError, match="no type of a result"):
            await mesh.call("measure", {"text": "one"}, into=7)  # type: ignore[call-overload]


async def test_a_failure_is_the_error_that_a_skill_would_catch(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        with pytest.raises(ExecutionFailedError) as broken:
            await mesh.call("break_down")
        assert (broken.value.message, broken.value.exception) == ("no words left", "ValueError")
        with pytest.raises(InvalidParametersError) as invalid:
            await mesh.call("count_words", text=3)
        assert [problem.path for problem in invalid.value.problems] == ["text"]
        with pytest.raises(SkillNotOfferedError) as unknown:
            await mesh.call("count_word", text="a")
        assert unknown.value.near
        with pytest.raises(VersionConflictError):
            await mesh.call("count_words", {"text": "a"}, version=">=2")
        outcome = await mesh.ask("break_down")
        assert (outcome.status, type(outcome.error)) == ("failed", ExecutionFailedError)


async def test_an_image_is_a_value_that_is_saved(system: System, tmp_path: Path) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        image = await mesh.call("draw")
        assert isinstance(image, ReceivedPart)
        assert (image.content, image.mime) == (PIXEL, "image/png")
        assert image.save(tmp_path / "pixel.png").read_bytes() == PIXEL
        saved = [image.save(tmp_path) for _ in range(2)]
        assert [path.name for path in saved] == ["image-1.png", "image-1-2.png"]
        assert len(await mesh.call("draw", count=2)) == 2
        outcome = await mesh.ask("draw")
        assert [part.content for part in outcome.parts if isinstance(part, ReceivedPart)] == [PIXEL]


async def test_a_key_makes_a_call_run_once(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.call("note_once", {"text": "a"}, key="order-17") == 1
        assert await mesh.call("note_once", {"text": "a"}, key="order-17") == 1
        assert await mesh.call("note_once", {"text": "a"}) == 2
        with pytest.raises(InvalidParametersError, match="key is not"):
            await mesh.call("note_once", {"text": "a"}, key="")


async def test_a_budget_bounds_the_further_calls(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.call("count_further", {}, budget=7) <= 7
        with pytest.raises(InvalidParametersError, match="budget is -1"):
            await mesh.call("count_further", {}, budget=-1)
        assert await mesh.call("count_further", {}, budget={"calls": 7, "tokens": 9}) <= 7


async def test_a_budget_bounds_the_tokens_of_a_call_and_of_a_run(system: System) -> None:
    agent, seen = Agent("thinker"), list[Any]()

    @agent.skill
    async def think(ctx: Context) -> str:
        seen.append((ctx.tokens_left, ctx.dollars_left))
        with ctx.reserve(tokens=100):
            return "thought"

    await system.start_agent(agent)
    await system.start_hub()
    flow = {"name": "flow", "steps": [{"id": "one", "skill": "think"}]}
    async with retinue.connect() as mesh:
        assert await mesh.call("think", {}, budget={"tokens": 250, "dollars": 0.5}) == "thought"
        with pytest.raises(BudgetSpentError, match="has 99 tokens left"):
            await mesh.call("think", {}, budget={"tokens": 99})
        run = await mesh.start(flow, budget={"tokens": 800})
        assert await run.result() == "thought"
        outcome = await mesh.ask("think", budget={"tokens": 250})
    assert seen[:3] == [(250, 0.5), (99, None), (700, None)]
    assert outcome.usage == {"reserved_tokens": 100}


async def test_a_skill_gives_a_further_call_a_part_of_its_budget(system: System) -> None:
    inner, outer = Agent("inner-agent"), Agent("outer-agent")

    @inner.skill
    async def look(ctx: Context) -> list[Any]:
        return [ctx.calls_left, ctx.tokens_left, ctx.dollars_left]

    @outer.skill
    async def hand_on(ctx: Context) -> list[Any]:
        return [
            await ctx.call("look", budget=3),
            await ctx.call("look", budget={"tokens": 40, "calls": 2}),
            await ctx.call("look"),
        ]

    await system.start_agent(inner)
    await system.start_agent(outer)
    await system.start_hub()
    async with retinue.connect() as mesh:
        narrow, both, rest = await mesh.call("hand_on", budget={"tokens": 800})
    assert narrow[0] <= 3
    assert (both[0] <= 2, both[1]) == (True, 40)
    assert rest[1] == 700


async def test_a_call_that_takes_too_long_names_the_option(system: System) -> None:
    agent = Agent("slow-agent")

    @agent.skill
    async def wait() -> None:
        await asyncio.sleep(WAIT_S)

    await system.start_agent(agent)
    await system.start_hub()
    async with retinue.connect(timeout_s=0.2) as mesh:
        with pytest.raises(CallTimedOutError, match=r"within 0\.2 s") as late:
            await mesh.call("wait")
        assert late.value.remedy == "raise timeout_s"
        with pytest.raises(InvalidParametersError, match="timeout_s is 0"):
            await mesh.call("wait", {}, timeout_s=0)


async def test_a_question_is_answered_by_the_handler(system: System) -> None:
    agent = Agent("asking-agent")

    @agent.skill
    async def greet(ctx: Context) -> str:
        name = await ctx.elicit("Who are you?", str)
        is_sure = await ctx.elicit("Sure?", bool)
        return f"Hello, {name}! {is_sure}"

    await system.start_agent(agent)
    await system.start_hub()

    async def answer(question: Any) -> Any:
        return "Ada" if "Who" in question.message else True

    async with retinue.connect(on_question=answer) as mesh:
        assert await mesh.call("greet") == "Hello, Ada! True"
    async with retinue.connect(on_question=lambda question: None) as mesh:
        with pytest.raises(retinue.InputRefusedError):
            await mesh.call("greet")
    async with retinue.connect() as mesh:
        with pytest.raises(retinue.InputRequiredError):
            await mesh.call("greet")


async def test_agents_are_asked_and_ranked(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        answers = await mesh.ask_agents(["count_words"])
        assert answers.best is not None
        assert answers.best.agent == "word-agent"
        assert (await mesh.ask_agents(["nothing"], agents=["word-agent"])).best is None
        assert await mesh.imports() == []


async def test_two_hundred_calls_at_once_all_come_back(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        counts = await asyncio.gather(
            *(mesh.call("count_words", text=" ".join(["word"] * number)) for number in range(200))
        )
    assert counts == list(range(200))


# which hub


async def test_the_hub_is_named_by_url_by_variable_or_by_context(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await system.start_agent(word_agent())
    hub = await system.start_hub()
    system.state.forget_hub()
    _, token = TokenFile(system.state.keys).issue(["mesh", "exposed"])
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    contexts = ContextFile(find_configuration_folder({"XDG_CONFIG_HOME": str(tmp_path / "configuration")}))
    contexts.add("team", HubContext(hub.url, token))
    for connection in (
        retinue.connect(hub.url, token=token),
        retinue.connect(url=hub.url),
        retinue.connect("team"),
    ):
        async with connection as mesh:
            assert await mesh.call("count_words", text="a b") == 2
    monkeypatch.setenv("RETINUE_HUB", hub.url)
    async with retinue.connect() as mesh:
        assert await mesh.call("count_words", text="a b") == 2
    monkeypatch.delenv("RETINUE_HUB")
    contexts.use("team")
    async with retinue.connect() as mesh:
        assert await mesh.call("count_words", text="a b") == 2


def test_a_hub_that_cannot_be_named_so_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="both given"):
        retinue.connect("team", url="http://127.0.0.1:1")
    with pytest.raises(InvalidSettingError, match="not a URL"):
        retinue.connect(url="team")
    with pytest.raises(InvalidSettingError, match="timeout_s"):
        retinue.connect(timeout_s=0)


async def test_without_a_hub_the_error_names_the_remedy() -> None:
    with pytest.raises(AgentUnreachableError, match="no hub is running on the state folder") as absent:
        async with retinue.connect():
            pass
    assert "retinue hub" in absent.value.remedy
    with pytest.raises(InvalidSettingError, match="no context is named team"):
        async with retinue.connect("team"):
            pass


async def test_a_hub_that_is_not_there_is_named_with_the_remedy() -> None:
    with reserved_port() as port:
        async with retinue.connect(f"http://127.0.0.1:{port}") as mesh:
            with pytest.raises(
                AgentUnreachableError, match=f"the hub at http://127.0.0.1:{port} is unreachable"
            ) as at:
                await mesh.call("count_words", text="a")
    assert "start it on its machine" in at.value.remedy


async def test_an_expired_token_is_named_and_a_new_one_is_taken_up(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = await system.start_hub()
    await system.start_agent(word_agent())
    valid = use_expired_token(system, tmp_path, monkeypatch)
    async with retinue.connect(hub.url) as mesh:
        with pytest.raises(NotAuthenticatedError, match="rejects the token") as refused:
            await mesh.call("count_words", text="a")
        assert "RETINUE_TOKEN" in refused.value.remedy
        monkeypatch.setenv("RETINUE_TOKEN", valid)
        assert await mesh.call("count_words", text="a") == 1


async def test_a_wrong_token_for_the_own_hub_is_named_and_so_is_the_endpoint_in_place_of_a_hub(
    system: System,
) -> None:
    hub = await system.start_hub()
    async with retinue.connect(url=hub.url, token="rtn_wrong") as mesh:
        with pytest.raises(NotAuthenticatedError, match=f"the hub at {hub.url} rejects the token") as refused:
            await mesh.agents()
        assert "retinue token new" in refused.value.remedy
    with pytest.raises(InvalidSettingError, match="endpoint /mcp of a hub") as wrong:
        async with retinue.connect(url=f"{hub.url}/mcp"):
            pass
    assert wrong.value.remedy == f"write {hub.url} for the hub itself"


# repetitions


async def test_a_call_is_sent_again_where_that_is_safe() -> None:
    count = 0

    def lose_twice(params: dict[str, Any]) -> int:
        nonlocal count
        count += 1
        if count < 3:
            raise CutError
        return count

    hub = ScriptedHub(work=lose_twice, list_runs=lambda params: {"runs": [{"run": lose_twice(params)}]})
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        with pytest.raises(AgentUnreachableError):
            await mesh.call("work")
        assert (count, hub.skills) == (1, ["work"])
        count = 0
        assert await mesh.call("work", {}, key="once") == 3
        assert {headers.get("idempotency-key") for headers in hub.headers[1:]} == {"once"}
        count = 0
        assert await mesh.runs() == [{"run": 3}]


async def test_a_rerun_is_not_sent_again_because_the_hub_may_have_started_it() -> None:
    def lose(params: dict[str, Any]) -> Any:
        raise CutError

    hub = ScriptedHub(rerun_run=lose)
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        with pytest.raises(AgentUnreachableError):
            await mesh.rerun("mine", "plan")
    assert hub.skills == ["rerun_run"]


async def test_a_skill_that_comes_later_has_its_parameters_checked() -> None:
    rows: list[dict[str, Any]] = []
    hub = ScriptedHub(work=lambda params: 1, find_skills=lambda params: {"skills": rows})
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        for _ in range(2):
            assert await mesh.call("work", agent="a") == 1
        rows.append({"skill": "work", "agent": "a", "input_schema": {"properties": {"agent": {}}}})
        with pytest.raises(InvalidParametersError):
            await mesh.call("work", agent="a")
    assert hub.skills == ["find_skills", "work"] * 2 + ["find_skills"]


async def test_a_busy_hub_is_asked_again_after_its_time() -> None:
    replies = [FaultError("Busy", type="busy", retry_after_s=0.01), 7]

    def answer(params: dict[str, Any]) -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async with serve_app(ScriptedHub(work=answer)) as url, retinue.connect(url) as mesh:
        assert await mesh.call("work") == 7
        replies[:] = [FaultError("Busy", type="busy", retry_after_s=0.01, nested=True), 7]
        with pytest.raises(retinue.BusyError):
            await mesh.call("work")


async def test_a_call_outlives_a_restart_of_the_hub_that_did_not_get_it() -> None:
    hub = ScriptedHub(work=lambda params: 1)
    with reserved_port() as port:
        async with retinue.connect(f"http://127.0.0.1:{port}", retries=8) as mesh:
            calling = asyncio.create_task(mesh.call("work"))
            await asyncio.sleep(0.05)
            async with serve_app(hub, port=port):
                assert await calling == 1


async def test_connections_are_kept() -> None:
    hub = ScriptedHub(work=lambda params: 1)
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        for _ in range(5):
            await mesh.call("work")
    assert len(hub.connections) == 1


async def test_a_cancelled_task_cancels_its_call() -> None:
    began = asyncio.Event()

    async def wait(params: dict[str, Any]) -> None:
        began.set()
        await asyncio.sleep(WAIT_S)

    hub = ScriptedHub(work=wait)
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        calling = asyncio.create_task(mesh.call("work"))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(WAIT_S):
            await hub.cancelled.wait()


def test_ctrl_c_cancels_the_call_of_a_program() -> None:
    hub = ScriptedHub(work=lambda params: interrupt())

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(WAIT_S)

    async def program(url: str) -> None:
        async with retinue.connect(url) as mesh:
            await mesh.call("work")

    thread, serving = LoopThread(), serve_app(hub)
    url = thread.run(serving.__aenter__())
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(program(url))
        thread.run(asyncio.wait_for(hub.cancelled.wait(), WAIT_S))
    finally:
        thread.run(serving.__aexit__(None, None, None))
        thread.close()


async def test_an_old_hub_that_lacks_a_skill_is_named() -> None:
    def lack(params: dict[str, Any]) -> Any:
        raise FaultError("Unknown skill: list_schedules", type="skill_not_offered")

    async with serve_app(ScriptedHub(list_schedules=lack)) as url, retinue.connect(url) as mesh:
        with pytest.raises(SkillNotOfferedError, match="the hub has no skill list_schedules for") as old:
            await mesh.schedules()
    assert "update Retinue" in old.value.remedy


async def test_a_spent_budget_is_the_error_of_the_guard(system: System) -> None:
    agent = Agent("first-agent")

    @agent.skill
    async def pass_on(ctx: Context) -> Any:
        return await ctx.call("count_words", {"text": "a"})

    await system.start_agent(word_agent())
    await system.start_agent(agent)
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.call("pass_on", {}, budget=5) == 1
        with pytest.raises(BudgetSpentError):
            await mesh.call("pass_on", {}, budget=0)
