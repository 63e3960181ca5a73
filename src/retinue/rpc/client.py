"""Calls other processes of the mesh over ``POST /execute``: an agent or a hub.

The body has exactly the four keys of seed 001 (P-07); trace, idempotency key and token are headers. An
error of the reply is raised as the agent sent it: code, message and data.

The url of an agent comes from its card, which anybody may have published in a foreign registry. So a token
is sent only to agents of the source that it is for, and the token of the state never to another machine.
With the token go the caller and its scopes (``web.codec.peer_requests``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from retinue.core.call import Answer, Call, Outcome, Part, Status, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    GuardError,
    InvalidParametersError,
    InvalidRequestError,
    NotAuthenticatedError,
    OutOfMemoryError,
    ParseError,
    Problem,
    RemoteFaultError,
    RetinueError,
)
from retinue.core.json_values import find_nonfinite, find_unencodable
from retinue.core.parts import read_parts
from retinue.core.quick_dataclass import quick_dataclass
from retinue.core.record import Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.guard.trace_guard import AdmittedCall, OutgoingCall, TraceSigner
from retinue.mesh.permissions import is_exposed_here
from retinue.web.addresses import is_loopback_url
from retinue.web.codec.jsonrpc import (
    ErrorReply,
    ResultReply,
    find_guard_error,
    parse_response,
    render_request,
)
from retinue.web.codec.peer_requests import check_not_refused, is_lost, lost, render_rights
from retinue.web.codec.trace import (
    CALLS_USED_KEY,
    USAGE_KEY,
    WARNINGS_KEY,
    parse_calls_used,
    parse_usage,
    parse_warnings,
    render_trace_headers,
)
from retinue.web.transport import HttpRequester, HttpResponse, ResponseTooLargeError, TransportError

_UNBOUNDED_S = 3600.0
"""Time-out of requests without a deadline; the dispatcher limits them."""


_NO_SUCH_METHOD = -32601

_CARD_TIMEOUT_S = 2.0


class PeerInvoker:
    """Runs skills of agents elsewhere; ``signer`` signs the trace that goes with each call.

    ``token_for`` gives the token for an agent of a source at a URL, None for none.
    """

    def __init__(
        self,
        http: HttpRequester,
        *,
        signer: TraceSigner | None = None,
        token_for: Callable[[str, str], str | None] = lambda source, url: None,
    ) -> None:
        self._http = http
        self._signer = signer
        self._token_for = token_for

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One request to the agent's ``/execute``; the dispatcher enforces the time limit."""
        name, url = listing.record.name, listing.record.url
        if url is None:
            raise AgentUnreachableError(name, "(no url)", "its card names no url")
        if is_exposed_here(skill):
            # Exposed by this hub and not by the agent, so it is called with the mesh scope.
            principal = replace(call.principal, scopes=call.principal.scopes | {"mesh"})
            call = replace(call, principal=principal)
        with admitted.forward() as outgoing:
            try:
                try:
                    return await self._ask(listing, url, skill, call, outgoing, channel)
                except AgentUnreachableError as error:
                    if not error.is_token_stale:
                        raise
                    # One of the two clocks was set since the token was made: the next one fits.
                    return await self._ask(listing, url, skill, call, outgoing, channel)
            except (RemoteFaultError, NotAuthenticatedError) as error:
                # Such an answer may come from another agent that has taken the port of one that is gone.
                is_suspect = not isinstance(error, RemoteFaultError) or error.code == _NO_SUCH_METHOD
                if is_suspect and (other := await _find_other(self._http, name, url)):
                    cause = f"another agent answers there: {other}"
                    raise AgentUnreachableError(name, url, cause) from error
                raise

    async def _ask(
        self, listing: Listing, url: str, skill: Skill, call: Call, outgoing: OutgoingCall, channel: Channel
    ) -> Answer:
        name = listing.record.name
        target = CallTarget(name, url, name, skill.id, self._token_for(listing.source, url))
        notes = ReplyNotes()
        value = await execute(self._http, target, call, outgoing, self._signer, notes, channel)
        return Answer(value, notes.parts, warnings=notes.warnings, usage=notes.usage)


async def _find_other(http: HttpRequester, name: str, url: str) -> str | None:
    """The name of another agent whose card is served at the url; None where there is none."""
    # imported here, because a client command never needs the codec of cards
    from retinue.cards.pallet_card import parse_card

    try:
        reply = await http.request("GET", f"{url.rstrip('/')}/agent-card", timeout_s=_CARD_TIMEOUT_S)
        shown = parse_card(reply.body, reference=url).name if reply.status == 200 else name
    except (TransportError, RetinueError):
        return None
    return shown if shown != name else None


class HubCalls:
    """The mesh behind a hub: every call goes to the hub's ``/execute``, which finds the agent.

    ``token`` is that of this machine's state, which means nothing to a hub elsewhere; ``joined`` the one
    that this very hub gave out for this machine.
    """

    def __init__(
        self,
        http: HttpRequester,
        url: str,
        *,
        token: str | None = None,
        joined: str | None = None,
        signer: TraceSigner | None = None,
    ) -> None:
        self._http = http
        self._url = url
        self._signer = signer
        self.token = joined or (token if is_loopback_url(url) else None)

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """The outcome as the hub reports it; ``agent`` is None where only the hub knows it."""
        base = self._url.rstrip("/")
        url = base if call.agent is None else f"{base}/agents/{quote(call.agent, safe='')}"
        target = CallTarget("hub", url, call.agent or "", call.skill, self.token)
        outgoing = OutgoingCall(call.trace)
        notes = ReplyNotes()
        began = time.perf_counter()
        try:
            value = await execute(self._http, target, call, outgoing, self._signer, notes, channel)
        except RetinueError as error:
            status: Status = "refused" if isinstance(error, GuardError) else "failed"
            return Outcome(
                call.id,
                call.skill,
                status,
                agent=call.agent,
                duration_ms=(time.perf_counter() - began) * 1000,
                usage=outgoing.usage or None,
                error=error,
                calls_used=outgoing.used,
            )
        return Outcome(
            call.id,
            call.skill,
            "done",
            agent=call.agent,
            value=value,
            parts=notes.parts,
            duration_ms=(time.perf_counter() - began) * 1000,
            usage=notes.usage,
            warnings=notes.warnings,
            calls_used=outgoing.used,
        )


@quick_dataclass(frozen=True, slots=True)
class CallTarget:
    """The target of a request; ``name`` is used in error texts."""

    name: str
    url: str
    agent: str
    skill: str
    token: str | None = None


@dataclass(slots=True)
class ReplyNotes:
    """The facts of a reply besides its result, and the content parts that belong to the result."""

    warnings: tuple[str, ...] = ()
    usage: Mapping[str, Any] | None = None
    parts: tuple[Part, ...] = ()


async def execute(
    http: HttpRequester,
    target: CallTarget,
    call: Call,
    outgoing: OutgoingCall,
    signer: TraceSigner | None = None,
    notes: ReplyNotes | None = None,
    channel: Channel | None = None,
) -> Any:
    """Send one ``POST {url}/execute`` and return the result.

    A ``channel`` whose caller receives progress gets the reports of the skill while it runs.
    The usage that the reply reports is recorded in ``outgoing``, its warnings and its usage in ``notes``.
    Raises RemoteFaultError, AgentUnreachableError, NotAuthenticatedError, InvalidParametersError, and the
    GuardError of a process further down the chain.
    """
    timeout_s = _UNBOUNDED_S
    trace = outgoing.trace
    if call.deadline is not None:
        timeout_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
        trace = replace(trace, seconds_left=round(timeout_s, 3))
    if signer is not None:
        trace = signer.sign(trace, target.agent, target.skill)
    try:
        body = render_request(target.skill, call.arguments)
    except TypeError as error:
        outgoing.record_usage(0)
        problem = find_unencodable(call.arguments) or Problem("", f"the arguments are not JSON: {error}")
        raise InvalidParametersError([problem]) from error
    # orjson writes NaN and infinity as null
    if b"null" in body and (nonfinite := find_nonfinite(call.arguments)) is not None:
        outgoing.record_usage(0)
        raise InvalidParametersError([nonfinite])
    request: Any = partial(http.request, "POST")
    if channel is not None and "progress" in channel.capabilities:
        # imported here, because a client command never needs it
        from retinue.rpc.streaming import request_stream

        request = partial(request_stream, http, channel=channel)
    try:
        reply: HttpResponse = await request(
            f"{target.url.rstrip('/')}/execute",
            headers=_headers_of(call, trace, target.token),
            body=body,
            timeout_s=timeout_s,
            what=call.skill,
            layer="caller",
            setting="the call's timeout",
        )
    except ResponseTooLargeError as error:
        raise RemoteFaultError(target.name, -32603, f"agent {target.name}: {error.cause}") from error
    except TransportError as error:
        if not error.sent:
            outgoing.record_usage(0)
        raise AgentUnreachableError(target.name, target.url, error.cause, sent=error.sent) from error
    usage = parse_usage(reply.headers.get(USAGE_KEY))
    if reply.status < 400 or not is_lost(reply.status):
        used = parse_calls_used(reply.headers.get(CALLS_USED_KEY))
        usage = outgoing.record_reply(used, usage, trace, signer)
    if notes is not None:
        notes.warnings = parse_warnings(reply.headers.get(WARNINGS_KEY))
        notes.usage = usage
    result = _read_reply(reply, target)
    if notes is not None and result.parts is not None:
        notes.parts = read_parts(result.value, result.parts)
    return result.value


def _headers_of(call: Call, trace: TraceContext, token: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json", **render_trace_headers(trace)}
    if call.idempotency_key is not None:
        headers["idempotency-key"] = call.idempotency_key
    if call.version_range is not None:
        headers["x-retinue-version"] = call.version_range
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
        # The token is this process's own; the caller may have fewer scopes.
        headers |= render_rights(call.principal)
    return headers


def _read_reply(reply: HttpResponse, target: CallTarget) -> ResultReply:
    if reply.status >= 400:
        check_not_refused(target.name, target.url, reply.status, reply.headers)
    try:
        found = parse_response(reply.body)
    except OutOfMemoryError as error:
        problem = f"no memory here to read its reply of {len(reply.body):,} bytes"
        raise AgentUnreachableError(target.name, target.url, problem, sent=True) from error
    except (ParseError, InvalidRequestError) as error:
        if is_lost(reply.status):
            raise lost(target.name, target.url, reply.status, reply.body) from error
        raise RemoteFaultError(
            target.name,
            -32603,
            f"agent {target.name} answered {reply.status} with no JSON-RPC reply: {error.message}",
        ) from error
    if isinstance(found, ErrorReply):
        refusal = find_guard_error(found.code, found.message, found.data)
        raise refusal or RemoteFaultError(target.name, found.code, found.message, found.data)
    return found
