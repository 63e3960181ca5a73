"""Content parts as JSON objects, and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import Part
from retinue.core.parts import (
    content_of,
    count_bytes,
    file_name_of,
    find_parts,
    is_made_of_parts,
    list_beside,
    read_parts,
    render_parts,
    value_of_parts,
    without_bytes,
)
from tests.strategies import json_values, texts, words

PNG = Part.image(b"png")

files = st.one_of(
    st.builds(Part.image, st.binary(max_size=8), st.just("image/png")),
    st.builds(Part.audio, st.binary(max_size=8), st.just("audio/wav")),
    st.builds(Part.resource, words, texts, st.just("text/html")),
    st.builds(Part.resource, words, st.binary(max_size=8), st.just("application/zip")),
    st.builds(Part.link, words, words, st.just("text/html")),
    st.builds(lambda name: Part("file", "cG5n", "application/pdf", name), words),
)


@given(st.lists(files, min_size=1, max_size=4))
def test_parts_are_read_back(parts: list[Part]) -> None:
    rows = orjson.loads(orjson.dumps(render_parts(parts)))
    assert read_parts(None, rows) == tuple(parts)
    assert find_parts({"parts": rows}) == tuple(parts)
    assert is_made_of_parts({"parts": rows}, parts)


@given(json_values, json_values)
def test_junk_is_left_out(value: Any, objects: Any) -> None:
    read_parts(value, objects)
    find_parts(value)
    without_bytes(value)


def test_the_value_is_the_structured_one_else_the_text_else_the_parts() -> None:
    data = Part("data", {"a": 1}, "application/json")
    assert value_of_parts({"x": 1}, (Part.text("t"), PNG)) == {"x": 1}
    assert value_of_parts(None, (Part.text("a"), PNG, Part.text("b"))) == "a\nb"
    assert value_of_parts(None, (data,)) == {"a": 1}
    assert value_of_parts(None, (PNG,)) == {"parts": render_parts((PNG,))}
    assert value_of_parts(None, ()) is None


def test_texts_and_data_that_is_the_value_do_not_stand_beside_it() -> None:
    data = Part("data", {"a": 1}, "application/json")
    assert list_beside("t", (Part.text("t"), PNG)) == render_parts((PNG,))
    assert list_beside({"a": 1}, (data,)) == []
    assert [one["kind"] for one in list_beside("t", (Part.text("t"), data))] == ["data"]


def test_a_text_beside_files_is_a_part_again() -> None:
    assert read_parts("t", render_parts((PNG,))) == (Part.text("t"), PNG)


@given(st.binary(max_size=20))
def test_sizes_are_counted_without_decoding(content: bytes) -> None:
    part = Part.image(content)
    assert count_bytes(part.value) == len(content)
    assert content_of(part) == content


def test_damaged_base64_has_no_content() -> None:
    assert content_of(Part("image", "%%%", "image/png")) is None


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (PNG, "image-2.png"),
        (Part("file", "cG5n", "application/pdf", "../../etc/passwd"), "passwd.pdf"),
        (Part("file", "cG5n", "application/x-nothing", "..\\a\x1b[1m.exe"), "a[1m.exe"),
        (Part.resource("https://h/x/report.csv?y=/z", "a", "text/csv"), "report.csv"),
        (Part("file", "cG5n", "text/plain", "."), "file-2.txt"),
    ],
)
def test_names_of_files_have_no_folder_and_no_control_characters(part: Part, name: str) -> None:
    assert file_name_of(part, 2) == name


def test_what_is_shown_has_sizes_in_place_of_bytes() -> None:
    value = {"result": "t", "parts": render_parts((PNG,))}
    (row,) = without_bytes(value)["parts"]
    assert (row["size"], "data" in row) == (3, False)
    assert without_bytes({"parts": ["a"]}) == {"parts": ["a"]}
