"""The catalog of a hub with very many tools: lists only the hub's own tools, finds all others by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from retinue.core.record import ListingKey, Skill
from retinue.mcp.codec.tools import AGENT_MARK, FINDER, Names, list_agents_of, safe_names, tool_id
from retinue.mcp.server.offer import ToolCatalog, ToolEntry, VisibilityKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry

MAX_KNOWN = 5_000
"""Up to this number, unlisted tools are found by any alias; beyond, by aliases with the agent's name."""

CALLER = "call_skill"
READER = "call_read_only_skill"

_MARKS = (AGENT_MARK, ".")


class SearchOnlyCatalog(ToolCatalog):
    """Lists ``own``; every other tool is looked up when it is called.

    ``count`` gives the number of tools of agents, and of their agents, and ``list_seen`` these agents.
    ``pinned`` are skills of agents that are listed all the same.
    """

    def __init__(
        self,
        own: Iterable[Skill],
        directory: Directory,
        key: VisibilityKey,
        names: Names,
        count: Callable[[], tuple[int, int]],
        list_seen: Callable[[], Iterable[Entry]],
        pinned: Sequence[tuple[str, Skill]] = (),
    ) -> None:
        listed: list[tuple[str | None, Skill]] = [(None, skill) for skill in own]
        super().__init__([*listed, *pinned], names=names)
        self._pinned = len(pinned)
        self._directory = directory
        self._key = key
        self._count = count
        self._list_seen = list_seen

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The hub's own tools; the description of the finder contains the number of the others."""
        tools, agents = self._count()
        tools -= self._pinned
        more = (
            f" {tools} more tools of {agents} agent{'s' * (agents != 1)} are not in this list: "
            f"find them here, call them with {CALLER}, or {READER} where read_only."
        )
        return [
            {**tool, "description": tool["description"] + more} if tool["name"] == FINDER else tool
            for tool in super().tools
        ]

    def find(self, name: str) -> ToolEntry | None:
        return super().find(name) or self._find_spelt(name) or self._find_alias(name)

    def _find_spelt(self, name: str) -> ToolEntry | None:
        """The tool of ``<agent>__<skill>`` or ``<agent>.<skill>``, the skill as authored or safe."""
        for mark in _MARKS:
            at = name.find(mark)
            while at > 0:
                for agent in list_agents_of(name[:at]):
                    entry = self._directory.find_named(agent, view=self._key.view)
                    tool = None if entry is None else self._find_of(entry, name, name[at + len(mark) :])
                    if tool is not None:
                        return tool
                at = name.find(mark, at + 1)
        return None

    def _find_of(self, entry: Entry, name: str, rest: str) -> ToolEntry | None:
        skills = self._key.list_skills(entry)
        if rest in skills:
            return self._open(entry, rest)
        agent = self._directory.name_of(entry)
        ids = {tool_id(agent, skill): skill for skill in skills}
        skill = next((ids[skill_id] for skill_id, alias in safe_names(ids).items() if alias == name), None)
        return None if skill is None else self._open(entry, skill)

    def _find_alias(self, name: str) -> ToolEntry | None:
        listing_id, skill = self._aliases.get(name, (None, ""))
        entry = None if listing_id is None else self._directory.find_entry(listing_id)
        return None if entry is None else self._open(entry, skill)

    @cached_property
    def _aliases(self) -> dict[str, tuple[ListingKey, str]]:
        known: dict[str, tuple[ListingKey, str]] = {}
        for entry in self._list_seen():
            agent = self._directory.name_of(entry)
            known.update((tool_id(agent, s), (entry.id, s)) for s in self._key.list_skills(entry))
            if len(known) > MAX_KNOWN:
                return {}
        return {alias: known[skill_id] for skill_id, alias in safe_names(known).items()}

    def _open(self, entry: Entry, skill_id: str) -> ToolEntry | None:
        skill = self._directory.find_skill(entry, skill_id)
        if skill is None:
            return None
        agent = self._directory.name_of(entry)
        return ToolEntry(tool_id(agent, skill.id), skill, agent)
