"""What the expressions of a definition may read where they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.errors import DefinitionError
from retinue.mesh.suggest import suggest
from retinue.workflows.definitions.documents import Document, Path
from retinue.workflows.expressions.expression import Expression, ExpressionSyntaxError
from retinue.workflows.expressions.lexer import Reference
from retinue.workflows.expressions.scope import ENTRY_KEYS
from retinue.workflows.expressions.templates import iterate_templates, parse_condition, parse_template


@dataclass(frozen=True, slots=True)
class View:
    """What an expression at some place may read: steps done before, steps of a round before."""

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
        """Check an expression that stands alone."""
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

    def _check_loop(self, reference: Reference, path: Path, view: View) -> None:
        key = reference.keys[0] if reference.keys else "index"
        if not view.in_loop:
            raise self._document.fault(path, f"loop.{key} outside a loop", "read it in a nested step")
        if key == "item" and not view.in_foreach:
            raise self._document.fault(path, "loop.item outside a foreach", "read loop.index")
        if key not in ("index", "item"):
            raise self._document.fault(path, f"loop has no {key!r}", "read loop.index or loop.item")

    def _check_step(self, reference: Reference, path: Path, view: View) -> None:
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
