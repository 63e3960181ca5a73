"""Indexes entries by id, name, skill and role, in order of preference.

Listings of the same name are one agent only where the origin of their urls or their owner keys are equal;
otherwise they are separate agents (specification 8.2). Look-ups by skill are cached per skill and scopes, so
that they cost the same among ten agents as among a hundred thousand; a change updates the cached look-ups
that it affects.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from retinue.core.record import Candidate, Health, ListingKey
from retinue.core.text import suggest
from retinue.mesh.directory.choice import ChoiceOrder, choice_order
from retinue.mesh.directory.versions import (
    folder_of,
    is_same_repository,
    is_stable,
    is_version_named,
    mark_standby,
    name_version,
    version_key,
)
from retinue.mesh.entry import Entry, Scopes, count_visible
from retinue.mesh.health.breaker import health_tier
from retinue.mesh.permissions import AgentView, is_seen

MAX_CACHED_SKILLS = 2_048
"""Skills whose look-ups are cached."""

MAX_INCREMENTAL_CHANGES = 200
"""Changes that are sorted into a cached order one by one; after more of them, everything is sorted again."""

MAX_SORTED = 5_000
"""Entries that are sorted for one list; of more of them the first are found by a walk in their order."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Facts(NamedTuple):
    """Counts of the entries, so that nobody walks over them."""

    source: str
    enabled: bool
    health: Health
    kinds: str

    @classmethod
    def of(cls, entry: Entry) -> Facts:
        """The facts of an entry."""
        return cls(entry.source, entry.enabled, entry.health, entry.kinds)


class Postings:
    """The listings of each word, in the order in which they were added."""

    __slots__ = ("_by_word", "_shared")

    def __init__(self) -> None:
        # A plain key where only one listing has the word: a dict for each of half a million skills would take
        # a kilobyte per agent.
        self._by_word: dict[str, ListingKey | dict[ListingKey, None]] = {}
        self._shared: dict[str, dict[ListingKey, None]] = {}

    def __contains__(self, word: str) -> bool:
        return word in self._by_word

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_word)

    def __len__(self) -> int:
        return len(self._by_word)

    def list_of(self, word: str) -> Collection[ListingKey]:
        """The listings with this word; valid until the next change."""
        current = self._by_word.get(word)
        if current is None:
            return ()
        return current if isinstance(current, dict) else (current,)

    def put(self, word: str, listing_id: ListingKey) -> None:
        current = self._by_word.get(word)
        if current is None:
            self._by_word[word] = listing_id
        elif isinstance(current, dict):
            current[listing_id] = None
        elif current != listing_id:
            self._by_word[word] = self._shared[word] = {current: None, listing_id: None}

    def remove(self, word: str, listing_id: ListingKey) -> None:
        current = self._by_word.get(word)
        if isinstance(current, dict):
            current.pop(listing_id, None)
            if len(current) == 1:
                (self._by_word[word],) = current
                del self._shared[word]
        elif current == listing_id:
            del self._by_word[word]

    def list_shared(self) -> Iterator[ListingKey]:
        """The listings of the words that several listings have."""
        for listings in self._shared.values():
            yield from listings


class ListingIndex:
    """The entries of a directory; ``source_rank`` gives the rank of a source by its name, lowest first.

    ``max_cached_skills`` bounds the skills whose look-ups are cached, ``max_incremental_changes`` the changes
    that are sorted into a cached order one by one.
    """

    def __init__(
        self,
        source_rank: Callable[[str], int],
        *,
        max_cached_skills: int = MAX_CACHED_SKILLS,
        max_incremental_changes: int = MAX_INCREMENTAL_CHANGES,
    ) -> None:
        self._rank = source_rank
        self._max_cached_skills = max_cached_skills
        self._max_incremental_changes = max_incremental_changes
        self._entries: dict[ListingKey, Entry] = {}
        self._by_name = Postings()
        self._by_skill = Postings()
        self._by_role = Postings()
        self._troubled: dict[tuple[bool, Health], dict[ListingKey, Entry]] = {}
        """The entries that are not both enabled and healthy, by whether they are enabled, and by health."""
        self._facts: Counter[Facts] = Counter()
        self._by_kinds: dict[str, dict[ListingKey, None]] = {}
        self._lookups: dict[str, _Lookups] = {}
        self._order: list[ListingKey] = []
        self._moved: dict[ListingKey, None] | None = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def find(self, listing_id: ListingKey) -> Entry | None:
        return self._entries.get(listing_id)

    def put(self, entry: Entry) -> None:
        """Add the entry, or replace the one with the same id."""
        current = self._entries.get(entry.id)
        if current is not None and _words_of(current) == _words_of(entry):
            if current.skills is not entry.skills:
                # Reuse the strings that the cached look-ups hold, instead of equal ones.
                entry = replace(entry, id=current.id, name=current.name, skills=current.skills)
        else:
            self.remove(entry.id)
            current = None
            self._mark_moved(entry.id)
            self._by_name.put(entry.name, entry.id)
            for skill_id in entry.skills:
                self._by_skill.put(skill_id, entry.id)
            for role, _ in entry.roles:
                self._by_role.put(role, entry.id)
        if current is not None:
            self._count_out(current)
        self._entries[entry.id] = entry
        self._count_in(entry)
        self._invalidate(entry, current)

    def remove(self, listing_id: ListingKey) -> None:
        """Remove the entry, if it exists."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return
        self._invalidate(entry, entry)
        self._mark_moved(listing_id)
        del self._entries[listing_id]
        self._count_out(entry)
        self._by_name.remove(entry.name, listing_id)
        for skill_id in entry.skills:
            self._by_skill.remove(skill_id, listing_id)
        for role, _ in entry.roles:
            self._by_role.remove(role, listing_id)

    def list_unhealthy(self) -> list[Entry]:
        """The entries that are not healthy, including several of one agent: about 1 ms for 100,000."""
        return [e for (_, health), of in self._troubled.items() if health != "healthy" for e in of.values()]

    def list_failing(self, limit: int, source: str | None = None) -> list[Entry]:
        """At most ``limit`` agents of `list_agents` that are disabled, degraded or unreachable.

        They are the first ones in that order, unless there are more than `MAX_SORTED` entries of this kind.
        """
        failing = [of for (enabled, health), of in self._troubled.items() if _is_failing(enabled, health)]
        entries: Iterable[Entry] = (entry for of in failing for entry in of.values())
        if sum(map(len, failing)) <= MAX_SORTED:
            entries = sorted(entries, key=lambda entry: (self._rank(entry.source), entry.id))
        agents = (e for e in entries if source in (None, e.source) and self.represents_agent(e))
        return list(itertools.islice(agents, limit))

    def count_facts(self) -> Counter[Facts]:
        """How many agents of `list_agents` have the same facts; costs only the names with several entries."""
        counts = Counter(self._facts)
        for listing_id in self._by_name.list_shared():
            entry = self._entries[listing_id]
            if not self.represents_agent(entry):
                counts[Facts.of(entry)] -= 1
        return counts

    def list_visible(self, scopes: Scopes, limit: int) -> list[Entry]:
        """The first ``limit`` enabled entries of `list_agents` with a visible skill, in that order."""
        seen = [ids for kinds, ids in self._by_kinds.items() if count_visible(kinds, scopes)]
        ids: Iterable[ListingKey] = self.list_ids()
        if sum(map(len, seen)) <= MAX_SORTED:
            ids = sorted(itertools.chain.from_iterable(seen), key=lambda i: (self._rank(i.source), i))
        entries = (self._entries[listing_id] for listing_id in ids)
        visible = (e for e in entries if e.enabled and e.count_skills(scopes) and self.represents_agent(e))
        return list(itertools.islice(visible, limit))

    def _count_in(self, entry: Entry) -> None:
        facts = Facts.of(entry)
        self._facts[facts] += 1
        self._by_kinds.setdefault(entry.kinds, {})[entry.id] = None
        if not (facts.enabled and facts.health == "healthy"):
            self._troubled.setdefault((facts.enabled, facts.health), {})[entry.id] = entry

    def _count_out(self, entry: Entry) -> None:
        facts = Facts.of(entry)
        self._facts[facts] -= 1
        if not self._facts[facts]:
            del self._facts[facts]
        of_kinds = self._by_kinds[entry.kinds]
        del of_kinds[entry.id]
        if not of_kinds:
            del self._by_kinds[entry.kinds]
        if (of_health := self._troubled.get((facts.enabled, facts.health))) is not None:
            del of_health[entry.id]

    def note_rank(self, source: str) -> None:
        """Sort the entries of this source again, because its rank has changed."""
        if any(entry.source == source for entry in self._entries.values()):
            self._moved = None
            self._lookups.clear()

    def list_agents(self) -> list[Entry]:
        """One entry per agent, by source and key; about 50 ms for 100,000."""
        return [entry for i in self.list_ids() if self.represents_agent(entry := self._entries[i])]

    def list_ids(self, after: ListingKey | None = None) -> list[ListingKey]:
        """The ids of all entries by source and key, or those behind ``after`` in that order."""
        self._update_order()
        if after is None:
            return self._order.copy()
        at = self._position_of(after)
        return self._order[at + (self._order[at : at + 1] == [after]) :]

    def list_tags(self, source: str, key: str) -> list[Entry]:
        """The entries of one key of a source: the versions of one agent, by tag."""
        self._update_order()
        at = self._position_of(ListingKey(source, key))
        ids = []
        while at < len(self._order) and self._order[at][:2] == (source, key):
            ids.append(self._entries[self._order[at]])
            at += 1
        return ids

    def _update_order(self) -> None:
        if self._moved is None:
            # The second sort is stable, and cheap on input that is partly sorted.
            self._order = sorted(self._entries)
            self._order.sort(key=lambda i: self._rank(i.source))
        else:
            for listing_id in self._moved:
                at = self._position_of(listing_id)
                is_listed = at < len(self._order) and self._order[at] == listing_id
                if is_listed and listing_id not in self._entries:
                    del self._order[at]
                elif not is_listed and listing_id in self._entries:
                    self._order.insert(at, listing_id)
        self._moved = {}

    def list_named(self, name: str, *, source: str | None = None) -> list[Entry]:
        """The agents of one name, best first: enabled ▸ health ▸ supported ▸ source order ▸ stable ▸ version.

        The versions of one agent are separate entries.
        """
        ids = self._by_name.list_of(name)
        entries = [self._entries[i] for i in ids if source is None or i.source == source]
        if len(entries) < 2:
            return entries
        entries.sort(key=lambda a: a.key)
        entries.sort(key=lambda a: (version_key(a.version), version_key(a.tag)), reverse=True)
        entries.sort(
            key=lambda a: (
                not a.enabled,
                health_tier(a),
                a.deprecated,
                self._rank(a.source),
                not is_stable(a.version),
            )
        )
        return merge_same_agents(entries)

    def find_named(self, name: str) -> Entry | None:
        """The best agent of a bare name, ``name@source``, ``name@team`` or ``name@version``.

        None for a bare name that agents of two teams have.
        """
        named = self.list_named(name)
        if len(named) > 1 and list_folders(named):
            return None
        if not named:
            parts = [name[:at] for at, character in enumerate(name) if character == "@"]
            named = [entry for part in parts for entry in self.list_named(part, source=name[len(part) + 1 :])]
            named = named or [
                entry
                for part in parts
                for entry in self.list_named(part)
                if folder_of(entry.id) == name[len(part) + 1 :]
                or is_version_named(entry.version, name[len(part) + 1 :])
            ]
        return named[0] if named else None

    def name_of(self, entry: Candidate) -> str:
        """The name that identifies this agent.

        ``name@team`` or ``name@source`` where another agent has the same name, ``name@1`` for a version of an
        agent that is not the one which its bare name means.
        """
        name = entry.name
        if len(self._by_name.list_of(name)) <= 1:
            return name
        named = self.list_named(name)
        if not all(is_same_repository(other, entry) for other in named):
            return f"{name}@{folder_of(entry.id) or entry.id.source}"
        if len(named) <= 1 or named[0].id == entry.id:
            return name
        return name_version(entry, named)

    def represents_agent(self, entry: Candidate) -> bool:
        """Whether `list_agents` has this listing for its agent, rather than another one of the agent."""
        if len(self._by_name.list_of(entry.name)) == 1:
            return entry.id in self._entries
        return any(named.id == entry.id for named in self.list_named(entry.name))

    def list_offering(self, skill_id: str, scopes: Scopes) -> tuple[Entry, ...]:
        """Enabled agents with a visible skill of this id: `choice_order` ▸ source order ▸ key ▸ version."""
        if skill_id not in self._by_skill:
            return ()
        lookups = self._lookups.get(skill_id)
        if lookups is None:
            if len(self._lookups) >= self._max_cached_skills:
                del self._lookups[next(iter(self._lookups))]
            lookups = self._lookups[skill_id] = _Lookups({}, {})
        elif lookups.changed:
            self._update(skill_id, lookups)
        entries = lookups.found.get(scopes)
        if entries is None:
            entries = lookups.found[scopes] = tuple(self._list_offering(skill_id, scopes))
        return entries

    def find_offering(self, listing_id: ListingKey, skill_id: str, scopes: Scopes) -> Entry | None:
        """The entry with this id, if `list_offering` has it."""
        entry = self._entries.get(listing_id)
        return entry if entry is not None and self._offers(listing_id, skill_id, scopes) else None

    def list_with_role(self, role: str, scopes: Scopes) -> list[Entry]:
        """One entry per agent with a skill of this role visible to ``scopes``, in the order of `list_agents`.

        An agent has the role where a skill names it or has it as its id.
        """
        ids = {*self._by_skill.list_of(role), *self._by_role.list_of(role)}
        having = (entry for i in ids if (entry := self._entries[i]).has_role(role, scopes))
        return sorted(
            filter(self.represents_agent, having), key=lambda entry: (self._rank(entry.id.source), entry.id)
        )

    def is_offered(self, skill_id: str, scopes: Scopes, view: AgentView | None = None) -> bool:
        """Whether `list_offering` has an agent within the view, at less cost."""
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
        """At most three names similar to ``name``, of agents within the view, most similar first.

        Of a name that agents of several teams have, it is their full names.
        """
        if (folders := list_folders(self.list_named(name))) and is_seen(view, name):
            return tuple(f"{name}@{folder}" for folder in folders[:3])
        return suggest(name, self._by_name if view is None else filter(view, self._by_name))

    def suggest_skills(self, skill_id: str, scopes: Scopes, view: AgentView | None = None) -> tuple[str, ...]:
        """At most three ids similar to ``skill_id``, of skills that such a caller can call."""
        near = suggest(skill_id, self._by_skill, limit=30)
        return tuple(i for i in near if self.is_offered(i, scopes, view))[:3]

    def list_at_same_url(self, listing: Candidate) -> list[Entry]:
        """The entries of this name at the same origin, which share their health.

        Empty when the listing has moved meanwhile or is gone.
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

    def has_agent(self, name: str, url: str | None) -> bool:
        """Whether there is an entry of this name and url."""
        return any(self._entries[i].url == url for i in self._by_name.list_of(name))

    def _mark_moved(self, listing_id: ListingKey) -> None:
        """Record that a listing was added or removed since the order was made; None = too many were."""
        if self._moved is not None:
            self._moved[listing_id] = None
            if len(self._moved) > self._max_incremental_changes:
                self._moved = None

    def _position_of(self, listing_id: ListingKey) -> int:
        """The position of the listing in the order, whether or not it is there."""
        place = (self._rank(listing_id.source), listing_id)
        return bisect_left(self._order, place, key=lambda i: (self._rank(i.source), i))

    def _list_offering(self, skill_id: str, scopes: Scopes) -> list[Entry]:
        ids = self._by_skill.list_of(skill_id)
        entries = [self._entries[i] for i in ids if self._offers(i, skill_id, scopes)]
        entries = mark_standby(entries)
        if len(entries) > 1:
            entries.sort(key=lambda a: version_key(a.version), reverse=True)
            entries.sort(key=self._preference)
        return entries

    def _preference(self, entry: Entry) -> tuple[ChoiceOrder, int, str]:
        return choice_order(entry), self._rank(entry.id.source), entry.id.key

    def _offers(self, listing_id: ListingKey, skill_id: str, scopes: Scopes) -> bool:
        entry = self._entries[listing_id]
        return entry.enabled and entry.offers(skill_id, scopes) and self.represents_agent(entry)

    def _invalidate(self, entry: Entry, before: Entry | None) -> None:
        """Mark cached look-ups as changed; ``before`` is the entry that they may contain."""
        same_name = self._by_name.list_of(entry.name)
        if len(same_name) == 1 and not entry.deprecated and not (before and before.deprecated):
            for skill_id in entry.skills if self._lookups else ():
                lookups = self._lookups.get(skill_id)
                if lookups is not None:
                    lookups.changed.setdefault(entry.id, before)
                    if len(lookups.changed) > self._max_incremental_changes:
                        del self._lookups[skill_id]
        else:
            # Another listing of that name may represent the agent now, or take its calls.
            for listing_id in same_name:
                for skill_id in self._entries[listing_id].skills:
                    self._lookups.pop(skill_id, None)

    def _update(self, skill_id: str, lookups: _Lookups) -> None:
        """Move changed entries to their new positions, because sorting a hundred thousand takes half a
        second.
        """
        for scopes, held in lookups.found.items():
            entries = list(held)
            for listing_id, before in lookups.changed.items():
                if before is not None:
                    self._remove_from(entries, before)
                entry = self._entries.get(listing_id)
                if entry is not None and self._offers(listing_id, skill_id, scopes):
                    self._insert_into(entries, entry)
            lookups.found[scopes] = tuple(entries)
        lookups.changed.clear()

    def _insert_into(self, entries: list[Entry], entry: Entry) -> None:
        place, version = self._preference(entry), version_key(entry.version)
        at = bisect_right(entries, place, key=self._preference)
        # Versions of one key are of equal preference where they have different names; the newest is first.
        while (
            at
            and self._preference(entries[at - 1]) == place
            and version_key(entries[at - 1].version) < version
        ):
            at -= 1
        entries.insert(at, entry)

    def _remove_from(self, entries: list[Entry], entry: Entry) -> None:
        place = self._preference(entry)
        for at in range(bisect_left(entries, place, key=self._preference), len(entries)):
            if entries[at].id == entry.id:
                del entries[at]
                return
            if self._preference(entries[at]) != place:
                return


def _is_failing(is_enabled: bool, health: Health) -> bool:
    return not is_enabled or health in ("degraded", "unreachable")


def _words_of(entry: Entry) -> tuple[object, ...]:
    """The keys by which an entry is found."""
    return entry.name, entry.skills, entry.roles


@dataclass(frozen=True, slots=True)
class _Lookups:
    """Cached look-ups of one skill by scopes; ``changed`` maps to the entries that the results still have."""

    found: dict[Scopes, tuple[Entry, ...]]
    changed: dict[ListingKey, Entry | None]


def merge_same_agents(entries: Iterable[Entry]) -> list[Entry]:
    """One entry per agent out of the entries of one name, in their order.

    The first entry represents its agent, unless another one of the agent was published later.
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


def is_same_agent(entry: Entry, other: Entry) -> bool:
    """Whether two entries of one name are one agent: equal origin of the urls, or equal owner keys."""
    if entry.owner is not None and entry.owner == other.owner:
        return True
    origin = url_origin(entry.url)
    return origin is not None and origin == url_origin(other.url)


def list_folders(entries: Iterable[Candidate]) -> list[str]:
    """The teams of the entries of one name, if there are several; [] otherwise."""
    folders = sorted({folder for entry in entries if entry.enabled and (folder := folder_of(entry.id))})
    return folders if len(folders) > 1 else []


@lru_cache(maxsize=4096)
def url_origin(url: str | None) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of a url; None without a host."""
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
