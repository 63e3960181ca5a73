"""Signatures of traces: what they cover, and that they survive every way of carrying them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given

from retinue.core.allowance import Allowance
from retinue.core.call import Hop, TraceContext, TraceExtension
from retinue.web.codec.trace import (
    parse_trace_headers,
    parse_trace_meta,
    render_trace_headers,
    render_trace_meta,
)
from retinue.web.codec.trace_signature import is_signed, render_key_id, sign_trace
from tests.requirements import requirement
from tests.strategies import texts, traces

KEY = b"k" * 32
AT = 1_795_000_000_000


def sign(trace: TraceContext, agent: str = "b", skill: str = "work", key: bytes = KEY) -> TraceContext:
    return sign_trace(trace, agent, skill, key=key, kid=render_key_id(key), sent_at_ms=AT)


def over_headers(trace: TraceContext) -> TraceContext:
    found = parse_trace_headers({name.lower(): text for name, text in render_trace_headers(trace).items()})
    assert found is not None
    return found


def over_meta(trace: TraceContext) -> TraceContext:
    found = parse_trace_meta(orjson.loads(orjson.dumps(render_trace_meta(trace))))
    assert found is not None
    return found


@requirement("S-17")
@given(traces(), texts, texts)
def test_a_signature_holds_for_its_own_call_over_headers_and_metadata(
    trace: TraceContext, agent: str, skill: str
) -> None:
    signed = sign(trace, agent, skill)
    for received in (over_headers(signed), over_meta(signed)):
        assert is_signed(received, agent, skill, key=KEY)
        assert not is_signed(received, agent + "x", skill, key=KEY)
        assert not is_signed(received, agent, skill + "x", key=KEY)
        assert not is_signed(received, agent, skill, key=b"another key")


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"depth": 1},
        {"depth": 0},
        {"path": ()},
        {"path": (Hop("a", "x"), Hop("b", "z"))},
        {"via": ()},
        {"via": ("hub", "hub-2")},
        {"calls_left": 8},
        {"calls_left": None},
        {"seconds_left": 9.0},
        {"seconds_left": None},
        {"sent_at_ms": AT + 1},
        {"sent_at_ms": None},
        {"kid": "other"},
        {"kid": None},
        {"mac": None},
        {"mac": "0" * 64},
        {"mac": "ä"},
    ],
    ids=str,
)
def test_nothing_that_a_receiver_believes_can_be_changed(change: dict[str, Any]) -> None:
    trace = TraceContext("t", 2, (Hop("a", "x"), Hop("b", "y")), ("hub",), 7, 8.0)
    signed = sign(trace)
    assert is_signed(signed, "b", "work", key=KEY)
    assert not is_signed(replace(signed, **change), "b", "work", key=KEY)


LIMITED = TraceExtension(Allowance(5_000, 250_000), {"joules_left": 7})


@pytest.mark.parametrize(
    "extension",
    [
        TraceExtension(Allowance(5_001, 250_000), LIMITED.others),
        TraceExtension(Allowance(5_000, None), LIMITED.others),
        TraceExtension(None, LIMITED.others),
        TraceExtension(LIMITED.allowance),
        TraceExtension(LIMITED.allowance, {"joules_left": 8}),
        TraceExtension(),
    ],
    ids=str,
)
def test_no_limit_of_the_spending_and_no_unknown_field_can_be_changed(extension: TraceExtension) -> None:
    signed = sign(TraceContext("t", 2, extension=LIMITED))
    assert signed.extension is not None
    assert is_signed(over_headers(signed), "b", "work", key=KEY)
    for mac in (signed.extension.mac, None, "0" * 64, "ä"):
        changed = TraceExtension(extension.allowance, extension.others, mac)
        assert not is_signed(replace(signed, extension=changed), "b", "work", key=KEY)


@requirement("S-13")
def test_a_process_that_knows_only_the_first_form_still_verifies_the_rest() -> None:
    """It drops the fields that it does not know, and its own signature has the first form."""
    received = over_headers(sign(TraceContext("t", 2, (Hop("a", "x"),), calls_left=3, extension=LIMITED)))
    assert is_signed(replace(received, extension=None), "b", "work", key=KEY)
    assert "mac2" not in str(render_trace_headers(sign(TraceContext("t", 2))))


@requirement("S-13")
def test_fields_of_a_newer_release_are_passed_on_as_they_came() -> None:
    received = over_headers(sign(TraceContext("t", 2, extension=LIMITED)))
    assert received.extension is not None
    assert received.extension.others == {"joules_left": 7}
    assert over_meta(sign(received)).extension == sign(received).extension


@pytest.mark.parametrize("others", [{"x": "y" * 2_000}, {"x": 2**70}], ids=["too long", "too large"])
def test_unknown_fields_that_are_not_kept_make_the_signature_invalid(others: dict[str, Any]) -> None:
    signed = sign(TraceContext("t", 2, extension=LIMITED))
    meta = render_trace_meta(signed)
    received = parse_trace_meta({**meta, "X-Retinue-Trace": {**meta["X-Retinue-Trace"], **others}})
    assert received is not None
    assert received.allowance == LIMITED.allowance
    assert not is_signed(received, "b", "work", key=KEY)


def test_a_trace_without_limits_of_the_spending_has_the_bytes_of_before() -> None:
    assert set(render_trace_meta(sign(TraceContext("t", 2, calls_left=1)))["X-Retinue-Trace"]) == {
        "calls_left",
        "at",
        "kid",
        "mac",
    }


def test_a_long_path_is_cut_with_room_for_the_limits() -> None:
    path = tuple(Hop(f"agent-{n}" * 10, f"skill-{n}" * 10) for n in range(60))
    signed = sign(TraceContext("t", 60, path, extension=TraceExtension(None, {"x": "y" * 900})))
    assert len(render_trace_headers(signed)["X-Retinue-Trace"]) <= 4096
    assert is_signed(over_headers(signed), "b", "work", key=KEY)


def test_what_other_tracers_rewrite_on_the_way_is_not_covered() -> None:
    signed = sign(TraceContext("t", 2, traceparent=f"00-{'a' * 32}-{'b' * 16}-01"))
    changed = replace(signed, traceparent=f"00-{'a' * 32}-{'c' * 16}-01", baggage={"a": "b"})
    assert is_signed(changed, "b", "work", key=KEY)


def test_a_path_that_is_too_long_is_cut_before_it_is_signed() -> None:
    path = tuple(Hop(f"agent-{n}" * 10, f"skill-{n}" * 10) for n in range(60))
    signed = sign(TraceContext("t", 60, path))
    assert len(signed.path) < 60
    assert is_signed(over_headers(signed), "b", "work", key=KEY)


def test_the_name_of_a_key_tells_keys_apart_and_says_nothing_of_them() -> None:
    assert render_key_id(KEY) == render_key_id(KEY) != render_key_id(b"other")
    assert len(render_key_id(KEY)) == 12
