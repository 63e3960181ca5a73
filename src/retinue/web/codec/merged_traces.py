"""Pure: merges the traces of a message from its HTTP headers and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retinue.core.allowance import narrow
from retinue.core.call import TraceContext, TraceExtension
from retinue.web.codec.trace import (
    DEPTH_KEY,
    DETAIL_KEY,
    ID_KEY,
    parse_raw_trace_headers,
    parse_trace_meta,
    render_ascii,
)

_SAME_IN_BOTH = (
    (b"x-openstarry-trace-id", ID_KEY),
    (b"traceparent", "traceparent"),
    (b"tracestate", "tracestate"),
    (b"baggage", "baggage"),
)
"""The headers whose values ``_meta`` repeats letter by letter."""


def parse_traces(headers: Mapping[bytes, bytes], meta: Mapping[str, Any]) -> TraceContext | None:
    """The trace of a message with one in its headers, one in ``_meta``, or both, as `merge_traces` has it."""
    header = parse_raw_trace_headers(headers)
    if header is not None and _is_repeated(headers, meta):
        return header
    return merge_traces(header, parse_trace_meta(meta))


def _is_repeated(headers: Mapping[bytes, bytes], meta: Mapping[str, Any]) -> bool:
    """Whether ``_meta`` and the headers are equal, in the form of `render_trace_headers` and its twin.

    Processes of the mesh send both; comparing them takes a tenth of the time of reading the second.
    """
    detail, depth = meta.get(DETAIL_KEY), meta.get(DEPTH_KEY)
    if type(detail) is not dict or type(depth) is not int:
        return False
    if headers.get(b"x-openstarry-trace-depth") != b"%d" % depth:
        return False
    if headers.get(b"x-retinue-trace") != render_ascii(detail).encode():
        return False
    for raw, name in _SAME_IN_BOTH:
        value = headers.get(raw)
        if meta.get(name) != (None if value is None else value.decode("latin-1")):
            return False
    return True


def merge_traces(header: TraceContext | None, meta: TraceContext | None) -> TraceContext | None:
    """Merge two claims: metadata wins over headers; the larger depth and the smaller budgets are kept.

    A signature is kept only when the merge changed nothing that it covers.
    """
    if header is None or meta is None or header == meta:
        return meta or header  # a process of the mesh sends the same trace in both places
    merged = replace(
        meta,
        id=meta.id or header.id,
        depth=max(header.depth, meta.depth),
        depth_given=header.depth_given or meta.depth_given,
        path=meta.path or header.path,
        via=meta.via or header.via,
        calls_left=_smaller(meta.calls_left, header.calls_left),
        seconds_left=_smaller(meta.seconds_left, header.seconds_left),
        kid=None,
        mac=None,
        sent_at_ms=None,
        extension=_merge_extensions(header.extension, meta.extension),
    )
    if merged.traceparent is None:
        merged = replace(merged, traceparent=header.traceparent, tracestate=header.tracestate)
    if not merged.baggage:
        merged = replace(merged, baggage=header.baggage)
    signed = next((trace for trace in (meta, header) if trace.mac and _covers_the_same(trace, merged)), None)
    if signed is None:
        return merged
    extension = signed.extension
    return replace(merged, kid=signed.kid, mac=signed.mac, sent_at_ms=signed.sent_at_ms, extension=extension)


def _covers_the_same(trace: TraceContext, other: TraceContext) -> bool:
    return (trace.id, trace.depth, trace.path, trace.via, trace.calls_left, trace.seconds_left) == (
        (other.id, other.depth, other.path, other.via, other.calls_left, other.seconds_left)
    ) and _without_mac(trace.extension) == _without_mac(other.extension)


def _merge_extensions(header: TraceExtension | None, meta: TraceExtension | None) -> TraceExtension | None:
    """Both extensions, with the smaller allowance and without a signature."""
    if header is None or meta is None:
        return _without_mac(meta or header)
    return TraceExtension(narrow(header.allowance, meta.allowance), {**header.others, **meta.others})


def _without_mac(extension: TraceExtension | None) -> TraceExtension | None:
    return None if extension is None else TraceExtension(extension.allowance, extension.others)


def _smaller(first: Any, other: Any) -> Any:
    values = [value for value in (first, other) if value is not None]
    return min(values) if values else None
