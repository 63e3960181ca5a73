"""What an agent's author is told when the agent is served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from retinue import Agent
from retinue.parts.process import Process
from retinue.runtime.parts.author_hints import AuthorHintsPart


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
