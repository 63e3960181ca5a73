"""Chooses a workflow for a prompt by rules in a fixed order; the first match decides.

The rules are pure. A rule may have a ``pattern``, a length in words and a complexity; all its conditions must
hold (specification 3.3). `Orchestrator` checks the input of a definition, starts its run and
waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from retinue.core.errors import InvalidParametersError
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.run_forms import Bundled, WholeRun, render_form
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import (
    MESH_SCOPES,
    RUN_ID_MARK,
    Origin,
    RunRecord,
    RunRequest,
    check_run_id,
)

Complexity = Literal["low", "medium", "high"]


AUTO = "auto"
DIRECT = "direct"


_ORDER: tuple[Complexity, ...] = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Rule:
    """When to take a workflow; ``words`` = at least, at most; ``complexity`` = at least."""

    workflow: str
    because: str
    pattern: re.Pattern[str] | None = None
    words: tuple[int, int | None] = (0, None)
    complexity: Complexity = "low"
    competitive_only: bool = False


def _words(*stems: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(stems)})", re.IGNORECASE)


RULES: tuple[Rule, ...] = (
    Rule(
        "code-review",
        "it asks for a review of code",
        _words(
            r"code[ -]?review",
            r"(?:review|audit|check) (?:this|the|my|our|following)"
            r" (?:code|function|class|module|script|diff|patch)",
            r"security (?:review|audit)",
            r"(?:find|look for) (?:bugs|vulnerabilities)",
        ),
    ),
    Rule(
        "competitive",
        "it asks for several answers to compare",
        _words(
            r"compar(?:e|ing) (?:several|different|approaches|solutions)",
            "alternatives",
            "best of",
            "compete",
        ),
    ),
    Rule("competitive", "parallel work was asked for", competitive_only=True),
    Rule(
        "iterative",
        "it asks for a result that is improved until it is good",
        _words("iterat", "refin", "polish", "improv", r"until (?:it|all|the|every)"),
    ),
    Rule("plan-execute", "it is a complex task", complexity="high"),
    Rule(
        "plan-execute",
        "it asks for a design or a plan",
        _words("plan", "design", "architect", "roadmap", r"step[ -]by[ -]step"),
        words=(6, None),
    ),
    Rule(
        "plan-execute",
        "it asks to build something of several parts",
        _words("implement", "build", "creat", "develop", "migrat", "refactor", "write"),
        complexity="medium",
    ),
    Rule(DIRECT, "it is one simple task"),
)
"""The rules in the order in which they are asked; the last one always fits."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen workflow, the reasons, and the measurements of the prompt."""

    workflow: str
    because: str
    complexity: Complexity
    words: int
    lines: int


def choose_workflow(prompt: str, *, parallel: bool | None = None, rules: Sequence[Rule] = RULES) -> Selection:
    """The workflow for a prompt. ``parallel``: true prefers a competition, false rules it out
    (specification 7.3).
    """
    words, lines = len(prompt.split()), prompt.count("\n") + 1
    complexity = measure_complexity(words, lines)
    for rule in rules:
        if rule.workflow == "competitive" and parallel is False:
            continue
        if rule.competitive_only and not parallel:
            continue
        least, most = rule.words
        if words < least or (most is not None and words > most):
            continue
        if _ORDER.index(complexity) < _ORDER.index(rule.complexity):
            continue
        if rule.pattern is None or rule.pattern.search(prompt):
            return Selection(rule.workflow, rule.because, complexity, words, lines)
    return Selection(DIRECT, "no rule fits", complexity, words, lines)


def select_for_role(prompt: str, role: str) -> Selection:
    """The workflow for a prompt where the role of the agent is asked for: one agent in this role."""
    words, lines = len(prompt.split()), prompt.count("\n") + 1
    because = f"the role {role} was asked for"
    return Selection(DIRECT, because, measure_complexity(words, lines), words, lines)


def measure_complexity(words: int, lines: int) -> Complexity:
    """High beyond 50 lines or 500 words, medium beyond 10 lines or 100 words (specification 3.3)."""
    if lines > 50 or words > 500:
        return "high"
    return "medium" if lines > 10 or words > 100 else "low"


MESH_ORIGIN = Origin(MESH_SCOPES)


class Orchestrator:
    """Starts definitions as runs; everything else about a run is asked of ``runs``."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    async def start(
        self,
        definition: Definition,
        workflow_input: Any,
        *,
        run_id: str | None = None,
        origin: Origin = MESH_ORIGIN,
        nested: Bundled = MappingProxyType({}),
        name: str = "",
    ) -> RunRecord:
        """Start a run and come back at once.

        ``run_id`` is an idempotency key, made up when absent. ``nested`` are the workflows that the
        definition runs (``bundling``), and ``name`` is its name in the mesh if it is another one. Raises
        InvalidParametersError for another form of id, and where the input breaks the definition's schema,
        RunConflictError for a used id with another definition or input.
        """
        workflow_input = definition.complete_input(workflow_input)
        if definition.input is not None:
            problems = compile_schema(definition.input, f"the input of {definition.name}").problems(
                workflow_input
            )
            if problems:
                raise InvalidParametersError(problems)
        request = RunRequest(
            name or definition.name, render_form(WholeRun.of(definition, nested)), workflow_input, origin
        )
        if run_id is not None:
            check_run_id(run_id.partition(RUN_ID_MARK)[0])
        return await self.runs.start(request, run_id=run_id)

    async def run(self, definition: Definition, workflow_input: Any, **more: Any) -> RunRecord:
        """Start a run and wait for its end; ``record.get()`` is its value. Takes and raises as `start`."""
        record = await self.start(definition, workflow_input, **more)
        return await self.runs.finish(record.id)
