"""The offer of a hub: its own skills by name, and every agent's skills as ``<agent>__<skill>``.

With more than `MANY` skills of agents, only the hub's own tools are listed (setting ``hub.listing``),
because every listed tool takes room in the model's context; the others stay callable. A session keeps the
form of its list while agents join. Only the cards of listed agents are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from cachetools import LRUCache

from retinue.core.call import Principal
from retinue.core.record import (
    LOCAL_SOURCE,
    AgentRecord,
    Listing,
    Prompt,
    Resource,
    Skill,
    Visibility,
    is_visible,
)
from retinue.mcp.codec.tools import Names
from retinue.mcp.server.offer import ServerFacts, ToolCatalog, VisibilityKey
from retinue.mcp.server.search_only_catalog import MAX_KNOWN, SearchOnlyCatalog
from retinue.mcp.upstream.imports.reads import (
    AGENT_URI,
    IsListed,
    Named,
    ServersInHub,
    list_prompts,
    list_resources,
    resource_prefix,
)
from retinue.mcp.upstream.imports.server import ImportedServer
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import (
    Access,
    AgentView,
    decide_listings,
    is_agent_listed,
    is_listed,
    is_seen,
    note_skill,
)
from retinue.mesh.reading import Change, ChangeObserver, Changes

ListingMode = Literal["all", "search", "auto"]

MANY = 40
"""With more skills of agents than this, ``auto`` lists only the hub's own tools."""

MAX_PINNED = 200
"""Skills of agents in the list of a hub that lists only its own tools otherwise."""

TOO_MANY = 1_000
"""With more than this, it does so even in a session that began with the long list."""

Shape = Callable[[Sequence[Skill], frozenset[str], AgentView | None], Sequence[Skill]]
"""Gives the hub's own skills as they are listed to a caller."""

_OPENED_AT_ONCE = 50
_MAX_SESSIONS = 10_000
_MAX_KEYS = 64


@dataclass(frozen=True, slots=True)
class _Survey:
    """The number of visible tools and agents, and the agents that may be listed."""

    tools: int
    agents: int
    entries: list[Entry]


@dataclass(slots=True)
class _View:
    """The offer for callers with one visibility key; each part is made on demand."""

    is_decided: bool = False
    is_many: bool | None = None
    survey: _Survey | None = None
    resources: tuple[Resource, ...] | None = None
    prompts: tuple[Prompt, ...] | None = None
    catalogs: dict[bool, ToolCatalog] = field(default_factory=dict)


class HubOffer:
    """The offer of a hub: ``read_record`` returns its own record, ``directory`` holds all other agents.

    ``access`` says which agents a caller sees. ``imported`` are the servers whose resources and prompts are
    listed; the ones of other agents are at their own endpoints. ``shape`` selects the listed ones of the
    hub's own skills, and ``listed``, globs over ``<agent>__<skill>``, those of agents that stay in the short
    list; ``identity`` is another name and version for clients.
    """

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        directory: Directory,
        access: Access,
        *,
        listing: ListingMode = "auto",
        listed: Sequence[str] = (),
        names: Names = "safe",
        instructions: str | None = None,
        shape: Shape | None = None,
        identity: tuple[str, str] | None = None,
        imported: ServersInHub | None = None,
    ) -> None:
        self._read_record = read_record
        self._directory = directory
        self._access = access
        self._listing = listing
        self._listed = tuple(listed)
        self._names = names
        self._instructions = instructions
        self._shape = shape
        self._identity = identity
        self._imported = imported
        self._changes = Changes()
        self._record = read_record()
        self._views: LRUCache[VisibilityKey, _View] = LRUCache(_MAX_KEYS)
        self._short: LRUCache[str, bool] = LRUCache(_MAX_SESSIONS)
        subscribe(self._own_changed)
        directory.subscribe(self._agent_changed)
        if imported is not None:
            imported.servers.subscribe_resources(self._resource_changed)

    @property
    def facts(self) -> ServerFacts:
        record = self._record
        name, version = self._identity or (record.name, record.version or "")
        title = record.title if self._identity is None else None
        return ServerFacts(name, version, title, self._instructions, logs=True)

    @property
    def agent(self) -> str:
        return self._record.name

    @property
    def _own(self) -> Listing:
        return Listing(self._record, LOCAL_SOURCE, self.agent)

    def visibility_key_of(self, principal: Principal) -> VisibilityKey:
        return VisibilityKey(principal.scopes, self._access.view_of(principal))

    async def prepare(self, principal: Principal) -> None:
        key = self.visibility_key_of(principal)
        if key.view is None or (key.view.lists is None and key.view.notes is None):
            return
        view = self._view(key)
        if view.is_decided:
            return
        await decide_listings(key.view, [self._own])
        entries = self._survey(key).entries if self._listing != "search" else []
        for start in range(0, len(entries), _OPENED_AT_ONCE):
            await decide_listings(
                key.view, self._directory.open_all(entries[start : start + _OPENED_AT_ONCE])
            )
            await asyncio.sleep(0)
        if self._imported is not None:
            servers = [server for _, server in self._imported.list_seen(key.view, key.scopes)]
            listings = map(self._imported.find_listing, servers)
            await decide_listings(key.view, [listing for listing in listings if listing is not None])
        if not self._is_short(key, view, None):
            view.catalogs[False] = await ToolCatalog.make(self._list_offered(key, entries), names=self._names)
        view.is_decided = True

    def tools(self, principal: Principal, session: str | None = None) -> ToolCatalog:
        key = self.visibility_key_of(principal)
        view = self._view(key)
        short = self._is_short(key, view, session)
        catalog = view.catalogs.get(short)
        if catalog is None:
            catalog = view.catalogs[short] = self._make(key, short)
        return catalog

    def resources(self, principal: Principal) -> Sequence[Resource]:
        key = self.visibility_key_of(principal)
        if not is_seen(key.view, self.agent):
            return ()
        view = self._view(key)
        if view.resources is None:
            agents = self._survey(key).entries[:MANY]
            if key.view is not None and key.view.lists is not None:
                listings = self._directory.open_all(agents)
                shown = {listing.id for listing in listings if is_agent_listed(key.view, listing, key.scopes)}
                agents = [entry for entry in agents if entry.id in shown]
            cards = [_resource_of(self._directory.name_of(entry)) for entry in agents]
            own = [
                resource
                for resource in (*self._record.resources, *cards)
                if is_visible(resource.visibility, key.scopes) and is_listed(key.view, self._own, resource)
            ]
            view.resources = (*own, *list_resources(*self._list_imported(key)))
        return view.resources

    def prompts(self, principal: Principal) -> Sequence[Prompt]:
        key = self.visibility_key_of(principal)
        view = self._view(key)
        if view.prompts is None:
            own = [
                prompt
                for prompt in self._record.prompts
                if self._is_own_seen(prompt.visibility, key) and is_listed(key.view, self._own, prompt)
            ]
            view.prompts = (*own, *list_prompts(*self._list_imported(key)))
        return view.prompts

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._changes.subscribe(observer)

    def _list_imported(self, key: VisibilityKey) -> tuple[list[Named], IsListed]:
        imported = self._imported
        if imported is None:
            return [], lambda server, item: False

        def is_shown(server: ImportedServer, item: Resource | Prompt) -> bool:
            listing = None if key.view is None or key.view.lists is None else imported.find_listing(server)
            return listing is None or is_listed(key.view, listing, item)

        return imported.list_seen(key.view, key.scopes), is_shown

    def _is_own_seen(self, visibility: Visibility, key: VisibilityKey) -> bool:
        return is_visible(visibility, key.scopes) and is_seen(key.view, self.agent)

    def _view(self, key: VisibilityKey) -> _View:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = _View()
        return view

    def _survey(self, key: VisibilityKey) -> _Survey:
        view = self._view(key)
        if view.survey is None:
            seen = self._list_within(key)
            if seen is None:
                tools, _, agents = self._directory.count_skills(key.scopes)
                limit = agents if self._listing == "all" else TOO_MANY
                entries = self._directory.list_visible(key.scopes, limit)
            else:
                tools = sum(map(key.count_skills, seen))
                entries = self._directory.sort_entries(seen)
                agents = len(entries)
                entries = entries if self._listing == "all" else entries[:TOO_MANY]
            view.survey = _Survey(tools, agents, entries)
        return view.survey

    def _list_within(self, key: VisibilityKey) -> list[Entry] | None:
        """The agents with a visible skill that a limited view sees; None = the view is not limited."""
        return list(self._iterate_within(key)) if _is_limited(key.view) else None

    def _iterate_seen(self, key: VisibilityKey) -> Iterable[Entry]:
        """The agents with a visible skill, or so many that they have more skills than are known by alias."""
        if _is_limited(key.view):
            return self._iterate_within(key)
        return self._directory.list_visible(key.scopes, MAX_KNOWN + 1)

    def _iterate_within(self, key: VisibilityKey) -> Iterator[Entry]:
        assert key.view is not None
        for listing_id in self._directory.select_now(key.view):
            entry = self._directory.find_entry(listing_id)
            if entry is not None and key.count_skills(entry) and self._directory.represents_agent(entry):
                yield entry

    def _count(self, key: VisibilityKey) -> tuple[int, int]:
        survey = self._survey(key)
        return survey.tools, survey.agents

    def _has_over(self, limit: int, key: VisibilityKey) -> bool:
        """Whether more tools than this are visible; stops counting as soon as it knows."""
        if not _is_limited(key.view):
            _, listed, _ = self._directory.count_skills(key.scopes)
            return listed > limit
        tools = 0
        for entry in self._iterate_within(key):
            tools += key.count_listed(entry)
            if tools > limit:
                return True
        return False

    def _is_short(self, key: VisibilityKey, view: _View, session: str | None) -> bool:
        if self._listing != "auto":
            return self._listing == "search"
        if view.is_many is None:
            view.is_many = self._has_over(MANY, key)
        if session is None:
            return view.is_many
        fixed = self._short.setdefault(session, view.is_many)
        return fixed or (view.is_many and self._survey(key).tools > TOO_MANY)

    def _make(self, key: VisibilityKey, short: bool) -> ToolCatalog:
        if short:
            own, pinned = self._list_own(key), self._list_pinned(key)
            count, list_seen = partial(self._count, key), partial(self._iterate_seen, key)
            return SearchOnlyCatalog(own, self._directory, key, self._names, count, list_seen, pinned)
        return ToolCatalog(self._list_offered(key, self._survey(key).entries), names=self._names)

    def _list_own(self, key: VisibilityKey) -> Sequence[Skill]:
        """The listed ones of the hub's own skills."""
        own: Sequence[Skill] = [
            _as_listed(key, self._own, skill)
            for skill in self._record.skills
            if self._is_own_seen(skill.visibility, key)
        ]
        return own if self._shape is None else self._shape(own, key.scopes, key.view)

    def _list_offered(
        self, key: VisibilityKey, entries: Sequence[Entry]
    ) -> Iterator[tuple[str | None, Skill]]:
        """The skills of a long list, with their agents; each as clients see it."""
        yield from ((None, skill) for skill in self._list_own(key))
        names = {entry.id: self._directory.name_of(entry) for entry in entries}
        for start in range(0, len(entries), _OPENED_AT_ONCE):
            for listing in self._directory.open_all(entries[start : start + _OPENED_AT_ONCE]):
                for skill in listing.record.skills:
                    if is_visible(skill.visibility, key.scopes):
                        shown = _as_listed(key, listing, skill)
                        yield names[listing.id], note_skill(key.view, listing, shown)

    def _list_pinned(self, key: VisibilityKey) -> list[tuple[str, Skill]]:
        """The skills of agents that stay in the short list, with their agents: at most `MAX_PINNED`."""
        pinned: list[tuple[str, Skill]] = []
        for entry in self._directory.list_entries() if self._listed else ():
            agent = self._directory.name_of(entry)
            for skill_id in key.list_skills(entry):
                name = f"{agent}__{skill_id}"
                if not any(fnmatchcase(name, glob) for glob in self._listed):
                    continue
                skill = self._directory.find_skill(entry, skill_id)
                if skill is not None and is_listed(key.view, entry, skill):
                    pinned.append((agent, note_skill(key.view, entry, skill)))
                if len(pinned) >= MAX_PINNED:
                    return pinned
        return pinned

    def _own_changed(self, change: Change) -> None:
        if change.kind != "resource":
            self._record = self._read_record()
            self._views.clear()
        self._changes.notify(change)

    def _agent_changed(self, change: ListingChange) -> None:
        """Drop the views; without views, clients have been notified already. Measurements change no list."""
        if change.measured or not self._views:
            return
        self._views.clear()
        # of a change of any list, the observers compare all three
        self._changes.notify(Change("tools"))
        self._changes.notify(Change("resources"))

    def _resource_changed(self, name: str, uri: str) -> None:
        """Tell of a followed resource under the URI of the hub's list."""
        assert self._imported is not None
        for listed, server in self._imported.list_all():
            if str(server.id) == name:
                self._changes.notify(Change("resource", resource_prefix(listed) + uri))


def _is_limited(view: AgentView | None) -> bool:
    return view is not None and bool(view.closed or view.globs)


def _as_listed(key: VisibilityKey, agent: Listing, skill: Skill) -> Skill:
    """The skill as the catalog has it: one that policies do not list is found by its name all the same."""
    return skill if is_listed(key.view, agent, skill) else replace(skill, listed=False)


def _resource_of(name: str) -> Resource:
    return Resource(
        uri=AGENT_URI + name,
        name=name,
        mime="application/json",
        visibility="exposed",
        description=f"The agent {name}: its card, and what is known of it here.",
    )
