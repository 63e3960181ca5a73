"""Values and parts as content blocks."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import Part
from retinue.mcp.codec.content import (
    parse_block,
    render_call_result,
    render_error_result,
    render_part,
    value_as_text,
)
from tests.requirements import requirement
from tests.strategies import json_objects, json_values, texts, words

PNG = Part.image(b"png")

parts = st.one_of(
    st.builds(Part.text, texts),
    st.builds(Part.image, st.binary(max_size=8), st.just("image/png")),
    st.builds(Part.audio, st.binary(max_size=8), st.just("audio/wav")),
    st.builds(Part.resource, words, texts | st.binary(max_size=8), st.just("text/html")),
    st.builds(Part.link, words, words, st.just("text/html")),
)


@given(parts)
def test_parts_are_read_back(part: Part) -> None:
    assert parse_block(orjson.loads(orjson.dumps(render_part(part)))) == part


@given(json_objects)
def test_junk_is_kept_as_data(block: dict[str, Any]) -> None:
    assert parse_block(block).kind in ("data", "text", "image", "audio", "resource")


@requirement("S-11")
@given(texts)
def test_a_text_is_itself(text: str) -> None:
    assert render_call_result(text, (), None) == {"content": [{"type": "text", "text": text}]}


@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_any_other_value_is_json(value: Any) -> None:
    result = render_call_result(value, (), None)
    (block,) = result["content"]
    assert orjson.loads(block["text"]) == value
    assert result.get("structuredContent") == (value if isinstance(value, dict) else None)


def test_parts_stand_for_the_value_unless_a_schema_was_promised() -> None:
    assert render_call_result({"a": 1}, (PNG,), None) == {"content": [render_part(PNG)]}
    promised = render_call_result({"a": 1}, (PNG,), {"type": "object"})
    assert promised == {"content": [render_part(PNG)], "structuredContent": {"a": 1}}
    wrapped = render_call_result([1], (), {"type": "array"})
    assert wrapped["structuredContent"] == {"result": [1]}


def test_a_failure_is_told_in_words_with_its_facts_beside() -> None:
    assert render_error_result("no luck", {"type": "x"}) == {
        "content": [{"type": "text", "text": "no luck"}],
        "isError": True,
        "_meta": {"retinue/error": {"type": "x"}},
    }


def test_what_has_no_block_becomes_text() -> None:
    assert render_part(Part("data", {"a": 1})) == {"type": "text", "text": value_as_text({"a": 1})}
    annotated = Part("text", "t", annotations={"audience": ["user"]})
    assert render_part(annotated)["annotations"] == {"audience": ["user"]}
