"""Our list of agents: filled from sources, kept in a store, asked by skill and by name.

A look-up within the time to live reads no source. One that misses re-reads them before it fails,
once for all who miss at that moment. A source that fails keeps the agents that it named before,
and what is missing is said (`Directory.problems`), so that one dead registry never empties a list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from retinue.core.errors import (
    LookupFailedError,
    RetinueError,
    SkillNotOfferedError,
    StateError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import Listing, ListingKey
from retinue.mesh.feed import Feed
from retinue.mesh.listing_index import ListingIndex, Scopes, carry_over, is_older, says_the_same
from retinue.mesh.listings import Listings
from retinue.mesh.routing import select_candidates
from retinue.mesh.sources import Reading, Source, SourceProblem
from retinue.mesh.suggest import suggest
from retinue.mesh.visibility import is_visible

TTL_S = 300.0
"""How long a look-up trusts what a source said (P-30)."""

GRACE_S = 1.0
"""How long a look-up waits for sources whose time to live is over, before it uses what it has."""

STORE = "store"
"""The name under which a store that cannot be written is reported."""

_BATCH = 500
_RANK_OF_GIVEN = -1
"""Listings given by `Directory.upsert` under the name of no source stand before all sources."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a listing; ``changed`` is told of measurements as well."""

    kind: Literal["added", "changed", "removed"]
    listing: Listing


MESH_VIEW: Scopes = frozenset({"exposed", "mesh"})
"""What an agent of the mesh, or a program beside it, may see."""


class Directory:
    """The agents that ``sources`` name, first source first, and those given by `upsert`.

    ``clock`` counts seconds; ``now`` tells the time that listings carry; ``amend`` is what this mesh has
    to say about a listing whatever its source says. Call `aclose` at the end.
    """

    def __init__(
        self,
        listings: Listings,
        sources: Sequence[Source] = (),
        *,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        amend: Callable[[Listing], Listing] = lambda listing: listing,
    ) -> None:
        self._store = listings
        self._store_failure: StateError | None = None
        self._ttl_s = ttl_s
        self._clock = clock
        self._now = now
        self._amend = amend
        self._feeds = {s.name: Feed(s, partial(self._take, s.name), clock) for s in sources}
        ranks = {name: rank for rank, name in enumerate(self._feeds)}
        self._index = ListingIndex(lambda name: ranks.get(name, _RANK_OF_GIVEN))
        self._remembered: dict[ListingKey, Listing] = {}
        self._rereads: dict[ListingKey, asyncio.Task[None]] = {}
        self._watchers: list[Callable[[Change], None]] = []
        for listing in map(amend, listings.load()):
            if listing.source in self._feeds:
                self._index.put(listing)
            else:
                self._remembered[listing.id] = listing

    def list_all(self) -> tuple[Listing, ...]:
        """Every agent once, by source order and key; enabled or not, reachable or not."""
        return self._index.list_agents()

    def find_by_skill(self, skill_id: str, scopes: Scopes) -> tuple[Listing, ...]:
        """Enabled agents that offer the skill to these scopes: health ▸ source order ▸ key ▸ version.

        Reads no source. The first is the seed's "first in catalog order" among live ones.
        """
        return self._index.list_offering(skill_id, scopes)

    def find(self, name: str) -> Listing | None:
        """The agent of a bare name or ``name@source``.

        A bare name means enabled ▸ health ▸ source order ▸ version.
        """
        named = self._index.list_named(name)
        if not named:
            parts = (name[:at] for at, character in enumerate(name) if character == "@")
            named = [a for part in parts for a in self._index.list_named(part, source=name[len(part) + 1 :])]
        return named[0] if named else None

    def get(self, name: str) -> Listing:
        """As `find`; raises UnknownAgentError with near names."""
        found = self.find(name)
        if found is None:
            raise UnknownAgentError(name, near=suggest(name, self._index.names()))
        return found

    def find_listing(self, listing_id: ListingKey) -> Listing | None:
        """What is held under this identity, whether or not another listing stands for the same agent."""
        return self._index.find(listing_id)

    def list_held(self) -> tuple[Listing, ...]:
        """Every listing, several of one agent included."""
        return tuple(self._index)

    def stands(self, listing: Listing) -> bool:
        """Whether this listing is the one that stands for its agent, as in `list_all`."""
        return listing in self._index.list_named(listing.record.name)

    def name_of(self, listing: Listing) -> str:
        """What to call this agent: its name, or ``name@source`` where another agent has the name."""
        name = listing.record.name
        return name if len(self._index.list_named(name)) <= 1 else f"{name}@{listing.source}"

    def skill_ids(self, scopes: Scopes) -> tuple[str, ...]:
        """The ids of all skills that these scopes see, sorted."""
        return tuple(sorted(i for i in self._index.skill_ids() if self.find_by_skill(i, scopes)))

    def suggest_skills(self, skill_id: str, scopes: Scopes) -> tuple[str, ...]:
        """At most three visible skill ids near to ``skill_id``, nearest first."""
        near = suggest(skill_id, self._index.skill_ids(), limit=30)
        return tuple(i for i in near if self.find_by_skill(i, scopes))[:3]

    async def resolve_skill(
        self, skill_id: str, scopes: Scopes, *, version_range: str | None = None, agent: str | None = None
    ) -> tuple[Listing, ...]:
        """Who can take a call of this skill, best first; at least one.

        A miss re-reads the sources before it fails. Raises SkillNotOfferedError, UnknownSkillError
        (the agent named has it not), UnknownAgentError or VersionConflictError.
        """
        asked_at = self._clock()
        reads = {name: feed.reads for name, feed in self._feeds.items()}
        narrow: Callable[[tuple[Listing, ...]], tuple[Listing, ...]] = tuple
        if agent is not None or version_range is not None:
            narrow = partial(select_candidates, agent=agent, version_range=version_range)
        await self.ensure_fresh()
        found = narrow(self.find_by_skill(skill_id, scopes))
        if not found and self._feeds:
            await asyncio.gather(*(f.read_for_miss(reads[n], asked_at) for n, f in self._feeds.items()))
            found = narrow(self.find_by_skill(skill_id, scopes))
        if not found:
            raise self._explain_miss(skill_id, scopes, version_range, agent)
        return found

    async def discover_agent(self, skill_id: str, scopes: Scopes = MESH_VIEW) -> str:
        """The url of the best agent that offers the skill, exactly as its card has it (P-01).

        Raises as `resolve_skill`, and SkillNotOfferedError when no card names a url.
        """
        for listing in await self.resolve_skill(skill_id, scopes):
            if listing.record.url is not None:
                return listing.record.url
        raise SkillNotOfferedError(skill_id)

    async def refresh(self, *, thorough: bool = True) -> None:
        """Read every source now, else as cheaply as it can revalidate; what fails is in `problems`."""
        await asyncio.gather(*(feed.read(thorough=thorough) for feed in self._feeds.values()))

    async def ensure_fresh(self) -> None:
        """Read the sources that were never read, say that they changed, or are past their time to live.

        For the last ones it waits no longer than `GRACE_S`: what was known before serves meanwhile.
        """
        needed: list[Feed] = []
        expired: list[Feed] = []
        for feed in self._feeds.values():
            if feed.reads == 0 or feed.has_changed:
                needed.append(feed)
            elif feed.is_expired(self._ttl_s):
                expired.append(feed)
        if expired:
            await asyncio.wait([feed.start() for feed in expired], timeout=GRACE_S)
        if needed:
            await asyncio.gather(*(feed.read_if_needed() for feed in needed))

    async def reread(self, listing: Listing) -> Listing | None:
        """Ask the listing's source for it again, after a call found nobody at its url.

        Returns what holds now, None when it is gone. A source that cannot be asked changes nothing.
        """
        feed = self._feeds.get(listing.source)
        if feed is not None:
            task = self._rereads.get(listing.id)
            await asyncio.shield(task or self._start_reread(feed, listing.id))
        return self._index.find(listing.id)

    async def reread_key(self, source: str, key: str) -> Listing | None:
        """Ask one source for one key, known or not, from now on; an unknown source names nothing.

        Returns what holds now, as `reread`, but never joins a reading that began before.
        """
        feed, listing_id = self._feeds.get(source), ListingKey(source, key)
        if feed is not None:
            while (task := self._rereads.get(listing_id)) is not None:
                await asyncio.wait([task])
            await asyncio.shield(self._start_reread(feed, listing_id))
        return self._index.find(listing_id)

    def upsert(self, listing: Listing) -> Listing:
        """Add or replace a listing; returns what holds now.

        What was measured and chosen before is kept; one published earlier never replaces a later one.
        """
        held, accepted = self._accept(listing)
        if accepted is not None:
            self._save([accepted])
        return held

    def remove(self, listing_id: ListingKey) -> None:
        """Take a listing out, if it is there; its source may name it again."""
        listing = self._index.find(listing_id)
        self._remembered.pop(listing_id, None)
        self._write(lambda: self._store.remove(listing_id))
        if listing is not None:
            self._index.remove(listing_id)
            self._tell(Change("removed", listing))

    def set_enabled(self, listing: Listing, enabled: bool) -> None:
        """Note a person's choice; a disabled agent is listed but never called."""
        current = self._index.find(listing.id)
        if current is not None and current.enabled != enabled:
            self._replace([replace(current, enabled=enabled)])

    def mark_reachable(self, listing: Listing) -> None:
        """Note that the agent answered at the listing's url; clears what was noted against it."""
        self._replace(
            replace(twin, reachable=True, since=self._now(), last_error=None)
            for twin in self._index.list_at_same_url(listing)
            if twin.health != "healthy"
        )

    def mark_degraded(self, listing: Listing, reason: str) -> None:
        """Note that others should be preferred to the agent at the listing's url, and why."""
        self._replace(
            replace(
                twin,
                reachable=True,
                since=twin.since if twin.health == "degraded" else self._now(),
                last_error=reason,
            )
            for twin in self._index.list_at_same_url(listing)
            if twin.health != "degraded" or twin.last_error != reason
        )

    def mark_unreachable(self, listing: Listing, error: RetinueError | str) -> None:
        """Note that nobody answers at the listing's url; ``since`` stays at the first failure."""
        reason = str(error)
        self._replace(
            replace(
                twin,
                reachable=False,
                since=twin.since if twin.reachable is False else self._now(),
                last_error=reason,
            )
            for twin in self._index.list_at_same_url(listing)
            if twin.reachable is not False or twin.last_error != reason
        )

    def problems(self) -> tuple[SourceProblem, ...]:
        """What is missing now, and why: sources and single listings that could not be read."""
        found = [
            problem
            for name, feed in self._feeds.items()
            for problem in (
                *([SourceProblem(name, None, feed.failure)] if feed.failure else ()),
                *feed.problems.values(),
            )
        ]
        if self._store_failure is not None:
            found.append(SourceProblem(STORE, None, self._store_failure))
        return tuple(found)

    def subscribe(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``watcher`` after each change; returns the way to end it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def aclose(self) -> None:
        """Stop reading; the store is its owner's to close."""
        for feed in self._feeds.values():
            await feed.aclose()
        rereads = list(self._rereads.values())
        for task in rereads:
            task.cancel()
        await asyncio.gather(*rereads, return_exceptions=True)

    def _explain_miss(
        self, skill_id: str, scopes: Scopes, version_range: str | None, agent: str | None
    ) -> LookupFailedError:
        unasked = [name for name, feed in self._feeds.items() if feed.failure is not None]
        offering = select_candidates(self.find_by_skill(skill_id, scopes), agent=agent)
        if offering:
            versions = [a.record.version or "none" for a in offering]
            return VersionConflictError(skill_id, version_range or "any", list(dict.fromkeys(versions)))
        if agent is None:
            near = self.suggest_skills(skill_id, scopes)
            return SkillNotOfferedError(skill_id, near=near, unasked=unasked)
        named = self.find(agent)
        if named is None or not named.enabled:
            return UnknownAgentError(agent, near=suggest(agent, self._index.names()))
        own = (skill.id for skill in named.record.skills if is_visible(skill, scopes))
        return UnknownSkillError(skill_id, near=suggest(skill_id, own), unasked=unasked)

    async def _take(self, source: str, reading: Reading) -> None:
        """Hold what the reading lists, drop what it neither lists nor has a problem with."""
        overtaken = self._feeds[source].overtaken
        for start in range(0, len(reading.listings), _BATCH):
            batch = [
                self._accept(listing)[1]
                for listing in reading.listings[start : start + _BATCH]
                if listing.key not in overtaken
            ]
            self._save([accepted for accepted in batch if accepted is not None])
            await asyncio.sleep(0)
        spared = {a.key for a in reading.listings} | {p.key for p in reading.problems}
        if None not in spared:
            for gone in [a.id for a in self._index if a.source == source and a.key not in spared | overtaken]:
                self.remove(gone)

    def _start_reread(self, feed: Feed, listing_id: ListingKey) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reread(feed, listing_id), name=f"reread {listing_id.key}")
        self._rereads[listing_id] = task
        task.add_done_callback(lambda _: self._rereads.pop(listing_id, None))
        return task

    async def _reread(self, feed: Feed, listing_id: ListingKey) -> None:
        feed.overtake(listing_id.key)
        try:
            listing = await feed.source.read_one(listing_id.key)
        except RetinueError as error:
            feed.problems[listing_id.key] = SourceProblem(listing_id.source, listing_id.key, error)
            return
        feed.problems.pop(listing_id.key, None)
        if listing is None:
            self.remove(listing_id)
        else:
            self.upsert(listing)

    def _accept(self, listing: Listing) -> tuple[Listing, Listing | None]:
        """What holds now, and the listing to save where that is new."""
        listing = self._amend(listing)
        current = self._index.find(listing.id)
        if current is not None and (is_older(listing, current) or says_the_same(listing, current)):
            return current, None
        before = current or self._remembered.pop(listing.id, None)
        accepted = carry_over(listing, before) if before is not None else listing
        self._index.put(accepted)
        self._tell(Change("added" if current is None else "changed", accepted))
        return accepted, accepted

    def _replace(self, listings: Iterable[Listing]) -> None:
        changed = list(listings)
        for listing in changed:
            self._index.put(listing)
            self._tell(Change("changed", listing))
        self._save(changed)

    def _save(self, listings: Sequence[Listing]) -> None:
        if listings:
            self._write(lambda: self._store.put_all(listings))

    def _write(self, write: Callable[[], None]) -> None:
        """A store that fails costs measurements, never a call: it is reported instead of raised."""
        try:
            write()
        except StateError as error:
            self._store_failure = error
        else:
            self._store_failure = None

    def _tell(self, change: Change) -> None:
        for watcher in tuple(self._watchers):
            watcher(change)
