"""Seed 001 as test material: its JSON blocks, its three cards, and agents that say what it shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from retinue.authoring.agent import Agent
from retinue.core.record import Skill

FOLDER = Path(__file__).parent / "001"
BLOCKS = ("request", "response", "card", "unknown_skill", "validation_error", "execution_error")
"""The seed's JSON blocks in the order of its text, each a file of the folder ``001``."""

IDEA = "Create a function that calculates Fibonacci numbers"
PLAN = "Define function, handle base cases, implement recursion"
CODE = "def fibonacci(n): ..."
REVIEW = "Code quality score: 8/10"
FEEDBACK = "..."
RESULT = {"plan": PLAN, "code": CODE, "review": REVIEW, "feedback": FEEDBACK}

CANONICAL = """
name: plan-build-test-seed
steps:
  - {id: plan, skill: create_plan}
  - {id: build, skill: generate_code}
  - {id: test, skill: review_code}
output: merged
"""

SEED_SPELLING = """
metadata: {id: plan-build-test-seed, name: Plan, Build, Test, version: 1.0.0, tags: [seed]}
steps:
  - {id: plan, skill: create_plan, timeout: 60}
  - {id: build, skill: generate_code}
  - {id: test, skill: review_code, step_type: sequential}
""".replace("Plan, Build, Test", '"Plan, Build, Test"')

Answer = Callable[[Any], Awaitable[Any]]


def read_block(name: str) -> bytes:
    """One JSON block, byte for byte as the seed has it."""
    return (FOLDER / f"{name}.json").read_bytes()


def load_block(name: str) -> Any:
    return orjson.loads(read_block(name))


def list_blocks(text: str) -> list[bytes]:
    """The JSON blocks of a seed's text, without the indentation of the list they stand in."""
    found = re.findall(r"^ *```json\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [(textwrap.dedent(block).strip("\n") + "\n").encode() for block in found]


def read_seeds() -> list[str]:
    """The seed's own text, where it lies beside the project."""
    folder = Path(__file__).parents[3] / "shared" / "seeds"
    return [path.read_text("utf-8") for path in sorted(folder.glob("001_*.txt"))]


def card_of(name: str, port: int, skill: str, takes: str, *gives: str) -> bytes:
    """A card of the seed's shape for one of its three agents."""
    schemas = schemas_of(takes, *gives)
    entry = {"id": skill, "description": skill, **schemas}
    return orjson.dumps(
        {"name": name, "url": f"http://localhost:{port}", "version": "1.0.0", "skills": [entry]}
    )


def list_cards() -> list[bytes]:
    """The cards behind the seed's catalog; the first is the seed's own, byte for byte."""
    return [
        read_block("card"),
        card_of("build-agent", 8002, "generate_code", "plan", "code"),
        card_of("test-agent", 8003, "review_code", "code", "review", "feedback"),
    ]


def schemas_of(takes: str, *gives: str) -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "input_schema": {"type": "object", "properties": {takes: text}, "required": [takes]},
        "output_schema": {"type": "object", "properties": dict.fromkeys(gives, text)},
    }


def plan_agent(answer: Answer | None = None) -> Agent:
    """The agent of the seed's card; answers with the seed's plan, or as told."""
    entry = load_block("card")["skills"][0]

    async def say_plan(params: Any) -> Any:
        return {"plan": PLAN}

    return scripted_agent("plan-agent", answer or say_plan, Skill(**entry))


def list_team() -> list[Agent]:
    """The three agents of the seed's example, answering with its strings."""

    async def say_code(params: Any) -> Any:
        return {"code": CODE}

    async def say_review(params: Any) -> Any:
        return {"review": REVIEW, "feedback": FEEDBACK}

    generate = Skill("generate_code", **schemas_of("plan", "code"))
    review = Skill("review_code", **schemas_of("code", "review", "feedback"))
    return [
        plan_agent(),
        scripted_agent("build-agent", say_code, generate),
        scripted_agent("test-agent", say_review, review),
    ]


def scripted_agent(name: str, answer: Answer, *skills: Skill) -> Agent:
    """An agent written as seed 001 has it: declared skills, and the hook ``execute_skill`` (P-14)."""

    class Scripted(Agent):
        async def execute_skill(self, skill_id: str, params: Any) -> Any:
            return await answer(params)

    return Scripted(name, version="1.0.0", skills=skills)
