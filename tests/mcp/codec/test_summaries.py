"""Summaries of long values and blocks."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given

from retinue.mcp.codec.content import text_of
from retinue.mcp.codec.summaries import describe_left_out, summarise, summarise_blocks
from tests.strategies import json_values


def shape(value: Any) -> Any:
    """The types of a value, without lengths."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else type(value)


def test_a_summary_keeps_the_form_and_says_what_is_missing() -> None:
    rows = [{"name": f"agent-{n}", "text": "x" * 500} for n in range(300)]
    summary = summarise({"agents": rows, "total": 300}, 5_000)
    assert summary is not None
    assert summary.value["total"] == 300
    assert 0 < len(summary.value["agents"]) < 300
    assert shape(summary.value) == shape({"agents": rows, "total": 300})
    assert f"agents: {len(summary.value['agents'])} of 300 entries" in describe_left_out(summary)


@given(json_values)
def test_a_summary_is_never_longer_than_allowed(value: Any) -> None:
    summary = summarise([value] * 50, 2_000)
    if summary is not None:
        assert len(orjson.dumps(summary.value)) <= 2_000


@given(json_values)
def test_a_short_value_is_its_own_summary(value: Any) -> None:
    summary = summarise(value, 10_000)
    assert summary is not None
    assert not summary.left_out
    assert summary.value == value


def test_an_object_of_many_numbers_has_no_summary_that_is_short_enough() -> None:
    nested: Any = {f"key-{n}": {f"inner-{m}": m for m in range(20)} for n in range(20)}
    assert summarise(nested, 2_000) is None


def test_texts_of_blocks_are_cut_and_images_stay() -> None:
    image = {"type": "image", "data": "A" * 9_000, "mimeType": "image/png"}
    page = {"type": "resource", "resource": {"uri": "a:b", "text": "p" * 900}}
    shown = summarise_blocks([{"type": "text", "text": "t" * 1_500}, image, page, page], 2_000)
    assert [one["type"] for one in shown] == ["text", "image", "resource"]
    assert shown[1] == image
    assert [len(text_of(one) or "") for one in shown] == [1_500, 0, 500]
