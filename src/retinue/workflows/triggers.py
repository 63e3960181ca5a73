"""Stored triggers: which event starts which workflow, added by whom. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from retinue.core.call import TraceContext
from retinue.workflows.definitions.starts import TriggerOptions, Triggers
from retinue.workflows.runs.records import RUN_ID_MARK
from retinue.workflows.schedules import LastFiring, ScheduleOwner

TOLERANCE_S = 300.0
"""How far the time stamp of a webhook may be from now."""

REMEMBERED_S = 2 * TOLERANCE_S + 60.0
"""For how long a sending is remembered: longer than a time stamp can be valid."""

RATE_S = 60.0
"""The length of time for which events are counted."""

_MAX_EVENT_ID = 35
"""Characters of an event's id that fit into the id of a run, behind the name of the trigger."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: ``id`` is the same for every delivery of it.

    ``value`` is the JSON value that came with it: the input of the run, unless the trigger makes another.
    ``trace`` is the chain of calls in which it happened, None if its run begins one.
    """

    id: str
    at: float
    value: Any
    trace: TraceContext | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the templates of a trigger, in which ``input`` is the value of the event."""
        return {"input": self.value, "steps": {}, "loop": {}}

    def to_json(self) -> dict[str, Any]:
        """The stored form, without the trace."""
        return {"id": self.id, "at": self.at, "value": self.value}


@dataclass(frozen=True, slots=True)
class TriggerProgress:
    """What has become of a trigger: ``paused`` and ``broken`` are the reasons why it starts nothing, ""
    for none.

    Of a trigger on agents: ``agents`` holds the last known state of each, `AgentState`, without absent ones;
    ``seen`` counts the changes; ``waiting`` are events whose run has still to be started, oldest first.
    """

    paused: str = ""
    broken: str = ""
    last: LastFiring | None = None
    agents: Mapping[str, str] = field(default_factory=dict)
    seen: int = 0
    waiting: tuple[Event, ...] = ()

    def fired(self, last: LastFiring) -> TriggerProgress:
        """The progress after an event."""
        return replace(self, last=last)

    def to_json(self) -> dict[str, Any]:
        return {
            "paused": self.paused,
            "broken": self.broken,
            "last": None if self.last is None else self.last.to_json(),
            "agents": dict(self.agents),
            "seen": self.seen,
            "waiting": [event.to_json() for event in self.waiting],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TriggerProgress:
        last = value.get("last")
        return cls(
            paused=value["paused"],
            broken=value["broken"],
            last=None if last is None else LastFiring(**last),
            agents=value.get("agents", {}),
            seen=value.get("seen", 0),
            waiting=tuple(Event(**event) for event in value.get("waiting", ())),
        )


@dataclass(frozen=True, slots=True)
class StoredTrigger:
    """A trigger, stored under ``id``: a name, with the mark of its owner's rights.

    ``rule`` has one kind of event. ``hook`` is the id in the address of a webhook, ``secret`` the text of its
    secret; other triggers have none. All else is as in `StoredSchedule`.
    """

    id: str
    workflow: str
    rule: Triggers
    owner: ScheduleOwner
    digest: str
    home: str
    added_at: float
    progress: TriggerProgress = TriggerProgress()
    hook: str | None = None
    secret: str = field(default="", repr=False)
    revision: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """The name that its owner chose."""
        return self.id.partition(RUN_ID_MARK)[0]

    @property
    def kind(self) -> str:
        """The kind of event."""
        return self.rule.kinds[0]

    @property
    def options(self) -> TriggerOptions:
        """The options of its kind of event."""
        options: TriggerOptions = getattr(self.rule, self.kind)
        return options

    def run_id(self, event: str) -> str:
        """The id, as its owner names it, of the run of an event: a second start of it is the same run."""
        if len(event) > _MAX_EVENT_ID or _PLAIN_ID.fullmatch(event) is None:
            event = sha256(event.encode()).hexdigest()[:32]
        return f"{self.name}:{event}"

    def to_json(self) -> dict[str, Any]:
        """The part that does not change. It holds the secret."""
        return {
            "workflow": self.workflow,
            "rule": self.rule.model_dump(mode="json", exclude_defaults=True),
            "owner": self.owner.to_json(),
            "digest": self.digest,
            "home": self.home,
            "added_at": self.added_at,
            "hook": self.hook,
            "secret": self.secret,
        }

    @classmethod
    def from_json(
        cls, trigger_id: str, value: Mapping[str, Any], progress: Mapping[str, Any], revision: int
    ) -> StoredTrigger:
        return cls(
            id=trigger_id,
            workflow=value["workflow"],
            rule=Triggers.model_validate(value["rule"]),
            owner=ScheduleOwner.from_json(value["owner"]),
            digest=value["digest"],
            home=value["home"],
            added_at=float(value["added_at"]),
            progress=TriggerProgress.from_json(progress),
            hook=value["hook"],
            secret=value["secret"],
            revision=revision,
        )
