"""The agent directory: reads sources, keeps listings in a store, searches by skill and name.

In memory an agent is an `Entry`, which is enough to find it; `Directory.open` gives the whole listing.

A look-up within the time to live reads no source. A look-up that finds nothing reads the sources again
before it fails, once for all look-ups that fail at that moment. The agents of a source that cannot be read
stay listed, and `Directory.problems` reports the source, so that one dead registry never empties the list.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from cachetools import TTLCache

from retinue.core.call import Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    InvalidSettingError,
    MalformedArtifactError,
    RetinueError,
    SkillNotOfferedError,
    StateError,
    UnknownAgentError,
)
from retinue.core.record import QUERY_CAPABILITIES, Candidate, Health, Listing, ListingKey, Skill, Stats
from retinue.core.trust import Trust
from retinue.mesh.asking.fanout import DEFAULT_TIMEOUT_S, MAX_ASKED, Answers, Dispatch, ask_agents
from retinue.mesh.asking.query import MatchType, Query, make_query
from retinue.mesh.directory.away import MAX_KEPT, AwayAgents
from retinue.mesh.directory.limits import DEFAULT_LIMITS, DirectoryLimits
from retinue.mesh.directory.listing_cache import ListingCache, ListingChange
from retinue.mesh.directory.listing_index import Facts, list_folders
from retinue.mesh.directory.listings import Listings
from retinue.mesh.directory.overrides import ListingOverride
from retinue.mesh.directory.routing import not_found_error, select_versions, visible_candidates
from retinue.mesh.directory.selections import KeptSelections, Selection
from retinue.mesh.directory.source_set import SourceSet
from retinue.mesh.directory.sources import Source, SourceProblem
from retinue.mesh.directory.versions import version_preference
from retinue.mesh.entry import Entry, Scopes, count_listed, count_visible
from retinue.mesh.permissions import AgentView, is_seen
from retinue.mesh.slices import run_in_slices

TTL_S = 300.0
"""How long a look-up trusts the last reading of a source (P-30)."""

STORE = "store"
"""The source that `Directory.problems` names for a store that cannot be written."""

_RANK_OF_GIVEN = -1
"""Listings that `Directory.upsert` added under the name of no source rank before all sources."""

REMOVED_S = 30.0
"""How long a removed listing is remembered, for the message of its agent that it has withdrawn the card."""

FindHidden = Callable[[str, Scopes, str | None, str | None, AgentView | None], tuple[Entry, ...]]
"""The agents for a skill, scopes, the name of an agent, a range of versions, and a view."""

DispatchQuery = Callable[[Query, str], Awaitable[Outcome]]

MESH_VIEW: Scopes = frozenset({"exposed", "mesh"})
"""The scopes of agents of the mesh and of programs on the same machine."""


class Directory:
    """The agents of ``sources``, in their order, those of `add_sources`, and those added by `upsert`.

    ``clock`` counts seconds; ``now`` gives the time for listings; ``overrides`` are what the owner says about
    skills of others. Call `aclose` at the end.
    """

    def __init__(
        self,
        listings: Listings,
        sources: Sequence[Source] = (),
        *,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        overrides: Sequence[ListingOverride] = (),
        limits: DirectoryLimits = DEFAULT_LIMITS,
    ) -> None:
        self.dispatch_query: DispatchQuery | None = None
        """Asks one agent a question, for `ask`."""
        self.find_hidden: FindHidden | None = None
        """Gives agents that no list shows, for look-ups that find no other; None while there are none."""
        self._clock = clock
        self._now = now
        self._page_entries = limits.page_entries
        self._watchers: list[Callable[[ListingChange], None]] = []
        self._forgotten: list[Callable[[str], bool]] = []
        self._away = AwayAgents(clock)
        self._removed: TTLCache[str, Entry] = TTLCache(MAX_KEPT, REMOVED_S, timer=clock)
        self._ranks: dict[str, int] = {}
        self._trust: dict[str, Trust] = {}
        self._cache = ListingCache(
            listings,
            lambda name: self._ranks.get(name, _RANK_OF_GIVEN),
            self._notify,
            overrides,
            limits.cached_listings,
            lambda name: self._trust.get(name, Trust.OWN_MESH),
        )
        self._index = self._cache.index
        self._selections = KeptSelections(self._index, limits.page_entries)
        self.sources = SourceSet(self._cache, clock, ttl_s, limits)
        self.add_sources(sources)

    def add_sources(self, sources: Sequence[Source]) -> None:
        """Add sources that rank after all others, with their listings from the store; reads nothing.

        Observers are not notified of these listings. Synchronize a text index of this directory after the
        last source was added, because the index removes listings of a source that is not there yet. Raises
        InvalidSettingError for a second source of one name, and then adds none.
        """
        taken = set(self._ranks)
        for source in sources:
            if source.name in taken:
                raise InvalidSettingError(
                    source.name, "two sources of agents have this name", remedy="rename one of them"
                )
            taken.add(source.name)
        for source in sources:
            self._ranks[source.name] = len(self._ranks)
            self._trust[source.name] = source.trust
            self._index.note_rank(source.name)
            self._cache.show(source.name)
            self.sources.add(source)
        self._selections.clear()

    def list_entries(self) -> list[Entry]:
        """Every agent once, by source order and key; enabled or not, reachable or not."""
        return self._index.list_agents()

    async def list_unhealthy(self, concerns: Callable[[Entry], bool] = lambda entry: True) -> list[Entry]:
        """The entries of `list_entries` that are not healthy and concern the caller, in no order.

        It costs nothing for the healthy ones; other tasks run meanwhile.
        """
        unhealthy: list[Entry] = []

        def look() -> Iterator[None]:
            for entry in self._index.list_unhealthy():
                if concerns(entry) and self._index.represents_agent(entry):
                    unhealthy.append(entry)
                yield

        await run_in_slices(look())
        return unhealthy

    def list_failing(self, limit: int, source: str | None = None) -> list[Entry]:
        """At most ``limit`` entries of `list_entries` that are disabled, degraded or unreachable.

        Without a walk over the others; of very many ones they are any.
        """
        return self._index.list_failing(limit, source)

    def count_facts(self) -> Mapping[Facts, int]:
        """How many entries of `list_entries` have the same facts, without a walk over them."""
        return self._index.count_facts()

    def count_healths(self) -> Mapping[Health, int]:
        """How many entries of `list_entries` are of each health, without a walk over them."""
        counts: Counter[Health] = Counter()
        for facts, count in self._index.count_facts().items():
            counts[facts.health] += count
        return counts

    def count_skills(self, scopes: Scopes) -> tuple[int, int, int]:
        """How many skills of enabled agents these scopes see, how many are in lists, and of how many agents.

        Without a walk over the entries.
        """
        visible = listed = agents = 0
        for facts, count in self._index.count_facts().items():
            if facts.enabled and (skills := count_visible(facts.kinds, scopes)):
                visible, agents = visible + count * skills, agents + count
                listed += count * count_listed(facts.kinds, scopes)
        return visible, listed, agents

    def sort_entries(self, entries: Iterable[Entry]) -> list[Entry]:
        """Entries in the order of `list_entries`."""
        return sorted(entries, key=lambda entry: (self._ranks.get(entry.source, _RANK_OF_GIVEN), entry.id))

    def list_visible(self, scopes: Scopes, limit: int) -> list[Entry]:
        """The first enabled entries of `list_entries` with a skill that these scopes see."""
        return self._index.list_visible(scopes, limit)

    def select_now(self, view: AgentView) -> Set[ListingKey]:
        """As `select`, but the first use of a view stops other tasks: about 50 ms for 100,000 entries."""
        return self._selections.list_ids_now(Selection.of(view))

    async def select(
        self,
        view: AgentView | None = None,
        *,
        version_range: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Set[ListingKey]:
        """The ids of the enabled entries that a view, a range and labels select, valid until the next change.

        The first use walks over all entries, with other tasks in between; further uses look at the changes
        since. Several may be of one agent (`represents_agent`). Raises InvalidSettingError for a range.
        """
        return await self._selections.list_ids(Selection.of(view, version_range, labels))

    async def iterate_pages(self, after: ListingKey | None = None) -> AsyncIterator[list[Entry]]:
        """As `list_entries` in pages, from the one behind ``after`` on; other tasks run between pages.

        Agents that are removed meanwhile are left out, and agents that are added may be.
        """
        ids = self._index.list_ids(after)
        for start in range(0, len(ids), self._page_entries):
            held = map(self._index.find, ids[start : start + self._page_entries])
            yield [entry for entry in held if entry is not None and self._index.represents_agent(entry)]
            await asyncio.sleep(0)

    def list_held(self) -> Iterator[Entry]:
        """Every entry, including several of one agent; do not change the directory while iterating."""
        return iter(self._index)

    def list_all(self) -> tuple[Listing, ...]:
        """The listing of every agent, in the order of `list_entries`; for a test or a command."""
        return tuple(self.open_all(self.list_entries()))

    def find_by_skill(self, skill_id: str, scopes: Scopes) -> tuple[Entry, ...]:
        """Enabled agents that offer the skill to these scopes: `choice_order` ▸ source order ▸ key ▸ version.

        Reads no source. Among live agents the first entry comes first in the order of the catalog.
        """
        return self._index.list_offering(skill_id, scopes)

    def list_with_role(self, role: str, scopes: Scopes) -> list[Entry]:
        """The entries of `list_entries` with a skill of this role that is visible to these scopes."""
        return self._index.list_with_role(role, scopes)

    def find_named(self, name: str, *, view: AgentView | None = None) -> Entry | None:
        """The agent of a bare name, ``name@source`` or ``name@version``, within the view of the caller.

        A bare name means the first of `ListingIndex.list_named`: the newest stable version that answers.
        """
        entry = self._index.find_named(name)
        return entry if entry is not None and is_seen(view, entry.name) else None

    def list_tagged(self, name: str) -> list[Entry]:
        """Every entry that ``name``, ``name@source`` or ``name@version`` may mean; see `is_named`."""
        marks = [at for at, character in enumerate(name) if character == "@"]
        return [entry for at in (*marks, len(name)) for entry in self._index.list_named(name[:at])]

    def list_named(self, name: str, *, view: AgentView | None = None) -> list[Entry]:
        """Every entry of a bare name, one for each version and source, best first."""
        return self._index.list_named(name) if is_seen(view, name) else []

    def find(self, name: str, *, view: AgentView | None = None) -> Listing | None:
        """The listing of an agent by its name; None if there is no such agent within ``view``.

        ``name`` is a bare name, ``name@source`` or ``name@version``; a bare name means the newest stable
        version that answers. Raises StateError where the store cannot be read.
        """
        entry = self.find_named(name, view=view)
        return self._cache.open(entry.id) if entry is not None else None

    def get(self, name: str, *, view: AgentView | None = None) -> Listing:
        """As `find`; raises UnknownAgentError with similar names."""
        entry = self.find(name, view=view)
        if entry is None:
            raise UnknownAgentError(name, near=self._index.suggest_names(name, view))
        return entry

    async def open_named(self, name: str, *, view: AgentView | None = None) -> Listing:
        """As `get`, but reads a listing that the store has lost from its source, as `open` does."""
        entry = self.find_named(name, view=view)
        listing = await self.open(entry) if entry is not None else None
        # Read again, it may have another name than the one that was looked up.
        if listing is None or not is_seen(view, listing.name):
            raise UnknownAgentError(name, near=self._index.suggest_names(name, view))
        return listing

    def is_listed(self, name: str, url: str | None) -> bool:
        """Whether there is a listing of this name and url."""
        return self._index.has_agent(name, url)

    def find_entry(self, listing_id: ListingKey) -> Entry | None:
        """The entry with this id, even where another listing represents the same agent."""
        return self._index.find(listing_id)

    def find_listing(self, listing_id: ListingKey) -> Listing | None:
        """As `find_entry`, as a whole listing; raises StateError where the store cannot be read."""
        return self._cache.open(listing_id)

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill of a listing, or None; cheaper than opening the listing. Raises StateError."""
        return self._cache.find_skill(entry, skill_id)

    def open_all(self, entries: Sequence[Entry]) -> list[Listing]:
        """The whole listings, without removed ones; about 100 µs each. Raises StateError."""
        return self._cache.open_all(entries)

    async def open(self, candidate: Candidate) -> Listing | None:
        """The whole listing, from its source where the store has lost it; None after its removal.

        Raises StateError where neither has it.
        """
        if self._index.find(candidate.id) is None:
            return None
        try:
            listing = self._cache.open(candidate.id)
        except StateError:
            if candidate.source not in self.sources:
                raise
            listing = None
        if listing is None and candidate.source in self.sources:
            listing = await self.reread(candidate)
        return listing

    def name_of(self, entry: Candidate) -> str:
        """The name that identifies this agent, as `ListingIndex.name_of`."""
        return self._index.name_of(entry)

    def represents_agent(self, entry: Candidate) -> bool:
        """Whether `list_entries` has this listing for its agent, rather than another one of the agent."""
        return self._index.represents_agent(entry)

    def skill_ids(self, scopes: Scopes) -> tuple[str, ...]:
        """The ids of all skills that are visible to these scopes, sorted."""
        return tuple(sorted(i for i in self._index.skill_ids() if self._index.is_offered(i, scopes)))

    def suggest_names(self, name: str, view: AgentView | None = None) -> tuple[str, ...]:
        """At most three names similar to ``name``, of agents within the view, most similar first."""
        return self._index.suggest_names(name, view)

    def suggest_skills(self, skill_id: str, scopes: Scopes) -> tuple[str, ...]:
        """At most three visible skill ids similar to ``skill_id``, most similar first."""
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
        """The agents that can take a call of this skill, best first; at least one, all within ``view``.

        Reads the sources again before it fails. Raises SkillNotOfferedError, UnknownSkillError (``agent``
        does not have the skill), UnknownAgentError or VersionConflictError, and AgentUnreachableError where
        only an agent offers it that withdrew its card a short time ago.
        """
        asked_at = self._clock()
        reads = self.sources.count_reads()
        narrow: Callable[[tuple[Entry, ...]], tuple[Entry, ...]] = tuple
        if agent is not None or version_range is not None:
            narrow = partial(select_versions, agent=agent, version_range=version_range)
        await self.sources.ensure_fresh(for_call=True)
        candidates = narrow(visible_candidates(view, self.find_by_skill(skill_id, scopes)))
        is_query = not candidates and skill_id == QUERY_CAPABILITIES and agent is not None
        if is_query:
            candidates = narrow(self._list_askable(agent, view))
        if not candidates and self.sources:
            await self.sources.read_for_miss(reads, asked_at)
            candidates = narrow(visible_candidates(view, self.find_by_skill(skill_id, scopes)))
            if is_query:
                candidates = narrow(self._list_askable(agent, view))
        if agent is not None and len(candidates) > 1 and "@" not in agent and list_folders(candidates):
            raise UnknownAgentError(agent, near=self._index.suggest_names(agent, view))
        if not candidates and self.find_hidden is not None:
            candidates = self.find_hidden(skill_id, scopes, agent, version_range, view)
        if not candidates:
            away = self._away.find_error(skill_id, scopes, agent=agent, view=view)
            if away is not None:
                raise away
            unasked = [name for name, failure in self.sources.failures().items() if failure is not None]
            raise not_found_error(
                self._index,
                skill_id,
                scopes,
                version_range=version_range,
                agent=agent,
                view=view,
                unasked=unasked,
            )
        return candidates

    async def find_offering(
        self, listing_id: ListingKey, skill_id: str, scopes: Scopes, *, view: AgentView | None = None
    ) -> Entry | None:
        """The entry with this id, if `resolve_skill` may list it for such a call; None otherwise.

        Reads the sources that report a change or are past their time to live, as `resolve_skill` does.
        """
        await self.sources.ensure_fresh(for_call=True)
        entry = self._index.find_offering(listing_id, skill_id, scopes)
        return entry if entry is not None and is_seen(view, entry.name) else None

    def _list_askable(self, agent: str | None, view: AgentView | None) -> tuple[Entry, ...]:
        """The enabled agents of this name, because every agent answers the reserved skill, which no card
        lists.
        """
        named = None if agent is None else self.find_named(agent, view=view)
        held = () if named is None else self._index.list_named(named.name)
        return tuple(entry for entry in held if entry.enabled)

    async def ask(
        self,
        capabilities: Query | Sequence[str] = (),
        dispatch: Dispatch | None = None,
        *,
        match: MatchType = "all",
        action: str | None = None,
        agents: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        view: AgentView | None = None,
        stats_of: Callable[[str], Stats] = lambda agent: Stats(),
        prefer: Callable[[str], Sequence[Entry]] = lambda words: (),
    ) -> Answers:
        """Ask these ``agents``, or all enabled agents, concurrently for capabilities, and rank the answers.

        The question is about ``capabilities`` (``match`` all or any), about one ``action``, or without both
        a summary. ``dispatch`` asks one agent; default: at its endpoint, with `open_directory`.
        ``prefer`` gives those to be asked first by the words of the question, where there are too many.
        Raises InvalidParametersError for a malformed question.
        """
        query = capabilities
        if not isinstance(query, Query):
            query = make_query(query, match=match, action=action)
        asks = dispatch or (self.dispatch_query and partial(self.dispatch_query, query))
        if asks is None:
            raise InvalidSettingError(
                "dispatch", "this directory has no way to agents", remedy="pass it, or use open_directory"
            )
        not_asked = 0
        if agents is None:
            await self.ensure_fresh()
            entries: list[Entry] = []
            async for page in self.iterate_pages():
                entries += [entry for entry in page if entry.enabled and is_seen(view, entry.name)]
            if len(entries) > MAX_ASKED:
                best = {entry.id: place for place, entry in enumerate(prefer(" ".join(query.wanted)))}
                entries.sort(key=lambda entry: best.get(entry.id, MAX_ASKED))
            agents = [self.name_of(entry) for entry in entries[:MAX_ASKED]]
            not_asked = len(entries) - len(agents)
        return await ask_agents(
            agents, query, asks, timeout_s=timeout_s, stats_of=stats_of, not_asked=not_asked
        )

    async def discover_agent(self, skill_id: str, scopes: Scopes = MESH_VIEW) -> str:
        """The url of the best agent that offers the skill, exactly as in its card.

        Raises what `resolve_skill` raises, and SkillNotOfferedError when no card has a url.
        """
        for entry in await self.resolve_skill(skill_id, scopes):
            if entry.url is not None:
                return entry.url
        raise SkillNotOfferedError(skill_id)

    async def refresh(self, *, thorough: bool = True) -> None:
        """Read every source now; failures are in `problems`. Without ``thorough``, only revalidate."""
        await self.sources.read_all(thorough=thorough)

    async def note_withdrawal(self, name: str) -> None:
        """Read every source after the agent of this name reported the withdrawal of its card."""
        before = self._index.find_named(name)
        await self.refresh()
        # a look-up may have read the source between the withdrawal and this message
        before = before or self._removed.get(name)
        if before is not None and self._index.find_named(name) is None:
            self._away.add(before)

    def find_away(
        self, agent: str, role: str, scopes: Scopes, view: AgentView | None = None
    ) -> AgentUnreachableError | None:
        """The error of a call to an agent with this role that has withdrawn its card; None for any other."""
        return self._away.find_error_of_role(role, scopes, agent=agent, view=view)

    def forget_away(self, name: str) -> bool:
        """Treat a withdrawn agent as unknown from now on. True if an observer released the name."""
        self._away.forget(name)
        self._removed.pop(name, None)
        released = [observer(name) for observer in tuple(self._forgotten)]
        return any(released)

    def on_forgotten(self, observer: Callable[[str], bool]) -> Callable[[], None]:
        """Call ``observer`` with each forgotten name; returns the function that removes the observer.

        The observer says whether it has released the name.
        """
        self._forgotten.append(observer)
        return lambda: self._forgotten.remove(observer)

    async def ensure_fresh(self, *, for_call: bool = False) -> None:
        """Read the sources that were never read, report a change, or are past their time to live.

        ``for_call`` looks at the sources no more often than each `LOOK_S`, because what a call finds without
        a look was true 50 ms ago, and a call that finds nothing always looks.

        Where listings of an expired source are known, from its last reading or an earlier process, it waits
        at most `DirectoryLimits.expired_wait_s` and then uses them.
        """
        await self.sources.ensure_fresh(for_call=for_call)

    async def reread(self, listing: Candidate) -> Listing | None:
        """Read a listing from its source again, after a call found no agent at its url.

        Returns the current listing, or None when it is gone. A source that cannot be read changes nothing.
        """
        await self.sources.reread(listing.id)
        return self._cache.open(listing.id)

    async def reread_key(self, source: str, key: str) -> Entry | None:
        """Read one key, known or not, from a source, and return its newest version.

        None for an unknown source and for a key that it does not list. As `reread`, but never uses a reading
        that began before the call.
        """
        await self.sources.read_key(source, key)
        return max(self._index.list_tags(source, key), key=version_preference, default=None)

    def upsert(self, listing: Listing) -> Entry:
        """Add or replace a listing; returns the current entry.

        Measurements and choices are kept. A listing that was published earlier does not replace a later one.
        """
        (held,) = self._cache.accept([listing])
        return held

    def follow(self, listing: Listing) -> Entry:
        """Take a listing as another process has stored it, with its measurements and choices."""
        (held,) = self._cache.accept([listing])
        current = replace(
            held,
            enabled=listing.enabled,
            reachable=listing.reachable,
            since=listing.since,
            last_error=listing.last_error,
        )
        if current != held:
            self._cache.update([current])
        return current

    def list_tags(self, source: str, key: str) -> list[Entry]:
        """The entries of one key of a source: the versions of one agent, by tag."""
        return self._index.list_tags(source, key)

    def remove(self, listing_id: ListingKey) -> None:
        """Remove a listing, if it exists; its source may list it again."""
        self._cache.remove([listing_id])

    def set_enabled(self, listing: Candidate, enabled: bool) -> None:
        """Enable or disable an agent; a disabled one is listed but never called."""
        current = self._index.find(listing.id)
        if current is not None and current.enabled != enabled:
            self._cache.update([replace(current, enabled=enabled)])

    def record_health(self, listing: Candidate, health: Health, reason: str = "") -> None:
        """Record the health that calls and probes found for the agent at the listing's url."""
        if health == "healthy":
            self.mark_reachable(listing)
        elif health == "degraded":
            self.mark_degraded(listing, reason)
        elif health == "unreachable":
            self.mark_unreachable(listing, reason)

    def mark_unknown(self, listing: Candidate, reason: str) -> None:
        """Record that the agent was not probed yet, and the reason."""
        self._mark(listing, lambda entry: entry.as_unknown(reason, self._now()))

    def mark_reachable(self, listing: Candidate) -> None:
        """Record that the agent answered at the listing's url."""
        self._mark(listing, lambda entry: entry.as_reachable(self._now()))

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        """Record that other agents should be preferred to the one at the listing's url, and why."""
        self._mark(listing, lambda entry: entry.as_degraded(reason, self._now()))

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        """Record that no agent answers at the listing's url; ``since`` is the first failure."""
        self._mark(listing, lambda entry: entry.as_unreachable(str(error), self._now()))

    def source_failures(self) -> dict[str, RetinueError | None]:
        """Each source, with why its last reading failed; None where it did not."""
        return self.sources.failures()

    def problems(self) -> tuple[SourceProblem, ...]:
        """The sources and single listings that could not be read, or not as they are, and why."""
        problems = self.sources.problems()
        problems += [
            SourceProblem(listing_id.source, listing_id.key, _as_error(listing_id.key, note))
            for listing_id, note in self._cache.list_notes()
        ]
        if self._cache.failure is not None:
            problems.append(SourceProblem(STORE, None, self._cache.failure))
        return tuple(problems)

    def subscribe(self, watcher: Callable[[ListingChange], None]) -> Callable[[], None]:
        """Call ``watcher`` after each change; returns the function that removes it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def aclose(self) -> None:
        """Stop reading the sources. The owner of the store closes it."""
        await self.sources.aclose()

    def _mark(self, listing: Candidate, mark: Callable[[Entry], Entry]) -> None:
        twins = self._index.list_at_same_url(listing)
        self._cache.update([marked for twin in twins if (marked := mark(twin)) is not twin])

    def _notify(self, change: ListingChange) -> None:
        if not change.measured:
            self._selections.note(change.entry.id)
        if change.kind == "removed":
            self._removed[change.entry.name] = change.entry
        elif change.kind == "added":
            self._away.forget(change.entry.name)
        for watcher in tuple(self._watchers):
            watcher(change)


def _as_error(key: str, note: str) -> MalformedArtifactError:
    """The note about a listing that was taken in with changes, as the problem of its source."""
    error = MalformedArtifactError(key, note)
    error.remedy = "tell its author; everything else of it is listed"
    return error
