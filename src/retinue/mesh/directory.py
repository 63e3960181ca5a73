"""Our list of agents: filled from sources, kept in a store, asked by skill and by name.

In memory an agent is an `Entry`, which is enough to find it; `Directory.open` gives the whole listing.

A look-up within the time to live reads no source. One that misses re-reads them before it fails,
once for all who miss at that moment. A source that fails keeps the agents that it named before,
and what is missing is said (`Directory.problems`), so that one dead registry never empties a list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from retinue.core.errors import RetinueError, SkillNotOfferedError, StateError, UnknownAgentError
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.access import AgentView, is_seen, within
from retinue.mesh.entry import Candidate, Entry, Scopes
from retinue.mesh.feed import Feed
from retinue.mesh.holdings import Amendment, Change, Holdings
from retinue.mesh.intake import GLANCED, Intake
from retinue.mesh.listings import Listings
from retinue.mesh.misses import explain_miss
from retinue.mesh.routing import select_candidates
from retinue.mesh.sources import GradualSource, RememberingSource, Source, SourceProblem

TTL_S = 300.0
"""How long a look-up trusts what a source said (P-30)."""

GRACE_S = 1.0
"""How long a look-up waits for sources whose time to live is over, before it uses what it has."""

STORE = "store"
"""The name under which a store that cannot be written is reported."""

_RANK_OF_GIVEN = -1
"""Listings given by `Directory.upsert` under the name of no source stand before all sources."""

MESH_VIEW: Scopes = frozenset({"exposed", "mesh"})
"""What an agent of the mesh, or a program beside it, may see."""


class Directory:
    """The agents that ``sources`` name, first source first, and those given by `upsert`.

    ``clock`` counts seconds; ``now`` tells the time that listings carry; ``amendment`` is what this mesh
    has to say about a listing whatever its source says. Call `aclose` at the end.
    """

    def __init__(
        self,
        listings: Listings,
        sources: Sequence[Source] = (),
        *,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        amendment: Amendment | None = None,
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._now = now
        self._feeds: dict[str, Feed] = {}
        self._rereads: dict[ListingKey, asyncio.Task[None]] = {}
        self._watchers: list[Callable[[Change], None]] = []
        ranks = {source.name: rank for rank, source in enumerate(sources)}
        self._held = Holdings(
            listings,
            lambda name: ranks.get(name, _RANK_OF_GIVEN),
            ranks.__contains__,
            self._tell,
            amendment,
        )
        self._index = self._held.index
        for source in sources:
            self._follow(source)

    def list_entries(self) -> list[Entry]:
        """Every agent once, by source order and key; enabled or not, reachable or not."""
        return self._index.list_agents()

    async def iterate_pages(self, after: ListingKey | None = None) -> AsyncIterator[list[Entry]]:
        """As `list_entries`, some at a time, letting others run; beginning behind ``after``.

        What goes meanwhile is left out, and so may be what comes.
        """
        ids = self._index.list_ids(after)
        for start in range(0, len(ids), GLANCED):
            held = map(self._index.find, ids[start : start + GLANCED])
            yield [entry for entry in held if entry is not None and self._index.stands(entry)]
            await asyncio.sleep(0)

    def list_held(self) -> Iterator[Entry]:
        """Every listing in short, several of one agent included; no change may come in between."""
        return iter(self._index)

    def list_all(self) -> tuple[Listing, ...]:
        """As `list_entries`, each listing whole: for the few agents of a test or a command."""
        return tuple(self.open_all(self.list_entries()))

    def find_by_skill(self, skill_id: str, scopes: Scopes) -> tuple[Entry, ...]:
        """Enabled agents that offer the skill to these scopes: health ▸ source order ▸ key ▸ version.

        Reads no source. The first is the seed's "first in catalog order" among live ones.
        """
        return self._index.list_offering(skill_id, scopes)

    def list_with_role(self, role: str, scopes: Scopes) -> list[Entry]:
        """Those of `list_entries` in which these scopes see the role, at the cost of those few."""
        return self._index.list_with_role(role, scopes)

    def find_named(self, name: str, *, view: AgentView | None = None) -> Entry | None:
        """The agent of a bare name or ``name@source``, within what the caller sees.

        A bare name means enabled ▸ health ▸ source order ▸ version.
        """
        found = self._index.find_named(name)
        return found if found is not None and is_seen(view, found.name) else None

    def find(self, name: str, *, view: AgentView | None = None) -> Listing | None:
        """As `find_named`, whole; raises StateError where the store cannot be read."""
        entry = self.find_named(name, view=view)
        return self._held.open(entry.id) if entry is not None else None

    def get(self, name: str, *, view: AgentView | None = None) -> Listing:
        """As `find`; raises UnknownAgentError with near names."""
        found = self.find(name, view=view)
        if found is None:
            raise UnknownAgentError(name, near=self._index.suggest_names(name, view))
        return found

    async def open_named(self, name: str, *, view: AgentView | None = None) -> Listing:
        """As `get`, and as `open`: one that the store has lost is read from its source."""
        entry = self.find_named(name, view=view)
        listing = await self.open(entry) if entry is not None else None
        # read anew, it may have another name than the one that was looked up
        if listing is None or not is_seen(view, listing.name):
            raise UnknownAgentError(name, near=self._index.suggest_names(name, view))
        return listing

    def find_entry(self, listing_id: ListingKey) -> Entry | None:
        """What is held under this identity, whether or not another listing stands for the same agent."""
        return self._index.find(listing_id)

    def find_listing(self, listing_id: ListingKey) -> Listing | None:
        """As `find_entry`, whole; raises StateError where the store cannot be read."""
        return self._held.open(listing_id)

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill of a listing, None when that is gone, at less cost than the whole. Raises StateError."""
        return self._held.find_skill(entry, skill_id)

    def open_all(self, entries: Sequence[Entry]) -> list[Listing]:
        """These listings, whole, without those that are gone; some 100 µs each. Raises StateError."""
        return self._held.open_all(entries)

    async def open(self, candidate: Candidate) -> Listing | None:
        """The whole listing; one that the store has lost is read from its source. None when it is gone.

        Raises StateError where neither can give it.
        """
        if self._index.find(candidate.id) is None:
            return None
        feed = self._feeds.get(candidate.source)
        try:
            listing = self._held.open(candidate.id)
        except StateError:
            if feed is None:
                raise
            listing = None
        if listing is None and feed is not None:
            task = self._rereads.get(candidate.id)
            await asyncio.shield(task or self._start_reread(feed, candidate.id))
            listing = self._held.open(candidate.id)
        return listing

    def name_of(self, entry: Candidate) -> str:
        """What to call this agent: its name, or ``name@source`` where another agent has the name."""
        return self._index.name_of(entry)

    def stands(self, entry: Candidate) -> bool:
        """Whether this listing is the one that stands for its agent, as in `list_entries`."""
        return self._index.stands(entry)

    def skill_ids(self, scopes: Scopes) -> tuple[str, ...]:
        """The ids of all skills that these scopes see, sorted."""
        return tuple(sorted(i for i in self._index.skill_ids() if self._index.is_offered(i, scopes)))

    def suggest_skills(self, skill_id: str, scopes: Scopes) -> tuple[str, ...]:
        """At most three visible skill ids near to ``skill_id``, nearest first."""
        return self._index.suggest_skills(skill_id, scopes)

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: Scopes,
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Entry, ...]:
        """Who can take a call of this skill, best first; at least one, all within the caller's view.

        A miss re-reads the sources before it fails. Raises SkillNotOfferedError, UnknownSkillError
        (the agent named has it not), UnknownAgentError or VersionConflictError.
        """
        asked_at = self._clock()
        reads = {name: feed.reads for name, feed in self._feeds.items()}
        narrow: Callable[[tuple[Entry, ...]], tuple[Entry, ...]] = tuple
        if agent is not None or version_range is not None:
            narrow = partial(select_candidates, agent=agent, version_range=version_range)
        await self.ensure_fresh()
        found = narrow(within(view, self.find_by_skill(skill_id, scopes)))
        if not found and self._feeds:
            await asyncio.gather(*(f.read_for_miss(reads[n], asked_at) for n, f in self._feeds.items()))
            found = narrow(within(view, self.find_by_skill(skill_id, scopes)))
        if not found:
            unasked = [name for name, feed in self._feeds.items() if feed.failure is not None]
            raise explain_miss(
                self._index,
                skill_id,
                scopes,
                version_range=version_range,
                agent=agent,
                view=view,
                unasked=unasked,
            )
        return found

    async def discover_agent(self, skill_id: str, scopes: Scopes = MESH_VIEW) -> str:
        """The url of the best agent that offers the skill, exactly as its card has it (P-01).

        Raises as `resolve_skill`, and SkillNotOfferedError when no card names a url.
        """
        for entry in await self.resolve_skill(skill_id, scopes):
            if entry.url is not None:
                return entry.url
        raise SkillNotOfferedError(skill_id)

    async def refresh(self, *, thorough: bool = True) -> None:
        """Read every source now, else as cheaply as it can revalidate; what fails is in `problems`."""
        await asyncio.gather(*(feed.read(thorough=thorough) for feed in self._feeds.values()))

    async def ensure_fresh(self) -> None:
        """Read the sources that were never read, say that they changed, or are past their time to live.

        Where something is known from before, of the last ones or from a former process, it waits no
        longer than `GRACE_S`: that serves meanwhile.
        """
        needed: list[Feed] = []
        expired: list[Feed] = []
        for feed in self._feeds.values():
            if feed.has_changed or (feed.reads == 0 and not feed.is_warm):
                needed.append(feed)
            elif feed.reads == 0 or feed.is_expired(self._ttl_s):
                expired.append(feed)
        if expired:
            await asyncio.wait([feed.start() for feed in expired], timeout=GRACE_S)
        if needed:
            await asyncio.gather(*(feed.read_if_needed() for feed in needed))

    async def reread(self, listing: Candidate) -> Listing | None:
        """Ask the listing's source for it again, after a call found nobody at its url.

        Returns what holds now, None when it is gone. A source that cannot be asked changes nothing.
        """
        feed = self._feeds.get(listing.source)
        if feed is not None:
            task = self._rereads.get(listing.id)
            await asyncio.shield(task or self._start_reread(feed, listing.id))
        return self._held.open(listing.id)

    async def reread_key(self, source: str, key: str) -> Entry | None:
        """Ask one source for one key, known or not, from now on; an unknown source names nothing.

        Returns what holds now, as `reread`, but never joins a reading that began before.
        """
        feed, listing_id = self._feeds.get(source), ListingKey(source, key)
        if feed is not None:
            while (task := self._rereads.get(listing_id)) is not None:
                await asyncio.wait([task])
            await asyncio.shield(self._start_reread(feed, listing_id))
        return self._index.find(listing_id)

    def upsert(self, listing: Listing) -> Entry:
        """Add or replace a listing; returns what holds now.

        What was measured and chosen before is kept; one published earlier never replaces a later one.
        """
        (held,) = self._held.accept([listing])
        return held

    def remove(self, listing_id: ListingKey) -> None:
        """Take a listing out, if it is there; its source may name it again."""
        self._held.remove([listing_id])

    def set_enabled(self, listing: Candidate, enabled: bool) -> None:
        """Note a person's choice; a disabled agent is listed but never called."""
        current = self._index.find(listing.id)
        if current is not None and current.enabled != enabled:
            self._held.note([replace(current, enabled=enabled)])

    def mark_reachable(self, listing: Candidate) -> None:
        """Note that the agent answered at the listing's url; clears what was noted against it."""
        self._mark(listing, lambda twin: twin.as_reachable(self._now()))

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        """Note that others should be preferred to the agent at the listing's url, and why."""
        self._mark(listing, lambda twin: twin.as_degraded(reason, self._now()))

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        """Note that nobody answers at the listing's url; ``since`` stays at the first failure."""
        self._mark(listing, lambda twin: twin.as_unreachable(str(error), self._now()))

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
        if self._held.failure is not None:
            found.append(SourceProblem(STORE, None, self._held.failure))
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

    def _mark(self, listing: Candidate, mark: Callable[[Entry], Entry]) -> None:
        twins = self._index.list_at_same_url(listing)
        self._held.note([marked for twin in twins if (marked := mark(twin)) is not twin])

    def _follow(self, source: Source) -> None:
        async def reread(key: str) -> None:
            await self._reread(feed, ListingKey(source.name, key))

        feed = self._feeds[source.name] = Feed(source, lambda reading: intake.take(reading), self._clock)
        intake = Intake(source.name, self._held, feed.overtaken, reread)
        kept = [entry for entry in self._index if entry.source == source.name]
        feed.is_warm = bool(kept)
        if isinstance(source, RememberingSource):
            source.remember(kept)
        if isinstance(source, GradualSource):
            source.give_to(intake.take_some)

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
            self._held.keep_at_hand(listing)

    def _tell(self, change: Change) -> None:
        for watcher in tuple(self._watchers):
            watcher(change)
