"""Asks the person at the terminal the questions of a run: approvals of calls, and waits for a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
import orjson

from retinue.cli.terminal_channel import ReadLine, TerminalChannel
from retinue.core.errors import InputRefusedError, RetinueError

if TYPE_CHECKING:
    from retinue.client.hub_skills import HubSkills
    from retinue.client.run_handle import RunHandle

_YES = ("y", "yes")
_NO = ("n", "no")


class Questions:
    """Answers the waits of runs with what the person says, one after another.

    ``owner`` is the hub with the token of its owner, which may answer approvals. ``end_line`` ends a line of
    text that is being printed.
    """

    def __init__(
        self, owner: HubSkills, read_line: ReadLine, end_line: Callable[[], None] = lambda: None
    ) -> None:
        self._owner = owner
        self._read_line = read_line
        self._end_line = end_line
        self._asking = asyncio.Lock()

    async def answer(self, run: RunHandle, step: str, facts: Mapping[str, Any]) -> None:
        """Ask one question, and send the answer to the run; a failure is a line at the terminal."""
        async with self._asking:
            self._end_line()
            try:
                if "approval" in facts:
                    await self._answer_approval(run.id, facts)
                else:
                    await self._answer_wait(run, step, facts)
            except RetinueError as error:
                remedy = f" ({error.remedy})" if error.remedy else ""
                _say(f"not answered: {error.message}{remedy}")

    async def _answer_approval(self, run: str, facts: Mapping[str, Any]) -> None:
        approval = facts["approval"]
        shown = await self._owner.read("show_approval", {"approval": approval})
        _say(f"May {shown['agent']}/{shown['skill']} be called? ({shown['reason']})")
        for line in orjson.dumps(shown["arguments"], option=orjson.OPT_INDENT_2).decode().splitlines():
            _say(f"  {line}")
        while True:
            click.echo("  y, or n REASON: ", err=True, nl=False)
            answer = await self._read_line()
            if answer is None:
                _say("")
                _say(describe_wait(run, facts))
                return
            word, _, reason = answer.strip().partition(" ")
            if word.lower() in (*_YES, *_NO):
                break
            _say("write y or n; the model reads the reason of a no")
        verdict = "yes" if word.lower() in _YES else "no"
        arguments = {"approval": approval, "verdict": verdict, "comment": reason.strip()}
        await self._owner.change("answer_approval", arguments)

    async def _answer_wait(self, run: RunHandle, step: str, facts: Mapping[str, Any]) -> None:
        form = facts.get("schema") or {"type": "string"}
        message = facts.get("message") or f"{step} waits for {facts['topic']}"
        channel = TerminalChannel(asks=True, read_line=self._read_line)
        try:
            value = await channel.elicit(message, form)
        except InputRefusedError:
            _say(describe_wait(run.id, facts))
            return
        await run.signal(facts["topic"], value, step=step)


def _say(text: str) -> None:
    click.echo(f"  {''.join(c for c in text if c.isprintable())}", err=True)


def describe_wait(run: str, facts: Mapping[str, Any]) -> str:
    """A question of a run, and the command that answers it."""
    if "approval" in facts:
        return f"{facts.get('message')} — answer: retinue approvals approve {facts['approval']}, or deny"
    question = facts.get("message") or f"waits for {facts['topic']}"
    return f"{question} — answer: retinue signal {run} {facts['topic']} VALUE"
