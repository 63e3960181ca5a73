"""The offer of an MCP server: the port for agents and hubs, the catalog of tools, the offer of one agent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_urlsafe
from typing import Any, Protocol, Self

import orjson
from cachetools import LRUCache

from retinue.core.call import Principal
from retinue.core.record import (
    LOCAL_SOURCE,
    AgentRecord,
    Item,
    Listing,
    Prompt,
    Resource,
    Skill,
    is_visible,
)
from retinue.mcp.codec.tools import Names, list_spellings, render_tool, safe_names, tool_id
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, AgentView, decide_lists, is_listed, is_seen
from retinue.mesh.reading import Change, ChangeObserver
from retinue.mesh.slices import run_in_slices

_HEADER_MARK = b'"x-mcp-header"'


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server as ``initialize`` describes it. ``logs``: its skills send log lines to clients."""

    name: str
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    logs: bool = False


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One tool: a skill under the name that clients see; of another agent if ``agent`` is set."""

    alias: str
    skill: Skill
    agent: str | None = None


class ToolCatalog:
    """The tools that callers with one visibility key see; rendered once, found by every spelling.

    ``offered`` are (agent or None, skill) in their order; unlisted ones are found, but not in the list.
    """

    def __init__(self, offered: Iterable[tuple[str | None, Skill]], *, names: Names = "safe") -> None:
        for _ in self._fill(offered, names):
            pass

    @classmethod
    async def make(cls, offered: Iterable[tuple[str | None, Skill]], *, names: Names = "safe") -> Self:
        """The catalog, made while others run: 1,000 tools take 15 ms."""
        catalog = cls.__new__(cls)
        await run_in_slices(catalog._fill(offered, names))
        return catalog

    def _fill(self, offered: Iterable[tuple[str | None, Skill]], names: Names) -> Iterator[None]:
        """Make the catalog in steps."""
        # of two agents whose names give one tool name, the first is listed: clients refuse a name twice
        by_name: dict[str, tuple[str | None, Skill]] = {}
        for agent, skill in offered:
            by_name.setdefault(tool_id(agent, skill.id), (agent, skill))
            yield
        aliases = safe_names(by_name) if names == "safe" else {skill_id: skill_id for skill_id in by_name}
        self._rendered: list[dict[str, Any]] = []
        self._found: dict[str, ToolEntry] = {}
        self._schemas: dict[str, Any] = {}
        self._mirrored: dict[str, bool] = {}
        by_alias: dict[str, ToolEntry] = {}
        for name, (agent, skill) in by_name.items():
            entry = by_alias[aliases[name]] = ToolEntry(aliases[name], skill, agent)
            tool = render_tool(skill, entry.alias, agent=agent)
            self._schemas[tool["name"]] = tool["inputSchema"]
            if skill.listed:
                self._rendered.append(tool)
            for spelling in list_spellings(agent, skill.id):
                self._found.setdefault(spelling, entry)
            yield
        # an alias is what the list shows: it wins over other spellings
        self._found.update(by_alias)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The entries of ``tools/list``."""
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

    def has_header_arguments(self, name: str) -> bool:
        """Whether the listed schema asks clients to repeat an argument in a header (``x-mcp-header``)."""
        is_mirrored = self._mirrored.get(name)
        if is_mirrored is None:
            schema = self.find_input_schema(name)
            is_mirrored = schema is not None and _HEADER_MARK in orjson.dumps(schema)
            if name in self._found:
                self._mirrored[name] = is_mirrored
        return is_mirrored


class Offer(Protocol):
    """The items that a server shows to each caller; asked at each request, so implementations cache."""

    @property
    def facts(self) -> ServerFacts: ...

    @property
    def agent(self) -> str:
        """The agent of a tool name without an agent."""

    def visibility_key_of(self, principal: Principal) -> Hashable:
        """Equal for callers that see the same, now and after every change."""

    async def prepare(self, principal: Principal) -> None:
        """Decide what policies let a caller list, while others run; before each request."""

    def tools(self, principal: Principal, session: str | None = None) -> ToolCatalog:
        """The tools that ``principal`` sees; within a session the list keeps its form."""

    def resources(self, principal: Principal) -> Sequence[Resource]: ...

    def prompts(self, principal: Principal) -> Sequence[Prompt]: ...

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        """Call ``observer`` after each change, in any thread; returns the function that ends it."""


_NOTHING: frozenset[str] = frozenset()
_MAX_KEYS = 64


@dataclass(frozen=True, slots=True)
class VisibilityKey:
    """The visible items of a caller: skills of these scopes, of agents within the view. Equal for callers
    alike.
    """

    scopes: frozenset[str]
    view: AgentView | None

    def count_skills(self, entry: Entry) -> int:
        """The number of skills of an agent that may be called; 0 for a hidden or disabled agent."""
        is_there = entry.enabled and is_seen(self.view, entry.name)
        return entry.count_skills(self.scopes) if is_there else 0

    def count_listed(self, entry: Entry) -> int:
        """The number of these skills that are in a list of tools."""
        return entry.count_listed(self.scopes) if self.count_skills(entry) else 0

    def list_skills(self, entry: Entry) -> list[str]:
        """The ids of these skills."""
        return entry.list_skills(self.scopes) if self.count_skills(entry) else []


class RecordOffer:
    """The offer of one agent. ``read_record`` returns its current record, ``subscribe`` reports changes.

    ``access`` tells whether a caller sees the agent, and which of its items are in lists; ``listing`` are the
    facts of the agent by which that is decided, by default those of an agent of this process.
    """

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        access: Access,
        *,
        names: Names = "safe",
        logs: bool = False,
        listing: Listing | None = None,
    ) -> None:
        self._read_record = read_record
        self._subscribe = subscribe
        self._names = names
        self._logs = logs
        self._access = access
        self._record = read_record()
        self._listing = listing or Listing(self._record, LOCAL_SOURCE, self._record.name)
        self._catalogs: LRUCache[VisibilityKey, ToolCatalog] = LRUCache(_MAX_KEYS)
        subscribe(self._forget)

    @property
    def facts(self) -> ServerFacts:
        record = self._record
        return ServerFacts(
            record.name, record.version or "", record.title, record.description or None, self._logs
        )

    @property
    def agent(self) -> str:
        return self._record.name

    def visibility_key_of(self, principal: Principal) -> VisibilityKey:
        view = self._access.view_of(principal)
        is_hidden = not is_seen(view, self._listing.name)
        return VisibilityKey(_NOTHING if is_hidden else principal.scopes, view)

    async def prepare(self, principal: Principal) -> None:
        key = self.visibility_key_of(principal)
        if key.view is not None and key not in self._catalogs:
            record = self._record
            items: tuple[Item, ...] = (*record.skills, *record.resources, *record.prompts)
            await decide_lists(key.view, ((self._listing, item) for item in items))
            catalog = await ToolCatalog.make(self._list_shown(record, key), names=self._names)
            if record is self._record:
                self._catalogs[key] = catalog

    def tools(self, principal: Principal, session: str | None = None) -> ToolCatalog:
        key = self.visibility_key_of(principal)
        catalog = self._catalogs.get(key)
        if catalog is None:
            shown = self._list_shown(self._record, key)
            catalog = self._catalogs[key] = ToolCatalog(shown, names=self._names)
        return catalog

    def _list_shown(self, record: AgentRecord, key: VisibilityKey) -> Iterator[tuple[None, Skill]]:
        return ((None, skill) for skill in record.skills if self._is_shown(skill, key))

    def resources(self, principal: Principal) -> Sequence[Resource]:
        key = self.visibility_key_of(principal)
        return tuple(resource for resource in self._record.resources if self._is_shown(resource, key))

    def prompts(self, principal: Principal) -> Sequence[Prompt]:
        key = self.visibility_key_of(principal)
        return tuple(prompt for prompt in self._record.prompts if self._is_shown(prompt, key))

    def _is_shown(self, item: Item, key: VisibilityKey) -> bool:
        return is_visible(item.visibility, key.scopes) and is_listed(key.view, self._listing, item)

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._subscribe(observer)

    def _forget(self, change: Change) -> None:
        if change.kind != "resource":
            self._record = self._read_record()
            self._catalogs.clear()


HEARTBEAT_S = 15.0
"""A client that asked for progress and got none for this time is notified that its call still runs."""


@dataclass(frozen=True, slots=True)
class McpOptions:
    """Options of a server; see ``[mcp]`` in the settings. ``make_state`` names suspended calls."""

    guard_as_tool_error: bool = False
    metadata_key: str | None = None
    result_chars: int = 20_000
    max_sessions: int = 10_000
    session_idle_s: float = 1800.0
    max_body_bytes: int = 4 * 1024 * 1024
    heartbeat_s: float = HEARTBEAT_S
    make_state: Callable[[], str] = token_urlsafe
