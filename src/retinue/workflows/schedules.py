"""Stored schedules: what was added by whom, and how far each of them has come. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any, Literal

import orjson

from retinue.core.call import Principal, PrincipalKind
from retinue.workflows.cron import iterate_back
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.run_forms import Bundled, WholeRun, render_form
from retinue.workflows.definitions.starts import Schedule
from retinue.workflows.runs.records import RUN_ID_MARK

LATE_S = 60.0
"""A time that no node has seen so long after it is a missed one."""

MAX_WAITING = 100
"""Times of one schedule for which a run has still to be started; later ones are dropped."""

Firing = Literal["started", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class ScheduleOwner:
    """The principal with whose rights the runs act: the one that added the schedule."""

    id: str
    kind: PrincipalKind
    scopes: frozenset[str]

    @property
    def principal(self) -> Principal:
        return Principal(self.id, self.kind, self.scopes)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "scopes": sorted(self.scopes)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ScheduleOwner:
        return cls(value["id"], value["kind"], frozenset(value["scopes"]))


@dataclass(frozen=True, slots=True)
class LastFiring:
    """What happened at the latest time of a schedule; times are seconds since 1970.

    ``run`` is the stored id of the run, which was started or was in the way.
    """

    scheduled_at: float
    at: float
    what: Firing
    run: str | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "scheduled_at": self.scheduled_at,
            "at": self.at,
            "what": self.what,
            "run": self.run,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a schedule has come.

    All times up to ``seen_until`` have been seen; it never goes back, so a clock that does fires nothing
    twice. ``waiting`` are times whose run has still to be started, oldest first. ``run`` is the stored id of
    the latest run, ``paused`` and ``broken`` the reasons why no run is started, "" for none.
    """

    seen_until: float
    waiting: tuple[float, ...] = ()
    run: str | None = None
    paused: str = ""
    broken: str = ""
    last: LastFiring | None = None

    def fired(self, last: LastFiring) -> Progress:
        """The progress after the firing of the first waiting time, or of one of its times."""
        waiting = tuple(time for time in self.waiting if time != last.scheduled_at)
        run = last.run if last.what == "started" else self.run
        return replace(self, waiting=waiting, run=run, last=last, broken="")

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"seen_until": self.seen_until, "waiting": list(self.waiting)}
        document |= {"run": self.run, "paused": self.paused, "broken": self.broken}
        if self.last is not None:
            document["last"] = self.last.to_json()
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        last = value.get("last")
        return cls(
            seen_until=float(value["seen_until"]),
            waiting=tuple(map(float, value["waiting"])),
            run=value["run"],
            paused=value["paused"],
            broken=value["broken"],
            last=None if last is None else LastFiring(**last),
        )


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule, stored under ``id``: a name, with the mark of its owner's rights.

    ``workflow`` is the reference of a stored workflow, ``digest`` that of all definitions that a run of it
    has. ``home`` names the state folder where it was added: an issued token of its owner is known there only.
    ``revision`` counts the changes of ``progress``.
    """

    id: str
    workflow: str
    rule: Schedule
    owner: ScheduleOwner
    digest: str
    home: str
    added_at: float
    progress: Progress
    revision: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """The name that its owner chose."""
        return self.id.partition(RUN_ID_MARK)[0]

    def next_after(self, at: float) -> float:
        """The first time after ``at`` that has not been seen."""
        return self.rule.make_times(self.added_at).next_after(max(at, self.progress.seen_until))

    def list_due(self, now: float) -> tuple[Sequence[float], float]:
        """The times at which to start a run, of those since the last look, and the newest of all since then.

        The newest time counts as kept if it is at most `LATE_S` ago; what happens after others says `missed`.
        """
        times = self.rule.make_times(self.added_at)
        most = MAX_WAITING if self.rule.missed == "all" else 1
        newest = list(islice(iterate_back(times, now, self.progress.seen_until), most))
        if not newest:
            return (), self.progress.seen_until
        if self.rule.missed == "skip" and now - newest[0] > LATE_S:
            return (), newest[0]
        return newest[::-1], newest[0]

    def run_id(self, at: float) -> str:
        """The id, as its owner names it, of the run of a time: a second start of it is the same run."""
        return f"{self.name}:{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}"

    def to_json(self) -> dict[str, Any]:
        """The part that does not change."""
        return {
            "workflow": self.workflow,
            "rule": self.rule.model_dump(mode="json", exclude_defaults=True),
            "owner": self.owner.to_json(),
            "digest": self.digest,
            "home": self.home,
            "added_at": self.added_at,
        }

    @classmethod
    def from_json(
        cls, schedule_id: str, value: Mapping[str, Any], progress: Mapping[str, Any], revision: int
    ) -> StoredSchedule:
        return cls(
            id=schedule_id,
            workflow=value["workflow"],
            rule=Schedule.model_validate(value["rule"]),
            owner=ScheduleOwner.from_json(value["owner"]),
            digest=value["digest"],
            home=value["home"],
            added_at=float(value["added_at"]),
            progress=Progress.from_json(progress),
            revision=revision,
        )


def digest_definitions(definition: Definition, nested: Bundled) -> str:
    """A digest of a definition with all that its steps run: a change of any of them gives another one."""
    form = render_form(WholeRun.of(definition, nested))
    return sha256(orjson.dumps(form, option=orjson.OPT_SORT_KEYS)).hexdigest()
