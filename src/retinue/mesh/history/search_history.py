"""Follows searches to the calls that come of them, and keeps what came of each.

A call belongs to a search if it names the search's id, else to the newest search of its caller within ten
minutes that listed the skill. A step of a run belongs to a search of this run only, else to its prompt.
A call that no search led to leaves no record.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import urandom
from typing import NamedTuple

import structlog

from retinue.core.call import Call, Outcome, Principal
from retinue.core.errors import StateError
from retinue.core.record import HUB_NAME, Skill
from retinue.mesh.entry import Entry
from retinue.mesh.history.callers import MAX_CALLERS, Callers, names_itself, trim
from retinue.mesh.history.experience_book import ExperienceBook
from retinue.mesh.history.learned_ranking import EXPLORED, FindBlame, LearnedRanking, blame_nobody
from retinue.mesh.history.records import (
    Experience,
    Hashes,
    HistoryStore,
    SkillKey,
    Verdict,
    find_voice,
    name_agent,
    skill_digest,
)
from retinue.mesh.history.wishes import WishBook, WishPolicy
from retinue.mesh.observing.call_figures import AGENT_FAILURES
from retinue.mesh.observing.events import CallEndedEvent, Event

LISTED_FOR_S = 600.0
"""How long a search may lead to a call that does not name it."""

NAMED_FOR_S = 3_600.0
"""How long a search may lead to a call that names its id."""

CORRECTED_WITHIN_S = 60.0
"""Another skill of the same search that is called within this time corrects the earlier one."""

_MAX_SEARCHES = 20
"""Remembered searches of one caller."""

_MAX_LISTED = 100
_MAX_RUNS = 1_000
_SEARCH_ID_BYTES = 5
_MAX_EXPECTED = 1_000
_MAX_DIGESTS = 10_000
_OVERLAP_S = 60.0
"""Records of other hubs are read again this long, because clocks differ and commits are late."""

_UNKEYED = Hashes(b"")
"""For a search without history, of which nothing is stored."""

_log = structlog.get_logger("retinue.history")

FindSkill = Callable[[Entry, str], Skill | None]
FindNamed = Callable[[str], Entry | None]
ListNamed = Callable[[str], Iterable[Entry]]


class _Offer(NamedTuple):
    key: SkillKey
    digest: str
    is_read_only: bool
    is_repeatable: bool


@dataclass(slots=True)
class _Search:
    """A search of one caller; ``offers`` has None for an agent's name that means several agents.

    The prompt of a run lists no offers; with ``only_roles`` only skills with a role belong to it.
    """

    id: str
    caller: str
    stems: tuple[int, ...]
    at: float
    offers: dict[tuple[str, str], _Offer | None] = field(default_factory=dict)
    only_roles: bool = False
    run: str | None = None
    """The run that has searched."""
    starter: int | None = None
    """The hashed caller that has started the run."""
    last: tuple[Experience, bool, float] | None = None
    """The newest record of a call that was done, whether its skill is read-only, and when the call ended."""


def is_search_id(text: str) -> bool:
    """Whether a text has the length of the id of a search; others, which callers may send, are not kept."""
    return len(text) == 2 * _SEARCH_ID_BYTES


def find_run_id(run_step: str | None) -> str | None:
    """The id of the run of a step, None outside of runs; branches belong to their run."""
    return run_step.partition("/")[0] if run_step else None


class EndedCall(NamedTuple):
    """What an ended call says of its skill, as values of JSON.

    ``is_member``: the caller has chosen its id. ``search`` is the search that the call names, "" = none.
    """

    trace: str
    skill: str
    agent: str
    caller: str
    is_member: bool
    verdict: Verdict
    run_step: str | None = None
    search: str = ""


def read_ended_call(event: CallEndedEvent) -> EndedCall | None:
    """What an ended call says of its skill; None if it says nothing, or agents praise themselves."""
    call, outcome = event.call, event.outcome
    verdict = _judge(outcome)
    if verdict is None or outcome.agent in (None, HUB_NAME) or _calls_itself(call, outcome):
        return None
    caller, is_member = call.principal.id, names_itself(call.principal)
    agent = name_agent(str(outcome.agent), event.place)
    return EndedCall(call.trace.id, call.skill, agent, caller, is_member, verdict, call.run_step)


class SearchHistory:
    """The history of one process; off until `open` gives it a store.

    ``find_skill`` opens a skill of an entry, ``find_named`` finds the entry of an agent's name,
    ``list_named`` all entries of that name.
    """

    def __init__(
        self,
        find_skill: FindSkill,
        find_named: FindNamed,
        *,
        list_named: ListNamed = lambda _name: (),
        explored: float = EXPLORED,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_skill = find_skill
        self._find_named = find_named
        self._list_named = list_named
        self.explored = explored
        """The share of searches in which an unproven skill that fits as well comes first."""
        self._clock = clock
        self._monotonic = monotonic
        self._book = ExperienceBook()
        self.wishes = WishBook()
        self._store: HistoryStore | None = None
        self._find_store: Callable[[], HistoryStore] | None = None
        self.why_off = "this process keeps none"
        """Why no calls leave records."""
        self._hashes: Hashes | None = None
        self._callers = Callers(_UNKEYED)
        self._searches: OrderedDict[int, deque[_Search]] = OrderedDict()
        self._searches_of_members: OrderedDict[int, deque[_Search]] = OrderedDict()
        """The searches by hashed caller. Members choose their names, so many of them push out no other."""
        self._runs: OrderedDict[str, _Search] = OrderedDict()
        self._expected: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._digests: OrderedDict[tuple[object, str | None, str], _Offer] = OrderedDict()
        self._changed: dict[str, Experience] = {}
        self._stored: set[str] = set()
        """The ids of records that are in the store. Only these are removed from it: `_dropped` does not
        grow while the store fails and new records replace each other."""
        self._dropped: set[str] = set()
        self._read_at = 0.0
        self._storing = asyncio.Lock()
        """What is written or read while everything is forgotten would come back."""
        self._subscribe: Callable[[], None] | None = None
        self.blame: FindBlame = blame_nobody
        """What receipts of other hubs say of an agent; it counts also while no history is kept."""
        self.catch_up: Callable[[], None] = lambda: None
        """Delivers the events of calls that have ended and wait."""
        self.on_watch: Callable[[], None] = lambda: None
        """Called at the first search, from which on calls are observed."""

    @property
    def is_on(self) -> bool:
        """Whether calls leave records."""
        return self._hashes is not None

    @property
    def is_watching(self) -> bool:
        """Whether a search may have led to calls, so that they are observed."""
        return self.is_on and self._subscribe is None

    def open(
        self, store: HistoryStore, hashes: Hashes, wishes: WishPolicy, subscribe: Callable[[], None]
    ) -> None:
        """Read the store and begin; ``subscribe`` is called at the first search, to observe calls from then.

        Raises StateError.
        """
        self._store, self._hashes, self._subscribe = store, hashes, subscribe
        self._callers, self.wishes.policy = Callers(hashes), wishes
        for record in store.read():
            self._stored.add(record.id)
            self._drop(self._book.put(record))
        self._read_at = self._clock()
        self.wishes.open(store.read_wishes(), wishes)

    def stay_off(self, find_store: Callable[[], HistoryStore], why: str) -> None:
        """Keep nothing; ``find_store`` gives what was kept before, which is read only to forget it."""
        self._find_store, self.why_off = find_store, why

    # searches

    def learn_for(self, principal: Principal, text: str) -> LearnedRanking | None:
        """What changes the scores of one search of this caller; None without history and receipts.

        A caller of the mesh learns from all calls of the skills that it finds, another one from its own.
        """
        if not len(self._book) and self.blame is blame_nobody:
            return None
        hashes = self._hashes or _UNKEYED
        return LearnedRanking(
            self._book,
            hashes,
            self._find_digest,
            self._callers.hash_reader(principal),
            hashes.of_request(text) if len(self._book) else (),
            only_own="mesh" not in principal.scopes,
            explored=self.explored,
            clock=self._clock,
            blame=self.blame,
            list_entries=self._list_entries,
        )

    def note_search(
        self,
        principal: Principal,
        text: str,
        hits: Iterable[tuple[Entry, str]],
        *,
        is_wish: bool = False,
        run: str | None = None,
    ) -> str | None:
        """Remember a search and the skills that it listed; returns its id, None while the history is off.

        ``is_wish`` = no skill serves the request. ``run`` is the id of the run that searches.
        """
        if self._hashes is None:
            return None
        stems = self._hashes.of_request(text)
        if not stems:
            return None
        search = _Search(_make_id(), principal.id, stems, self._monotonic(), run=run)
        for entry, skill_id in list(hits)[:_MAX_LISTED]:
            offer = self._describe(entry, skill_id)
            if offer is None:
                continue
            for place in {(entry.name, skill_id), (offer.key.agent, skill_id)}:
                # of two agents of one name the outcome of a call may not tell which one it was
                known = search.offers.get(place, offer)
                search.offers[place] = offer if known == offer else None
        caller = self._callers.hash(principal)
        held = self._find_searches(caller)
        held.setdefault(caller, deque(maxlen=_MAX_SEARCHES)).append(search)
        held.move_to_end(caller)
        trim(held, MAX_CALLERS)
        oldest = self._monotonic() - NAMED_FOR_S
        while next(iter(held.values()))[-1].at < oldest:  # the searches of this caller end the loop
            held.popitem(last=False)
        if is_wish:
            self.wishes.note(search.id, self._clock(), stems, caller, text)
        self._watch()
        return search.id

    def note_run(
        self,
        principal: Principal,
        text: str,
        run_id: str,
        *,
        only_roles: bool = False,
        wish: str | None = None,
    ) -> None:
        """Remember the prompt of a run, whose steps choose agents for it; a known run stays as it is.

        With ``only_roles`` only the calls of skills with a role belong to it. ``wish`` is the id of the
        prompt as a wish, which ends with a call of the run.
        """
        if self._hashes is None or not (stems := self._hashes.of_request(text)):
            return
        if run_id in self._runs:  # a caller may name the run of another one as its own
            return
        search = _Search(wish or _make_id(), principal.id, stems, self._monotonic(), only_roles=only_roles)
        search.starter = self._callers.hash(principal)
        self._runs[run_id] = search
        trim(self._runs, _MAX_RUNS)
        self._watch()

    def note_wish(self, principal: Principal, text: str) -> str | None:
        """Remember a request that no skill serves, and return its id; None while the history is off."""
        if self._hashes is None or not (stems := self._hashes.of_request(text)):
            return None
        wish = _make_id()
        self.wishes.note(wish, self._clock(), stems, self._callers.hash(principal), text)
        return wish

    def end_wish(self, wish: str) -> None:
        """Forget a wish that something has served."""
        self.wishes.fulfil(wish)

    def expect(self, trace_id: str, skill: str, search_id: str) -> None:
        """Remember that a call of this trace names its search."""
        if self._hashes is not None and is_search_id(search_id):
            self._expected[trace_id, skill] = search_id
            trim(self._expected, _MAX_EXPECTED)

    # calls

    def observe(self, event: Event) -> None:
        """Keep what came of an ended call that a search led to; an observer of the event bus."""
        if self._hashes is None or not isinstance(event, CallEndedEvent) or event.is_message:
            return
        call = event.call
        expected = self._expected.pop((call.trace.id, call.skill), None) if self._expected else None
        ended = read_ended_call(event)
        if ended is not None:
            self.keep(ended if expected is None else ended._replace(search=expected))

    def keep(self, call: EndedCall) -> None:
        """Keep what came of a call that a search led to, also of another process of the hub."""
        if self._hashes is None:
            return
        place = (call.agent, call.skill)
        is_in_run = call.run_step is not None
        caller = self._callers.hash_id(call.caller, is_member=call.is_member, is_in_run=is_in_run)
        search = self._find_search(call, caller, place)
        run = self._find_run(call)
        if run is not None and run.starter is not None and run.caller == call.caller:
            caller = run.starter
        offer = None if search is None else search.offers.get(place) or self._find_offer(search, place)
        if search is None or offer is None:
            return
        record = Experience(
            f"{search.id}{self._hashes.of(repr(offer.key)) & 0xFFFFFFFF:08x}",
            self._clock(),
            offer.key,
            offer.digest,
            search.stems,
            caller,
            call.verdict,
        )
        known = self._book.find(record.id)
        if known is None or known.verdict not in ("good", "bad"):  # what a person said stays
            self._put(record)
        if call.verdict == "done":
            now = self._monotonic()
            if search.last is not None and not call.run_step:
                self._correct(search.last, offer, now)
            search.last = record, offer.is_read_only, now
            self.wishes.fulfil(search.id)

    def rate(
        self, principal: Principal, skill: str, *, is_good: bool, search_id: str = "", agent: str = ""
    ) -> SkillKey | None:
        """Keep what a person says of the newest call of a skill by this caller; None if there is none.

        ``agent`` leaves only calls of the agent of this name; it may be gone.
        """
        if self._hashes is None:
            return None
        self.catch_up()
        caller, entry = self._callers.hash(principal), self._find_named(agent) if agent else None
        place = None if entry is None else (entry.source, name_agent(entry.name, entry.id))

        def is_meant(key: SkillKey) -> bool:
            is_agent = key.agent == agent if place is None else (key.source, key.agent) == place
            return key.skill == skill and (not agent or is_agent)

        for record in reversed(self._book.list_all()):
            is_named = search_id in ("", record.id[: 2 * _SEARCH_ID_BYTES])
            if is_named and record.caller == caller and is_meant(record.key):
                self._put(replace(record, verdict="good" if is_good else "bad", at=self._clock()))
                return record.key
        return None

    # the owner

    def list_records(self) -> Sequence[Experience]:
        """All records, oldest first, with those of calls that have just ended."""
        self.catch_up()
        return self._book.list_all()

    async def forget(self) -> int:
        """Remove all records and wishes, also while the history is off; returns how many there were.

        Raises StateError.
        """
        async with self._storing:
            await self._flush()  # the number has also what is not written yet
            for searches in (self._searches, self._searches_of_members):
                searches.clear()
            for held in (self._runs, self._expected, self._changed):
                held.clear()
            self._stored.clear()
            self._dropped.clear()
            self._book.clear()
            self.wishes.clear()
            return await asyncio.to_thread(self._forget_stored)

    def _forget_stored(self) -> int:
        store = self._store
        if store is None and self._find_store is not None:
            store = self._find_store()
        return 0 if store is None else store.forget(self._clock())

    async def flush(self) -> None:
        """Write what changed; what cannot be written stays for the next time."""
        async with self._storing:
            await self._flush()

    async def read_others(self) -> None:
        """Read the records and wishes of other hubs on the same database."""
        async with self._storing:
            await self._read_others()

    async def _flush(self) -> None:
        wishes = self.wishes
        if self._store is None or not (self._changed or self._dropped or wishes.has_changes):
            return
        changed, dropped = self._changed, self._dropped
        self._changed, self._dropped = {}, set()
        new_wishes, old_wishes = wishes.take_changes()
        try:
            if changed or dropped:
                await asyncio.to_thread(self._store.write, list(changed.values()), dropped)
                self._stored.update(changed)
                self._drop(self._list_gone(changed))
            if new_wishes or old_wishes:
                await asyncio.to_thread(self._store.write_wishes, new_wishes, old_wishes)
        except StateError as error:
            _log.warning("history not written", records=len(changed), error=error.message)
            for record_id in self._list_gone(changed):
                del changed[record_id]
            self._changed = {**changed, **self._changed}
            self._dropped |= dropped
            wishes.put_back(new_wishes, old_wishes)

    async def _read_others(self) -> None:
        if self._store is None:
            return
        began = self._clock()
        try:
            forgotten_at = await asyncio.to_thread(self._store.forgotten_at)
            records = await asyncio.to_thread(self._store.read, self._read_at - _OVERLAP_S)
            wishes = await asyncio.to_thread(self._store.read_wishes) if self.wishes.policy != "off" else ()
        except StateError as error:
            _log.warning("history not read", error=error.message)
            return
        self._read_at = began
        self._stored.update(record.id for record in records)
        self._stored -= self._dropped
        for record in self._book.list_all():
            if record.at <= forgotten_at:
                self._book.remove(record.id)
                self._changed.pop(record.id, None)
                # it may have been written after the other hub removed everything
                self._stored.discard(record.id)
                self._dropped.add(record.id)
        self.wishes.read_others(wishes, forgotten_at)
        for record in records:
            if (
                record.at > forgotten_at
                and record.id not in self._changed
                and record.id not in self._dropped
                and self._book.find(record.id) != record
            ):
                self._drop(self._book.put(record))

    # inside

    def _list_entries(self, key: SkillKey) -> list[Entry]:
        named = self._list_named(key.agent.partition("@")[0])
        agent = (key.source, key.agent)
        return [entry for entry in named if (entry.source, name_agent(entry.name, entry.id)) == agent]

    def _put(self, record: Experience) -> None:
        self._changed[record.id] = record
        if record.id in self._dropped:
            self._dropped.remove(record.id)
            self._stored.add(record.id)
        dropped = self._book.put(record)
        for record_id in dropped:
            self._changed.pop(record_id, None)
        self._drop(dropped)

    def _drop(self, record_ids: Collection[str]) -> None:
        """Note that these records, which the book has dropped, must go from the store."""
        self._dropped.update(self._stored.intersection(record_ids))
        self._stored.difference_update(record_ids)

    def _list_gone(self, record_ids: Iterable[str]) -> Sequence[str]:
        """Those of these records that the book has dropped."""
        return [record_id for record_id in record_ids if self._book.find(record_id) is None]

    def _correct(self, last: tuple[Experience, bool, float], offer: _Offer, now: float) -> None:
        """Mark the earlier call of a search as corrected by a call of another skill of the same kind."""
        record, is_read_only, ended_at = last
        current = self._book.find(record.id)
        is_soon = now - ended_at <= CORRECTED_WITHIN_S
        if current is None or current.verdict != "done" or not is_soon:
            return
        if record.key != offer.key and is_read_only == offer.is_read_only:
            self._put(replace(current, verdict="corrected"))

    def _find_searches(self, caller: int) -> OrderedDict[int, deque[_Search]]:
        return self._searches if find_voice(caller) == caller else self._searches_of_members

    def _find_search(self, call: EndedCall, caller: int, place: tuple[str, str]) -> _Search | None:
        run, is_named = find_run_id(call.run_step), bool(call.search)
        oldest = self._monotonic() - (NAMED_FOR_S if is_named else LISTED_FOR_S)
        for search in reversed(self._find_searches(caller).get(caller, ())):
            is_meant = search.id == call.search if is_named else search.run == run
            # a step of a run has nothing to do with what its caller searched elsewhere, even if it names it
            is_own = run is None or search.run == run
            if search.at >= oldest and is_meant and is_own and place in search.offers:
                return search
        return self._find_run(call)

    def _find_run(self, call: EndedCall) -> _Search | None:
        run = find_run_id(call.run_step)
        return None if run is None else self._runs.get(run)

    def _find_offer(self, search: _Search, place: tuple[str, str]) -> _Offer | None:
        """The skill that a step of a run has called; None for a search, which has listed its skills."""
        if search.offers:
            return None
        entry = self._find_named(place[0])
        if entry is None:
            return None
        if search.only_roles:
            skill = self._find_skill(entry, place[1])
            if skill is None or not skill.roles:
                return None
        return self._describe(entry, place[1])

    def _describe(self, entry: Entry, skill_id: str) -> _Offer | None:
        known = (entry.id, entry.digest, skill_id)
        offer = self._digests.get(known)
        if offer is None:
            skill = self._find_skill(entry, skill_id)
            if skill is None:
                return None
            key = SkillKey(entry.source, name_agent(entry.name, entry.id), skill_id)
            offer = _Offer(key, skill_digest(skill), skill.hints.read_only, skill.is_repeatable)
            if entry.digest is not None:
                self._digests[known] = offer
                trim(self._digests, _MAX_DIGESTS)
        return offer

    def _find_digest(self, entry: Entry, skill_id: str) -> tuple[str, bool] | None:
        offer = self._describe(entry, skill_id)
        return None if offer is None else (offer.digest, offer.is_repeatable)

    def _watch(self) -> None:
        """Observe calls from the first search on, so that a process without searches pays nothing."""
        if self._subscribe is not None:
            self._subscribe()
            self._subscribe = None
            self.on_watch()


def _make_id() -> str:
    return urandom(_SEARCH_ID_BYTES).hex()


def _judge(outcome: Outcome) -> Verdict | None:
    """What the outcome of a call says of its skill; None for nothing, such as wrong arguments."""
    if outcome.status == "done":
        return "done"
    if outcome.status == "refused":
        return "refused"
    is_failure = outcome.error is not None and outcome.error.type in AGENT_FAILURES
    return "failed" if outcome.status == "failed" and is_failure else None


def _calls_itself(call: Call, outcome: Outcome) -> bool:
    """Whether an agent, or a chain of calls that it began, has called the agent, which is no praise."""
    agent = outcome.agent
    return call.principal.id == agent or any(hop.agent == agent for hop in call.trace.path[:-1])
