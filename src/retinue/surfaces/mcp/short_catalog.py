"""The catalog of a hub with very many tools: it lists the hub's own alone, and finds every other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.access import AgentView, is_seen
from retinue.mesh.entry import Candidate, Entry
from retinue.mesh.holdings import Change
from retinue.protocols.mcp.names import AGENT_MARK, Names, safe_names, tool_id
from retinue.surfaces.mcp.offer import ToolCatalog, ToolEntry

MAX_KNOWN = 5_000
"""So many unlisted tools are known by their aliases; of more, only by those that keep the agent's name."""

FINDER = "find_skills"
CALLER = "call_skill"

_MARKS = (AGENT_MARK, ".")


class Agents(Protocol):
    """Where a hub's offer finds the agents: the directory."""

    def list_entries(self) -> list[Entry]: ...

    def list_held(self) -> Iterable[Entry]: ...

    def stands(self, entry: Candidate) -> bool: ...

    def find_named(self, name: str, *, view: AgentView | None = None) -> Entry | None: ...

    def find_entry(self, listing_id: ListingKey) -> Entry | None: ...

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None: ...

    def name_of(self, entry: Candidate) -> str: ...

    def open_all(self, entries: Sequence[Entry]) -> list[Listing]: ...

    def subscribe(self, watcher: Callable[[Change], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """What a kind of caller sees: skills of these scopes, of agents within the view."""

    scopes: frozenset[str]
    view: AgentView | None

    def count_skills(self, entry: Entry) -> int:
        """How many skills of an agent may be called; none of one that is not seen."""
        is_there = entry.enabled and is_seen(self.view, entry.name)
        return entry.count_skills(self.scopes) if is_there else 0

    def list_skills(self, entry: Entry) -> list[str]:
        """Their ids."""
        return entry.list_skills(self.scopes) if self.count_skills(entry) else []


class ShortCatalog(ToolCatalog):
    """Lists ``own``; any other tool is looked up when it is called.

    ``count`` gives the number of tools that are not listed, and of their agents.
    """

    def __init__(
        self,
        own: Iterable[Skill],
        agents: Agents,
        sight: Sight,
        names: Names,
        count: Callable[[], tuple[int, int]],
    ) -> None:
        super().__init__(((None, skill) for skill in own), names=names)
        self._agents = agents
        self._sight = sight
        self._count = count

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The hub's own, of which the finder tells how many more there are."""
        tools, agents = self._count()
        more = (
            f" {tools} more tools of {agents} agent{'s' * (agents != 1)} are not in this list: "
            f"find them here, call them with {CALLER}."
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
                entry = self._agents.find_named(name[:at], view=self._sight.view)
                found = None if entry is None else self._find_of(entry, name, name[at + len(mark) :])
                if found is not None:
                    return found
                at = name.find(mark, at + 1)
        return None

    def _find_of(self, entry: Entry, name: str, rest: str) -> ToolEntry | None:
        skills = self._sight.list_skills(entry)
        if rest in skills:
            return self._open(entry, rest)
        agent = self._agents.name_of(entry)
        ids = {tool_id(agent, skill): skill for skill in skills}
        skill = next((ids[one] for one, alias in safe_names(ids).items() if alias == name), None)
        return None if skill is None else self._open(entry, skill)

    def _find_alias(self, name: str) -> ToolEntry | None:
        listing_id, skill = self._aliases.get(name, (None, ""))
        entry = None if listing_id is None else self._agents.find_entry(listing_id)
        return None if entry is None else self._open(entry, skill)

    @cached_property
    def _aliases(self) -> dict[str, tuple[ListingKey, str]]:
        known: dict[str, tuple[ListingKey, str]] = {}
        for entry in self._agents.list_held():
            if not self._agents.stands(entry):
                continue
            agent = self._agents.name_of(entry)
            known.update((tool_id(agent, s), (entry.id, s)) for s in self._sight.list_skills(entry))
            if len(known) > MAX_KNOWN:
                return {}
        return {alias: known[one] for one, alias in safe_names(known).items()}

    def _open(self, entry: Entry, skill_id: str) -> ToolEntry | None:
        skill = self._agents.find_skill(entry, skill_id)
        if skill is None:
            return None
        agent = self._agents.name_of(entry)
        return ToolEntry(tool_id(agent, skill.id), skill, agent)
