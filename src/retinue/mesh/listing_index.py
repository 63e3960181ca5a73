"""Entries by identity, by name, by skill and by role, in the order in which agents are preferred.

Same names are one agent only where the url's origin or the owner's key is equal; otherwise they
stand side by side (DESIGN 2). Look-ups by skill are kept ready made per skill and scopes, so that
they cost the same among ten agents and a hundred thousand; a change mends those it touches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from retinue.core.record import ListingKey
from retinue.mesh.access import AgentView, is_seen
from retinue.mesh.entry import Candidate, Entry, Scopes
from retinue.mesh.health import tier_of
from retinue.mesh.postings import Postings
from retinue.mesh.suggest import suggest
from retinue.mesh.versions import version_key

READY_SKILLS = 2_048
"""Skills whose look-ups are kept ready made, those asked for last."""

FEW_MOVED = 200
"""So many that came or went are put in their places one by one; of more, all are sorted."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


class ListingIndex:
    """``source_rank`` gives the place of a source by its name, lowest first."""

    def __init__(self, source_rank: Callable[[str], int]) -> None:
        self._rank = source_rank
        self._entries: dict[ListingKey, Entry] = {}
        self._by_name = Postings()
        self._by_skill = Postings()
        self._by_role = Postings()
        self._ready: dict[str, _Ready] = {}
        self._order: list[ListingKey] = []
        self._moved: dict[ListingKey, None] | None = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def find(self, listing_id: ListingKey) -> Entry | None:
        return self._entries.get(listing_id)

    def put(self, entry: Entry) -> None:
        """Add the entry, or replace the one of the same identity."""
        held = self._entries.get(entry.id)
        if held is not None and _words_of(held) == _words_of(entry):
            if held.skills is not entry.skills:
                # the texts that the look-ups hold already, instead of equal ones beside them
                entry = replace(entry, id=held.id, name=held.name, skills=held.skills)
        else:
            self.remove(entry.id)
            held = None
            self._note_moved(entry.id)
            self._by_name.put(entry.name, entry.id)
            for skill_id in entry.skills:
                self._by_skill.put(skill_id, entry.id)
            for role, _ in entry.roles:
                self._by_role.put(role, entry.id)
        self._entries[entry.id] = entry
        self._spoil(entry, held)

    def remove(self, listing_id: ListingKey) -> None:
        """Take the entry out, if it is there."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return
        self._spoil(entry, entry)
        self._note_moved(listing_id)
        del self._entries[listing_id]
        self._by_name.remove(entry.name, listing_id)
        for skill_id in entry.skills:
            self._by_skill.remove(skill_id, listing_id)
        for role, _ in entry.roles:
            self._by_role.remove(role, listing_id)

    def list_agents(self) -> list[Entry]:
        """One entry per agent, by source and key; some 50 ms for 100,000."""
        return [entry for i in self.list_ids() if self.stands(entry := self._entries[i])]

    def list_ids(self, after: ListingKey | None = None) -> list[ListingKey]:
        """What is held, by source and key, or what comes behind ``after`` in that order."""
        if self._moved is None:
            # What is sorted in part already costs little to sort; ranks keep the order within a source.
            self._order = sorted(self._entries)
            self._order.sort(key=lambda i: self._rank(i.source))
        else:
            for listing_id in self._moved:
                at = self._place_of(listing_id)
                stood = at < len(self._order) and self._order[at] == listing_id
                if stood and listing_id not in self._entries:
                    del self._order[at]
                elif not stood and listing_id in self._entries:
                    self._order.insert(at, listing_id)
        self._moved = {}
        if after is None:
            return self._order.copy()
        at = self._place_of(after)
        return self._order[at + (self._order[at : at + 1] == [after]) :]

    def list_named(self, name: str, *, source: str | None = None) -> list[Entry]:
        """The agents of one name, preferred first: enabled ▸ health ▸ source order ▸ version."""
        ids = self._by_name.list_of(name)
        entries = [self._entries[i] for i in ids if source is None or i.source == source]
        if len(entries) < 2:
            return entries
        entries.sort(key=lambda a: a.key)
        entries.sort(key=lambda a: version_key(a.version), reverse=True)
        entries.sort(key=lambda a: (not a.enabled, tier_of(a), self._rank(a.source)))
        return merge_same_agents(entries)

    def find_named(self, name: str) -> Entry | None:
        """The preferred agent of a bare name or ``name@source``."""
        named = self.list_named(name)
        if not named:
            parts = (name[:at] for at, character in enumerate(name) if character == "@")
            named = [one for part in parts for one in self.list_named(part, source=name[len(part) + 1 :])]
        return named[0] if named else None

    def name_of(self, entry: Candidate) -> str:
        """What to call this agent: its name, or ``name@source`` where another agent has the name."""
        name = entry.name
        is_alone = len(self._by_name.list_of(name)) <= 1 or len(self.list_named(name)) <= 1
        return name if is_alone else f"{name}@{entry.id.source}"

    def stands(self, entry: Candidate) -> bool:
        """Whether this is the one that stands for its agent, as in `list_agents`."""
        if len(self._by_name.list_of(entry.name)) == 1:
            return entry.id in self._entries
        return any(one.id == entry.id for one in self.list_named(entry.name))

    def list_offering(self, skill_id: str, scopes: Scopes) -> tuple[Entry, ...]:
        """Enabled agents with a visible skill of this id: health ▸ source order ▸ key ▸ version."""
        if skill_id not in self._by_skill:
            return ()
        ready = self._ready.get(skill_id)
        if ready is None:
            if len(self._ready) >= READY_SKILLS:
                del self._ready[next(iter(self._ready))]
            ready = self._ready[skill_id] = _Ready({}, {})
        elif ready.spoiled:
            self._mend(skill_id, ready)
        found = ready.found.get(scopes)
        if found is None:
            found = ready.found[scopes] = tuple(self._list_offering(skill_id, scopes))
        return found

    def list_with_role(self, role: str, scopes: Scopes) -> list[Entry]:
        """One entry per agent in which these scopes see the role, in the order of `list_agents`.

        ``role`` as skills name it; who has a skill of this id has the role as well (``roles``).
        """
        ids = {*self._by_skill.list_of(role), *self._by_role.list_of(role)}
        having = (entry for i in ids if (entry := self._entries[i]).has_role(role, scopes))
        return sorted(filter(self.stands, having), key=lambda one: (self._rank(one.id.source), one.id))

    def is_offered(self, skill_id: str, scopes: Scopes, view: AgentView | None = None) -> bool:
        """Whether anybody within the view is in `list_offering`, at less cost."""
        return any(
            self._offers(i, skill_id, scopes) and is_seen(view, self._entries[i].name)
            for i in self._by_skill.list_of(skill_id)
        )

    def skill_ids(self) -> Iterable[str]:
        """Every skill id, visible or not."""
        return self._by_skill

    def names(self) -> Iterable[str]:
        return self._by_name

    def suggest_names(self, name: str, view: AgentView | None = None) -> tuple[str, ...]:
        """At most three names near to ``name``, of agents within the view, nearest first."""
        return suggest(name, self._by_name if view is None else filter(view, self._by_name))

    def suggest_skills(self, skill_id: str, scopes: Scopes, view: AgentView | None = None) -> tuple[str, ...]:
        """At most three ids near to ``skill_id``, of skills that such a caller can call, nearest first."""
        near = suggest(skill_id, self._by_skill, limit=30)
        return tuple(i for i in near if self.is_offered(i, scopes, view))[:3]

    def list_at_same_url(self, listing: Candidate) -> list[Entry]:
        """The held entries of this name at the same origin: where one is dead, all are.

        Empty when the listing has moved since or is gone.
        """
        current = self._entries.get(listing.id)
        if current is None or current.url != listing.url:
            return []
        origin = url_origin(listing.url)
        same_name = (self._entries[i] for i in self._by_name.list_of(listing.name))
        return [
            other
            for other in same_name
            if other.id == listing.id or (origin is not None and url_origin(other.url) == origin)
        ]

    def _note_moved(self, listing_id: ListingKey) -> None:
        """Note that this came or went since the order was made; None stands for too many."""
        if self._moved is not None:
            self._moved[listing_id] = None
            if len(self._moved) > FEW_MOVED:
                self._moved = None

    def _place_of(self, listing_id: ListingKey) -> int:
        """Where the listing stands in the order, or would."""
        place = (self._rank(listing_id.source), listing_id)
        return bisect_left(self._order, place, key=lambda i: (self._rank(i.source), i))

    def _list_offering(self, skill_id: str, scopes: Scopes) -> list[Entry]:
        ids = self._by_skill.list_of(skill_id)
        found = [self._entries[i] for i in ids if self._offers(i, skill_id, scopes)]
        if len(found) > 1:
            found.sort(key=lambda a: version_key(a.version), reverse=True)
            found.sort(key=self._preference)
        return found

    def _preference(self, entry: Entry) -> tuple[int, int, str]:
        return tier_of(entry), self._rank(entry.id.source), entry.id.key

    def _offers(self, listing_id: ListingKey, skill_id: str, scopes: Scopes) -> bool:
        entry = self._entries[listing_id]
        return entry.enabled and entry.offers(skill_id, scopes) and self.stands(entry)

    def _spoil(self, entry: Entry, before: Entry | None) -> None:
        """Note that look-ups may no longer be as they were; ``before`` is what they may hold."""
        same_name = self._by_name.list_of(entry.name)
        if len(same_name) == 1:
            for skill_id in entry.skills if self._ready else ():
                ready = self._ready.get(skill_id)
                if ready is not None:
                    ready.spoiled.setdefault(entry.id, before)
                    if len(ready.spoiled) > FEW_MOVED:
                        del self._ready[skill_id]
        else:
            # another of that name may stand for the agent now
            for listing_id in same_name:
                for skill_id in self._entries[listing_id].skills:
                    self._ready.pop(skill_id, None)

    def _mend(self, skill_id: str, ready: _Ready) -> None:
        """Put those that changed in their new places: to sort a hundred thousand anew takes half a second."""
        for scopes, found in ready.found.items():
            entries = list(found)
            for listing_id, before in ready.spoiled.items():
                if before is not None:
                    self._take_out(entries, before)
                entry = self._entries.get(listing_id)
                if entry is not None and self._offers(listing_id, skill_id, scopes):
                    place = self._preference(entry)
                    entries.insert(bisect_right(entries, place, key=self._preference), entry)
            ready.found[scopes] = tuple(entries)
        ready.spoiled.clear()

    def _take_out(self, entries: list[Entry], entry: Entry) -> None:
        place = self._preference(entry)
        for at in range(bisect_left(entries, place, key=self._preference), len(entries)):
            if entries[at].id == entry.id:
                del entries[at]
                return
            if self._preference(entries[at]) != place:
                return


def _words_of(entry: Entry) -> tuple[object, ...]:
    """All by which an entry is found."""
    return entry.name, entry.skills, entry.roles


@dataclass(frozen=True, slots=True)
class _Ready:
    """Look-ups of one skill by scopes, and what changed since, as they have it."""

    found: dict[Scopes, tuple[Entry, ...]]
    spoiled: dict[ListingKey, Entry | None]


def merge_same_agents(entries: Iterable[Entry]) -> list[Entry]:
    """One entry per agent out of entries of one name, whose order is kept.

    The first of an agent stands for it, unless another of its listings was published later.
    """
    agents: list[list[Entry]] = []
    for entry in entries:
        same = next((a for a in agents if any(is_same_agent(entry, known) for known in a)), None)
        if same is None:
            agents.append([entry])
        else:
            same.append(entry)
    return [_latest(agent) for agent in agents]


def _latest(agent: list[Entry]) -> Entry:
    best = agent[0]
    for other in agent[1:]:
        alike = other.enabled == best.enabled and (other.reachable is False) == (best.reachable is False)
        if alike and best.published_at and other.published_at and best.published_at < other.published_at:
            best = other
    return best


def is_same_agent(one: Entry, other: Entry) -> bool:
    """Whether two entries of one name are one agent: equal url origin, or equal owner key."""
    if one.owner is not None and one.owner == other.owner:
        return True
    origin = url_origin(one.url)
    return origin is not None and origin == url_origin(other.url)


@lru_cache(maxsize=4096)
def url_origin(url: str | None) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None without a host."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)
