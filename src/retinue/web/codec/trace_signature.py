"""Pure codec of the trace signature: HMAC-SHA256 over the fields that a receiver relies on.

Covered: id, depth, path, via, both budgets, the time of sending, the called agent and the skill, so that the
signature of one message is invalid in another. Not covered: ``traceparent``, ``tracestate`` and ``baggage``,
which no decision depends on and which proxies may rewrite.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from hashlib import sha256

import orjson

from retinue.core.call import TraceContext
from retinue.web.codec.trace import cut_path, is_long

_VERSION = 1
_PLACEHOLDER = "0" * 64


def render_key_id(key: bytes) -> str:
    """A public identifier of a key, which does not reveal the key."""
    return sha256(b"retinue trace key\0" + key).hexdigest()[:12]


def sign_trace(
    trace: TraceContext, agent: str, skill: str, *, key: bytes, kid: str, sent_at_ms: int
) -> TraceContext:
    """Cut and sign a trace for ``agent`` ("" = any agent with the skill) and ``skill``."""
    if is_long(trace.path):
        # the cut depends on the size of the whole detail, including the signature
        trace = cut_path(replace(trace, kid=kid, mac=_PLACEHOLDER, sent_at_ms=sent_at_ms))
    mac = _mac(trace, agent, skill, key, kid, sent_at_ms)
    # not dataclasses.replace: it takes three times as long
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
    """Whether a received trace was signed with this key for this agent and skill."""
    if trace.mac is None or trace.kid is None or trace.sent_at_ms is None:
        return False
    # as bytes: compare_digest accepts only ASCII strings
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
