"""Calls to other processes of the mesh over ``POST /execute``: to an agent, or to a hub.

The body holds exactly the four keys of seed 001 (P-07); trace, idempotency key and token travel as
headers. A reply's error comes back as the agent sent it: code, message and data.

An agent's url comes from its card, and into a registry of others anybody may publish one: a token goes
only to agents of the source that it was given for, and the state's own to no hub on another machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from retinue.core.call import Answer, Call, Outcome, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    InvalidParametersError,
    InvalidRequestError,
    NotAuthenticatedError,
    ParseError,
    Problem,
    RemoteFaultError,
    RetinueError,
)
from retinue.core.record import Listing, Skill
from retinue.drivers.http import HttpClient, ResponseTooLargeError, TransportError
from retinue.mesh.channel import Channel
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.lifting import is_lifted
from retinue.protocols.jsonrpc import Fault, parse_response, render_request
from retinue.protocols.trace import render_trace_headers

_UNBOUNDED_S = 3600.0
"""For calls without a deadline, whose time the dispatcher bounds."""

_GATEWAY_FAILURES = frozenset({502, 503, 504})
"""A balancer or proxy that has lost the agent behind it; the call may have been there."""


class PeerInvoker:
    """Runs skills of agents elsewhere; ``guard`` marks what this process only forwards.

    ``tokens`` are by source: one is sent to the agents of that source and to no others.
    """

    def __init__(
        self, http: HttpClient, guard: TraceGuard, *, tokens: Mapping[str, str] | None = None
    ) -> None:
        self._http = http
        self._guard = guard
        self._tokens = dict(tokens or {})

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
        trace = self._guard.forward(passage.trace)
        token = self._tokens.get(listing.source)
        value = await execute(self._http, name, url, skill.id, call, trace, token)
        return Answer(value=value)


class HubCalls:
    """The mesh behind a hub: every call goes to its ``/execute``, which finds the agent.

    ``token`` is that of this machine's state, which means nothing to a hub elsewhere.
    """

    def __init__(self, http: HttpClient, url: str, *, token: str | None = None) -> None:
        self._http = http
        self._url = url
        self._token = token if is_loopback(url) else None

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """The outcome as the hub tells it; ``agent`` stays None where only the hub knows it."""
        base = self._url.rstrip("/")
        url = base if call.agent is None else f"{base}/agents/{quote(call.agent, safe='')}"
        try:
            value = await execute(self._http, "hub", url, call.skill, call, call.trace, self._token)
        except RetinueError as error:
            return Outcome(call.id, call.skill, "failed", agent=call.agent, error=error)
        return Outcome(call.id, call.skill, "done", agent=call.agent, value=value)


def is_loopback(url: str) -> bool:
    """Whether the url names this machine by a loopback address or as ``localhost``."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def execute(
    http: HttpClient,
    agent: str,
    url: str,
    method: str,
    call: Call,
    trace: TraceContext,
    token: str | None,
) -> Any:
    """One ``POST {url}/execute``; returns the result, raises RemoteFaultError, AgentUnreachableError …"""
    timeout_s = _UNBOUNDED_S
    if call.deadline is not None:
        timeout_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
        trace = replace(trace, seconds_left=round(timeout_s, 3))
    headers = {"content-type": "application/json", **render_trace_headers(trace)}
    if call.idempotency_key is not None:
        headers["idempotency-key"] = call.idempotency_key
    if call.version_range is not None:
        headers["x-retinue-version"] = call.version_range
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
        if "runs_code" not in call.principal.scopes:
            # the token is this process's own; its caller may have fewer rights
            headers["x-retinue-rights"] = " ".join(sorted(call.principal.scopes))
    target = f"{url.rstrip('/')}/execute"
    try:
        body = render_request(method, call.arguments)
    except TypeError as error:
        raise InvalidParametersError([Problem("", f"the arguments are no JSON: {error}")]) from error
    try:
        reply = await http.request(
            "POST",
            target,
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            what=call.skill,
            layer="caller",
            setting="the call's timeout",
        )
    except ResponseTooLargeError as error:
        raise RemoteFaultError(agent, -32603, f"agent {agent}: {error.cause}") from error
    except TransportError as error:
        raise AgentUnreachableError(agent, url, error.cause, sent=error.sent) from error
    if reply.status in (401, 403):
        raise NotAuthenticatedError(
            f"agent {agent} refused the caller ({reply.status})",
            remedy="start it on the same state folder, or give it the same token",
        )
    try:
        found = parse_response(reply.body)
    except (ParseError, InvalidRequestError) as error:
        if reply.status in _GATEWAY_FAILURES:
            cause = f"what stands before it answers with status {reply.status}"
            raise AgentUnreachableError(agent, url, cause, sent=True) from error
        raise RemoteFaultError(
            agent, -32603, f"agent {agent} answered {reply.status} with no JSON-RPC reply: {error.message}"
        ) from error
    if isinstance(found, Fault):
        raise RemoteFaultError(agent, found.code, found.message, found.data)
    return found.value
