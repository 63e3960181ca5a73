"""Signatures of skills and first sentences of their descriptions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from retinue.cards.skill_signature import MAX_SIGNATURE, first_sentences, render_signature
from tests.strategies import json_objects, texts

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (None, "f()"),
        ({"type": "object", "properties": {}}, "f()"),
        (
            {"properties": {"b": {"type": "integer"}, "a": TEXT}, "required": ["a"]},
            "f(a: string, b?: integer)",
        ),
        ({"properties": {"a": {"type": "array", "items": TEXT}}}, "f(a?: string[])"),
        ({"properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]}, 'f(a: "x"|1)'),
        ({"properties": {"a": {"anyOf": [TEXT, {"type": "null"}]}}}, "f(a?: string)"),
        (
            {"properties": {"a": {"properties": {"x": TEXT, "y": {}}, "required": ["x"]}}},
            "f(a?: {x: string, y?: any})",
        ),
        ({"type": "string"}, "f(string)"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "f(a?: string)"),
    ],
)
def test_a_signature_names_parameters_with_their_types(schema: Any, shown: str) -> None:
    assert render_signature("f", schema) == shown


def test_where_types_do_not_fit_the_names_stand_alone() -> None:
    names = {f"parameter_{number}": {"enum": ["long choice", "longer choice"]} for number in range(20)}
    shown = render_signature("f", {"properties": names})
    assert shown.startswith("f(parameter_0?, parameter_1?, ")
    assert len(shown) <= MAX_SIGNATURE


@given(json_objects)
def test_any_schema_has_a_bounded_signature(schema: dict[str, Any]) -> None:
    assert len(render_signature("f", schema)) <= MAX_SIGNATURE


@given(texts)
def test_any_description_has_bounded_first_sentences(text: str) -> None:
    assert len(first_sentences(text)) <= 400


def test_sentences_are_whole() -> None:
    long = "Reads e.g. files. " + "Then it says a lot about them, as ever. " * 20
    assert first_sentences(long).endswith("as ever.")
    assert len(first_sentences(long)) <= 200
    assert first_sentences("One.\n\nTwo") == "One. Two"
    assert first_sentences("word " * 200).endswith("word…")
