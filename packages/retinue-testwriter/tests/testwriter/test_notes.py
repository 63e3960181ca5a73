from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue_testwriter.notes import parse_code_notes, parse_plan_notes, render_code_notes, render_plan_notes

NOTES = st.dictionaries(
    st.text(max_size=8), st.text() | st.integers() | st.lists(st.text(max_size=5), max_size=3), max_size=4
)


@given(NOTES, st.text(max_size=20))
def test_notes_of_a_plan_come_back(notes: dict[str, object], module: str) -> None:
    notes = {**notes, "module": module}
    assert parse_plan_notes(f"A plan.\n\n{render_plan_notes(notes)}\nThe end.") == notes


@given(NOTES)
def test_notes_of_a_test_file_come_back_from_one_comment(notes: dict[str, object]) -> None:
    line = render_code_notes(notes)
    assert len(line.split("\n")) == 1
    assert parse_code_notes(f'"""Tests."""\n{line}\nimport json\n') == notes


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    assert parse_plan_notes(text) is None or "module" in text
    parse_code_notes(text)
    parse_code_notes(f"# retinue: {text}")


def test_a_block_that_names_no_module_is_passed_over() -> None:
    assert parse_plan_notes('```json\n{"a": 1}\n```') is None
    assert parse_plan_notes("```json\n[1\n```") is None
