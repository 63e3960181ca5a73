"""A trace that comes in headers and in metadata."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given

from retinue.core.allowance import Allowance
from retinue.core.call import Hop, TraceContext, TraceExtension
from retinue.web.codec.merged_traces import merge_traces, parse_traces
from retinue.web.codec.trace import (
    parse_raw_trace_headers,
    parse_trace_meta,
    render_trace_headers,
    render_trace_meta,
)
from tests.strategies import traces


def raw(trace: TraceContext) -> dict[bytes, bytes]:
    return {key.lower().encode(): value.encode() for key, value in render_trace_headers(trace).items()}


def meta_of(trace: TraceContext) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(orjson.dumps(render_trace_meta(trace)))
    return found


@given(traces())
def test_a_trace_that_is_sent_twice_is_read_as_it_was_sent(trace: TraceContext) -> None:
    assert parse_traces(raw(trace), meta_of(trace)) == trace


@given(traces(), traces())
def test_two_traces_are_merged_whatever_they_are(header: TraceContext, meta: TraceContext) -> None:
    merged = merge_traces(parse_raw_trace_headers(raw(header)), parse_trace_meta(meta_of(meta)))
    assert parse_traces(raw(header), meta_of(meta)) == merged


def test_the_smaller_limit_of_the_spending_counts() -> None:
    header = TraceContext("t", extension=TraceExtension(Allowance(100, None), {"x": 1}))
    meta = TraceContext("t", extension=TraceExtension(Allowance(90, 5), {"x": 2}))
    for first, other in ((header, meta), (meta, header)):
        merged = merge_traces(first, other)
        assert merged is not None
        assert merged.allowance == Allowance(90, 5)
    alone = merge_traces(header, TraceContext("t"))
    assert alone is not None
    assert alone.allowance == Allowance(100, None)


SENT = TraceContext("abc", 2, (Hop("a", "s"),), ("hub",), 9, 1.5, baggage={"user": "x"})


@pytest.mark.parametrize(
    "other",
    [
        {"X-OpenStarry-Trace-ID": "other"},
        {"X-OpenStarry-Trace-Depth": 3},
        {"X-OpenStarry-Trace-Depth": "2"},
        {"X-Retinue-Trace": {"via": ["hub"], "calls_left": 4}},
        {"X-Retinue-Trace": None},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"baggage": "user=y"},
    ],
)
def test_one_key_that_differs_is_enough_for_both_to_be_read(other: dict[str, Any]) -> None:
    meta = {**meta_of(SENT), **other}
    merged = merge_traces(SENT, parse_trace_meta(meta))
    assert parse_traces(raw(SENT), meta) == merged


@given(traces(), traces())
def test_metadata_wins_over_headers_and_the_larger_depth_counts(
    header: TraceContext, meta: TraceContext
) -> None:
    merged = merge_traces(header, meta)
    assert merged is not None
    assert merged.id == meta.id
    assert merged.depth == max(header.depth, meta.depth)
    assert merged.path == (meta.path or header.path)
    assert merged.mac in (None, header.mac, meta.mac)


@given(traces())
def test_equal_claims_merge_to_themselves_signature_included(trace: TraceContext) -> None:
    assert merge_traces(trace, trace) == trace
    assert merge_traces(trace, None) == trace
    assert merge_traces(None, trace) == trace


def test_a_merge_that_changes_what_was_signed_drops_the_signature() -> None:
    meta = TraceContext("abc", 1, kid="k", mac="m")
    merged = merge_traces(TraceContext("abc", 3), meta)
    assert merged == TraceContext("abc", 3)


def test_a_depth_given_on_one_side_only_is_given() -> None:
    merged = merge_traces(TraceContext("h", 2), TraceContext("m", 0, depth_given=False))
    assert merged == TraceContext("m", 2)
    assert merge_traces(
        TraceContext("h", 2, calls_left=3), TraceContext("", 0, calls_left=9)
    ) == TraceContext("h", 2, calls_left=3)
    assert merge_traces(None, None) is None
