"""The envelope: what is understood, what is not, and what every message that goes out holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.messages.codec.envelope import (
    INVALID_PAYLOAD,
    PARSING_ERROR,
    UNKNOWN_ONTOLOGY,
    UNKNOWN_PERFORMATIVE,
    Envelope,
    NotUnderstoodError,
    new_envelope,
    ontology_warnings,
    parse_envelope,
    read_json,
    render_envelope,
    reply_to,
)
from retinue.messages.codec.performatives import CODONS, FROM_FIPA, PERFORMATIVES, TO_FIPA
from tests.requirements import requirement

LEAST = {"performative": "QUERY_CAPABILITIES", "payload": {}}
DRAFT = {
    "TASK_REQUEST",
    "TASK_ACCEPT",
    "INFORM_RESULT",
    "QUERY_IF",
    "QUERY_REF",
    "TASK_REJECT",
    "FAILURE",
    "NOT_UNDERSTOOD",
    "QUERY_CAPABILITIES",
    "INFORM_CAPABILITIES",
}
EMITTED = {
    "mcp_version",
    "message_id",
    "performative",
    "sender",
    "receiver",
    "language",
    "ontology",
    "timestamp",
    "payload",
}


def refusal(message: Any, *, strict: bool = False) -> NotUnderstoodError:
    with pytest.raises(NotUnderstoodError) as caught:
        parse_envelope(message, strict=strict)
    return caught.value


def attempt(read: Callable[[], Any]) -> Any:
    """What is read, or the refusal."""
    try:
        return read()
    except NotUnderstoodError as error:
        return error


@requirement("W-21")
def test_all_ten_performatives_and_three_more_are_known() -> None:
    assert PERFORMATIVES.keys() == DRAFT | {"SUBSCRIBE", "CANCEL", "PROPOSE"}


@requirement("W-01")
def test_the_codons_are_named_objects_and_the_first_is_query_and_inform() -> None:
    whispering = next(iter(CODONS.values()))
    assert (whispering.name, whispering.opening) == ("Whispering Wind", "QUERY_CAPABILITIES")
    assert "INFORM_CAPABILITIES" in whispering.states["open"]
    for codon in CODONS.values():
        told = {name for after in codon.states.values() for name in after}
        assert all(PERFORMATIVES[name].is_reply for name in told)
        assert not PERFORMATIVES[codon.opening].is_reply
    assert set(CODONS) == {one.name for one in PERFORMATIVES.values() if not one.is_reply}


def test_the_fipa_table_goes_both_ways() -> None:
    for name, act in TO_FIPA.items():
        back = FROM_FIPA[act]
        assert back == name or (act, back) == ("query-ref", "QUERY_REF")
    for act, name in FROM_FIPA.items():
        message = {"performative": act, "in_reply_to": "m", "payload": {}}
        assert parse_envelope(message).performative == name
        assert refusal(message, strict=True).reason_code == UNKNOWN_PERFORMATIVE


@requirement("W-21")
def test_the_least_message_gets_every_default() -> None:
    envelope = parse_envelope(LEAST)
    assert (envelope.sender, envelope.receiver) == ("anonymous", "")
    assert envelope.ontology == "elizaos:ontology:agent/capability_query"
    assert (envelope.language, envelope.mcp_version) == ("application/json", "0.1.0")
    assert envelope.message_id
    assert parse_envelope({**LEAST, "sender": "eddy"}).sender == "eddy"


@requirement("W-21")
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"performative": "QUERY_CAPABILITY"}, UNKNOWN_PERFORMATIVE, "did you mean QUERY_CAPABILITIES?"),
        ({"performative": 7}, UNKNOWN_PERFORMATIVE, "performative is a number"),
        ({"payload": None}, INVALID_PAYLOAD, "payload is null: give an object"),
        ({"payload": "x", "sender": 1}, INVALID_PAYLOAD, "sender is a number: give an object"),
        ({"message_id": 7}, INVALID_PAYLOAD, "message_id is a number: give a string"),
        ({"performative": "INFORM_RESULT"}, INVALID_PAYLOAD, "in_reply_to is missing"),
        ({"reply_by": "soon"}, INVALID_PAYLOAD, "reply_by is 'soon': give a time in ISO 8601"),
        ({"language": "!"}, INVALID_PAYLOAD, "language is '!'"),
        ({"reply_with": "x" * 1001}, INVALID_PAYLOAD, "reply_with has 1,001 characters"),
        ({"trace": []}, INVALID_PAYLOAD, "trace is a list"),
    ],
)
def test_a_refusal_names_the_field_its_shape_and_the_remedy(
    change: dict[str, Any], code: str, words: str
) -> None:
    error = refusal({**LEAST, **change})
    assert error.reason_code == code
    assert words in error.text


def test_a_refusal_of_a_part_still_knows_what_to_reply_to() -> None:
    error = refusal({"message_id": "m-1", "sender": "eddy", "performative": "DANCE"})
    assert error.envelope is not None
    reply = reply_to(error.envelope, "NOT_UNDERSTOOD", {}, sender="jules")
    assert (reply.in_reply_to, reply.receiver) == ("m-1", "eddy")


@requirement("W-21")
def test_strict_mode_requires_every_field_and_a_known_ontology() -> None:
    whole = render_envelope(new_envelope("QUERY_CAPABILITIES", {}, sender="eddy", receiver="jules"))
    assert parse_envelope(whole, strict=True).sender == "eddy"
    for name in EMITTED:
        error = refusal({key: value for key, value in whole.items() if key != name}, strict=True)
        assert name in error.text
    unknown = {**whole, "ontology": "other:thing"}
    assert refusal(unknown, strict=True).reason_code == UNKNOWN_ONTOLOGY
    assert parse_envelope(unknown).ontology == "other:thing"


@requirement("W-21")
@given(
    st.sampled_from(sorted(PERFORMATIVES)),
    st.dictionaries(st.text(max_size=9), st.integers(-9, 9) | st.text(max_size=9) | st.none(), max_size=4),
    st.text(min_size=1, max_size=30),
    st.text(min_size=1, max_size=30),
)
def test_what_is_rendered_holds_every_field_and_reads_back_as_it_was(
    performative: str, payload: dict[str, Any], sender: str, receiver: str
) -> None:
    envelope = new_envelope(performative, payload, sender=sender, receiver=receiver)
    if PERFORMATIVES[performative].is_reply:
        envelope = reply_to(envelope, performative, payload, sender=sender)
    rendered = render_envelope(envelope)
    assert rendered.keys() >= EMITTED
    assert parse_envelope(orjson.loads(orjson.dumps(rendered))) == envelope


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
)
_FIELDS = st.sampled_from(
    [*sorted(EMITTED), "in_reply_to", "reply_with", "trace", "signature", "callback_url", "reply_by", "other"]
)


@requirement("W-21")
@given(_JSON | st.dictionaries(_FIELDS, _JSON, max_size=8), st.booleans())
def test_any_json_is_an_envelope_or_not_understood(message: Any, strict: bool) -> None:
    read = attempt(lambda: parse_envelope(message, strict=strict))
    if not isinstance(read, Envelope):
        assert read.text
        assert read.reason_code in {
            PARSING_ERROR,
            INVALID_PAYLOAD,
            UNKNOWN_PERFORMATIVE,
            UNKNOWN_ONTOLOGY,
        }


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_not_understood(body: bytes) -> None:
    read = attempt(lambda: read_json(body))
    assert not isinstance(read, NotUnderstoodError) or read.reason_code == PARSING_ERROR


def test_a_body_that_is_nested_too_deep_is_not_understood() -> None:
    for depth in (200, 2000):
        with pytest.raises(NotUnderstoodError):
            read_json(b'{"payload":' * depth + b"1" + b"}" * depth)


def test_a_message_that_names_no_ontology_gets_no_warning_of_one() -> None:
    unread: list[Any] = [[1], {"performative": "FOO", "payload": {}}, {"payload": {}}]
    for wrong in unread:
        with pytest.raises(NotUnderstoodError) as caught:
            parse_envelope(wrong)
        assert ontology_warnings(caught.value.envelope or Envelope("", {}, "unknown")) == ()


def test_a_performative_with_no_like_one_is_answered_with_the_list() -> None:
    with pytest.raises(NotUnderstoodError, match="'FOO' is unknown: give one of QUERY_CAPABILITIES"):
        parse_envelope({"performative": "FOO", "payload": {}})
    with pytest.raises(NotUnderstoodError, match=r"did you mean CANCEL[?] Give one of"):
        parse_envelope({"performative": "CANCLE", "payload": {}})
