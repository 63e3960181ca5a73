"""Checks the relations between the steps of a definition.

The module knows which keys belong to which kind of step, and which steps an expression may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.errors import DefinitionError, SchemaRefusedError, UnknownRoleError
from retinue.core.text import suggest
from retinue.mesh.directory.routing import parse_role
from retinue.mesh.schema.checks import check_schema
from retinue.workflows.definitions.definition import (
    AUTO,
    MAX_ASK_TIMEOUT_S,
    NAMED_KINDS,
    Definition,
    Step,
    StepKind,
    iterate_steps,
)
from retinue.workflows.definitions.documents import Document, Path
from retinue.workflows.definitions.values import STEP_ID
from retinue.workflows.expressions.expression import Expression, ExpressionSyntaxError
from retinue.workflows.expressions.lexer import ExpressionReference
from retinue.workflows.expressions.scope import ENTRY_KEYS
from retinue.workflows.expressions.templates import iterate_templates, parse_condition, parse_template


@dataclass(frozen=True, slots=True)
class View:
    """The steps that an expression at some place may read: earlier steps, and steps of an earlier round."""

    before: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()
    in_loop: bool = False
    in_foreach: bool = False

    def after(self, ids: Iterable[str]) -> View:
        return replace(self, before=self.before.union(ids))


class ReferenceChecks:
    """Checks expressions of one document; ``ids`` are those of its steps."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.ids: frozenset[str] = frozenset()

    def check_templates(self, value: Any, path: Path, view: View) -> None:
        """Check every template within a value."""
        for inner, text in iterate_templates(value):
            place = (*path, *inner)
            try:
                template = parse_template(text)
            except ExpressionSyntaxError as error:
                raise self._syntax_fault(text, place, error) from None
            for expression in template.expressions:
                self._check_expression(expression, place, view)

    def check_condition(self, source: str, path: Path, view: View) -> None:
        """Check an expression outside a template."""
        try:
            expression = parse_condition(source)
        except ExpressionSyntaxError as error:
            raise self._syntax_fault(source, path, error) from None
        self._check_expression(expression, path, view)

    def _syntax_fault(self, text: str, path: Path, error: ExpressionSyntaxError) -> DefinitionError:
        hyphenated = next((i for i in sorted(self.ids) if "-" in i and f"steps.{i}" in text), None)
        remedy = f'write steps["{hyphenated}"]: a hyphen is a minus' if hyphenated else error.remedy
        return self._document.fault(path, error.problem, remedy)

    def _check_expression(self, expression: Expression, path: Path, view: View) -> None:
        for reference in expression.shape.references:
            if reference.root == "loop":
                self._check_loop(reference, path, view)
            elif reference.root == "steps" and reference.keys:
                self._check_step(reference, path, view)

    def _check_loop(self, reference: ExpressionReference, path: Path, view: View) -> None:
        key = reference.keys[0] if reference.keys else "index"
        if not view.in_loop:
            raise self._document.fault(path, f"loop.{key} outside a loop", "read it in a nested step")
        if key == "item" and not view.in_foreach:
            raise self._document.fault(path, "loop.item outside a foreach", "read loop.index")
        if key not in ("index", "item"):
            raise self._document.fault(path, f"loop has no {key!r}", "read loop.index or loop.item")

    def _check_step(self, reference: ExpressionReference, path: Path, view: View) -> None:
        step_id = reference.keys[0]
        if step_id not in self.ids:
            near = suggest(step_id, self.ids, limit=1)
            remedy = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(self.ids))[:200]}"
            raise self._document.fault(path, f"no step has the id {step_id!r}", remedy)
        if step_id not in view.before and step_id not in view.looped:
            raise self._document.fault(
                path,
                f"step {step_id!r} has not run when this is read",
                "read a step that comes before, or one of the same loop",
            )
        if len(reference.keys) > 1 and reference.keys[1] not in ENTRY_KEYS:
            raise self._document.fault(
                path,
                f"a step has no {reference.keys[1]!r}",
                f"read steps.{step_id}.output, or {', '.join(ENTRY_KEYS[1:])}",
            )


KEYS_OF: Mapping[StepKind, frozenset[str]] = {
    "skill": frozenset(
        {"skill", "ask", "with", "agent", "version", "retry", "cache", "allow_empty", "compensate"}
    ),
    "role": frozenset(
        {"role", "ask", "prompt", "agent", "with", "retry", "cache", "allow_empty", "compensate"}
    ),
    "parallel": frozenset({"parallel", "ask", "steps", "branches", "retry", "cache", "allow_empty"}),
    "loop": frozenset({"loop", "steps"}),
    "foreach": frozenset({"foreach", "steps"}),
    "switch": frozenset({"switch", "branches"}),
    "workflow": frozenset({"workflow", "with", "compensate"}),
    "think": frozenset({"think", "retry"}),
    "wait_for": frozenset({"wait_for"}),
    "wait": frozenset({"wait"}),
}
"""The keys allowed next to a kind. Other keys of these sets are refused there."""

_ALL = frozenset().union(*KEYS_OF.values())

_WHERE = {
    "steps": "use parallel or loop, or foreach",
    "branches": "use parallel or switch",
    "with": "put it on a step with a skill, role or workflow",
    "prompt": "put it on a step with a role, or into parallel",
    "role": "put it on a step of its own, or into parallel",
    "compensate": "put it on the steps with a skill, role or workflow in it",
}


def misplaced_keys(step: Step) -> tuple[tuple[str, str], ...]:
    """The keys of a step that its kind does not have, each with a remedy, in order of the alphabet."""
    allowed = KEYS_OF[step.kind]
    if step.kind == "parallel" and not step.asks_agents:
        allowed = allowed - {"ask", "retry", "cache", "allow_empty"}
    keys = {key for key in _ALL if _is_given(step, key)}
    return tuple((key, _WHERE.get(key, "put it on a step with a skill")) for key in sorted(keys - allowed))


def _is_given(step: Step, key: str) -> bool:
    value = getattr(step, "with_" if key == "with" else key)
    return value is not None and not (key == "allow_empty" and value is False)


MAX_STEPS = 1_000

MAX_NESTING = 8

OUTPUT_WORDS = ("last", "merged")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the checker is: how deep, and whether within a race."""

    depth: int = 1
    in_race: bool = False


class StepChecks:
    """One pass over a definition."""

    def __init__(self, document: Document, definition: Definition) -> None:
        self._document = document
        self._definition = definition
        self._references = ReferenceChecks(document)
        self._faults: list[DefinitionError] = []

    def list_faults(self) -> list[DefinitionError]:
        """The faults in the order of the steps, at most one for each part of a step."""
        with self._noting():
            self._check_all()
        return self._faults

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except DefinitionError as error:
            self._faults.append(error)

    def _check_all(self) -> None:
        definition, document = self._definition, self._document
        if not definition.steps:
            raise document.fault(("steps",), "no steps", "add at least one step")
        self._check_count_and_ids()
        self._check_schema(definition.input, ("input",))
        self._check_schema(definition.output_schema, ("output_schema",))
        if definition.on is not None:
            for kind in definition.on.kinds:
                template = getattr(definition.on, kind).input
                self._references.check_templates(template, ("on", kind, "input"), View())
        view = self._check_steps(definition.steps, ("steps",), View(), _Place())
        output = definition.output
        if isinstance(output, str) and output not in OUTPUT_WORDS and "${{" not in output:
            raise document.fault(
                ("output",), f"{output!r} is no output", "write last, merged, or values with ${{ … }}"
            )
        self._references.check_templates(output, ("output",), view)

    def _check_count_and_ids(self) -> None:
        seen: set[str] = set()
        for count, (path, step) in enumerate(iterate_places(self._definition.steps, ("steps",))):
            if count >= MAX_STEPS:
                total = sum(1 for _ in iterate_steps(self._definition.steps))
                raise self._document.fault(
                    path, f"{total:,} steps; at most {MAX_STEPS:,}", "split it into several workflows"
                )
            if step.id in seen:
                raise self._document.fault(
                    (*path, "id"), f"id {step.id!r} is used twice", "give each step its own id"
                )
            seen.add(step.id)
        self._references.ids = frozenset(seen)

    def _check_steps(
        self, steps: tuple[Step, ...], path: Path, view: View, place: _Place, *, first: int = 0
    ) -> View:
        if place.depth > MAX_NESTING:
            raise self._document.fault(path, f"nested deeper than {MAX_NESTING} steps", "make it flatter")
        for index, step in enumerate(steps):
            here = (*path, first + index)
            with self._noting():
                self._check_kind(step, here)
                self._check_jumps(step, here, [sibling.id for sibling in steps], index)
                self._check_parts(step, here, view, place)
            with self._noting():
                view = self._check_nested(step, here, view, place)
            view = view.after([step.id])
            with self._noting():
                self._check_result(step, here, view)
        return view

    def _check_parts(self, step: Step, here: Path, view: View, place: _Place) -> None:
        """The expressions that are read before the step runs."""
        check = self._references
        if step.when is not None:
            check.check_condition(step.when, (*here, "when"), view)
        for key in ("with", "agent", "role", "prompt"):
            value = getattr(step, "with_" if key == "with" else key)
            if isinstance(value, str) and key == "with" and "${{" not in value:
                raise self._document.fault(
                    (*here, key), "a text gives no arguments", "write an object, or one ${{ … }}"
                )
            check.check_templates(value, (*here, key), view)
        self._check_role(step.role, (*here, "role"))
        if step.switch is not None:
            check.check_condition(step.switch, (*here, "switch"), view)
        if step.foreach is not None:
            items = step.foreach.items
            if isinstance(items, str) and "${{" not in items:
                raise self._document.fault((*here, "foreach"), "no list", "write a list or ${{ … }}")
            check.check_templates(items, (*here, "foreach"), view)
        if step.workflow is not None and "${{" in step.workflow:
            raise self._document.fault(
                (*here, "workflow"),
                "a workflow's name cannot be computed: it is read before the run begins",
                "name each in a switch",
            )
        if step.wait_for is not None:
            self._check_schema(step.wait_for.schema_, (*here, "wait_for", "schema"))
            check.check_templates(step.wait_for.message, (*here, "wait_for", "message"), view)
        if step.think is not None:
            self._check_schema(step.think.output, (*here, "think", "output"))
            for key in ("model", "instructions", "prompt"):
                check.check_templates(getattr(step.think, key), (*here, "think", key), view)
        if step.wait is not None:
            check.check_templates(step.wait.until, (*here, "wait", "until"), view)
            for key in ("validate", "transform"):
                if getattr(step, "validate_" if key == "validate" else key) is not None:
                    raise self._document.fault(
                        (*here, key), f"{key!r} on a timer, which has no output", "put it on another step"
                    )
        if step.parallel is not None:
            self._check_parallel(step, here, view)
        if step.ask is not None and step.ask.timeout_s > MAX_ASK_TIMEOUT_S:
            raise self._document.fault(
                (*here, "ask", "timeout"),
                f"{step.ask.timeout} is longer than {MAX_ASK_TIMEOUT_S:g} s",
                "ask for a shorter time; the call itself has the step's timeout",
            )
        if step.compensate is not None and place.in_race:
            raise self._document.fault(
                (*here, "compensate"),
                "a step of a race: what the losers have done would stay undone",
                "race without effects, and act on the winner afterwards",
            )

    def _check_parallel(self, step: Step, here: Path, view: View) -> None:
        parallel = step.parallel
        assert parallel is not None
        there = (*here, "parallel")
        for key in ("agents", "role", "prompt"):
            self._references.check_templates(getattr(parallel, key), (*there, key), view)
        self._check_role(parallel.role, (*there, "role"))
        if not step.asks_agents:
            for key in ("agents", "role"):
                if getattr(parallel, key) is not None:
                    raise self._document.fault(
                        (*there, key), f"{key!r} beside steps or branches", "put it on the nested steps"
                    )
        if parallel.k is not None and parallel.mode != "vote":
            raise self._document.fault((*there, "k"), "'k' without a vote", "set mode: vote")
        if parallel.reviewer is not None and parallel.mode not in ("vote", "merge"):
            raise self._document.fault(
                (*there, "reviewer"), "a reviewer has nothing to do here", "set mode to vote or merge"
            )

    def _check_result(self, step: Step, here: Path, view: View) -> None:
        """The expressions that are read once the step is done: its own output too."""
        self._references.check_templates(step.transform, (*here, "transform"), view)
        if step.validate_ is not None:
            self._references.check_condition(step.validate_, (*here, "validate"), view)
        if step.compensate is not None:
            self._references.check_templates(step.compensate.with_, (*here, "compensate", "with"), view)

    def _check_nested(self, step: Step, here: Path, view: View, place: _Place) -> View:
        inner = frozenset(s.id for s in iterate_steps((step,))) - {step.id}
        in_race = place.in_race or (step.parallel is not None and step.parallel.mode == "race")
        deeper = _Place(place.depth + 1, in_race)
        if step.loop is not None:
            turn = replace(view, looped=view.looped | inner, in_loop=True)
            self._check_steps(step.steps or (), (*here, "steps"), turn, deeper)
            if step.loop.until is not None:
                place_of = (*here, "loop", "until")
                self._references.check_condition(step.loop.until, place_of, turn.after(inner))
        elif step.foreach is not None:
            turn = replace(view, in_loop=True, in_foreach=True)
            self._check_steps(step.steps or (), (*here, "steps"), turn, deeper)
            return view  # the outputs of one item are not visible outside
        elif step.branches is not None:
            for name, branch in step.branches.items():
                self._check_steps(branch, (*here, "branches", name), view, deeper)
        else:
            for index, nested in enumerate(step.steps or ()):
                # One nested step is one branch: it must not see its siblings.
                self._check_steps((nested,), (*here, "steps"), view, deeper, first=index)
        return view.after(inner)

    def _check_kind(self, step: Step, here: Path) -> None:
        kinds = step.kinds
        if len(kinds) != 1:
            kind_words = " and ".join(kinds) or "none of them"
            wanted = ", ".join((*NAMED_KINDS, "role"))
            raise self._document.fault(
                here, f"step {step.id!r} has {kind_words}", f"give it exactly one of {wanted}"
            )
        for key, remedy in misplaced_keys(step):
            raise self._document.fault((*here, key), f"{key!r} does not belong to a {kinds[0]} step", remedy)
        nested = [steps for steps in (step.steps, *(step.branches or {}).values()) if steps is not None]
        wanted = {"loop": "steps", "foreach": "steps", "switch": "branches"}.get(kinds[0], "")
        if step.parallel is not None and (nested or not _asks(step)):
            wanted = "steps or branches" if nested else "steps, branches, or a role with a prompt"
        if wanted and (not nested or not all(nested) or (step.steps and step.branches)):
            raise self._document.fault(
                here, f"step {step.id!r} needs {wanted}, at least one step each", f"add {wanted}"
            )
        if kinds[0] == "parallel":
            self._check_branch_names(step, here)

    def _check_branch_names(self, step: Step, here: Path) -> None:
        for name in step.branches or {}:
            if not STEP_ID.fullmatch(name):
                raise self._document.fault(
                    (*here, "branches", name),
                    f"{name!r} is no name",
                    "use letters, digits, _ and -, beginning with a letter",
                )

    def _check_jumps(self, step: Step, here: Path, siblings: list[str], index: int) -> None:
        """Jumps go forward among the steps of one list, because backward they could go round for ever."""
        goto = step.on_error["goto"] if isinstance(step.on_error, Mapping) else None
        for key, target in (("on_error", goto), ("then", step.then)):
            if target is None or target in siblings[index + 1 :]:
                continue
            if target in siblings:
                raise self._document.fault(
                    (*here, key), f"a jump back to {target!r}, which could go round for ever", "use loop"
                )
            raise self._document.fault(
                (*here, key),
                f"no later step beside this one has the id {target!r}",
                f"there are: {', '.join(siblings[index + 1 :])[:200] or 'none'}",
            )

    def _check_role(self, role: str | None, path: Path) -> None:
        if role is None or role == AUTO or "${{" in role:
            return
        try:
            parse_role(role)
        except UnknownRoleError as error:
            raise self._document.fault(path, error.message, error.remedy) from None

    def _check_schema(self, schema: Any, path: Path) -> None:
        if schema is None:
            return
        try:
            check_schema(schema, str(path[-1]))
        except SchemaRefusedError as error:
            raise self._document.fault(path, error.message, error.remedy) from None


def _asks(step: Step) -> bool:
    """Whether a parallel step names its question to agents."""
    parallel = step.parallel
    return parallel is not None and (
        parallel.agents is not None or parallel.role is not None or parallel.prompt is not None
    )


def iterate_places(steps: tuple[Step, ...], path: Path) -> Iterable[tuple[Path, Step]]:
    """Every step with its place, as `iterate_steps` has them."""
    for index, step in enumerate(steps):
        place = (*path, index)
        yield place, step
        yield from iterate_places(step.steps or (), (*place, "steps"))
        for name, branch in (step.branches or {}).items():
            yield from iterate_places(branch, (*place, "branches", name))
