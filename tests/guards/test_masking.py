"""Masked values keep their shape and types, and nothing sensitive is left in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.guards.masking import MAX_DEPTH, mask_text, mask_value

CARD = "4111 1111 1111 1111"
MAIL = "jane@example.org"


def test_each_part_of_a_text_is_replaced_by_its_kind() -> None:
    masked = mask_text(f"card {CARD}, mail {MAIL}.")
    assert masked.value == "card [card], mail [email]."
    assert masked.counts == {"card": 1, "email": 1}


def test_a_text_that_is_a_mail_address_stays_one() -> None:
    assert mask_value({"to": MAIL}).value == {"to": "redacted@example.invalid"}


def test_the_value_of_a_secret_name_is_masked_at_any_depth() -> None:
    value = {"auth": {"password": "hello"}, "tokens": ["a", "b"], "list": [{"api_key": "x"}], "n": 1}
    masked = mask_value(value)
    assert masked.value["auth"] == {"password": "[key]"}
    assert masked.value["list"] == [{"api_key": "[key]"}]
    assert masked.value["n"] == 1
    assert "auth.password" in masked.paths
    hidden = {"password": 12345678, "db_password": {"value": "hunter2"}, "token": [{"a": "b"}]}
    assert mask_value(hidden).value == {
        "password": 0,
        "db_password": {"value": "[key]"},
        "token": [{"a": "[key]"}],
    }


def test_names_that_only_sound_like_secrets_hold_none() -> None:
    value = {
        "key": "PROJ-12",
        "nextPageToken": "abc",
        "max_tokens": 7,
        "token_type": "bearer",
        "auth": "none",
    }
    assert mask_value(value).value == value


def test_a_value_that_is_nested_too_deep_to_be_searched_is_refused() -> None:
    value: Any = "x"
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        mask_value(value)


def test_a_number_that_is_a_card_becomes_a_number() -> None:
    assert mask_value({"n": 4111111111111111, "m": 4111111111111112}).value == {"n": 0, "m": 4111111111111112}


def test_names_of_a_mapping_are_searched_too() -> None:
    assert mask_value({MAIL: 1}).value == {"redacted@example.invalid": 1}
    two = mask_value({f"{MAIL} a": 1, f"joe{MAIL} a": 2})
    assert list(two.value.values()) == [1, 2]


def test_values_at_exempt_paths_stay() -> None:
    value = {"rows": [{"mail": MAIL, "note": MAIL}], "mail": MAIL}
    masked = mask_value(value, exempt=["rows.*.mail"])
    assert masked.value["rows"][0]["mail"] == MAIL
    assert masked.value["rows"][0]["note"] != MAIL
    assert masked.paths == ("rows.0.note", "mail")


def test_only_the_kinds_asked_for_are_masked() -> None:
    assert mask_value([CARD, MAIL], ["card"]).value == ["[card]", MAIL]


def test_an_escape_in_json_hides_nothing() -> None:
    import orjson

    hidden = orjson.loads(rb'{"a": "4111\\u0020\\u0031111 1111 1111"}'.replace(rb"\\u", rb"\u"))
    assert mask_value(hidden).value == {"a": "[card]"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_a_masked_value_is_masked_no_more_and_has_its_shape(value: Any) -> None:
    masked = mask_value(value)
    assert mask_value(masked.value).value == masked.value
    assert shape_of(masked.value) == shape_of(value)
    if not masked.is_changed:
        assert masked.value == value


def shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [shape_of(inner) for inner in value.values()]
    return [shape_of(inner) for inner in value] if isinstance(value, list) else type(value)
