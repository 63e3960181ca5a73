"""What an MCP door offers: the port that an agent and a hub each fill, and the catalog of tools."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import orjson

from retinue.core.call import Principal
from retinue.core.record import Prompt, Resource, Skill
from retinue.mesh.changes import ChangeObserver
from retinue.protocols.mcp.names import Names, list_spellings, safe_names, tool_id
from retinue.protocols.mcp.tools import render_tool


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Who answers: what ``initialize`` says. ``logs`` = its skills send log lines to clients."""

    name: str
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    logs: bool = False


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One tool: a skill, of another agent where ``agent`` is set, under the name that clients see."""

    alias: str
    skill: Skill
    agent: str | None = None


class ToolCatalog:
    """The tools that one kind of caller sees; rendered once, found by every spelling.

    ``offered`` are (agent or None, skill) in their order.
    """

    def __init__(self, offered: Iterable[tuple[str | None, Skill]], *, names: Names = "safe") -> None:
        listed = list(offered)
        ids = [tool_id(agent, skill.id) for agent, skill in listed]
        aliases = safe_names(ids) if names == "safe" else {one: one for one in ids}
        entries = [ToolEntry(aliases[tool_id(agent, skill.id)], skill, agent) for agent, skill in listed]
        self._rendered = [render_tool(entry.skill, entry.alias, agent=entry.agent) for entry in entries]
        self._found: dict[str, ToolEntry] = {}
        for entry in entries:
            for spelling in list_spellings(entry.agent, entry.skill.id):
                self._found.setdefault(spelling, entry)
        # an alias is what the list shows: it wins over anybody's spelling
        self._found.update((entry.alias, entry) for entry in entries)
        self._schemas = {tool["name"]: tool["inputSchema"] for tool in self._rendered}

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What a client is listed."""
        return self._rendered

    @cached_property
    def listed(self) -> bytes:
        """``tools`` as JSON."""
        return orjson.dumps(self.tools)

    def find(self, name: str) -> ToolEntry | None:
        """The tool of this alias or original name."""
        return self._found.get(name)

    def find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema as listed, by alias or original name."""
        entry = self._found.get(name)
        return None if entry is None else self._schemas.get(entry.alias)


class Offer(Protocol):
    """What a door shows to each caller; asked for each request, so answers are kept ready."""

    @property
    def facts(self) -> ServerFacts: ...

    @property
    def agent(self) -> str:
        """Whose skills are meant by a name without an agent."""

    def sight_of(self, principal: Principal) -> Hashable:
        """Equal for callers that see the same, now and after every change."""

    def tools(self, principal: Principal) -> ToolCatalog: ...

    def resources(self, principal: Principal) -> Sequence[Resource]: ...

    def prompts(self, principal: Principal) -> Sequence[Prompt]: ...

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        """Be told what changed, in any thread, after the offer has it."""
