"""The offer of a hub: its own skills under their own names, every agent's as ``<agent>__<skill>``.

Past `MANY` skills of agents only the hub's own tools are listed (setting ``hub.listing``), because a
client pays for each line of the list with its model's attention; the others stay callable. Which of the
two it is stays the same for a session, whatever joins meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from retinue.core.record import AgentRecord, Listing, ListingKey, Prompt, Resource, Skill
from retinue.mesh.changes import Change, ChangeObserver, Changes
from retinue.mesh.directory import Change as DirectoryChange
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.names import Names, tool_id
from retinue.surfaces.mcp.offer import ServerFacts, ToolCatalog, ToolEntry

ListingMode = Literal["all", "search", "auto"]

MANY = 40
"""Skills of agents from which on ``auto`` lists the hub's own tools only."""

MAX_KNOWN = 5_000
"""So many unlisted tools are known by their aliases; of more, only by ``<agent>__<skill>``."""

FINDER = "find_skills"
CALLER = "call_skill"
AGENT_URI = "agent:"

_MAX_SESSIONS = 10_000

session: ContextVar[str | None] = ContextVar("retinue_mcp_session", default=None)
"""The session of the request being served, None in the era that has none."""


class Agents(Protocol):
    """Where the offer finds the agents: the directory."""

    def list_all(self) -> tuple[Listing, ...]: ...

    def find(self, name: str) -> Listing | None: ...

    def name_of(self, listing: Listing) -> str: ...

    def subscribe(self, watcher: Callable[[DirectoryChange], None]) -> Callable[[], None]: ...


Offered = tuple[str | None, Skill]


@dataclass(slots=True)
class _View:
    """What callers of some scopes may have; the two lists are made when they are asked for."""

    own: list[Offered]
    others: list[Offered]
    agents: tuple[str, ...]
    catalogs: dict[bool, ToolCatalog] = field(default_factory=dict)


class MeshOffer:
    """What the hub offers: ``read_record`` is its own record, ``agents`` everybody else."""

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        agents: Agents,
        *,
        listing: ListingMode = "auto",
        names: Names = "safe",
        instructions: str | None = None,
    ) -> None:
        self._read_record = read_record
        self._agents = agents
        self._listing = listing
        self._names = names
        self._instructions = instructions
        self._changes = Changes()
        self._record = read_record()
        self._views: dict[frozenset[str], _View] = {}
        self._short: OrderedDict[str, bool] = OrderedDict()
        self._known = {one.id: _mark(one) for one in agents.list_all()}
        subscribe(self._own_changed)
        agents.subscribe(self._agent_changed)

    @property
    def facts(self) -> ServerFacts:
        record = self._record
        return ServerFacts(record.name, record.version or "", record.title, self._instructions, logs=True)

    @property
    def agent(self) -> str:
        return self._record.name

    def tools(self, scopes: frozenset[str]) -> ToolCatalog:
        view = self._view(scopes)
        short = self._is_short(view)
        found = view.catalogs.get(short)
        if found is None:
            found = view.catalogs[short] = self._make(view, short, scopes)
        return found

    def resources(self, scopes: frozenset[str]) -> Sequence[Resource]:
        own = [one for one in self._record.resources if is_visible(one, scopes)]
        names = self._view(scopes).agents[:MANY]
        return (*own, *(_resource_of(name) for name in names))

    def prompts(self, scopes: frozenset[str]) -> Sequence[Prompt]:
        return tuple(one for one in self._record.prompts if is_visible(one, scopes))

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._changes.subscribe(observer)

    def _view(self, scopes: frozenset[str]) -> _View:
        found = self._views.get(scopes)
        if found is None:
            own: list[Offered] = [(None, one) for one in self._record.skills if is_visible(one, scopes)]
            others: list[Offered] = []
            agents: list[str] = []
            for listing in self._agents.list_all():
                seen = [one for one in listing.record.skills if is_visible(one, scopes)]
                if listing.enabled and seen:
                    name = self._agents.name_of(listing)
                    agents.append(name)
                    others += [(name, one) for one in seen]
            found = self._views[scopes] = _View(own, others, tuple(agents))
        return found

    def _is_short(self, view: _View) -> bool:
        if self._listing != "auto":
            return self._listing == "search"
        short, key = len(view.others) > MANY, session.get()
        if key is None:
            return short
        fixed = self._short.setdefault(key, short)
        self._short.move_to_end(key)
        if len(self._short) > _MAX_SESSIONS:
            self._short.popitem(last=False)
        return fixed

    def _make(self, view: _View, short: bool, scopes: frozenset[str]) -> ToolCatalog:
        if not short:
            return ToolCatalog([*view.own, *view.others], names=self._names)
        own = [(agent, _tell_of_more(skill, len(view.others), len(view.agents))) for agent, skill in view.own]
        return ShortCatalog(own, view.others, self._agents, scopes, self._names)

    def _own_changed(self, change: Change) -> None:
        self._record = self._read_record()
        self._views = {}
        self._changes.tell(change)

    def _agent_changed(self, change: DirectoryChange) -> None:
        """What was only measured of an agent is no change of what it offers."""
        listing, known = change.listing, self._known
        before = known.get(listing.id)
        if change.kind == "removed":
            known.pop(listing.id, None)
        else:
            known[listing.id] = _mark(listing)
        if before == known.get(listing.id):
            return
        self._views = {}
        self._changes.tell(Change("tools"))
        self._changes.tell(Change("resources"))


class ShortCatalog(ToolCatalog):
    """Lists ``own`` alone and finds every tool; one of very many by agent and skill, when it is called."""

    def __init__(
        self,
        own: Sequence[Offered],
        others: Sequence[Offered],
        agents: Agents,
        scopes: frozenset[str],
        names: Names,
    ) -> None:
        super().__init__(own, names=names, unlisted=others[:MAX_KNOWN])
        self._agents = agents
        self._scopes = scopes
        self._is_whole = len(others) <= MAX_KNOWN

    def find(self, name: str) -> ToolEntry | None:
        found = super().find(name)
        return found if found is not None or self._is_whole else self._look_up(name)

    def _look_up(self, name: str) -> ToolEntry | None:
        for mark in ("__", "."):
            at = name.find(mark)
            while at > 0:
                listing = self._agents.find(name[:at])
                if listing is not None and listing.enabled:
                    skill = listing.record.find_skill(name[at + len(mark) :])
                    if skill is not None and is_visible(skill, self._scopes):
                        agent = self._agents.name_of(listing)
                        return ToolEntry(tool_id(agent, skill.id), skill, agent)
                at = name.find(mark, at + 1)
        return None


def _tell_of_more(skill: Skill, tools: int, agents: int) -> Skill:
    """The finder says how many tools its list does not show."""
    if skill.id != FINDER:
        return skill
    more = (
        f" {tools} more tools of {agents} agent{'s' * (agents != 1)} are not in this list: "
        f"find them here, call them with {CALLER}."
    )
    return replace(skill, description=skill.description + more)


def _resource_of(name: str) -> Resource:
    return Resource(
        uri=AGENT_URI + name,
        name=name,
        mime="application/json",
        visibility="exposed",
        description=f"The agent {name}: its card, and what is known of it here.",
    )


def _mark(listing: Listing) -> tuple[ListingKey, str | int | None, bool]:
    """Another one whenever the agent offers something else."""
    return listing.id, listing.digest or listing.hash or hash(repr(listing.record)), listing.enabled
