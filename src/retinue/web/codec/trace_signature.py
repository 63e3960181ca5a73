"""Pure codec of the trace signature: HMAC-SHA256 over the fields that a receiver relies on.

``mac`` covers id, depth, path, via, calls and seconds left, the time of sending, the called agent and the
skill, so that the signature of one message is invalid in another. ``mac2`` covers ``mac`` and all other
fields of the detail, also those of a newer release. A process that knows ``mac`` only verifies that. Not
covered: ``traceparent``, ``tracestate`` and ``baggage``, which no decision depends on and which proxies may
rewrite.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from retinue.core.call import TraceContext, TraceExtension
from retinue.web.codec.trace import cut_path, is_long, render_extension

_VERSION = 1
_EXTENSION_VERSION = 2
_USAGE_VERSION = 3
_PLACEHOLDER = "0" * 64


def render_key_id(key: bytes) -> str:
    """A public identifier of a key, which does not reveal the key."""
    return sha256(b"retinue trace key\0" + key).hexdigest()[:12]


def sign_trace(
    trace: TraceContext, agent: str, skill: str, *, key: bytes, kid: str, sent_at_ms: int
) -> TraceContext:
    """Cut and sign a trace for ``agent`` ("" = any agent with the skill) and ``skill``."""
    extension = trace.extension
    if is_long(trace.path):
        # the cut depends on the size of the whole detail, including the signatures
        if extension is not None:
            trace = replace(trace, extension=_with_mac(extension, _PLACEHOLDER))
        trace = cut_path(replace(trace, kid=kid, mac=_PLACEHOLDER, sent_at_ms=sent_at_ms))
    mac = _mac(trace, agent, skill, key, kid, sent_at_ms)
    if extension is not None:
        extension = _with_mac(extension, _extension_mac(extension, mac, key))
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
        extension=extension,
    )


def is_signed(trace: TraceContext, agent: str, skill: str, *, key: bytes) -> bool:
    """Whether a received trace was signed with this key for this agent and skill."""
    if trace.mac is None or trace.kid is None or trace.sent_at_ms is None:
        return False
    # as bytes: compare_digest accepts only ASCII strings
    expected = _mac(trace, agent, skill, key, trace.kid, trace.sent_at_ms)
    if not hmac.compare_digest(expected.encode(), trace.mac.encode()):
        return False
    extension = trace.extension
    if extension is None:
        return True
    expected = _extension_mac(extension, trace.mac, key)
    return hmac.compare_digest(expected.encode(), (extension.mac or "").encode())


def sign_usage(usage: Mapping[str, Any], request_mac: str, key: bytes) -> str:
    """The signature of the usage in the reply to a request that was signed with ``request_mac``."""
    covered = [_USAGE_VERSION, request_mac, usage]
    return hmac.digest(key, orjson.dumps(covered, option=orjson.OPT_SORT_KEYS), "sha256").hex()


def _with_mac(extension: TraceExtension, mac: str) -> TraceExtension:
    return TraceExtension(extension.allowance, extension.others, mac)


def _extension_mac(extension: TraceExtension, mac: str, key: bytes) -> str:
    covered = [_EXTENSION_VERSION, mac, render_extension(extension)]
    return hmac.digest(key, orjson.dumps(covered, option=orjson.OPT_SORT_KEYS), "sha256").hex()


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
