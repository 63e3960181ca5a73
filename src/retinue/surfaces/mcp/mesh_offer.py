"""The offer of a hub: its own skills under their own names, every agent's as ``<agent>__<skill>``.

Past `MANY` skills of agents only the hub's own tools are listed (setting ``hub.listing``), because a
client pays for each line of the list with its model's attention; the others stay callable. Which of the
two it is stays the same for a session, whatever joins meanwhile. Cards are opened of what is listed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from retinue.core.call import Principal
from retinue.core.record import AgentRecord, Prompt, Resource, Skill
from retinue.mesh.access import Access, is_seen
from retinue.mesh.changes import Change, ChangeObserver, Changes
from retinue.mesh.entry import Entry
from retinue.mesh.holdings import Change as DirectoryChange
from retinue.mesh.visibility import Shown, is_visible
from retinue.protocols.mcp.names import Names
from retinue.surfaces.mcp.offer import ServerFacts, ToolCatalog
from retinue.surfaces.mcp.short_catalog import Agents, ShortCatalog, Sight

ListingMode = Literal["all", "search", "auto"]

MANY = 40
"""Skills of agents from which on ``auto`` lists the hub's own tools only."""

TOO_MANY = 1_000
"""From here on it does so even in a session that began with the long list."""

AGENT_URI = "agent:"

_MAX_SESSIONS = 10_000
_MAX_SIGHTS = 64

session: ContextVar[str | None] = ContextVar("retinue_mcp_session", default=None)
"""The session of the request being served, None in the era that has none."""


@dataclass(frozen=True, slots=True)
class _Survey:
    """How many tools of how many agents are seen, and the agents, as many as may be listed."""

    tools: int
    agents: int
    entries: list[Entry]


@dataclass(slots=True)
class _View:
    """What callers of one sight have; each part is made when it is asked for."""

    is_many: bool | None = None
    survey: _Survey | None = None
    catalogs: dict[bool, ToolCatalog] = field(default_factory=dict)


class MeshOffer:
    """What the hub offers: ``read_record`` is its own record, ``agents`` everybody else.

    ``access`` says which agents a caller sees.
    """

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        agents: Agents,
        access: Access,
        *,
        listing: ListingMode = "auto",
        names: Names = "safe",
        instructions: str | None = None,
    ) -> None:
        self._read_record = read_record
        self._agents = agents
        self._access = access
        self._listing = listing
        self._names = names
        self._instructions = instructions
        self._changes = Changes()
        self._record = read_record()
        self._views: OrderedDict[Sight, _View] = OrderedDict()
        self._short: OrderedDict[str, bool] = OrderedDict()
        subscribe(self._own_changed)
        agents.subscribe(self._agent_changed)

    @property
    def facts(self) -> ServerFacts:
        record = self._record
        return ServerFacts(record.name, record.version or "", record.title, self._instructions, logs=True)

    @property
    def agent(self) -> str:
        return self._record.name

    def sight_of(self, principal: Principal) -> Sight:
        return Sight(principal.scopes, self._access.view_of(principal))

    def tools(self, principal: Principal) -> ToolCatalog:
        sight = self.sight_of(principal)
        view = self._view(sight)
        short = self._is_short(sight, view)
        found = view.catalogs.get(short)
        if found is None:
            found = view.catalogs[short] = self._make(sight, short)
        return found

    def resources(self, principal: Principal) -> Sequence[Resource]:
        sight = self.sight_of(principal)
        if not is_seen(sight.view, self.agent):
            return ()
        own = [one for one in self._record.resources if is_visible(one, sight.scopes)]
        agents = self._survey(sight).entries[:MANY]
        return (*own, *(_resource_of(self._agents.name_of(one)) for one in agents))

    def prompts(self, principal: Principal) -> Sequence[Prompt]:
        sight = self.sight_of(principal)
        return tuple(one for one in self._record.prompts if self._is_own_seen(one, sight))

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._changes.subscribe(observer)

    def _is_own_seen(self, thing: Shown, sight: Sight) -> bool:
        return is_visible(thing, sight.scopes) and is_seen(sight.view, self.agent)

    def _view(self, sight: Sight) -> _View:
        found = self._views.get(sight)
        if found is None:
            found = self._views[sight] = _View()
            if len(self._views) > _MAX_SIGHTS:
                self._views.popitem(last=False)
        self._views.move_to_end(sight)
        return found

    def _survey(self, sight: Sight) -> _Survey:
        view = self._view(sight)
        if view.survey is None:
            tools, agents, entries = 0, 0, list[Entry]()
            for entry in self._agents.list_entries():
                if seen := sight.count_skills(entry):
                    tools, agents = tools + seen, agents + 1
                    if agents <= TOO_MANY or self._listing == "all":
                        entries.append(entry)
            view.survey = _Survey(tools, agents, entries)
        return view.survey

    def _count(self, sight: Sight) -> tuple[int, int]:
        survey = self._survey(sight)
        return survey.tools, survey.agents

    def _has_over(self, limit: int, sight: Sight) -> bool:
        """Whether more tools than this are seen: where there are, few entries are looked at."""
        tools = 0
        for entry in self._agents.list_held():
            seen = sight.count_skills(entry)
            if seen and self._agents.stands(entry):
                tools += seen
                if tools > limit:
                    return True
        return False

    def _is_short(self, sight: Sight, view: _View) -> bool:
        if self._listing != "auto":
            return self._listing == "search"
        if view.is_many is None:
            view.is_many = self._has_over(MANY, sight)
        key = session.get()
        if key is None:
            return view.is_many
        fixed = self._short.setdefault(key, view.is_many)
        self._short.move_to_end(key)
        if len(self._short) > _MAX_SESSIONS:
            self._short.popitem(last=False)
        return fixed or (view.is_many and self._survey(sight).tools > TOO_MANY)

    def _make(self, sight: Sight, short: bool) -> ToolCatalog:
        own = [one for one in self._record.skills if self._is_own_seen(one, sight)]
        if short:
            return ShortCatalog(own, self._agents, sight, self._names, lambda: self._count(sight))
        entries = self._survey(sight).entries
        names = {one.id: self._agents.name_of(one) for one in entries}
        others: list[tuple[str | None, Skill]] = [
            (names[listing.id], skill)
            for listing in self._agents.open_all(entries)
            for skill in listing.record.skills
            if is_visible(skill, sight.scopes)
        ]
        return ToolCatalog([*((None, skill) for skill in own), *others], names=self._names)

    def _own_changed(self, change: Change) -> None:
        self._record = self._read_record()
        self._views.clear()
        self._changes.tell(change)

    def _agent_changed(self, change: DirectoryChange) -> None:
        """What was only measured changes nothing; of what nobody has looked at since, all have been told."""
        if change.measured or not self._views:
            return
        self._views.clear()
        self._changes.tell(Change("tools"))
        self._changes.tell(Change("resources"))


def _resource_of(name: str) -> Resource:
    return Resource(
        uri=AGENT_URI + name,
        name=name,
        mime="application/json",
        visibility="exposed",
        description=f"The agent {name}: its card, and what is known of it here.",
    )
