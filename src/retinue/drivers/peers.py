"""Calls to other processes of the mesh over ``POST /execute``: to an agent, or to a hub.

The body holds exactly the four keys of seed 001 (P-07); trace, idempotency key and token travel as
headers. A reply's error comes back as the agent sent it: code, message and data.

An agent's url comes from its card, and into a registry of others anybody may publish one: a token goes
only to agents of the source that it was given for, and the state's own to nobody on another machine.
Beside the token stands for whom the call is made (``protocols.rights``).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from retinue.core.call import Answer, Call, Outcome, Status, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    GuardError,
    InvalidParametersError,
    InvalidRequestError,
    NotAuthenticatedError,
    ParseError,
    Problem,
    RemoteFaultError,
    RetinueError,
)
from retinue.core.record import Listing, Skill
from retinue.drivers.http import HttpClient, HttpResponse, ResponseTooLargeError, TransportError
from retinue.drivers.peer_faults import check_not_refused, is_lost, lost
from retinue.mesh.channel import Channel
from retinue.mesh.guards import Departure, Passage, Signer
from retinue.mesh.lifting import is_lifted
from retinue.protocols.jsonrpc import Fault, find_refusal, parse_response, render_request
from retinue.protocols.pallet_card import parse_card
from retinue.protocols.rights import render_rights
from retinue.protocols.trace import CALLS_USED_KEY, parse_calls_used, render_trace_headers

_UNBOUNDED_S = 3600.0
"""For calls without a deadline, whose time the dispatcher bounds."""

_NO_SUCH_METHOD = -32601
_CARD_TIMEOUT_S = 2.0


class PeerInvoker:
    """Runs skills of agents elsewhere; ``signer`` vouches for the trace that goes with each call.

    ``tokens`` are by source: one is sent to the agents of that source and to no others, nor beyond this
    machine. To agents of the sources ``mesh`` goes what ``bearer`` makes for their url, on any machine.
    """

    def __init__(
        self,
        http: HttpClient,
        *,
        signer: Signer | None = None,
        tokens: Mapping[str, str] | None = None,
        mesh: Collection[str] = (),
        bearer: Callable[[str], str] | None = None,
    ) -> None:
        self._http = http
        self._signer = signer
        self._tokens = dict(tokens or {})
        self._mesh = frozenset(mesh)
        self._bearer = bearer

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        """One request to the agent's ``/execute``; the dispatcher holds the time limit."""
        name, url = listing.record.name, listing.record.url
        if url is None:
            raise AgentUnreachableError(name, "(no url)", "its card names no url")
        if is_lifted(skill):
            # exposed by this hub and not by the agent, so it is called by the right of the mesh
            principal = replace(call.principal, scopes=call.principal.scopes | {"mesh"})
            call = replace(call, principal=principal)
        target = Target(name, url, name, skill.id, self.token_for(listing.source, url))
        with passage.forward() as departure:
            try:
                return Answer(value=await execute(self._http, target, call, departure, self._signer))
            except (RemoteFaultError, NotAuthenticatedError) as error:
                # as of somebody else at the port of an agent that is gone
                is_strange = not isinstance(error, RemoteFaultError) or error.code == _NO_SUCH_METHOD
                if is_strange and (other := await _find_other(self._http, name, url)):
                    cause = f"another agent answers there: {other}"
                    raise AgentUnreachableError(name, url, cause) from error
                raise

    def token_for(self, source: str, url: str) -> str | None:
        """What to send to an agent of ``source`` at ``url``."""
        if self._bearer is not None and source in self._mesh:
            return self._bearer(url)
        return self._tokens.get(source) if is_loopback(url) else None


async def _find_other(http: HttpClient, name: str, url: str) -> str | None:
    """Whose card is shown at the url, when it is not that of ``name``: its port may have a new owner."""
    try:
        reply = await http.request("GET", f"{url.rstrip('/')}/agent-card", timeout_s=_CARD_TIMEOUT_S)
        shown = parse_card(reply.body, reference=url).name if reply.status == 200 else name
    except (TransportError, RetinueError):
        return None
    return shown if shown != name else None


class HubCalls:
    """The mesh behind a hub: every call goes to its ``/execute``, which finds the agent.

    ``token`` is that of this machine's state, which means nothing to a hub elsewhere; ``joined`` the one
    that this very hub gave out for this machine.
    """

    def __init__(
        self,
        http: HttpClient,
        url: str,
        *,
        token: str | None = None,
        joined: str | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._http = http
        self._url = url
        self._signer = signer
        self._token = joined or (token if is_loopback(url) else None)

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """The outcome as the hub tells it; ``agent`` stays None where only the hub knows it."""
        base = self._url.rstrip("/")
        url = base if call.agent is None else f"{base}/agents/{quote(call.agent, safe='')}"
        target = Target("hub", url, call.agent or "", call.skill, self._token)
        departure = Departure(call.trace)
        try:
            value = await execute(self._http, target, call, departure, self._signer)
        except RetinueError as error:
            status: Status = "refused" if isinstance(error, GuardError) else "failed"
            return Outcome(
                call.id, call.skill, status, agent=call.agent, error=error, calls_used=departure.used
            )
        return Outcome(call.id, call.skill, "done", agent=call.agent, value=value, calls_used=departure.used)


def is_loopback(url: str) -> bool:
    """Whether the url names this machine by a loopback address or as ``localhost``."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call goes: ``name`` for messages, and what is asked of whom behind ``url``."""

    name: str
    url: str
    agent: str
    skill: str
    token: str | None = None


async def execute(
    http: HttpClient, target: Target, call: Call, departure: Departure, signer: Signer | None = None
) -> Any:
    """One ``POST {url}/execute``; returns the result, raises RemoteFaultError, AgentUnreachableError …

    ``departure`` is told what the call has used. A refusal of the guard further on comes back as what
    it is (GuardError).
    """
    timeout_s = _UNBOUNDED_S
    trace = departure.trace
    if call.deadline is not None:
        timeout_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
        trace = replace(trace, seconds_left=round(timeout_s, 3))
    if signer is not None:
        trace = signer.sign(trace, target.agent, target.skill)
    try:
        body = render_request(target.skill, call.arguments)
    except TypeError as error:
        departure.told(0)
        raise InvalidParametersError([Problem("", f"the arguments are no JSON: {error}")]) from error
    try:
        reply = await http.request(
            "POST",
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
            departure.told(0)
        raise AgentUnreachableError(target.name, target.url, error.cause, sent=error.sent) from error
    if not is_lost(reply.status):
        departure.told(parse_calls_used(reply.headers.get(CALLS_USED_KEY)))
    return _read_reply(reply, target)


def _headers_of(call: Call, trace: TraceContext, token: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json", **render_trace_headers(trace)}
    if call.idempotency_key is not None:
        headers["idempotency-key"] = call.idempotency_key
    if call.version_range is not None:
        headers["x-retinue-version"] = call.version_range
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
        # the token is this process's own; its caller is another, and may have fewer rights
        headers |= render_rights(call.principal)
    return headers


def _read_reply(reply: HttpResponse, target: Target) -> Any:
    check_not_refused(target.name, reply.status)
    try:
        found = parse_response(reply.body)
    except (ParseError, InvalidRequestError) as error:
        if is_lost(reply.status):
            raise lost(target.name, target.url, reply.status) from error
        raise RemoteFaultError(
            target.name,
            -32603,
            f"agent {target.name} answered {reply.status} with no JSON-RPC reply: {error.message}",
        ) from error
    if isinstance(found, Fault):
        refusal = find_refusal(found.code, found.message, found.data)
        raise refusal or RemoteFaultError(target.name, found.code, found.message, found.data)
    return found.value
