"""Renders the events of a run as lines of progress for the caller that waits for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson

from retinue.core.approval_lines import render_open, render_over
from retinue.core.durations import render_elapsed
from retinue.core.errors import ApprovalNeededError
from retinue.workflows.definitions.definition import Definition, iterate_steps
from retinue.workflows.runs.records import RunEvent

CALLS = ("call", "review")
"""The kinds of events that are calls of agents."""

_OF_A_LOOP = re.compile(r"/turn-\d+/[a-z]+(?:-\d+)?(?:@\d+|/again)*$")
"""The end of the path of a request, a call or a question of a step ``think``."""

_ALMOST = 0.95
_ARGUMENTS_CHARACTERS = 200


async def follow_steps(
    events: AsyncIterator[RunEvent],
    definition: Definition,
    report: Callable[[float | None, str], Awaitable[None]],
) -> None:
    """Report a line of progress for each call of a run that begins, and that ends.

    Of a step ``think`` the lines name the turn: the model is asked, a skill is called with these arguments, a
    person is asked. They have no fraction, because nobody knows how many turns there will be.
    """
    expected = sum(
        step.kind in ("skill", "role") or step.asks_agents for step in iterate_steps(definition.steps)
    )
    ended = 0
    async for event in events:
        if _OF_A_LOOP.search(event.step) or _is_question(event):
            if (line := describe_turn(event)) is not None:
                await report(None, line)
            continue
        facts = event.facts
        if facts.get("kind") not in CALLS:
            continue
        step, agent = event.step.partition("/")[0], facts.get("agent")
        if (facts.get("error") or {}).get("type") == ApprovalNeededError.type:
            continue  # the line of the question follows
        if event.kind == "step_started":
            await report(min(ended / max(expected, 1), _ALMOST), f"{step}: {agent} is asked")
        elif event.kind == "step_finished":
            ended += 1
            await report(min(ended / max(expected, 1), _ALMOST), f"{step}: {agent} {_describe_end(facts)}")


def _is_question(event: RunEvent) -> bool:
    return event.facts.get("kind") == "wait" and "approval" in event.facts


def describe_turn(event: RunEvent) -> str | None:
    """The line of an event of a loop, which begins with its step; None for other events."""
    facts, step = event.facts, event.step
    kind, begins = facts.get("kind"), event.kind == "step_started"
    if event.kind not in ("step_started", "step_finished"):
        return None
    if kind == "model":
        if begins:
            return f"{step}: {facts.get('agent')} is asked"
        return f"{step}: {facts.get('agent')} {_describe_end(facts)}" if facts.get("error") else None
    if kind == "call":
        tool = f"{facts.get('agent')}/{facts.get('skill')}"
        if begins:
            return f"{step}: {tool} is called with {shorten_arguments(facts.get('input'))}"
        return f"{step}: {tool} {_describe_end(facts)}"
    if kind == "find" and begins:
        return f"{step}: skills are searched for {facts.get('message')}"
    if kind == "wait" and "approval" in facts:
        if begins:
            return render_open(step, str(facts.get("message")), str(facts["approval"]))
        return render_over(step, is_late=bool(facts.get("error")))
    return None


def _describe_end(facts: Mapping[str, Any]) -> str:
    error = facts.get("error")
    if error:
        return f"failed: {error['message']}"
    return f"answered in {render_elapsed(float(facts.get('duration_ms') or 0) / 1000)}"


def shorten_arguments(arguments: Any) -> str:
    """The arguments of a call as JSON in one line, of long ones the beginning."""
    text = orjson.dumps(arguments).decode()
    return text if len(text) <= _ARGUMENTS_CHARACTERS else f"{text[:_ARGUMENTS_CHARACTERS]}…"
