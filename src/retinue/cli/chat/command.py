"""``retinue chat``: a conversation with a model, or with an agent in Markdown, at the terminal."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import click

from retinue.cli.completion import complete_agent
from retinue.cli.failures import describe, show
from retinue.cli.options import budget_options, hub_option, join_budget, json_option
from retinue.cli.output import note, print_json
from retinue.cli.session import open_session
from retinue.core.errors import RetinueError, StateError

if TYPE_CHECKING:
    from retinue.cli.chat.screen import Screen
    from retinue.cli.chat.turn import Turns
    from retinue.core.budget import CallLimits

_TIMEOUT_S = 60.0


@click.command()
@click.argument("agent", required=False, shell_complete=complete_agent)
@click.option("--session", metavar="NAME", help="Continue this conversation, or begin it.")
@budget_options
@hub_option
@json_option
def chat(
    agent: str | None,
    session: str | None,
    tokens: int | None,
    dollars: float | None,
    hub: str | None,
    as_json: bool,
) -> None:
    """Talk with an agent that thinks.

    AGENT is an agent in Markdown or a model. Without it the best model that takes tools answers, with the
    skills of the mesh as its tools. Texts and tool calls are shown as they happen, and calls that need
    approval are asked about. Ctrl-C cancels a turn, Ctrl-D ends the conversation. Without a terminal each
    line of standard input is a turn, and a failed turn ends the command; --json then prints a line for each
    turn. --tokens and --dollars bound each turn.
    """
    is_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    name = session or f"chat-{uuid.uuid4().hex[:8]}"
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        from retinue.cli.chat.screen import Screen

        screen = Screen(is_live=is_terminal and not as_json)
        opening = _open(
            stack, agent, name, hub, screen, asks=is_terminal, budget=join_budget(tokens, dollars)
        )
        try:
            turns = runner.run(opening)
            has_turns = False
            for prompt in _read_prompts() if is_terminal else _read_lines():
                has_turns = _take(runner, turns, screen, prompt, name, as_json, is_terminal) or has_turns
            if has_turns and is_terminal:
                note(f"Go on: retinue chat {f'{agent} ' if agent else ''}--session {name}")
        finally:
            runner.run(stack.aclose())


def _take(
    runner: asyncio.Runner,
    turns: Turns,
    screen: Screen,
    prompt: str,
    session: str,
    as_json: bool,
    is_terminal: bool,
) -> bool:
    """Take one turn and show its end; False for one that failed, whose error ends a pipe."""
    try:
        end = runner.run(turns.take(prompt))
    except RetinueError as error:
        if not is_terminal:
            raise
        show(describe(error))
        return False
    if as_json:
        print_json(end.to_json(prompt, session), compact=True)
    else:
        screen.end(end)
    if end.status == "cancelled" and not is_terminal:
        raise click.Abort
    return True


async def _open(
    stack: AsyncExitStack,
    agent: str | None,
    name: str,
    hub: str | None,
    screen: Screen,
    *,
    asks: bool,
    budget: CallLimits | None,
) -> Turns:
    """The turns of a conversation, whose connections ``stack`` closes; says who answers."""
    from retinue.cli.chat.partner import choose_partner
    from retinue.cli.chat.questions import Questions
    from retinue.cli.chat.screen import greet
    from retinue.cli.chat.turn import Turns
    from retinue.cli.terminal_channel import InputLines
    from retinue.client.hub_skills import HubSkills

    session = open_session()
    chosen = session.choose_hub(hub)
    if chosen is None:
        raise StateError(f"no hub runs on {session.state.root}", remedy="start one: retinue hub --detach")
    skills = HubSkills(await stack.enter_async_context(session.client(chosen)), _TIMEOUT_S)
    partner = await choose_partner(skills, agent)
    questions = None
    if asks:
        owner = HubSkills(
            await stack.enter_async_context(session.client(session.as_owner(chosen))), _TIMEOUT_S
        )
        questions = Questions(owner, lambda: InputLines().read(), screen.end_line)
    greet(partner, name)
    return Turns(skills, partner, name, screen, questions, budget)


def _read_prompts() -> Iterator[str]:
    """The line that the person types; Ctrl-C drops the line, and Ctrl-D ends."""
    with suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines and keeps a history

    while True:
        try:
            line = input("\nyou> ")
        except EOFError:
            click.echo("")
            return
        except KeyboardInterrupt:
            click.echo("\n  Ctrl-D ends the conversation", err=True)
            continue
        if line.strip():
            yield line


def _read_lines() -> Iterator[str]:
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\n")
