"""The functions of the guide to the client, and that of the README, do what the pages say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retinue import Agent, Context, Part
from retinue.cli.program import program
from retinue.client.sync_connection import LoopThread
from retinue.core.call import Answer
from retinue.storage.state import State
from tests.docs.pages import README, ROOT
from tests.docs.test_docs import SYBIL
from tests.system import open_system

PAGE = ROOT / "docs" / "guides" / "python-client.md"


def make_agent() -> Agent:
    agent = Agent("plan-agent", version="1.0.0", logging=True)

    @agent.skill
    def create_plan(requirements: str) -> dict[str, Any]:
        """Plans tests for a module."""
        return {"plan": requirements, "steps": ["one"]}

    @agent.skill
    def draw_chart(title: str) -> Any:
        """Draws a chart."""
        return Answer(parts=(Part.image(b"png"),))

    @agent.skill
    def greet(name: str) -> str:
        """Greets a person."""
        return f"Hello, {name}!"

    @agent.skill
    async def review_code(code: str, ctx: Context) -> str:
        """Reviews code."""
        await ctx.progress(0.5, "reading")
        return f"good, says {await ctx.elicit('Who are you?', str)}"

    @agent.skill
    async def summarize(code: str, ctx: Context) -> str:
        """Summarizes code."""
        await ctx.progress(0.5, "reading")
        await ctx.stream_text("short")
        return "short"

    return agent


@pytest.fixture
def hub(retinue_home: Path) -> Iterator[None]:
    """A hub with an agent, in a loop of another thread."""

    @asynccontextmanager
    async def running() -> Any:
        async with open_system(State(retinue_home)) as system:
            await system.start_agent(make_agent())
            await system.start_hub()
            yield

    thread, system = LoopThread(), running()
    thread.run(system.__aenter__())
    try:
        yield
    finally:
        thread.run(system.__aexit__(None, None, None))
        thread.close()


@pytest.mark.usefixtures("hub")
def test_the_functions_of_the_guide_do_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    names = document.namespace
    asyncio.run(names["main"]())
    assert "create_plan of plan-agent" in capsys.readouterr().out
    assert asyncio.run(names["make_plan"]()).plan == "keywords"
    assert asyncio.run(names["draw"](tmp_path)) == 3
    assert (tmp_path / "sales.png").read_bytes() == b"png"
    assert asyncio.run(names["plan_or_explain"]("tests")) == "done"
    assert asyncio.run(names["plan_or_explain"](7)) == "wrong: requirements"
    assert asyncio.run(names["watch"]()) == ["reading", "good, says Ada"]
    assert asyncio.run(names["run_flow"]()) is True
    assert asyncio.run(names["watch_run"]()) == ["reading", "short"]
    assert asyncio.run(names["look_around"]()) == "plan-agent"
    assert names["count_agents"]() == 1

    made = CliRunner().invoke(program, ["stubs", str(tmp_path / "mesh_stubs.py")])
    assert made.exit_code == 0
    assert made.stdout.endswith(f"{tmp_path}/mesh_stubs.py: 5 skills\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mesh_stubs", raising=False)
    assert asyncio.run(names["plan_with_types"]()) == "tests"


@pytest.mark.usefixtures("hub")
def test_the_program_of_the_readme_prints_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    document = SYBIL.parse(README)
    for example in document.examples():
        example.evaluate()
    asyncio.run(document.namespace["main"]())
    assert "Hello, Ada!" in capsys.readouterr().out
