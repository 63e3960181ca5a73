"""The form of a value that a person writes."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.runtime.commands.client import describe
from retinue.workflows.output_shapes import describe_form

APPROVAL = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
    "required": ["ok"],
}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (None, ""),
        ({}, ""),
        ({"type": "boolean"}, "true|false"),
        ({"enum": ["yes", "no"]}, '"yes"|"no"'),
        ({"const": 1}, "1"),
        (APPROVAL, '{"ok": true|false, "why": TEXT?}'),
        (
            {"type": "object", "properties": {"rows": {"type": "array"}, "any": {}}},
            '{"rows": […]?, "any": …?}',
        ),
    ],
)
def test_a_schema_is_shown_as_a_value_to_write(schema: Any, form: str) -> None:
    assert describe_form(schema) == form


def test_a_step_that_waits_shows_the_value_to_send() -> None:
    event = {"event": "step_started", "kind": "wait", "step": "ship", "topic": "ship", "message": "Ship it?"}
    line = describe({**event, "schema": APPROVAL}, "r")
    assert line is not None
    assert line.endswith('answer: retinue signal r ship VALUE, VALUE: {"ok": true|false, "why": TEXT?}')
    plain = describe(event, "r")
    assert plain is not None
    assert plain.endswith("answer: retinue signal r ship VALUE")
