"""The short check of a schema's cost agrees with the whole measure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.core.errors import SchemaRefusedError
from retinue.mesh.schema.cost import check_cost, measure_schema

NAMES = [f"D{n}" for n in range(6)]
refs = st.sampled_from(NAMES).map(lambda name: {"$ref": f"#/$defs/{name}"})
schemas = st.recursive(
    refs | st.just({}),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=8).map(lambda some: {"anyOf": some})
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(lambda some: {"properties": some})
        | inner.map(lambda one: {"items": one})
    ),
    max_leaves=12,
)
documents = st.fixed_dictionaries(dict.fromkeys(NAMES, schemas)).map(
    lambda definitions: {"$ref": "#/$defs/D0", "$defs": definitions}
)


def _tree(branches: int) -> dict[str, Any]:
    """A union of that many lists of itself."""
    one = {"items": {"$ref": "#/$defs/D0"}}
    return {"$ref": "#/$defs/D0", "$defs": {"D0": {"anyOf": [one] * branches}}}


def _chain(length: int) -> dict[str, Any]:
    """Unions of the next one twice: two to the power of ``length`` visits, without recursion."""
    definitions = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(length)}
    return {"$ref": "#/$defs/D0", "$defs": {**definitions, f"D{length}": {}}}


@given(documents)
@example(_tree(2))
@example(_tree(7))
@example(_tree(9))
@example(_chain(9))
@example(_chain(13))
def test_a_schema_is_refused_by_both_or_by_none(document: dict[str, Any]) -> None:
    try:
        measure_schema(document, "x")
    except SchemaRefusedError as error:
        with pytest.raises(SchemaRefusedError) as refused:
            check_cost(document, "x")
        assert refused.value.message == error.message  # noqa: PT017
    else:
        check_cost(document, "x")


def test_the_examples_lie_on_both_sides_of_the_limit() -> None:
    check_cost(_tree(2), "x")
    check_cost(_chain(9), "x")
    for costly in (_tree(9), _chain(13)):
        with pytest.raises(SchemaRefusedError, match="visit one place"):
            check_cost(costly, "x")
