"""The hub's tool ``query_capabilities``: asks one agent, several or all about their capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Outcome, Principal
from retinue.core.record import HUB_NAME, QUERY_CAPABILITIES
from retinue.mesh.asking.fanout import DEFAULT_TIMEOUT_S, MAX_ASKED, Answers
from retinue.mesh.asking.query import answer_query, parse_query
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.history.search_history import SearchHistory, find_run_id
from retinue.mesh.observing.call_figures import TrackRecord
from retinue.mesh.permissions import Access
from retinue.mesh.search.agents import AgentSearch

Json = dict[str, Any]

ALL = "*"
"""In place of an agent's name: every agent that the caller sees."""

_MAX_TIMEOUT_S = 50
"""Below the default time limit of an endpoint, so that partial answers still get back."""

_DESCRIPTION = (
    "Asks agents what they can do now: summary, specific (capabilities, match_type) or action_details "
    "(action_name). Of several agents the answers are ranked, best first."
)

_INPUT: Json = {
    "type": "object",
    "properties": {
        "query_type": {"type": "string", "enum": ["summary", "specific", "action_details"]},
        "query_parameters": {
            "type": "object",
            "properties": {
                "capabilities": {"type": "array", "items": {"type": "string"}},
                "match_type": {"type": "string", "enum": ["all", "any"], "default": "all"},
                "action_name": {"type": "string"},
            },
        },
        "agent": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ASKED},
            ],
            "description": "Name, list of names, or * for all; default: this hub",
        },
        "timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": _MAX_TIMEOUT_S,
            "default": DEFAULT_TIMEOUT_S,
        },
    },
    "required": ["query_type"],
    "additionalProperties": False,
}


def add_query_skill(
    hub: Agent,
    directory: Directory,
    search: AgentSearch,
    track: TrackRecord,
    access: Access,
    history: SearchHistory,
) -> None:
    """Add the tool; without an agent it answers for the hub itself, as every agent does.

    ``search`` finds the agents to ask first where there are too many for all. ``track`` has the figures by
    which equal answers are ranked, ``access`` decides which agents a caller sees. For ``history`` the names
    of the capabilities are a search that lists the skills of the agents that have all of them.
    """

    @hub.skill(QUERY_CAPABILITIES, description=_DESCRIPTION, input_schema=_INPUT, expose=True, read_only=True)
    async def query_capabilities(
        query_type: str,
        ctx: Context,
        query_parameters: Json | None = None,
        agent: str | list[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        query = parse_query({"query_type": query_type, "query_parameters": query_parameters})
        if agent is None or agent == HUB_NAME:
            return answer_query(hub.record(), query, ctx.principal.scopes)
        if ctx.deadline is not None:  # partial answers are of use only before the caller gives up
            left_s = ctx.deadline - asyncio.get_running_loop().time()
            timeout_s = min(timeout_s, max(left_s * 0.9, 0.01))
        if isinstance(agent, str) and agent != ALL:
            return (await ctx.query(query, agent, timeout_s=timeout_s)).get()

        async def dispatch(name: str) -> Outcome:
            return await ctx.query(query, name, timeout_s=timeout_s)

        def prefer(words: str) -> list[Entry]:
            learn = history.learn_for(ctx.principal, words)
            hits = search.find_agents(words, ctx.principal.scopes, limit=MAX_ASKED, learn=learn)
            return [hit.entry for hit in hits]

        answers = await directory.ask(
            query,
            dispatch,
            agents=None if agent == ALL else agent,
            timeout_s=timeout_s,
            view=access.view_of(ctx.principal),
            prefer=prefer,
            stats_of=lambda name: track.figures.find(name.partition("@")[0]),
        )
        if query.type == "specific":
            able = [*_list_able(directory, answers, ctx.principal, access)]
            # agents that the caller names are not all that could be able
            is_wish, run = agent == ALL and not able, find_run_id(ctx.run_step)
            history.note_search(ctx.principal, " ".join(query.capabilities), able, is_wish=is_wish, run=run)
        return answers.as_json()


def _list_able(
    directory: Directory, answers: Answers, principal: Principal, access: Access
) -> Iterator[tuple[Entry, str]]:
    """The skills of the agents that said yes, the best agent first."""
    view = access.view_of(principal)
    for answer in answers.answers:
        entry = directory.find_named(answer.agent, view=view) if answer.yes else None
        if entry is not None:
            yield from ((entry, skill_id) for skill_id in entry.list_skills(principal.scopes))
