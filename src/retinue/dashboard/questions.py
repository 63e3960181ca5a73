"""Makes a form for a question to a person, and reads the answer.

A question with one boolean that decides, such as ``{ok: boolean}``, is answered by two buttons. A question
without a schema takes any JSON or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from retinue.dashboard.forms import FormField, Schema, has_problem, is_entered, make_field, read_field

ANY = "value"
"""The name of the field of a question without a schema."""

_DECIDING = frozenset(
    (
        *("ok", "okay", "go", "yes", "approve", "approved", "accept", "accepted", "allow", "allowed"),
        *("confirm", "confirmed", "agree", "agreed", "proceed", "continue"),
    )
)
"""Names of booleans that say whether something may go on."""


@dataclass(frozen=True, slots=True)
class Question:
    """The fields of an answer. ``form`` is None where the answer may be anything."""

    form: FormField | None = None
    text: str = ""
    """The entry for an answer that may be anything."""
    problem: str = ""

    @property
    def decision(self) -> FormField | None:
        """The boolean that two buttons answer; the other fields stand above them."""
        form = self.form
        if form is None or form.kind == "boolean":
            return form
        booleans = [field for field in form.fields if field.kind == "boolean"]
        if form.kind != "group" or len(booleans) != 1:
            return None
        (only,) = booleans
        is_deciding = only.required or len(form.fields) == 1 or _decides(only)
        return only if is_deciding else None

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the two buttons."""
        decision = self.decision
        if decision is None or not decision.name or _decides(decision):
            return "Approve", "Refuse"
        return f"{decision.label}: yes", f"{decision.label}: no"

    @property
    def fields(self) -> list[FormField]:
        """The fields beside the decision."""
        if self.form is None or self.form is self.decision:
            return []
        if self.form.kind != "group":
            return [self.form]
        return [field for field in self.form.fields if field is not self.decision]

    @property
    def is_complete(self) -> bool:
        """Whether all entries could be read."""
        return not self.problem and (self.form is None or not has_problem(self.form))


def make_question(schema: Schema | None) -> Question:
    """The question whose answer fits a schema; without one, any answer."""
    return Question(make_field(schema, "answer")) if schema else Question()


def read_answer(question: Question, entered: Mapping[str, str]) -> tuple[Any, Question]:
    """The entered answer, and the question with the entries and their problems."""
    if question.form is None:
        text = entered.get(ANY, "")
        return _parse_any(text), replace(question, text=text)
    value, form = read_field(question.form, entered)
    if is_entered(value) or form.kind == "group":
        return (value if is_entered(value) else {}), replace(question, form=form)
    problem = "" if has_problem(form) else "enter an answer"
    return None, replace(question, form=form, problem=problem)


def _decides(decision: FormField) -> bool:
    return decision.key.lower() in _DECIDING


def _parse_any(text: str) -> Any:
    """JSON, otherwise the text itself."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text
