"""Reads the skills of a mesh with their schemas, and chooses those for which functions are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import orjson

from retinue.client.hub_skills import read_agents
from retinue.client.stubs.section import StubSkill
from retinue.core.errors import RetinueError, UnknownAgentError
from retinue.core.remote_faults import rebuild_error
from retinue.mesh.directory.versions import is_stable, version_key

Json = dict[str, Any]
Read = Callable[[str, Json], Awaitable[Any]]

_AT_ONCE = 8
_DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Offer:
    """A skill of an agent."""

    agent: str
    id: str
    description: str
    input_schema: Any
    output_schema: Any

    @property
    def schemas(self) -> bytes:
        """The schemas of the arguments and the result, equal for equal schemas."""
        return orjson.dumps([self.input_schema, self.output_schema], option=orjson.OPT_SORT_KEYS)


async def read_offers(read: Read) -> tuple[list[Offer], list[Json]]:
    """Every skill of every enabled agent, and what of the mesh is missing; ``read`` calls a skill of the hub.

    Of an agent with several versions it is the newest one, whether it is reachable or not.
    """
    reply = await read_agents(read, {})
    limit = asyncio.Semaphore(_AT_ONCE)

    async def show(name: str, place: str) -> list[Offer]:
        async with limit:
            try:
                shown = await read("show_agent", {"name": place})
            except RetinueError as error:
                if isinstance(rebuild_error(error), UnknownAgentError):
                    return []  # it has left the mesh since the list was read
                raise
        return [
            Offer(
                name,
                skill["id"],
                skill.get("description") or "",
                skill.get("input_schema"),
                skill.get("output_schema"),
            )
            for skill in shown["card"].get("skills") or ()
        ]

    places = _place_agents(reply["agents"])
    shown = await asyncio.gather(*(show(name, places[name]) for name in sorted(places)))
    offers = [offer for offers in shown for offer in offers]
    return offers, list(reply.get("missing", ()))


def _place_agents(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The name of each agent, and the name under which the hub shows its newest version."""
    enabled = [row for row in rows if _DISABLED not in (row.get("status"), row.get("health"))]
    enabled.sort(key=lambda row: (row["name"], str(row.get("source"))))
    places: dict[str, str] = {}
    for name, group in groupby(enabled, key=lambda row: str(row["name"])):
        named = list(group)
        sources = {str(row.get("source")) for row in named}
        if len(named) == 1:
            places[name] = name
        elif len(sources) > 1:
            places |= {f"{name}@{source}": f"{name}@{source}" for source in sources}
        else:
            versions = [row["version"] for row in named if row.get("version")]
            newest = max(
                versions, key=lambda version: (is_stable(version), version_key(version)), default=None
            )
            places[name] = name if newest is None else f"{name}@{newest}"
    return places


def choose_skills(
    offers: Sequence[Offer], agents: Sequence[str] = (), skills: Sequence[str] = ()
) -> list[StubSkill]:
    """One skill for each function; ``agents`` and ``skills`` are globs, none of them means all.

    A skill that all agents of the mesh offer with equal schemas is called at any of them. Otherwise each
    chosen agent has a function, which calls this agent only.
    """
    chosen: list[StubSkill] = []
    by_id = sorted(offers, key=lambda offer: (offer.id, offer.agent))
    for skill, group in groupby(by_id, key=lambda offer: offer.id):
        offering = list(group)
        fitting = [offer for offer in offering if _fits(offer.agent, agents) and _fits(skill, skills)]
        if len({offer.schemas for offer in offering}) == 1:
            chosen += [_make_skill(offer, None, skill) for offer in fitting[:1]]
        else:
            for offer in fitting:
                name = skill if len(fitting) == 1 else f"{skill}_at_{offer.agent}"
                chosen.append(_make_skill(offer, offer.agent, name))
    return chosen


def _fits(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _make_skill(offer: Offer, agent: str | None, name: str) -> StubSkill:
    return StubSkill(offer.id, agent, name, offer.description, offer.input_schema, offer.output_schema)
