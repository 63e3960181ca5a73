"""The checks of a definition when it is loaded: everything that can be known before it runs.

The first fault, by its place in the text, is raised as DefinitionError with source, line and remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from rapidfuzz import fuzz, process

from retinue.core.errors import DefinitionError, SchemaRefusedError
from retinue.mesh.schema import check_schema
from retinue.protocols.json_values import name_shape
from retinue.workflows.definition import (
    LATER_PARALLEL_KEYS,
    LATER_STEP_KEYS,
    LATER_TOP_KEYS,
    Definition,
    Loop,
    Parallel,
    Retry,
    Step,
    iterate_steps,
)
from retinue.workflows.documents import Document, Path
from retinue.workflows.expressions import Expression, ExpressionSyntaxError
from retinue.workflows.lexer import Reference
from retinue.workflows.templates import iterate_templates, parse_condition, parse_template

MAX_STEPS = 1_000
MAX_NESTING = 8
OUTPUT_WORDS = ("last", "merged")

_STEP_KEYS = tuple(field.alias or name for name, field in Step.model_fields.items())
_KEYS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "retry": (tuple(Retry.model_fields), frozenset()),
    "loop": (tuple(Loop.model_fields), frozenset()),
    "parallel": (tuple(Parallel.model_fields), LATER_PARALLEL_KEYS),
}
_SHAPES = {
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
}
_NOT_YET = "leave it out; it comes with the workflows that survive (on_error, race, vote, merge, switch, …)"


def check_document(document: Document) -> Definition:
    """The definition of a document in the canonical grammar; raises DefinitionError."""
    if not isinstance(document.value, dict):
        raise document.fault((), "no workflow", "write an object with name and steps")
    try:
        definition = Definition.from_json(document.value)
    except ValidationError as error:
        raise _first_fault(document, error) from None
    _Checker(document, definition).check()
    return definition


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    found = process.extractOne(word, list(known), scorer=fuzz.ratio, score_cutoff=65)
    return None if found is None else str(found[0])


def unknown_key(
    document: Document, path: Path, known: Sequence[str], later: frozenset[str]
) -> DefinitionError:
    """The fault of a key that the grammar, or this version of it, does not have."""
    key = str(path[-1])
    if key in later:
        return document.fault(path, f"key {key!r} is known, but not available in this version", _NOT_YET)
    near = suggest(key, known)
    remedy = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
    return document.fault(path, f"unknown key {key!r}", remedy)


def _first_fault(document: Document, error: ValidationError) -> DefinitionError:
    faults = [_render_fault(document, dict(found)) for found in error.errors(include_url=False)]
    return min(faults, key=lambda fault: fault.line)


def _render_fault(document: Document, found: dict[str, Any]) -> DefinitionError:
    path: Path = tuple(key for key in found["loc"] if key not in ("[key]", "dict[str,any]", "str"))
    kind = found["type"]
    if kind == "extra_forbidden":
        parent = path[-2] if len(path) > 1 else None
        if parent is None:
            return unknown_key(document, path, tuple(Definition.model_fields), LATER_TOP_KEYS)
        known, later = _KEYS.get(str(parent), (_STEP_KEYS, LATER_STEP_KEYS))
        return unknown_key(document, path, known, later)
    if kind == "missing":
        return document.fault(path[:-1], f"{path[-1]!r} is missing", f"add {path[-1]}")
    if kind == "value_error":
        problem = str(found["ctx"]["error"])
        remedy = _NOT_YET if "not available" in problem else "write it as in docs/workflows.md"
        return document.fault(path, problem, remedy)
    if kind == "string_pattern_mismatch":
        return document.fault(
            path, f"{found['input']!r} is no name", "use letters, digits, _ and -, beginning with a letter"
        )
    wanted = _SHAPES.get(kind)
    if wanted is None:
        problem = str(found["msg"]).replace("Input should", "it should", 1)
    else:
        problem = f"it must be {wanted}; it is {name_shape(found['input'])}"
    return document.fault(
        path, problem, "write it as in docs/workflows.md (quote texts that look like numbers)"
    )


@dataclass(frozen=True, slots=True)
class _View:
    """What an expression at some place may read: steps done before, steps of a round before."""

    before: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()
    in_loop: bool = False
    depth: int = 1

    def after(self, ids: Iterable[str]) -> _View:
        return replace(self, before=self.before.union(ids))


class _Checker:
    """One pass over a definition whose shape is right."""

    def __init__(self, document: Document, definition: Definition) -> None:
        self._document = document
        self._definition = definition
        self._ids: frozenset[str] = frozenset()

    def check(self) -> None:
        if not self._definition.steps:
            raise self._document.fault(("steps",), "no steps", "add at least one step")
        self._check_count_and_ids()
        if self._definition.input is not None:
            try:
                check_schema(self._definition.input, "input")
            except SchemaRefusedError as error:
                raise self._document.fault(("input",), error.message, error.remedy) from None
        view = self._check_steps(self._definition.steps, ("steps",), _View())
        output = self._definition.output
        if isinstance(output, str) and output not in OUTPUT_WORDS and "${{" not in output:
            raise self._document.fault(
                ("output",), f"{output!r} is no output", "write last, merged, or values with ${{ … }}"
            )
        self._check_templates(output, ("output",), view)

    def _check_count_and_ids(self) -> None:
        seen: set[str] = set()
        for count, (path, step) in enumerate(_iterate_places(self._definition.steps, ("steps",))):
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
        self._ids = frozenset(seen)

    def _check_steps(self, steps: tuple[Step, ...], path: Path, view: _View, *, first: int = 0) -> _View:
        if view.depth > MAX_NESTING:
            raise self._document.fault(path, f"nested deeper than {MAX_NESTING} steps", "make it flatter")
        for index, step in enumerate(steps, first):
            place = (*path, index)
            self._check_kind(step, place)
            if step.when is not None:
                self._check_condition(step.when, (*place, "when"), view)
            if step.with_ is not None:
                self._check_with(step.with_, (*place, "with"), view)
            view = self._check_nested(step, place, view).after([step.id])
        return view

    def _check_nested(self, step: Step, place: Path, view: _View) -> _View:
        inner = frozenset(s.id for s in iterate_steps((step,))) - {step.id}
        deeper = replace(view, depth=view.depth + 1)
        if step.loop is not None:
            turn = replace(deeper, looped=view.looped | inner, in_loop=True)
            self._check_steps(step.steps or (), (*place, "steps"), turn)
            if step.loop.until is not None:
                self._check_condition(step.loop.until, (*place, "loop", "until"), turn.after(inner))
        elif step.branches is not None:
            for name, branch in step.branches.items():
                self._check_steps(branch, (*place, "branches", name), deeper)
        else:
            for index, nested in enumerate(step.steps or ()):
                # One nested step is one branch: it must not see its siblings.
                self._check_steps((nested,), (*place, "steps"), deeper, first=index)
        return view.after(inner)

    def _check_kind(self, step: Step, place: Path) -> None:
        kinds = [name for name in ("skill", "parallel", "loop") if getattr(step, name) is not None]
        if len(kinds) != 1:
            said = " and ".join(kinds) or "none of them"
            raise self._document.fault(
                place, f"step {step.id!r} has {said}", "give it exactly one of skill, parallel, loop"
            )
        wrong: dict[str, tuple[str, ...]] = {
            "skill": ("steps", "branches"),
            "parallel": ("with", "agent", "version", "retry", "timeout"),
            "loop": ("with", "agent", "version", "retry", "timeout", "branches"),
        }
        for key in wrong[kinds[0]]:
            if getattr(step, "with_" if key == "with" else key) is not None:
                raise self._document.fault(
                    (*place, key),
                    f"{key!r} does not belong to a {kinds[0]} step",
                    "put it on a step with a skill" if kinds[0] != "skill" else "use parallel or loop",
                )
        nested = [steps for steps in (step.steps, *(step.branches or {}).values()) if steps is not None]
        if kinds[0] != "skill" and (not nested or not all(nested) or (step.steps and step.branches)):
            wanted = "steps or branches" if kinds[0] == "parallel" else "steps"
            raise self._document.fault(
                place, f"step {step.id!r} needs {wanted}, at least one step each", f"add {wanted}"
            )

    def _check_with(self, value: Any, path: Path, view: _View) -> None:
        if isinstance(value, str) and "${{" not in value:
            raise self._document.fault(path, "a text gives no arguments", "write an object, or one ${{ … }}")
        self._check_templates(value, path, view)

    def _check_templates(self, value: Any, path: Path, view: _View) -> None:
        for inner, text in iterate_templates(value):
            place = (*path, *inner)
            try:
                template = parse_template(text)
            except ExpressionSyntaxError as error:
                raise self._syntax_fault(text, place, error) from None
            for expression in template.expressions:
                self._check_references(expression, place, view)

    def _check_condition(self, source: str, path: Path, view: _View) -> None:
        try:
            expression = parse_condition(source)
        except ExpressionSyntaxError as error:
            raise self._syntax_fault(source, path, error) from None
        self._check_references(expression, path, view)

    def _syntax_fault(self, text: str, path: Path, error: ExpressionSyntaxError) -> DefinitionError:
        hyphenated = next((i for i in sorted(self._ids) if "-" in i and f"steps.{i}" in text), None)
        remedy = f'write steps["{hyphenated}"]: a hyphen is a minus' if hyphenated else error.remedy
        return self._document.fault(path, error.problem, remedy)

    def _check_references(self, expression: Expression, path: Path, view: _View) -> None:
        for reference in expression.shape.references:
            if reference.root == "loop" and not view.in_loop:
                raise self._document.fault(path, "loop.index outside a loop", "read it in a nested step")
            if reference.root == "loop" and reference.keys[:1] not in ((), ("index",)):
                raise self._document.fault(path, f"loop has no {reference.keys[0]!r}", "read loop.index")
            if reference.root == "steps" and reference.keys:
                self._check_step_reference(reference, path, view)

    def _check_step_reference(self, reference: Reference, path: Path, view: _View) -> None:
        step_id = reference.keys[0]
        if step_id not in self._ids:
            near = suggest(step_id, self._ids)
            remedy = f"did you mean {near}?" if near else f"there are: {', '.join(sorted(self._ids))[:200]}"
            raise self._document.fault(path, f"no step has the id {step_id!r}", remedy)
        if step_id not in view.before and step_id not in view.looped:
            raise self._document.fault(
                path,
                f"step {step_id!r} has not run when this is read",
                "read a step that comes before, or one of the same loop",
            )
        if len(reference.keys) > 1 and reference.keys[1] != "output":
            raise self._document.fault(
                path, f"a step has no {reference.keys[1]!r}", f"read steps.{step_id}.output"
            )


def _iterate_places(steps: tuple[Step, ...], path: Path) -> Iterable[tuple[Path, Step]]:
    for index, step in enumerate(steps):
        place = (*path, index)
        yield place, step
        yield from _iterate_places(step.steps or (), (*place, "steps"))
        for name, branch in (step.branches or {}).items():
            yield from _iterate_places(branch, (*place, "branches", name))
