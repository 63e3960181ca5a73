"""Chaining without ``with``: what the next skill is sent (specification 7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import InvalidParametersError
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.arguments import chain_arguments

NO_PARAMETERS = {"type": "object", "properties": {}}
PLAN_ONLY = {"type": "object", "properties": {"plan": {"type": "string"}}, "required": ["plan"]}


def _chain(schema: Any, given: Any, *outputs: Any) -> Any:
    scope = Scope(given, [f"s{n}" for n in range(len(outputs))])
    for n, output in enumerate(outputs):
        scope.record(f"s{n}", output)
    return chain_arguments("next", "a_skill", schema, scope)


def test_exactly_the_declared_properties_of_the_nearest_output_are_sent() -> None:
    assert _chain(PLAN_ONLY, {}, {"plan": "old"}, {"plan": "new", "steps": []}) == {"plan": "new"}


def test_a_missing_one_comes_from_earlier_outputs_nearest_first_and_then_from_the_input() -> None:
    assert _chain(PLAN_ONLY, {"plan": "input"}, {"plan": "1"}, {"plan": "2"}, {"code": ""}) == {"plan": "2"}
    assert _chain(PLAN_ONLY, {"plan": "input"}, {"code": ""}) == {"plan": "input"}
    with pytest.raises(InvalidParametersError, match="next: a_skill needs 'plan'"):
        _chain(PLAN_ONLY, {}, {"code": ""})


@pytest.mark.parametrize("schema", [None, {}, {"type": "object", "additionalProperties": True}])
def test_a_schema_that_declares_nothing_gets_the_whole_output(schema: Any) -> None:
    assert _chain(schema, {}, {"plan": "x", "steps": []}) == {"plan": "x", "steps": []}


def test_a_text_is_sent_as_it_is_where_no_object_is_wanted() -> None:
    assert _chain({"type": "string"}, {}, "text") == "text"
    assert _chain(None, {}, "text") == "text"


@pytest.mark.parametrize("nearest", [None, "text", 3, ["x"]])
def test_a_skill_without_parameters_is_called_without_any_after_whatever_came_before(nearest: Any) -> None:
    assert _chain(NO_PARAMETERS, {}, nearest) == {}
    assert _chain(NO_PARAMETERS, nearest) == {}


def test_no_input_at_all_is_no_argument() -> None:
    assert _chain(None, None) == {}
