"""A small mesh with a history in a file, whose calls and time the tests make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retinue.core.call import Call, Outcome, Principal, TraceContext
from retinue.core.errors import ExecutionFailedError
from retinue.core.record import AgentRecord, Hints, Listing, Skill
from retinue.mesh.entry import Entry
from retinue.mesh.history.records import Hashes
from retinue.mesh.history.search_history import LISTED_FOR_S, SearchHistory
from retinue.mesh.history.wishes import WishPolicy
from retinue.mesh.observing.events import CallEndedEvent
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex
from retinue.storage.history_store import FileDatabase, SqlHistory

MESH = frozenset({"mesh", "exposed"})
ANNA = Principal("token:anna", "token", MESH)
BEN = Principal("token:ben", "token", MESH)
GUEST = Principal("token:guest", "token", frozenset({"exposed"}))
READS = Hints(read_only=True)


def agent(name: str, *skills: Skill, source: str = "home", **facts: Any) -> Listing:
    return Listing(AgentRecord(name, skills=skills), source, f"agents/{name}", digest=f"d-{name}", **facts)


ROUTES = agent("routes", Skill("plan_route", "Plans a journey by train", visibility="exposed", hints=READS))
TRIPS = agent("trips", Skill("book_trip", "Plans a journey by train", visibility="exposed", hints=READS))
NOTES = agent("notes", Skill("add_note", "Adds a note", visibility="exposed"))
ASKED = "plan a journey by train"


@dataclass
class Mesh:
    """A search with a history in a file, and the time."""

    folder: Path
    listings: Sequence[Listing] = (ROUTES, TRIPS, NOTES)
    wishes: WishPolicy = "text"
    explored: float = 0.0
    now: float = 1_800_000_000.0
    calls: int = 0
    held: dict[object, Listing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = SqlHistory(FileDatabase(self.folder / "history.db", self.folder), clock=lambda: self.now)
        self.hold(*self.listings)
        self.open()

    def hold(self, *listings: Listing) -> None:
        self.held = {one.id: one for one in listings}
        self.search = SkillSearch(MemoryTextIndex(), lambda key: self.held.get(key))
        self.search.put(listings)

    def open(self) -> None:
        """As a process does that starts."""
        self.history = SearchHistory(
            self._find_skill,
            self._find_named,
            list_named=lambda name: [self.entry(held) for held in self.held.values() if held.name == name],
            explored=self.explored,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )
        self.history.open(self.store, Hashes(b"k" * 64), self.wishes, lambda: None)

    def _find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        listing = self.held.get(entry.id)
        return None if listing is None else listing.record.find_skill(skill_id)

    def _find_named(self, name: str) -> Entry | None:
        return next((self.entry(one) for one in self.held.values() if one.name == name), None)

    def entry(self, listing: Listing) -> Entry:
        entry = self.search.find_entry(listing.id)
        assert entry is not None
        return entry

    def find(self, text: str = ASKED, caller: Principal = ANNA, *, is_wish: bool = False) -> list[str]:
        """The ids of the hits, best first; the search is remembered."""
        learn = self.history.learn_for(caller, text)
        hits = self.search.find_skills(text, caller.scopes, learn=learn).hits
        self.history.note_search(caller, text, [(hit.entry, hit.skill.id) for hit in hits], is_wish=is_wish)
        return [hit.skill.id for hit in hits]

    def end(
        self, name: str, skill: str, caller: Principal = ANNA, status: Any = "done", **facts: Any
    ) -> None:
        """A call of the skill has ended."""
        self.calls += 1
        trace = facts.pop("trace", TraceContext(f"t{self.calls}"))
        call = Call(
            f"c{self.calls}", skill, {}, caller, "execute", trace, run_step=facts.pop("run_step", None)
        )
        place = facts.pop("place", None)
        error = ExecutionFailedError(skill) if status == "failed" else None
        outcome = Outcome(call.id, skill, status, name, error=error)
        self.history.observe(CallEndedEvent(call, outcome, datetime.now(UTC), place=place))

    def end_of(self, trace: str, name: str, skill: str, caller: Principal = ANNA, **facts: Any) -> None:
        """As `end`, of a call with this trace."""
        self.end(name, skill, caller, trace=TraceContext(trace), **facts)

    def use(self, name: str, skill: str, caller: Principal = ANNA, times: int = 1, text: str = ASKED) -> None:
        for _ in range(times):
            self.find(text, caller)
            self.end(name, skill, caller)
            self.now += LISTED_FOR_S

    def score(self, skill: str, caller: Principal = ANNA, text: str = ASKED) -> float:
        hits = self.search.find_skills(text, caller.scopes, learn=self.history.learn_for(caller, text)).hits
        return next(hit.score for hit in hits if hit.skill.id == skill)

    def verdicts(self) -> list[tuple[str, str]]:
        return [(one.key.skill, one.verdict) for one in self.history.list_records()]
