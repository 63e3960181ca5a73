"""Derives the values that a branch reads from its expressions.

A child run stores its input. If each of a thousand items stored the whole list and all earlier outputs, the
size would grow with the square of the items; so a branch gets only what its steps can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.workflows.definitions.definition import Step, iterate_steps, step_to_json
from retinue.workflows.expressions.expression import Expression
from retinue.workflows.expressions.scope import StepState
from retinue.workflows.expressions.templates import iterate_templates, parse_condition, parse_template


@dataclass(frozen=True, slots=True)
class BranchReads:
    """The keys of the input and the ids of steps that are read; None = any of them.

    ``workflows`` = whether a nested workflow is run.
    """

    input_keys: frozenset[str] | None
    steps: frozenset[str] | None
    workflows: bool

    def pick_input(self, run_input: Any) -> Any:
        """The part of the workflow's input that is read."""
        if self.input_keys is None or not isinstance(run_input, Mapping):
            return run_input
        return {key: value for key, value in run_input.items() if key in self.input_keys}

    def pick_entries(self, entries: Iterable[tuple[str, StepState]]) -> tuple[tuple[str, StepState], ...]:
        """The entries of the steps that are read."""
        return tuple(pair for pair in entries if self.steps is None or pair[0] in self.steps)

    def pick_known(self, known: Iterable[str]) -> list[str]:
        """The ids that expressions may refer to."""
        return [step for step in known if self.steps is None or step in self.steps]


def find_branch_reads(steps: tuple[Step, ...]) -> BranchReads:
    """The values that steps and their nested steps can read."""
    inside = list(iterate_steps(steps))
    workflows = any(step.workflow is not None for step in inside)
    if any(_chains(step) for step in inside):
        return BranchReads(None, None, workflows)
    keys: set[str] | None = set()
    ids: set[str] | None = {step.id for step in inside}
    for step in inside:
        for expression in _list_expressions(step):
            for reference in expression.shape.references:
                key = reference.keys[0] if reference.keys else None
                if reference.root == "input":
                    keys = None if key is None or keys is None else keys | {key}
                elif reference.root == "steps":
                    ids = None if key is None or ids is None else ids | {key}
    return BranchReads(
        None if keys is None else frozenset(keys), None if ids is None else frozenset(ids), workflows
    )


def _chains(step: Step) -> bool:
    """Whether arguments of a step are chained, so that it may read any value."""
    if step.compensate is not None and step.compensate.with_ is None:
        return True
    if step.kind in ("skill", "workflow"):
        return step.with_ is None
    if step.kind == "role":
        return step.with_ is None  # with a prompt too: other required properties are chained
    return step.asks_agents or (step.parallel is not None and step.parallel.mode in ("vote", "merge"))


def _list_expressions(step: Step) -> Iterable[Expression]:
    conditions = [step.when, step.switch, step.validate_, None if step.loop is None else step.loop.until]
    for condition in conditions:
        if condition is not None:
            yield parse_condition(condition)
    own = step_to_json(step)
    for key in ("steps", "branches", "when", "switch", "validate", "loop"):
        own.pop(key, None)
    for _, text in iterate_templates(own):
        yield from parse_template(text).expressions
