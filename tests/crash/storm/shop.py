"""The three agents of the storm, the seven kinds of runs over them, and what the agents wrote down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENTS: Mapping[str, tuple[str, ...]] = {
    "stock": ("reserve", "free"),
    "shop": ("charge", "refund"),
    "post": ("pack", "ship"),
}
UNDOES = {"reserve": "free", "charge": "refund"}
DECLINING = "ship"
"""The skill that declines odd numbers, with an answer: its further attempts have keys of their own."""

AGENT = '''
import asyncio
import os
import random
import time
from pathlib import Path

from retinue import Agent, Context

agent = Agent("{name}-agent", version="1.0.0")
LOG = Path(__file__).parent / "log"


def note(what: str, skill: str, key: str | None, n: int) -> None:
    """One line, which is on the disk before the skill goes on."""
    with LOG.open("a") as log:
        log.write(f"{{time.time()}} {{what}} {{skill}} {{key}} {{n}}\\n")
        log.flush()
        os.fsync(log.fileno())
'''
SKILL = '''

@agent.skill
async def {skill}(n: int, context: Context) -> dict[str, int | str]:
    """Does its part for a number."""
    key = context.idempotency_key or ""
    note("begin", "{skill}", key, n)
    await asyncio.sleep(random.uniform(0.02, {slow_s}))
    {act}
    note("end", "{skill}", key, n)
    return {{"n": n, "key": key}}
'''
DECLINES = """if n % 2:
        note("declined", "ship", key, n)
        raise ValueError("declined")"""
SLOW_S = {"charge": 3.0}
"""Longer than its step waits; others take up to half a second."""


def write_agents(folder: Path) -> None:
    """Write one file for each agent."""
    for name, skills in AGENTS.items():
        text = AGENT.format(name=name)
        for skill in skills:
            act = DECLINES if skill == DECLINING else ""
            text += SKILL.format(skill=skill, slow_s=SLOW_S.get(skill, 0.5), act=act)
        (folder / f"{name}.py").write_text(text)


RETRY = {"attempts": 12, "delay": "200ms", "backoff": 1.2}
N = {"n": "${{ input.n }}"}


def _step(skill: str, given: Mapping[str, Any] = N, *, step: str = "", timeout: str = "6s") -> dict[str, Any]:
    found = {"id": step or skill, "skill": skill, "with": dict(given), "retry": RETRY, "timeout": timeout}
    if skill in UNDOES:
        # a refund reads what was charged, which only the answer of the agent tells
        undone = {"n": "${{ steps.charge.output.n }}"} if skill == "charge" else dict(given)
        found["compensate"] = {"skill": UNDOES[skill], "with": undone, "timeout": "15s", "retry": RETRY}
    return found


def _ship() -> dict[str, Any]:
    return {**_step("ship"), "retry": {"attempts": 6, "delay": "200ms", "backoff": 1}}


BUNDLED = {"name": "storm-part", "input": {"type": "object"}, "steps": [_step("reserve"), _step("pack")]}
"""The nested workflow, which the hub has stored."""

TOPIC = "approve"
FLOWS: Mapping[str, list[dict[str, Any]]] = {
    "steps": [_step("reserve"), _step("pack"), _step("pack", step="pack-again")],
    "retry": [_step("charge", timeout="1500ms"), _step("pack")],
    "saga": [_step("reserve"), _step("charge", timeout="1500ms"), _ship()],
    "parallel": [
        {
            "id": "both",
            "parallel": {},
            "branches": {
                "left": [_step("reserve"), _step("pack")],
                "right": [_step("charge"), _step("pack", step="pack-right")],
            },
        },
        _ship(),
    ],
    "foreach": [
        {
            "id": "each",
            "foreach": {"in": [2, 4, 6], "concurrency": 2},
            "steps": [_step("reserve", {"n": "${{ loop.item }}"}), _step("pack", {"n": "${{ loop.item }}"})],
        },
        _ship(),
    ],
    "approval": [_step("reserve"), {"id": "asked", "wait_for": {"topic": TOPIC, "timeout": "1h"}}, _ship()],
    "nested": [{"id": "part", "workflow": BUNDLED["name"], "with": N}, _ship()],
}


def flow_of(kind: str) -> dict[str, Any]:
    """The definition of a kind of runs."""
    return {"name": f"storm-{kind}", "steps": FLOWS[kind]}


def is_declined(kind: str, n: int) -> bool:
    """Whether the run is undone, because its last step declines the number."""
    return bool(n % 2) and any(step["id"] == DECLINING for step in FLOWS[kind])


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an agent; ``at`` in seconds since 1970."""

    at: float
    what: str
    skill: str
    key: str
    n: int

    @property
    def run(self) -> str:
        return self.key.partition("/")[0]


def read_lines(folder: Path) -> Iterator[Line]:
    """What the agents wrote down, in order; a line that a kill cut off is left out."""
    path = folder / "log"
    for line in path.read_text().splitlines() if path.exists() else ():
        words = line.split(" ")
        if len(words) == 5:
            yield Line(float(words[0]), words[1], words[2], words[3], int(words[4]))
