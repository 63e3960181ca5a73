"""Calls agents of a KOI network: ``POST <mcp_url>/tools/call/<trait>``.

An agent of a Retinue mesh names its ``/execute`` in its personality, and is called there, with everything
that the mesh carries; any other agent has the REST route of seed 003 only. The trace goes with both.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson

from retinue.cards.personality_profile import KOI
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError, InvalidParametersError, Problem, RemoteFaultError
from retinue.core.record import Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Invoker
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceSigner
from retinue.web.codec.jsonrpc import find_guard_error
from retinue.web.codec.peer_requests import check_not_refused, is_lost, lost
from retinue.web.codec.trace import (
    CALLS_USED_KEY,
    USAGE_KEY,
    parse_calls_used,
    parse_usage,
    render_trace_headers,
)
from retinue.web.transport import HttpRequester, ResponseTooLargeError, TransportError, UrlRefusedError

_UNBOUNDED_S = 3600.0
_NO_SUCH_TOOL = -32601
_INVALID = -32602
_FAILED = -32603


class TraitInvoker:
    """Calls a trait where its agent answers; ``peers`` calls agents that have an ``/execute``."""

    def __init__(self, http: HttpRequester, peers: Invoker, *, signer: TraceSigner | None = None) -> None:
        self._http = http
        self._peers = peers
        self._signer = signer

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt, as `Invoker`."""
        if listing.record.url is not None:
            return await self._peers.invoke(listing, skill, call, admitted, channel)
        name = listing.record.name
        base = next((endpoint.url for endpoint in listing.record.endpoints if endpoint.protocol == KOI), None)
        if base is None:
            raise AgentUnreachableError(name, "(no url)", "its personality names no mcp_url")
        try:
            body = orjson.dumps(call.arguments)
        except TypeError as error:
            raise InvalidParametersError([Problem("", f"the arguments are not JSON: {error}")]) from error
        with admitted.forward() as outgoing:
            timeout_s = _UNBOUNDED_S
            trace = outgoing.trace
            if call.deadline is not None:
                timeout_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
                trace = replace(trace, seconds_left=round(timeout_s, 3))
            if self._signer is not None:
                trace = self._signer.sign(trace, name, skill.id)
            try:
                reply = await self._http.request(
                    "POST",
                    f"{base.rstrip('/')}/tools/call/{quote(skill.id, safe='/:')}",
                    headers={"content-type": "application/json", **render_trace_headers(trace)},
                    body=body,
                    timeout_s=timeout_s,
                    what=skill.id,
                    layer="caller",
                    setting="the call's timeout",
                )
            except ResponseTooLargeError as error:
                raise RemoteFaultError(name, _FAILED, f"agent {name}: {error.cause}") from error
            except UrlRefusedError as error:
                outgoing.record_usage(0)
                raise AgentUnreachableError(name, base, error.cause) from error
            except TransportError as error:
                if not error.sent:
                    outgoing.record_usage(0)
                raise AgentUnreachableError(name, base, error.cause, sent=error.sent) from error
            usage = parse_usage(reply.headers.get(USAGE_KEY))
            if not is_lost(reply.status):
                used = parse_calls_used(reply.headers.get(CALLS_USED_KEY))
                usage = outgoing.record_reply(used, usage, trace, self._signer)
            return Answer(value=read_reply(name, base, reply.status, reply.body), usage=usage)


def read_reply(name: str, url: str, status: int, body: bytes) -> Any:
    """The result of a reply.

    Raises RemoteFaultError with the agent's own words, the GuardError that it passes on,
    NotAuthenticatedError, and AgentUnreachableError for the reply of a proxy.
    """
    check_not_refused(name, url, status, {})  # no token goes there, so the clock does not matter
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if status == 200 and isinstance(value, dict) and "result" in value:
        return value["result"]
    detail = value.get("detail") if isinstance(value, dict) else None
    if detail is None:
        if is_lost(status):
            raise lost(name, url, status, body)
        raise RemoteFaultError(name, _FAILED, f"agent {name} answered {status} without a result or a detail")
    # FastAPI gives a list of problems for what it cannot validate
    message = detail if isinstance(detail, str) else orjson.dumps(detail).decode()
    code, data = value.get("code"), value.get("data")
    if not isinstance(code, int):
        code = {404: _NO_SUCH_TOOL, 400: _NO_SUCH_TOOL, 422: _INVALID}.get(status, _FAILED)
    raise find_guard_error(code, message, data) or RemoteFaultError(name, code, message, data)
