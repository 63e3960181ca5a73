"""Probes agents by their card, because an open socket alone proves little."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.cards.pallet_card import parse_card
from retinue.core.durations import render_duration
from retinue.core.errors import CallTimedOutError, InvalidRequestError, MalformedArtifactError, ParseError
from retinue.core.record import Candidate
from retinue.mesh.directory.directory import Directory
from retinue.mesh.health.agent_stats import AgentStatsTable, report_health
from retinue.mesh.health.probe_schedule import ProbeSchedule
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.web.codec.jsonrpc import parse_response, render_request
from retinue.web.http_client import HttpClient
from retinue.web.knock import Knocks
from retinue.web.transport import HttpResponse, TransportError

_AT_ONCE = 32
_REFUSALS = frozenset({401, 403, 405, 429})
"""Statuses of an agent that is alive, because probes are sent without the tokens of callers."""

_NO_METHOD = "rpc.discover"
"""A method name reserved by JSON-RPC, because no skill has it, and every server answers it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a probe failed; ``certain`` = it is not there at all, ``other`` = the name that answers."""

    reason: str
    certain: bool = False
    other: str | None = None


async def find_trouble(
    http: HttpClient, url: str, *, timeout_s: float, name: str | None = None
) -> Trouble | None:
    """None when the agent at ``url`` returns its card, with this ``name`` where one is given.

    The statuses 401, 403, 405 and 429 count as alive. A server without a card is asked over ``/execute``
    whether it speaks JSON-RPC, because agents of other software may not serve cards.
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
        return Trouble(f"no answer within {render_duration(timeout_s)} (timeouts.probe_s)")
    return _judge_card(reply, url, name)


async def answers(http: HttpClient, url: str, *, timeout_s: float) -> str | None:
    """As `find_trouble` for an agent of any name: the reason as one line of text."""
    trouble = await find_trouble(http, url, timeout_s=timeout_s)
    return None if trouble is None else trouble.reason


async def probe(
    directory: Directory,
    agent_stats: AgentStatsTable,
    agents: Sequence[Candidate],
    http: HttpClient,
    *,
    timeout_s: float,
    schedule: ProbeSchedule | None = None,
    sharing: ProbeSharing | None = None,
    longest_s: float = math.inf,
) -> None:
    """Probe agents, and record their health in ``directory``, and in ``schedule`` when they are asked again.

    Of an unreachable agent only the port is asked, until something listens there again. Others are told by
    ``sharing``.
    """
    waiting = iter(agents)

    async def ask() -> None:
        with Knocks() as knocks:
            await ask_all(knocks)

    async def ask_all(knocks: Knocks) -> None:
        for agent in waiting:
            if agent.url is None:
                continue
            if agent.health == "unreachable" and await knocks.is_refused(agent.url, timeout_s=timeout_s):
                if schedule is not None:
                    schedule.note(agent, "unreachable", longest_s)
                if sharing is not None:
                    sharing.note(agent, "unreachable")
                await asyncio.sleep(0)  # a local port is refused at once, and others run meanwhile
                continue
            stats = agent_stats.of(agent)
            trouble = await find_trouble(http, agent.url, timeout_s=timeout_s, name=agent.name)
            if trouble is None:
                stats.probe_answered()
            else:
                stats.probe_failed(trouble.reason, certain=trouble.certain)
            report_health(stats, agent, directory.record_health)
            if schedule is not None:
                schedule.note(agent, stats.health, longest_s)
            if sharing is not None:
                sharing.note(agent, stats.health)

    # A few workers, rather than a task for each of a hundred thousand agents.
    await asyncio.gather(*(ask() for _ in range(min(_AT_ONCE, len(agents)))))


def _judge_card(reply: HttpResponse, url: str, name: str | None) -> Trouble | None:
    if reply.status in _REFUSALS:
        return None
    if reply.status != 200:
        return Trouble(f"its card endpoint answers with status {reply.status}")
    try:
        shown = parse_card(reply.body, reference=url).name
    except MalformedArtifactError:
        return Trouble("its card endpoint returns no agent card")
    if name is not None and shown != name:
        return Trouble(f"another agent answers there: {shown}", certain=True, other=shown)
    return None


def _judge_reply(reply: HttpResponse) -> Trouble | None:
    if reply.status in _REFUSALS:
        return None
    try:
        parse_response(reply.body)
    except (ParseError, InvalidRequestError):
        return Trouble("no agent answers there: neither a card nor JSON-RPC")
    return None
