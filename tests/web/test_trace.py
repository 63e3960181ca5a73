"""The trace in headers and metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import Hop, TraceContext
from retinue.web.codec.trace import (
    CUT,
    MAX_DETAIL_BYTES,
    cut_path,
    parse_trace_headers,
    parse_trace_meta,
    render_trace_headers,
    render_trace_meta,
)
from tests.requirements import requirement
from tests.strategies import json_values, texts, traces

KEYS = [
    "x-openstarry-trace-id",
    "x-openstarry-trace-depth",
    "x-retinue-trace",
    "traceparent",
    "tracestate",
    "baggage",
]


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def long_trace(hops: int) -> TraceContext:
    return TraceContext("t", 200, tuple(Hop(f"agent-{n}", "skill-é" * 3) for n in range(hops)))


@requirement("S-13")
@given(traces())
def test_headers_are_read_back_and_are_printable_ascii(trace: TraceContext) -> None:
    headers = render_trace_headers(trace)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert parse_trace_headers(lower(headers)) == trace


@requirement("S-13")
@given(traces())
def test_metadata_is_read_back_through_json(trace: TraceContext) -> None:
    meta = orjson.loads(orjson.dumps(render_trace_meta(trace)))
    assert parse_trace_meta(meta) == trace


def test_the_seeds_names_carry_id_and_depth() -> None:
    trace = TraceContext("abc", 3)
    assert render_trace_headers(trace) == {
        "X-OpenStarry-Trace-ID": "abc",
        "X-OpenStarry-Trace-Depth": "3",
    }
    assert render_trace_meta(trace) == {"X-OpenStarry-Trace-ID": "abc", "X-OpenStarry-Trace-Depth": 3}


def test_nothing_there_is_no_trace() -> None:
    assert parse_trace_headers({"content-type": "application/json"}) is None
    assert parse_trace_meta({"progressToken": 1}) is None


@requirement("S-15")
def test_an_id_without_a_depth_says_so() -> None:
    trace = parse_trace_headers({"x-openstarry-trace-id": "abc"})
    assert trace == TraceContext("abc", 0, depth_given=False)


def test_names_in_metadata_may_have_any_case() -> None:
    trace = parse_trace_meta({"x-openstarry-trace-id": "abc", "X-OPENSTARRY-TRACE-DEPTH": 2})
    assert trace == TraceContext("abc", 2)


@requirement("S-14")
@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "é", "a\n", 7, None, ["a"]])
def test_an_unusable_id_is_dropped_but_its_depth_counts(bad: Any) -> None:
    trace = parse_trace_meta({"X-OpenStarry-Trace-ID": bad, "X-OpenStarry-Trace-Depth": 4})
    assert trace == TraceContext("", 4)


@pytest.mark.parametrize("bad", ["", "-1", "1.5", "٣", "one", -1, 1.0, True, [], {}])
def test_an_unusable_depth_is_as_none(bad: Any) -> None:
    trace = parse_trace_meta({"X-OpenStarry-Trace-ID": "abc", "X-OpenStarry-Trace-Depth": bad})
    assert trace == TraceContext("abc", 0, depth_given=False)


@requirement("S-14")
@pytest.mark.parametrize("huge", ["9" * 10, "9" * 10_000, 10**30])
def test_an_absurd_depth_stays_too_deep(huge: Any) -> None:
    trace = parse_trace_meta({"X-OpenStarry-Trace-ID": "abc", "X-OpenStarry-Trace-Depth": huge})
    assert trace is not None
    assert trace.depth > 10**8
    assert trace.depth_given


@given(st.dictionaries(st.sampled_from(KEYS), texts | json_values | st.floats() | st.integers()))
def test_junk_never_crashes_and_what_comes_out_can_be_sent_on(meta: dict[str, Any]) -> None:
    trace = parse_trace_meta(meta)
    if trace is not None:
        headers = render_trace_headers(trace)
        assert parse_trace_headers(lower(headers)) is not None or not headers


@given(
    st.dictionaries(st.sampled_from(["path", "via", "calls_left", "seconds_left", "kid", "mac"]), json_values)
)
def test_junk_inside_the_detail_never_crashes(detail: dict[str, Any]) -> None:
    trace = parse_trace_meta({"X-OpenStarry-Trace-ID": "abc", "X-Retinue-Trace": detail})
    assert trace is not None
    assert trace.id == "abc"
    assert parse_trace_headers(lower(render_trace_headers(trace))) == trace


def test_numbers_that_json_does_not_know_are_junk() -> None:
    detail = {"seconds_left": float("nan"), "calls_left": 10**400, "via": [float("inf")]}
    trace = parse_trace_meta({"X-OpenStarry-Trace-ID": "abc", "X-Retinue-Trace": detail})
    assert trace is not None
    assert (trace.seconds_left, trace.calls_left, trace.via) == (None, 10**12, ())


@given(st.integers(0, 300))
def test_a_long_path_is_cut_from_its_middle_and_the_depth_never(hops: int) -> None:
    trace = long_trace(hops)
    headers = render_trace_headers(trace)
    assert len(headers.get("X-Retinue-Trace", "")) <= MAX_DETAIL_BYTES
    assert headers["X-OpenStarry-Trace-Depth"] == "200"
    cut = cut_path(trace)
    if cut.path != trace.path:
        marks = [at for at, hop in enumerate(cut.path) if hop.agent == CUT]
        assert len(marks) == 1
        assert int(cut.path[marks[0]].skill) == hops - (len(cut.path) - 1)
        assert abs(marks[0] - (len(cut.path) - 1 - marks[0])) <= 1
        assert (cut.path[0], cut.path[-1]) == (trace.path[0], trace.path[-1])
    assert cut_path(cut) == cut


def test_a_path_that_was_cut_before_counts_all_that_is_missing() -> None:
    cut = cut_path(long_trace(150))
    longer = replace(cut, path=cut.path + long_trace(150).path)
    again = cut_path(longer)
    mark = next(hop for hop in again.path if hop.agent == CUT)
    assert int(mark.skill) + len(again.path) - 1 == 300


def test_w3c_context_is_read_and_handed_on() -> None:
    headers = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
        "baggage": "user=J%C3%B6rg;secret=1, broken ,=x,tenant = a",
    }
    trace = parse_trace_headers(headers)
    assert trace is not None
    assert trace.id == ""
    assert trace.depth_given
    assert trace.baggage == {"user": "Jörg", "tenant": "a"}
    sent = render_trace_headers(trace)
    assert (sent["traceparent"], sent["tracestate"]) == (headers["traceparent"], "vendor=1")


@pytest.mark.parametrize("bad", ["00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-x", "", 3])
def test_an_invalid_traceparent_is_dropped_with_its_state(bad: Any) -> None:
    trace = parse_trace_meta({"traceparent": bad, "tracestate": "vendor=1"})
    assert trace is not None
    assert (trace.traceparent, trace.tracestate) == (None, None)
