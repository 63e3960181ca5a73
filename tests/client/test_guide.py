"""The functions of the guide to the client, and that of the README, do what the pages say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retinue import Agent
from retinue.cli.program import program
from tests.client.hubs import hub_in_thread
from tests.docs.pages import README, ROOT
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "python-client.md"


def make_agent() -> Agent:
    agent = Agent("plan-agent", version="1.0.0", logging=True)

    @agent.skill
    def create_plan(requirements: str) -> dict[str, Any]:
        """Plans tests for a module."""
        return {"plan": requirements, "steps": ["one"]}

    @agent.skill
    def greet(name: str) -> str:
        """Greets a person."""
        return f"Hello, {name}!"

    return agent


@pytest.fixture
def names() -> dict[str, Any]:
    """What the examples of the guide define."""
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    return dict(document.namespace)


@pytest.fixture
def hub(retinue_home: Path, names: dict[str, Any]) -> Iterator[None]:
    """A hub with an agent and that of the guide, in a loop of another thread."""
    with hub_in_thread(retinue_home, make_agent(), names["agent"]):
        yield


@pytest.mark.usefixtures("hub")
def test_the_functions_of_the_guide_do_what_it_says(
    names: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(names["main"]())
    assert "create_plan of plan-agent" in capsys.readouterr().out
    assert asyncio.run(names["make_plan"]()).plan == "write tests for json"
    assert asyncio.run(names["draw"](tmp_path)) == 4
    assert (tmp_path / "sales.png").read_bytes() == b"\x89PNG"
    assert asyncio.run(names["plan_or_explain"]("tests")) == "done"
    assert asyncio.run(names["plan_or_explain"](7)) == "wrong: requirements"
    assert asyncio.run(names["watch"]()) == ["drawing sales", "published by Ada"]
    assert asyncio.run(names["run_flow"]()) is True
    assert asyncio.run(names["watch_run"]()) == ["drawing sales"]
    assert asyncio.run(names["look_around"]()) == "plan-agent"
    assert names["count_agents"]() == 2

    made = CliRunner().invoke(program, ["stubs", str(tmp_path / "mesh_stubs.py")])
    assert made.exit_code == 0
    assert made.stdout.endswith(f"{tmp_path}/mesh_stubs.py: 4 skills\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mesh_stubs", raising=False)
    assert asyncio.run(names["plan_with_types"]()) == "write tests for textwrap"


@pytest.mark.usefixtures("hub")
def test_the_program_of_the_readme_prints_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    document = SYBIL.parse(README)
    for example in document.examples():
        example.evaluate()
    asyncio.run(document.namespace["main"]())
    assert "Hello, Ada!" in capsys.readouterr().out
