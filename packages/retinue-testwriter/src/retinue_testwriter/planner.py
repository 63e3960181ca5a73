"""plan-agent: turns "write tests for this module" into a plan, by reading the module without importing it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from retinue import Agent, Context
from retinue_testwriter.inspection import inspect_text
from retinue_testwriter.notes import render_plan_notes
from retinue_testwriter.subject import ProbedTarget, Subject

_MOST_LISTED = 60


class Plan(BaseModel):
    """A plan for tests of one module; ``plan`` alone is enough for the build agent."""

    plan: str
    steps: list[str]
    module: str
    source: str
    python: str
    targets: list[str]
    untestable: list[dict[str, str]]


agent = Agent(
    "plan-agent",
    version="1.0.0",
    description="Plans property-based tests of a Python module: reads its source and its types, and lists "
    "what to test and how.",
    topics=["Planning", "Python", "Testing"],
    scores={"planning": 0.7, "execution": 0.1, "review": 0.1},
    languages=["Python"],
)


@agent.skill(
    tags=["planning", "python", "testing"],
    examples=["textwrap", "write tests for the json module", "plan tests for src/shapes.py"],
    expose=True,
    roles=["plan"],
    read_only=True,
    runs_code=True,
    timeout_s=60,
)
async def create_plan(
    requirements: Annotated[str, Field(description="A module: its name, a path to its file, or a sentence")],
    ctx: Context,
    python: Annotated[str, Field(description="The interpreter that has the module; default: ours")] = "",
) -> Plan:
    """Creates structured implementation plans from requirements: tests for the Python module they name."""
    await ctx.progress(0.1, "looking for the module")
    subject = await inspect_text(requirements, python)
    await ctx.progress(0.9, f"{len(subject.targets)} things to test in {subject.module}")
    return plan_subject(subject)


def plan_subject(subject: Subject) -> Plan:
    """Write the plan for an inspected module."""
    steps = list_steps(subject)
    return Plan(
        plan=render_plan(subject, steps),
        steps=steps,
        module=subject.module,
        source=subject.source,
        python=subject.python,
        targets=[target.name for target in subject.targets],
        untestable=[entry.as_json() for entry in subject.untestable],
    )


def list_steps(subject: Subject) -> list[str]:
    """What the build and test agents will do."""
    return [
        "Call what is listed below in a limited subprocess, to learn what it accepts and returns",
        "Write a property test for each: its type, its exceptions, that it repeats, what always held",
        "Look for functions that undo each other, and for ones that change nothing the second time",
        "Pin recorded results, chosen to walk as many branches as possible",
        "Run the tests under limits, review them, and narrow what does not hold",
    ]


def render_plan(subject: Subject, steps: list[str]) -> str:
    """The plan as text, followed by a JSON block with the same data."""
    version = ".".join(map(str, subject.version))
    where = subject.source or "compiled, no Python source"
    lines = [f"Tests for {subject.module} ({where}, Python {version})", ""]
    lines += [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    lines += ["", "To test:"]
    lines += [f"- {describe_target(target)}" for target in subject.targets[:_MOST_LISTED]]
    if subject.untestable:
        lines += ["", "Left out:", *(f"- {entry.name}: {entry.why}" for entry in subject.untestable)]
    notes = {
        "module": subject.module,
        "source": subject.source,
        "root": subject.root,
        "python": subject.python,
        "targets": [target.name for target in subject.targets],
    }
    return "\n".join([*lines, "", render_plan_notes(notes)])


def describe_target(target: ProbedTarget) -> str:
    """A target with its types, in one line."""
    shown = []
    for parameter in target.parameters[target.operands :]:
        text = parameter.name + (f": {parameter.annotation}" if parameter.annotation else "")
        shown.append(text + (f" = {parameter.default}" if parameter.default else ""))
    takes = f"({', '.join(shown)})" if "{arguments}" in target.template else ""
    gives = f" → {target.returns}" if target.returns else ""
    raises = f"; may raise {', '.join(target.raises)}" if target.raises else ""
    return f"{target.name}{takes}{gives}{raises}"
