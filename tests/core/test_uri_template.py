"""Uri templates."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.uri_template import (
    MAX_URI_LENGTH,
    UriTemplateError,
    is_template,
    names_place,
    parse_template,
    place_of,
)
from tests.strategies import texts, words

BAD = ["a://{}", "a://{a b}", "a://{a}{b}", "a://{a}/{a}", "a://{a", "a://a}", "a://{?q}", "a://{a{b}}"]


@given(words, words)
def test_quoted_values_are_matched(one: str, two: str) -> None:
    template = parse_template("books://{one}/of/{two}")
    uri = f"books://{quote(one, safe='')}/of/{quote(two, safe='')}"
    assert template.match(uri) == {"one": one, "two": two}


@given(words)
def test_a_path_may_hold_slashes(path: str) -> None:
    template = parse_template("files:///{+path}")
    assert template.match(f"files:///{quote(path)}") == {"path": path}


@given(texts)
def test_junk_is_a_template_or_refused(text: str) -> None:
    try:
        assert parse_template(text).match(text) is not None or is_template(text)
    except UriTemplateError:
        assert "{" in text or "}" in text


@given(st.text("{}ab/+", max_size=12), texts)
def test_matching_junk_never_fails(text: str, uri: str) -> None:
    try:
        template = parse_template(text)
    except UriTemplateError:
        return
    found = template.match(uri)
    assert found is None or set(found) == set(template.names)


def test_a_variable_stands_for_one_part_of_a_path() -> None:
    template = parse_template("test://template/{id}/data")
    assert template.names == ("id",)
    assert template.match("test://template/123/data") == {"id": "123"}
    assert template.match("test://template/1/2/data") is None
    assert template.match("test://template//data") is None
    assert parse_template("a://{+p}/x").match("a://b/c/x") == {"p": "b/c"}


@pytest.mark.parametrize("text", BAD)
def test_a_malformed_template_is_refused(text: str) -> None:
    with pytest.raises(UriTemplateError):
        parse_template(text)


def test_a_uri_without_end_is_not_looked_at() -> None:
    assert parse_template("a://{+p}").match("a://" + "x" * MAX_URI_LENGTH) is None


@pytest.mark.parametrize(
    "template",
    [
        "books://{id}",
        "file:///{+path}",
        "urn:isbn:{id}",
        "https://api.example.org/{+rest}",
        "http://h:8080/{id}",
    ],
)
def test_a_template_that_names_its_scheme_and_authority_has_a_place(template: str) -> None:
    assert names_place(template)


@pytest.mark.parametrize(
    "template",
    [
        "{+any}",
        "{scheme}://x/{id}",
        "x{id}",
        "https://{host}/x",
        "https:{+rest}",
        "http://h{+rest}",
        "HTTPS://{+r}",
        "1x://{id}",
    ],
)
def test_a_template_that_matches_the_uris_of_others_has_none(template: str) -> None:
    assert not names_place(template)


def test_a_uri_claims_its_scheme_or_its_authority() -> None:
    assert place_of("notes://a/b") == place_of("notes://c") == "notes:"
    assert place_of("https://a.example/x?y") == place_of("https://a.example") == "https://a.example"
    assert place_of("https://b.example/x") != place_of("https://a.example/x")
    assert place_of("nothing") == "nothing"
