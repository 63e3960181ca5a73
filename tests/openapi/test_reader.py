"""The text of a document: JSON and YAML, and what is refused."""

from __future__ import annotations

import json

import pytest

from retinue.core.errors import InvalidSettingError, TooLargeError
from retinue.openapi.codec.reader import (
    BrokenReferenceError,
    DocumentLimits,
    follow,
    read_document,
    resolve_pointer,
)
from tests.openapi.documents import NOTES, PETS_YAML


def test_json_and_yaml_give_the_same_values() -> None:
    assert read_document(json.dumps(NOTES).encode(), "x") == NOTES
    spaced = b"\xef\xbb\xbf\n " + json.dumps(NOTES).encode()
    assert read_document(spaced, "x") == NOTES


def test_keys_of_yaml_are_text_and_dates_stay_text() -> None:
    found = read_document(b"a: 2020-01-02\nb: {200: ok, on: off}\nc: 0x10\nd: .5", "x")
    assert found == {"a": "2020-01-02", "b": {"200": "ok", "on": "off"}, "c": "0x10", "d": 0.5}


def test_an_anchor_is_written_out_and_merged() -> None:
    text = b"base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nsame: *base"
    assert read_document(text, "x")["other"] == {"a": 1, "b": 3}
    assert read_document(text, "x")["same"] == {"a": 1, "b": 2}


def test_an_integer_over_64_bits_is_read_as_a_float() -> None:
    assert read_document(b'{"a": 9223372036854776000000}', "x") == {"a": 9223372036854776000000.0}
    assert read_document(b"a: -9223372036854776000000", "x") == {"a": -9223372036854776000000.0}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b"just text",
        b'{"a": ',
        b"a: [",
        b"\xff\xfe",
        b"? [a]\n: b",
        b"a: &x [*x]",
        b'a: "\\ud800"',
    ],
)
def test_what_is_no_document_is_refused_with_its_source_and_a_remedy(text: bytes) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        read_document(text, "https://example.com/api.yaml")
    assert "https://example.com/api.yaml" in refused.value.message
    assert refused.value.remedy


def test_a_document_over_a_limit_is_refused() -> None:
    limits = DocumentLimits(document_bytes=100, yaml_bytes=50, yaml_values=10)
    for text in (b'{"a": "%s"}' % (b"x" * 100), b"a: " + b"x" * 60, b"a: [1,2,3,4,5,6,7,8,9,10]"):
        with pytest.raises(TooLargeError):
            read_document(text, "x", limits)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
        b"a: " + b"[" * 200 + b"]" * 200,
        b"a: &a " + b"[" * 100 + b"]" * 100 + b"\nb: " + b"[" * 60 + b"*a" + b"]" * 60,
    ],
    ids=["json", "yaml", "alias"],
)
def test_a_document_that_nests_too_deeply_is_refused(text: bytes) -> None:
    with pytest.raises(TooLargeError, match="levels"):
        read_document(text, "x")


def test_aliases_that_multiply_are_refused_in_no_time() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(TooLargeError, match="values"):
        read_document("\n".join(lines).encode(), "x")


def test_a_pointer_is_followed_through_escapes_and_lists() -> None:
    found = {"paths": {"/a~b/{c}": [{"x": 1}]}}
    assert resolve_pointer(found, "#/paths/~1a~0b~1%7Bc%7D/0/x") == 1


@pytest.mark.parametrize("pointer", ["#/no", "#/list/9", "#/list/x", "#name", 7, "#/list/0/deeper"])
def test_a_pointer_that_leads_nowhere_is_refused(pointer: object) -> None:
    with pytest.raises(BrokenReferenceError):
        resolve_pointer({"list": [1]}, pointer)


def test_a_reference_to_another_file_is_refused_with_the_command_that_bundles() -> None:
    with pytest.raises(BrokenReferenceError) as refused:
        follow({}, {"$ref": "schemas/pet.yaml#/Pet"})
    assert "schemas/pet.yaml" in refused.value.problem
    assert "bundle" in refused.value.remedy


def test_references_in_a_circle_are_refused() -> None:
    found = {"a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}
    with pytest.raises(BrokenReferenceError, match="circle"):
        follow(found, found["a"])


def test_the_yaml_of_a_pet_store_is_read() -> None:
    found = read_document(PETS_YAML.encode(), "pets.yaml")
    assert list(found["paths"]["/pets"]["get"]["responses"]) == ["200", "default"]
