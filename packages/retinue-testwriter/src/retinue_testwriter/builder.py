"""build-agent: writes property-based tests from a plan and narrows them according to the last review."""

from __future__ import annotations

import builtins
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from retinue import Agent, Context
from retinue.core.errors import ExecutionFailedError
from retinue_testwriter.drafting import draft_tests, make_file_name, make_slug
from retinue_testwriter.inspection import inspect_file, inspect_names, inspect_text
from retinue_testwriter.notes import (
    Narrowing,
    merge_narrowing,
    parse_code_notes,
    parse_narrowing,
    parse_plan_notes,
)
from retinue_testwriter.probing import Findings, probe_subject
from retinue_testwriter.subject import Subject

_REMEMBERED = 8


class Code(BaseModel):
    """A test file; ``code`` alone is enough for the test agent."""

    code: str
    file_name: str
    module: str
    tests: list[str]
    untestable: list[dict[str, str]]
    round: int


agent = Agent(
    "build-agent",
    version="1.0.0",
    description="Writes property-based tests of a Python module with Hypothesis, from a plan: probes the "
    "module in a limited subprocess, and narrows the tests by the last review.",
    topics=["Execution", "Python", "Testing"],
    scores={"planning": 0.1, "execution": 0.7, "review": 0.1},
    languages=["Python"],
)

_probed: OrderedDict[str, tuple[Subject, Findings]] = OrderedDict()
"""Results of the last plans; probing is deterministic, so this cache only saves time."""


@agent.skill(
    tags=["execution", "python", "testing"],
    examples=["Tests for textwrap"],
    expose=True,
    roles=["execute"],
    idempotent=True,
    runs_code=True,
    timeout_s=240,
)
async def generate_code(
    plan: Annotated[str, Field(description="A plan of the plan agent, or a text that names a module")],
    ctx: Context,
    code: Annotated[str, Field(description="The test file of the previous round")] = "",
    narrowing: Annotated[
        dict[str, Any] | None, Field(description="Changes that the last review asks for, by test")
    ] = None,
    feedback: Annotated[str, Field(description="The last review's advice, for people")] = "",
    python: Annotated[
        str, Field(description="The interpreter that has the module; default: the plan's")
    ] = "",
) -> Code:
    """Generates code from a plan: property-based tests of the module that the plan names."""
    notes = parse_code_notes(code)
    changes = merge_narrowing(parse_narrowing(notes.get("narrowing")), parse_narrowing(narrowing))
    await ctx.progress(0.05, "reading the module")
    subject, findings = await learn(plan, python, ctx)
    before = notes.get("round")
    draft = draft_tests(
        subject,
        findings,
        widen(changes, subject, findings),
        number=before + 1 if isinstance(before, int) else 1,
    )
    if not draft.tests:
        reasons = "; ".join(f"{entry.name}: {entry.why}" for entry in draft.untestable[:3])
        raise ExecutionFailedError(
            f"{subject.module} has nothing that can be tested ({reasons or 'no functions'})"
        )
    await ctx.progress(1.0, f"{len(draft.tests)} tests written")
    return Code(
        code=draft.code,
        file_name=make_file_name(subject.module),
        module=subject.module,
        tests=list(draft.tests),
        untestable=[entry.as_json() for entry in draft.untestable],
        round=before + 1 if isinstance(before, int) else 1,
    )


async def learn(plan: str, python: str, ctx: Context) -> tuple[Subject, Findings]:
    """Inspect and probe the module of a plan; the result is cached for the next round."""
    subject = await inspect_plan(plan, python)
    key = hashlib.sha256(f"{plan}\0{subject.python}\0{subject.digest}".encode()).hexdigest()
    if key in _probed:
        _probed.move_to_end(key)
        return _probed[key]
    await ctx.progress(0.2, f"probing {len(subject.targets)} things in {subject.module}")
    findings = await probe_subject(subject)
    _probed[key] = subject, findings
    while len(_probed) > _REMEMBERED:
        _probed.popitem(last=False)
    return subject, findings


async def inspect_plan(plan: str, python: str) -> Subject:
    """Inspect the module that a plan names, limited to the plan's targets."""
    notes = parse_plan_notes(plan)
    if notes is None:
        return await inspect_text(plan, python)
    python = python or str(notes.get("python") or "")
    source = str(notes.get("source") or "")
    root = str(notes.get("root") or "")
    subject = await inspect_names([str(notes["module"])], python, root)
    if source and subject.source != source:
        subject = await inspect_file(Path(source), python)
    wanted = notes.get("targets")
    if isinstance(wanted, list):
        subject = replace(
            subject,
            targets=tuple(target for target in subject.targets if target.name in wanted or target.builds),
        )
    return subject


def widen(changes: Mapping[str, Narrowing], subject: Subject, findings: Findings) -> dict[str, Narrowing]:
    """Add to the review's changes what probing found out about the exceptions of each test.

    Exceptions that the source or the docstring names are not findings. A test that must accept an exception
    that they do not name also accepts all those seen while probing; otherwise each round would find another.
    """
    widened = dict(changes)
    for target in subject.targets:
        name = f"test_{make_slug(target.name)}"
        change = changes.get(name)
        if change is None or not change.allow or target.name not in findings.by_target:
            continue
        seen = findings.by_target[target.name]["surprises"]
        full = Narrowing(allow={entry["exception"]: entry["call"] for entry in seen}).merge(change)
        known = [exception for exception in full.allow if is_named(exception, target.raises)]
        widened[name] = full.merge(Narrowing(known=known))
    return widened


def is_named(exception: str, raises: Collection[str]) -> bool:
    """Whether an exception or one of its built-in base classes is in ``raises``."""
    short = exception.rpartition(".")[2]
    kind = getattr(builtins, short, None)
    bases = [base.__name__ for base in kind.__mro__] if isinstance(kind, type) else [short]
    return any(name in raises for name in bases)
