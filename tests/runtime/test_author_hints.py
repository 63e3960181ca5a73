"""What authors are told when an agent is served, or workflows in Python are hosted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from retinue import Agent
from retinue.flows.body import HostedWorkflows
from retinue.flows.modules import load_hosted
from retinue.parts.process import Process
from retinue.runtime.parts.author_hints import AuthorHintsPart
from retinue.runtime.parts.workflow_hints import WorkflowHintsPart


async def test_a_skill_without_a_docstring_is_named_with_the_remedy() -> None:
    agent = Agent("a")

    @agent.skill
    def described(text: str) -> str:
        """Says it again."""
        return text

    @agent.skill
    def bare(text: str) -> str:
        return text

    process = cast(Process, SimpleNamespace(agent=agent))
    with capture_logs() as lines:
        async with AuthorHintsPart().open(process) as opened:
            assert opened.running is not None
            async with opened.running():
                pass
    assert [(line["skill"], line["remedy"]) for line in lines] == [("bare", "write a docstring")]


FLOWS = """
import time

from retinue import Run, workflow


@workflow
async def stamps(run: Run) -> float:
    return time.time()
"""


async def test_what_does_not_belong_between_steps_is_named_with_line_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "stamping_flows.py"
    file.write_text(FLOWS)
    hosted: dict[str, HostedWorkflows] = {}
    for name, modules in {"some": [str(file)], "none": []}.items():
        hosted[name] = load_hosted(modules)
        process = cast(Process, SimpleNamespace(get=lambda kind, name=name: hosted[name]))
        with capture_logs() as lines:
            async with WorkflowHintsPart().open(process) as opened:
                # the event loop is watched where an author's function runs
                assert (opened.running is not None) == (name == "some")
        seen = [(line["event"], Path(line["at"]).name, line["remedy"]) for line in lines]
        assert seen == (
            [
                (
                    "time.time() reads the clock, which differs each time the function is begun",
                    "stamping_flows.py:9",
                    "use await run.now()",
                )
            ]
            if name == "some"
            else []
        )
