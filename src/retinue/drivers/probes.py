"""Is an agent there? Its card is asked for: the capability is probed, not the socket (DESIGN 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.core.errors import CallTimedOutError, InvalidRequestError, MalformedArtifactError, ParseError
from retinue.drivers.http import HttpClient, HttpResponse, TransportError
from retinue.mesh.directory import Directory
from retinue.mesh.entry import Candidate
from retinue.mesh.pulse import Pulses, note_health
from retinue.protocols.jsonrpc import parse_response, render_request
from retinue.protocols.pallet_card import parse_card

_AT_ONCE = 32
_REFUSALS = frozenset({401, 403, 405})
"""Whoever refuses is alive: probes go without the tokens of callers."""

_NO_METHOD = "rpc.discover"
"""A name that JSON-RPC keeps for itself: no skill has it, and every server has an answer to it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an agent is not as it should be; ``certain`` = it is not there at all."""

    reason: str
    certain: bool = False


async def find_trouble(
    http: HttpClient, url: str, *, timeout_s: float, name: str | None = None
) -> Trouble | None:
    """None when the agent at ``url`` shows its card, of this ``name`` where one is given.

    401, 403 and 405 are alive. A server without cards is asked over ``/execute`` whether it speaks
    JSON-RPC, so that agents of other make, which may have no card door, are not given up.
    """
    base = url.rstrip("/")
    try:
        reply = await http.request("GET", f"{base}/agent-card", timeout_s=timeout_s)
        if reply.status == 404:
            reply = await http.request(
                "POST",
                f"{base}/execute",
                headers={"content-type": "application/json"},
                body=render_request(_NO_METHOD, {}),
                timeout_s=timeout_s,
            )
            return _judge_reply(reply)
    except TransportError as error:
        return Trouble(error.cause, certain=not error.sent)
    except CallTimedOutError:
        return Trouble(f"no answer within {timeout_s:g} s (timeouts.probe_s)")
    return _judge_card(reply, url, name)


async def answers(http: HttpClient, url: str, *, timeout_s: float) -> str | None:
    """As `find_trouble` of an agent of any name: what is wrong, in a line."""
    trouble = await find_trouble(http, url, timeout_s=timeout_s)
    return None if trouble is None else trouble.reason


async def probe(
    directory: Directory,
    pulses: Pulses,
    agents: Sequence[Candidate],
    http: HttpClient,
    *,
    timeout_s: float,
) -> None:
    """Ask agents whether they are there, and note what that makes of their health."""
    waiting = iter(agents)

    async def ask() -> None:
        for agent in waiting:
            if agent.url is None:
                continue
            trouble = await find_trouble(http, agent.url, timeout_s=timeout_s, name=agent.name)
            pulse = pulses.of(agent)
            if trouble is None:
                pulse.probe_answered()
            else:
                pulse.probe_failed(trouble.reason, certain=trouble.certain)
            note_health(pulse, agent, directory)

    # a few that go on asking, rather than a task for each of a hundred thousand
    await asyncio.gather(*(ask() for _ in range(min(_AT_ONCE, len(agents)))))


def _judge_card(reply: HttpResponse, url: str, name: str | None) -> Trouble | None:
    if reply.status in _REFUSALS:
        return None
    if reply.status != 200:
        return Trouble(f"its card door answers with status {reply.status}")
    try:
        shown = parse_card(reply.body, reference=url).name
    except MalformedArtifactError:
        return Trouble("its card door shows no agent card")
    if name is not None and shown != name:
        return Trouble(f"another agent answers there: {shown}", certain=True)
    return None


def _judge_reply(reply: HttpResponse) -> Trouble | None:
    if reply.status in _REFUSALS:
        return None
    try:
        parse_response(reply.body)
    except (ParseError, InvalidRequestError):
        return Trouble("no agent answers there: neither a card nor JSON-RPC")
    return None
