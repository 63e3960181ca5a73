"""Questions of a run in the conversation: approvals by yes, or no with a reason, and values of a form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from retinue.cli.chat.questions import Questions
from retinue.client.hub_skills import HubSkills
from retinue.client.run_handle import RunHandle
from retinue.core.errors import InsufficientScopeError, RetinueError

Printed = pytest.CaptureFixture[str]

APPROVAL = {"topic": "approval/a1", "approval": "a1", "message": "files/write?"}
SHOWN = {"agent": "files", "skill": "write", "reason": "the step asks", "arguments": {"path": "a\u202eb"}}


@dataclass
class Owner:
    """A hub that records the answers that it gets."""

    error: RetinueError | None = None
    answers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def read(self, skill: str, arguments: Mapping[str, Any]) -> Any:
        assert (skill, arguments) == ("show_approval", {"approval": "a1"})
        return SHOWN

    async def change(self, skill: str, arguments: Mapping[str, Any]) -> Any:
        self.answers.append((skill, arguments))
        if self.error is not None:
            raise self.error
        return {}


def begin(owner: Owner, lines: Iterable[str]) -> tuple[Questions, RunHandle]:
    rest = iter(lines)

    async def read_line() -> str | None:
        return next(rest, None)

    hub = cast(HubSkills, owner)
    return Questions(hub, read_line), RunHandle("r", hub)


@pytest.mark.parametrize(
    ("lines", "verdict", "comment"),
    [
        (["y"], "yes", ""),
        (["what?", "", " YES "], "yes", ""),
        (["n"], "no", ""),
        (["no not this file"], "no", "not this file"),
    ],
)
async def test_an_approval_is_shown_whole_and_answered(
    lines: list[str], verdict: str, comment: str, capsys: Printed
) -> None:
    owner = Owner()
    questions, run = begin(owner, lines)
    await questions.answer(run, "think/turn-1/answer-1", APPROVAL)
    assert owner.answers == [("answer_approval", {"approval": "a1", "verdict": verdict, "comment": comment})]
    shown = capsys.readouterr().err
    assert "May files/write be called? (the step asks)" in shown
    assert '"path": "ab"' in shown


async def test_a_question_that_is_not_answered_stays_open_with_its_command(capsys: Printed) -> None:
    """At Ctrl-D, and where the token may not answer."""
    owner = Owner(error=InsufficientScopeError("no token of the owner", scopes=("approves",), remedy="ask"))
    for lines in ([], ["y"]):
        questions, run = begin(owner, lines)
        await questions.answer(run, "think/turn-1/answer-1", APPROVAL)
    shown = capsys.readouterr().err
    assert "retinue approvals approve a1" in shown
    assert "not answered: no token of the owner (ask)" in shown
    assert len(owner.answers) == 1


async def test_a_wait_for_a_value_is_asked_by_its_form_and_signalled(capsys: Printed) -> None:
    owner = Owner()
    questions, run = begin(owner, ["many", "3"])
    schema = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
    await questions.answer(run, "table", {"topic": "size", "message": "How many?", "schema": schema})
    assert owner.answers == [
        ("signal_run", {"run": "r", "topic": "size", "value": {"people": 3}, "step": "table"})
    ]
    assert "How many?" in capsys.readouterr().err


async def test_questions_are_asked_one_after_another() -> None:
    owner, asked = Owner(), asyncio.Event()
    lines: asyncio.Queue[str] = asyncio.Queue()

    async def read_line() -> str | None:
        asked.set()
        return await lines.get()

    hub = cast(HubSkills, owner)
    questions = Questions(hub, read_line)
    tasks = [asyncio.create_task(questions.answer(RunHandle("r", hub), f"s{n}", APPROVAL)) for n in range(2)]
    await asked.wait()
    tasks[0].cancel()
    await lines.put("y")
    await tasks[1]
    assert len(owner.answers) == 1
