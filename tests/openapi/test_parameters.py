"""Parameters as text: what a server that knows the style reads is what was given."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from retinue.core.errors import InvalidParametersError
from retinue.openapi.codec.parameters import (
    Parameter,
    render_header_value,
    render_path_value,
    render_query_fields,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = texts.filter(bool)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",="), max_size=8)
lists = st.lists(texts, min_size=1, max_size=4)
objects = st.dictionaries(keys, texts, min_size=1, max_size=4)
plain_keys = keys.filter(lambda key: not set(key) & set("[]"))
deep = st.recursive(
    texts, lambda inner: st.dictionaries(plain_keys, inner, min_size=1, max_size=3), max_leaves=6
)


def _query(style: str, explode: bool) -> Parameter:
    return Parameter("a b", "a b", "query", style=style, explode=explode)


def _path(style: str, explode: bool) -> Parameter:
    return Parameter("p", "p", "path", required=True, style=style, explode=explode)


def _fields(parts: list[str]) -> list[tuple[str, str]]:
    """The fields as a server reads them from the url."""
    query = urlsplit(f"http://h/?{'&'.join(parts)}").query
    return parse_qsl(query, keep_blank_values=True, strict_parsing=True)


def _raw(parts: list[str]) -> str:
    """The undecoded value of the only field."""
    (part,) = parts
    return part.partition("=")[2]


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@given(texts)
def test_one_value_arrives_in_a_query(value: str) -> None:
    assert _fields(render_query_fields(_query("form", True), value)) == [("a b", value)]


@given(lists)
def test_a_list_arrives_as_repeated_fields(value: list[str]) -> None:
    assert _fields(render_query_fields(_query("form", True), value)) == [("a b", one) for one in value]


@given(lists)
def test_a_list_arrives_between_commas(value: list[str]) -> None:
    raw = _raw(render_query_fields(_query("form", False), value))
    assert [unquote(one) for one in raw.split(",")] == value


@pytest.mark.parametrize(("style", "delimiter"), [("spaceDelimited", " "), ("pipeDelimited", "|")])
@given(value=lists)
def test_a_list_arrives_between_spaces_or_pipes(style: str, delimiter: str, value: list[str]) -> None:
    assume(not any(delimiter in one for one in value))
    assert _fields(render_query_fields(_query(style, False), value)) == [("a b", delimiter.join(value))]


@pytest.mark.parametrize(("style", "value"), [("spaceDelimited", "a b"), ("pipeDelimited", "a|b")])
def test_a_value_that_holds_its_delimiter_is_refused(style: str, value: str) -> None:
    with pytest.raises(InvalidParametersError, match="separates"):
        render_query_fields(_query(style, False), [value])


@given(objects)
def test_an_object_arrives_as_fields_of_its_own_or_between_commas(value: dict[str, str]) -> None:
    assert _fields(render_query_fields(_query("form", True), value)) == list(value.items())
    raw = _raw(render_query_fields(_query("form", False), value))
    assert _pairs([unquote(one) for one in raw.split(",")]) == value


@given(st.dictionaries(plain_keys, deep, min_size=1, max_size=3))
def test_a_deep_object_arrives_in_brackets(value: dict[str, Any]) -> None:
    parts = render_query_fields(_query("deepObject", True), value)
    found: dict[str, Any] = {}
    for part in parts:
        raw, _, text = part.partition("=")
        name, *path = [unquote(one) for one in re.findall(r"^.*?(?=%5B)|(?<=%5B).*?(?=%5D)", raw)]
        assert name == "a b"
        holder = found
        for key in path[:-1]:
            holder = holder.setdefault(key, {})
        holder[path[-1]] = unquote(text)
    assert found == value


def test_lists_inside_a_deep_object_are_written_as_php_and_rails_read_them() -> None:
    value = {"ids": [1, 2], "sort": [{"by": "a"}, {"by": "b"}], "none": None, "empty": []}
    parts = [unquote(part) for part in render_query_fields(_query("deepObject", True), value)]
    names = ["a b[ids][]=1", "a b[ids][]=2", "a b[sort][0][by]=a", "a b[sort][1][by]=b"]
    assert parts == names


@given(texts)
def test_one_value_arrives_in_a_path(value: str) -> None:
    assume(value.strip("."))
    rendered = render_path_value(_path("simple", False), value)
    assert unquote(rendered) == value
    assert not set(rendered) & set("/?#;, ")


@pytest.mark.parametrize("explode", [False, True])
@given(value=lists)
def test_a_list_arrives_in_a_path(explode: bool, value: list[str]) -> None:
    assume("".join(value).strip("."))
    simple = render_path_value(_path("simple", explode), value)
    assert [unquote(one) for one in simple.split(",")] == value
    matrix = render_path_value(_path("matrix", explode), value)
    items = matrix.split(";p=")[1:] if explode else matrix.removeprefix(";p=").split(",")
    assert [unquote(one) for one in items] == value
    if not any("." in one for one in value):
        label = render_path_value(_path("label", explode), value).removeprefix(".")
        assert [unquote(one) for one in label.split("." if explode else ",")] == value


@given(objects)
def test_an_object_arrives_in_a_path(value: dict[str, str]) -> None:
    flat = [unquote(one) for one in render_path_value(_path("simple", False), value).split(",")]
    assert _pairs(flat) == value
    for style, prefix, joint in (("simple", "", ","), ("matrix", ";", ";")):
        parts = render_path_value(_path(style, True), value).removeprefix(prefix).split(joint)
        assert {unquote(k): unquote(v) for k, _, v in (part.partition("=") for part in parts)} == value


@pytest.mark.parametrize("style", ["simple", "label"])
@pytest.mark.parametrize("value", ["", ".", "..", [""], ["", ""][:1]])
def test_a_value_that_leads_to_another_path_is_refused(style: str, value: Any) -> None:
    with pytest.raises(InvalidParametersError, match="another path"):
        render_path_value(_path(style, False), value)


@given(st.lists(printable, min_size=1, max_size=4))
def test_a_list_arrives_in_a_header(value: list[str]) -> None:
    header = Parameter("h", "X-H", "header", style="simple", explode=False)
    assert render_header_value(header, value).split(",") == value


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\x00", "ä", {"a": "\n"}])
def test_a_header_that_would_break_the_request_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParametersError, match=r"h \(header parameter X-H\)"):
        render_header_value(Parameter("h", "X-H", "header", style="simple", explode=True), value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (7, "7"), (1.5, "1.5"), (2**70, str(2**70)), ("", "")],
)
def test_scalars_are_written_as_json_writes_them(value: Any, text: str) -> None:
    assert _fields(render_query_fields(_query("form", True), value)) == [("a b", text)]


@pytest.mark.parametrize("value", [None, [], {}])
def test_nothing_is_sent_for_null_and_for_nothing(value: Any) -> None:
    assert render_query_fields(_query("form", True), value) == []


def test_reserved_characters_stay_where_the_document_allows_them() -> None:
    reserved = Parameter("q", "q", "query", style="form", explode=True, allow_reserved=True)
    (part,) = render_query_fields(reserved, "a/b?c:d&e#f g")
    assert part == "q=a/b?c:d%26e%23f%20g"


def test_a_parameter_with_content_is_json() -> None:
    parameter = Parameter("f", "f", "query", as_json=True)
    assert _fields(render_query_fields(parameter, {"a": [1]})) == [("f", '{"a":[1]}')]
    assert _fields(render_query_fields(parameter, [])) == [("f", "[]")]


def test_a_name_with_brackets_in_a_deep_object_is_refused() -> None:
    with pytest.raises(InvalidParametersError, match="bracket"):
        render_query_fields(_query("deepObject", True), {"a][b": "x"})


@pytest.mark.parametrize("value", [[{"a": "b c"}], {"a": [1]}])
def test_what_no_style_can_carry_is_json(value: Any) -> None:
    assert _fields(render_query_fields(_query("form", True), value)) == [
        ("a b", orjson.dumps(value).decode())
    ]
    with pytest.raises(InvalidParametersError, match="send text"):
        render_path_value(_path("simple", False), value)


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], [{"a": "\ud800"}]])
def test_what_cannot_be_encoded_is_refused_with_the_argument(value: Any) -> None:
    with pytest.raises(InvalidParametersError) as refused:
        render_query_fields(_query("form", True), value)
    assert refused.value.problems[0].path == "a b"
    assert "query parameter a b" in refused.value.message
