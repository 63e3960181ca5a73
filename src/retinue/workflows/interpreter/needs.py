"""What steps read of what came before them, told from their text.

A child run stores what it is given. A thousand items that each kept the list they come from, and every
output before, would cost the square of it; so a branch is given no more than its steps can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.workflows.definitions.definition import Step, iterate_steps, step_to_json
from retinue.workflows.expressions.expression import Expression
from retinue.workflows.expressions.templates import iterate_templates, parse_condition, parse_template


@dataclass(frozen=True, slots=True)
class Needs:
    """The keys of the input and the ids of steps that are read; None = it may be any.

    ``workflows`` = whether other workflows are run.
    """

    input_keys: frozenset[str] | None
    steps: frozenset[str] | None
    workflows: bool

    def pick_input(self, given: Any) -> Any:
        """As much of the workflow's input as is read."""
        if self.input_keys is None or not isinstance(given, Mapping):
            return given
        return {key: value for key, value in given.items() if key in self.input_keys}

    def pick_entries(self, entries: Iterable[tuple[str, Any]]) -> list[list[Any]]:
        """The entries of the steps that are read."""
        return [[step, entry] for step, entry in entries if self.steps is None or step in self.steps]

    def pick_known(self, known: Iterable[str]) -> list[str]:
        """The ids that expressions may ask for."""
        return [step for step in known if self.steps is None or step in self.steps]


def find_needs(steps: tuple[Step, ...]) -> Needs:
    """What a list of steps, nested ones included, can read."""
    inside = list(iterate_steps(steps))
    workflows = any(step.workflow is not None for step in inside)
    if any(_chains(step) for step in inside):
        return Needs(None, None, workflows)
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
    return Needs(
        None if keys is None else frozenset(keys), None if ids is None else frozenset(ids), workflows
    )


def _chains(step: Step) -> bool:
    """Whether what a step is sent is looked up in whatever there is."""
    if step.compensate is not None and step.compensate.with_ is None:
        return True
    if step.kind in ("skill", "workflow"):
        return step.with_ is None
    if step.kind == "role":
        return step.with_ is None  # beside a prompt too: further required properties are looked up
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
