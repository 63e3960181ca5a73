"""The guide to the Python client is a session: its functions run against a hub with the demo agents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, list_sections
from tests.docs.shell import Shell
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "python-client.md"


@pytest.mark.timeout(600)
def test_the_functions_of_the_guide_run_against_the_demo(
    shell: Shell, fresh_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = list_sections(PAGE)[0]
    (fresh_folder / "charts.py").write_text(start.blocks("python")[0], encoding="utf-8")
    ((hub, serve),) = start.commands()
    shell.type(hub)
    shell.type(serve)
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    names = document.namespace
    asyncio.run(names["main"]())
    assert "create_plan of plan-agent" in capsys.readouterr().out
    assert "textwrap" not in asyncio.run(names["make_plan"]()).plan
    assert asyncio.run(names["draw"](fresh_folder)) == 4
    assert (fresh_folder / "sales.png").read_bytes() == b"\x89PNG"
    assert asyncio.run(names["plan_or_explain"]("write tests for textwrap")) == "done"
    assert asyncio.run(names["plan_or_explain"](7)) == "wrong: requirements"
    assert asyncio.run(names["watch"]()) == ["drawing sales", "published by Ada"]
    assert asyncio.run(names["run_flow"]()) is True
    assert asyncio.run(names["look_around"]()) == "plan-agent"
    assert names["count_agents"]() >= 4
