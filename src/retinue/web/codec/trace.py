"""Pure codec of the trace: headers and ``_meta`` keys ↔ TraceContext (S-13 … S-15; specification 9.2).

Id and depth have the names of the seed, everything else is in ``X-Retinue-Trace``; W3C ``traceparent``,
``tracestate`` and ``baggage`` are read and forwarded. MCP ``_meta``, A2A metadata and performative envelopes
use the same keys.

Values are unverified claims until the guard has checked ``mac`` (`trace_signature`). Invalid values are
dropped, not raised, because a caller must not be rejected for a third party's header. The id ``""`` means
that no valid one was given; the guard then creates one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import orjson

from retinue.core.allowance import Allowance, to_dollars
from retinue.core.call import Hop, TraceContext, TraceExtension
from retinue.core.usage import read_usage

ID_KEY = "X-OpenStarry-Trace-ID"
DEPTH_KEY = "X-OpenStarry-Trace-Depth"
DETAIL_KEY = "X-Retinue-Trace"
CALLS_USED_KEY = "X-Retinue-Calls-Used"
WARNINGS_KEY = "X-Retinue-Warnings"
"""Header of a reply and ``_meta`` key: a JSON list of texts, such as that the agent is deprecated."""

USAGE_KEY = "X-Retinue-Usage"
"""Header of a reply and ``_meta`` key: a JSON object with the tokens and the cost of a model's answer."""

_MAX_WARNINGS = 10
_MAX_WARNING_CHARS = 500
"""In a reply.

The number of further calls that the call caused; absent means 0 in headers, unknown in ``_meta``.
"""

TRACE_KEYS = frozenset(
    {ID_KEY.lower(), DEPTH_KEY.lower(), DETAIL_KEY.lower(), "traceparent", "tracestate", "baggage"}
)
"""Every key of a trace, lower case: a forwarded message carries only those of its sender."""

MAX_DETAIL_BYTES = 4096
"""A longer detail is shortened by cutting hops from the middle of the path.

The depth is kept (specification 9.2).
"""

MAX_OTHERS_BYTES = 1024
"""Fields of the detail that this release does not know are dropped where they are longer together."""

CUT = "…"
"""Agent of the hop that replaces those cut out; its skill is their number."""

_MAX_DEPTH = 999_999_999
_MAX_BUDGET = 10**12
_MAX_HOPS = 256
_MAX_NAME = 256
_MAX_BAGGAGE = 8192
_MAX_MEMBERS = 180

_COVERED = frozenset({"path", "via", "calls_left", "seconds_left", "at", "kid", "mac"})
"""The fields of the detail in the first form of the signature; all others belong to the extension."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DIGITS = re.compile(r"[0-9]+")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_trace_headers(headers: Mapping[str, str]) -> TraceContext | None:
    """Parse the trace from HTTP headers (lower-case names); None when there is none."""
    return _parse(
        headers.get("x-openstarry-trace-id"),
        headers.get("x-openstarry-trace-depth"),
        headers.get("x-retinue-trace"),
        headers,
    )


_HEADERS = {
    name.encode(): name
    for name in (
        "x-openstarry-trace-id",
        "x-openstarry-trace-depth",
        "x-retinue-trace",
        "traceparent",
        "tracestate",
        "baggage",
    )
}


def parse_raw_trace_headers(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """As `parse_trace_headers`, of headers as a server received them."""
    if headers.keys().isdisjoint(_HEADERS):
        return None
    return parse_trace_headers(
        {name: headers[raw].decode("latin-1") for raw, name in _HEADERS.items() if raw in headers}
    )


def parse_trace_meta(meta: Mapping[str, Any]) -> TraceContext | None:
    """Parse the trace from ``_meta`` or metadata, names in any case; None when there is none."""
    folded = {key.lower(): value for key, value in meta.items() if isinstance(key, str)}
    return _parse(
        folded.get("x-openstarry-trace-id"),
        folded.get("x-openstarry-trace-depth"),
        folded.get("x-retinue-trace"),
        folded,
    )


def render_trace_headers(trace: TraceContext) -> dict[str, str]:
    """Render the trace as HTTP headers, ASCII only."""
    headers = _render_common(trace)
    detail = render_detail(trace)
    if detail:
        headers[DETAIL_KEY] = detail
    if trace.depth_given:
        headers[DEPTH_KEY] = str(trace.depth)
    return headers


def render_trace_meta(trace: TraceContext) -> dict[str, Any]:
    """Render the trace as ``_meta`` keys: depth as a number, the detail as an object."""
    meta: dict[str, Any] = dict(_render_common(trace))
    detail = _detail(cut_path(trace))
    if detail:
        meta[DETAIL_KEY] = detail
    if trace.depth_given:
        meta[DEPTH_KEY] = trace.depth
    return meta


def render_detail(trace: TraceContext) -> str:
    """The value of ``X-Retinue-Trace``: compact ASCII JSON, ``""`` when the trace has no detail."""
    detail = _detail(cut_path(trace))
    return render_ascii(detail) if detail else ""


def cut_path(trace: TraceContext) -> TraceContext:
    """Shorten the path to fit ``MAX_DETAIL_BYTES``: hops in its middle are replaced by one marker hop.

    A trace is cut before it is signed, so that the signature covers what is sent.
    """
    if not is_long(trace.path):
        return trace
    spare = MAX_DETAIL_BYTES - len(render_ascii(_detail(replace(trace, path=())))) - len('"path":[],')
    if sum(map(_size, trace.path)) <= spare:
        return trace
    before = [hop for hop in trace.path if hop.agent != CUT]
    after = [before.pop() for _ in range(len(before) // 2)][::-1]
    cut = sum(int(hop.skill) for hop in trace.path if hop.agent == CUT and hop.skill.isdecimal())
    size = sum(map(_size, before)) + sum(map(_size, after))
    while (before or after) and size + _size(Hop(CUT, str(cut))) > spare:
        size -= _size(before.pop() if len(before) > len(after) else after.pop(0))
        cut += 1
    return replace(trace, path=(*before, Hop(CUT, str(cut)), *after))


def is_long(path: tuple[Hop, ...]) -> bool:
    """Cheap upper-bound check whether a path may need cutting."""
    # six bytes per character is the longest escape
    return bool(path) and 6 * sum(len(hop.agent) + len(hop.skill) + 2 for hop in path) >= 2048


def _parse(trace_id: Any, depth: Any, detail: Any, around: Mapping[str, Any]) -> TraceContext | None:
    traceparent = around.get("traceparent")
    baggage = around.get("baggage")
    if trace_id is None and depth is None and detail is None and traceparent is None and baggage is None:
        return None
    usable = trace_id if isinstance(trace_id, str) and _ID.fullmatch(trace_id) else ""
    hops = _parse_depth(depth)
    facts = _parse_detail(detail)
    kid, mac, sent_at_ms = _parse_signature(facts)
    carried = isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent) is not None
    tracestate = around.get("tracestate") if carried else None
    return TraceContext(
        id=usable,
        depth=hops or 0,
        # A message without a valid id starts a trace: its depth is 0, and known.
        depth_given=hops is not None or not usable,
        path=_parse_path(facts.get("path")),
        via=_parse_via(facts.get("via")),
        calls_left=_parse_calls(facts.get("calls_left")),
        seconds_left=_parse_seconds(facts.get("seconds_left")),
        traceparent=traceparent if carried else None,
        tracestate=tracestate if isinstance(tracestate, str) and _TRACESTATE.fullmatch(tracestate) else None,
        baggage=_parse_baggage(baggage),
        kid=kid,
        mac=mac,
        sent_at_ms=sent_at_ms,
        extension=None if facts.keys() <= _COVERED else _parse_extension(facts),
    )


def parse_calls_used(value: Any) -> int:
    """Parse ``X-Retinue-Calls-Used``, a string or a number; 0 when it is absent or invalid."""
    if isinstance(value, str):
        value = (
            int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(_MAX_BUDGET)) else 0
        )
    return _parse_calls(value) or 0


def find_calls_used(meta: Any) -> int | None:
    """The number of calls used in the ``_meta`` of a result; None when absent."""
    value = meta.get(CALLS_USED_KEY) if isinstance(meta, Mapping) else None
    return None if value is None else parse_calls_used(value)


def _parse_depth(value: Any) -> int | None:
    if isinstance(value, str):
        digits = value.strip()
        if not digits.isascii() or not _DIGITS.fullmatch(digits):
            return None
        # A longer number counts as the maximum; int() would raise for thousands of digits.
        return min(int(digits), _MAX_DEPTH) if len(digits) <= len(str(_MAX_DEPTH)) else _MAX_DEPTH
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, _MAX_DEPTH)
    return None


def _parse_detail(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and len(value) <= 4 * MAX_DETAIL_BYTES:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def _parse_path(value: Any) -> tuple[Hop, ...]:
    if not isinstance(value, list) or len(value) > _MAX_HOPS:
        return ()
    hops = tuple(
        Hop(pair[0], pair[1])
        for pair in value
        if isinstance(pair, list) and len(pair) == 2 and all(_short_text(name) is not None for name in pair)
    )
    return hops if len(hops) == len(value) else ()


def _parse_via(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_HOPS:
        return ()
    return tuple(hub for hub in value if _short_text(hub))


def _parse_calls(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(max(value, 0), _MAX_BUDGET)


def _parse_seconds(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        return None
    return float(min(max(value, 0), _MAX_BUDGET))


def _parse_extension(facts: Mapping[str, Any]) -> TraceExtension:
    """The fields beyond the first form; fields that were dropped make its signature invalid."""
    others = {key: value for key, value in facts.items() if key not in _COVERED}
    mac = _short_text(others.pop("mac2", None))
    tokens, dollars = _parse_calls(others.pop("tokens_left", None)), others.pop("dollars_left", None)
    allowance = Allowance.of(tokens, _parse_seconds(dollars))
    if others and not _is_short(others):
        others = {}
    return TraceExtension(allowance, others, mac)


def _is_short(others: Mapping[str, Any]) -> bool:
    try:
        return len(orjson.dumps(others)) <= MAX_OTHERS_BYTES
    except (orjson.JSONEncodeError, RecursionError):  # an integer beyond 64 bits
        return False


def _parse_signature(facts: Mapping[str, Any]) -> tuple[str | None, str | None, int | None]:
    """Key id, signature and time of sending: all three or none."""
    kid, mac, at = _short_text(facts.get("kid")), _short_text(facts.get("mac")), facts.get("at")
    if not kid or not mac or not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < 2**53:
        return None, None, None
    return kid, mac, at


def _parse_baggage(value: Any) -> dict[str, str]:
    if not isinstance(value, str) or len(value) > _MAX_BAGGAGE:
        return {}
    members: dict[str, str] = {}
    for member in value.split(",")[:_MAX_MEMBERS]:
        key, equals, rest = member.partition("=")
        if equals and _TOKEN.fullmatch(key.strip()):
            members[key.strip()] = unquote(rest.partition(";")[0].strip())
    return members


def _short_text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MAX_NAME else None


def _render_common(trace: TraceContext) -> dict[str, str]:
    common: dict[str, str] = {}
    if trace.id:
        common[ID_KEY] = trace.id
    if trace.traceparent:
        common["traceparent"] = trace.traceparent
        if trace.tracestate:
            common["tracestate"] = trace.tracestate
    if trace.baggage:
        common["baggage"] = ",".join(f"{key}={quote(value, safe='')}" for key, value in trace.baggage.items())
    return common


def _detail(trace: TraceContext) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    if trace.path:
        detail["path"] = _pairs(trace.path)
    if trace.via:
        detail["via"] = list(trace.via)
    if trace.calls_left is not None:
        detail["calls_left"] = trace.calls_left
    if trace.seconds_left is not None:
        detail["seconds_left"] = trace.seconds_left
    if trace.kid and trace.mac and trace.sent_at_ms is not None:
        detail["at"] = trace.sent_at_ms
        detail["kid"] = trace.kid
        detail["mac"] = trace.mac
    if trace.extension is not None:
        detail |= render_extension(trace.extension)
        if trace.extension.mac and "mac" in detail:
            detail["mac2"] = trace.extension.mac
    return detail


def render_extension(extension: TraceExtension) -> dict[str, Any]:
    """The fields of an extension as the detail has them, without its signature."""
    fields = dict(extension.others)
    allowance = extension.allowance
    if allowance is not None and allowance.tokens is not None:
        fields["tokens_left"] = max(allowance.tokens, 0)
    if allowance is not None and allowance.microdollars is not None:
        fields["dollars_left"] = to_dollars(max(allowance.microdollars, 0))
    return fields


def _size(hop: Hop) -> int:
    """Bytes of one hop in the detail, with its comma."""
    return len(render_ascii([hop.agent, hop.skill])) + 1


def _pairs(path: tuple[Hop, ...]) -> list[list[str]]:
    return [[hop.agent, hop.skill] for hop in path]


def render_ascii(value: Any) -> str:
    """Compact JSON in ASCII, as a header carries it."""
    text = orjson.dumps(value).decode()
    if not text.isascii():
        text = json.dumps(value, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f")


def render_warnings(warnings: Sequence[str]) -> str:
    """The warnings as a header value: a JSON list in ASCII, shortened to the limit of a header."""
    return json.dumps([warning[:_MAX_WARNING_CHARS] for warning in warnings[:_MAX_WARNINGS]])


def parse_warnings(header: str | None) -> tuple[str, ...]:
    """The warnings of a reply; () where there are none or the header is malformed."""
    if header is None:
        return ()
    try:
        listed = json.loads(header)
    except ValueError:
        return ()
    return (
        tuple(warning for warning in listed if isinstance(warning, str)) if isinstance(listed, list) else ()
    )


def render_usage(usage: Mapping[str, Any]) -> str:
    """The usage of a call as a header value: a JSON object in ASCII."""
    return json.dumps(read_usage(usage))


def parse_usage(header: str | None) -> Mapping[str, Any] | None:
    """The usage in a reply's header; None where there is none or it is malformed."""
    if header is None:
        return None
    try:
        return read_usage(json.loads(header))
    except (ValueError, RecursionError):
        return None
