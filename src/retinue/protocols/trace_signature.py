"""Pure codec of a trace's signature: HMAC-SHA256 over what a receiver must be able to believe.

Covered: id, depth, path, via, both budgets, the time of sending, and who is called for which skill, so
that a signature taken from one message says nothing in another. Not covered: ``traceparent``,
``tracestate`` and ``baggage``, which decide nothing here and may be rewritten on the way.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from hashlib import sha256

import orjson

from retinue.core.call import TraceContext
from retinue.protocols.trace import cut_path, is_long

_VERSION = 1
_PLACEHOLDER = "0" * 64


def render_key_id(key: bytes) -> str:
    """The name of a key: tells keys apart and nothing about them."""
    return sha256(b"retinue trace key\0" + key).hexdigest()[:12]


def sign_trace(
    trace: TraceContext, agent: str, skill: str, *, key: bytes, kid: str, sent_at_ms: int
) -> TraceContext:
    """The trace as it is sent to ``agent`` ("" = whoever offers it) for ``skill``: path cut, signed."""
    if is_long(trace.path):
        # what is cut depends on the length of everything that travels, the signature included
        trace = cut_path(replace(trace, kid=kid, mac=_PLACEHOLDER, sent_at_ms=sent_at_ms))
    mac = _mac(trace, agent, skill, key, kid, sent_at_ms)
    # every field by name: dataclasses.replace takes three times as long
    return TraceContext(
        id=trace.id,
        depth=trace.depth,
        path=trace.path,
        via=trace.via,
        calls_left=trace.calls_left,
        seconds_left=trace.seconds_left,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        baggage=trace.baggage,
        kid=kid,
        mac=mac,
        trusted=trace.trusted,
        depth_given=trace.depth_given,
        sent_at_ms=sent_at_ms,
    )


def is_signed(trace: TraceContext, agent: str, skill: str, *, key: bytes) -> bool:
    """Whether the trace, as it was received, was signed with this key for this call."""
    if trace.mac is None or trace.kid is None or trace.sent_at_ms is None:
        return False
    # in bytes: two texts are compared in constant time only when they are ASCII
    expected = _mac(trace, agent, skill, key, trace.kid, trace.sent_at_ms)
    return hmac.compare_digest(expected.encode(), trace.mac.encode())


def _mac(trace: TraceContext, agent: str, skill: str, key: bytes, kid: str, sent_at_ms: int) -> str:
    covered = [
        _VERSION,
        kid,
        sent_at_ms,
        agent,
        skill,
        trace.id,
        trace.depth,
        [[hop.agent, hop.skill] for hop in trace.path],
        trace.via,
        trace.calls_left,
        None if trace.seconds_left is None else float(trace.seconds_left),
    ]
    return hmac.digest(key, orjson.dumps(covered), "sha256").hex()
