"""Runs as values: requests with their origin, outcomes, faults, events and records.

`as_json` and `read_json` convert these values to and from the stored JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any, Literal, TypeVar

import orjson
from pydantic import TypeAdapter

from retinue.core.allowance import Allowance
from retinue.core.call import Hop, Principal, TraceContext, TraceExtension
from retinue.core.errors import (
    INCOMPLETE,
    CallCancelledError,
    CircuitOpenError,
    ExecutionFailedError,
    GuardError,
    InvalidParametersError,
    LimitedError,
    NondeterminismError,
    OnErrorClass,
    Problem,
    RetinueError,
    StepFailedError,
    find_guard_error,
)
from retinue.core.remote_faults import rebuild_error
from retinue.core.usage import NO_SOURCES, SOURCES, Sources, add_sources, read_sources, read_usage

RunStatus = Literal["running", "done", "failed", "cancelled"]
EventKind = Literal["run_started", "step_started", "step_finished", "run_resumed", "run_finished", "log"]
_T = TypeVar("_T")

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
"""Ids of runs that users may choose. Ids of child runs contain ``/``, so the two never collide."""


RUN_ID_MARK = "~"
"""Separates the id that a caller chose from the mark for its rights (`hub.run_access`)."""


def check_run_id(run_id: str) -> str:
    """Return the id; raises InvalidParametersError for another form."""
    if not RUN_ID.fullmatch(run_id):
        form = "1 to 100 letters, digits, and . _ : - after the first"
        raise InvalidParametersError([Problem("run", f"field 'run' is no id of a run: {form}")])
    return run_id


_PLAIN = (str, int, float, bool, type(None), dict, list)
"""The types of JSON values, in which no dataclass is looked for."""


def as_json(value: Any) -> Any:
    """Convert a dataclass to JSON; JSON values in its fields are shared, not copied."""
    if is_dataclass(value):
        held = {member.name: getattr(value, member.name) for member in fields(value)}
        return {name: item if type(item) in _PLAIN else as_json(item) for name, item in held.items()}
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    return value


def read_json(kind: type[_T], value: Any) -> _T:
    """Convert the JSON of `as_json` back; unknown keys are ignored. Raises pydantic's ValidationError."""
    key: Any = kind
    record: _T = _adapter(key).validate_python(value)
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure as data. ``retryable`` and ``on_error`` are those of the error's kind (``core.errors``)."""

    type: str
    message: str
    remedy: str = ""
    retryable: bool = False
    on_error: OnErrorClass = "failed"
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_error(cls, error: RetinueError) -> Fault:
        """The failure as data; that of an agent elsewhere as if the agent ran here."""
        error = rebuild_error(error)
        return cls(
            type=error.type,
            message=error.message,
            remedy=error.remedy,
            retryable=error.kind.retryable,
            on_error=error.kind.on_error,
            data=_plain_data(error.data),
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one durable call: a value or a fault.

    ``calls`` = the number of calls that it made and caused; None = unknown. ``usage`` = what it counts as
    spent on models, where that is limited or where it failed. ``ms`` = how long it took, ``is_repeated`` = an
    earlier execution of the run was possibly interrupted in it.
    """

    value: Any = None
    fault: Fault | None = None
    calls: int | None = None
    usage: Mapping[str, Any] | None = None
    ms: float | None = field(default=None, compare=False)
    is_repeated: bool = field(default=False, compare=False)

    @property
    def spent(self) -> Mapping[str, Any] | None:
        """The amount that the call has spent on models; None for nothing, or an unknown amount."""
        if self.usage is not None:
            return self.usage
        value: Any = self.value
        if not isinstance(value, Mapping) or "agent" not in value or value.get("cached"):
            return None
        return read_usage(value["usage"]) if value.get("usage") else None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, without what is unknown."""
        value = self.value if type(self.value) in _PLAIN else as_json(self.value)
        stored = {"value": value, "fault": None if self.fault is None else as_json(self.fault)}
        if self.calls is not None:
            stored["calls"] = self.calls
        if self.usage is not None:
            stored["usage"] = self.usage
        if self.ms is not None:
            stored["ms"] = self.ms
        return stored | {"is_repeated": True} if self.is_repeated else stored


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A started child run; its id is ``<run>/<path>``."""

    run_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child run ended, with the time from start to end; ``calls`` and ``usage`` as in RunRecord."""

    child: ChildRun
    status: RunStatus
    value: Any = None
    fault: Fault | None = None
    duration_ms: float = 0.0
    calls: int | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A point in time at which a step or a run is cut off.

    ``at`` is in seconds since 1970; ``seconds`` is the duration that ``setting`` configures, and ``owner``
    the run or the step (``<run>/<path>``) that sets it.
    """

    owner: str
    at: float
    seconds: float
    setting: str


RUN_CALLER = "run"
"""The caller of a run that was not started from outside."""

MESH_SCOPES = frozenset({"exposed", "mesh"})
"""The scopes of the agents of the mesh."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which agents a run reaches, beside the scopes and the access lists of its caller.

    ``agents`` = the globs of the caller's token, () for all. ``through`` = the agent that started the run for
    its caller, "" for none: agents that do not receive its calls are not reached. ``send`` = the skills that
    this agent may call, None for all. ``team`` = that of the agent that started the run, "" for none.
    """

    agents: tuple[str, ...] = ()
    through: str = ""
    send: tuple[str, ...] | None = None
    team: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        send = None if self.send is None else list(self.send)
        stored = {"agents": list(self.agents), "through": self.through, "send": send}
        return {**stored, "team": self.team} if self.team else stored

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reach:
        send = value.get("send")
        return cls(
            tuple(value.get("agents", ())),
            value.get("through", ""),
            None if send is None else tuple(send),
            value.get("team", ""),
        )


WHOLE_REACH = Reach()


@dataclass(frozen=True, slots=True)
class Origin:
    """Who started a run, with which rights, in which chain of calls, and what bounds it.

    ``scopes`` are the rights that its steps choose and call agents with, ``caller`` the principal on whose
    behalf. ``trace`` = the call that started the run, None where it begins a chain; its ``calls_left`` is
    the run's budget. ``allowance`` = the tokens and the money that it may spend on models, None for no limit.
    ``digest`` = the artifact that its definition came from. Branches get the origin of their run, with their
    share of the budget and the ``limits`` around them. ``reach`` limits the agents. ``sources`` are the
    agents whose results the run has taken in, where policies read that.
    """

    scopes: frozenset[str] = frozenset()
    caller: str = RUN_CALLER
    trace: TraceContext | None = None
    digest: str | None = None
    limits: tuple[Limit, ...] = ()
    allowance: Allowance | None = None
    reach: Reach = WHOLE_REACH
    sources: Sources = NO_SOURCES

    @property
    def tokens_left(self) -> int | None:
        """The tokens that the run may still spend, None for no limit."""
        return None if self.allowance is None else self.allowance.tokens

    @property
    def dollars_left(self) -> float | None:
        """The US dollars that the run may still spend, None for no limit."""
        return None if self.allowance is None else self.allowance.dollars

    @property
    def calls_left(self) -> int | None:
        """The budget of further calls, None for no limit."""
        return None if self.trace is None else self.trace.calls_left

    @property
    def principal(self) -> Principal:
        """The caller in the run: the principal that started it, with the scopes and the reach of the run."""
        reach = self.reach
        limits = reach.agents, reach.through, reach.send
        return Principal(self.caller, "run", self.scopes, *limits, team=reach.team)

    @property
    def rights(self) -> list[str]:
        """The rights that the results of its steps depend on: the principal and its scopes."""
        limits = [] if replace(self.reach, team="") == WHOLE_REACH else [str(self.reach)]
        team = [f"team:{self.reach.team}"] if self.reach.team else []
        return [self.caller, *sorted(self.scopes), *limits, *team]

    @property
    def is_agents(self) -> bool:
        """Whether an agent started the run, from within a chain of calls."""
        return self.trace is not None and self.trace.depth > 0

    def with_budget(self, calls_left: int) -> Origin:
        """The same origin with another budget; without a trace there is none."""
        return self if self.trace is None else replace(self, trace=replace(self.trace, calls_left=calls_left))

    def with_allowance(self, allowance: Allowance | None) -> Origin:
        """The same origin with other tokens and other money to spend."""
        return replace(self, allowance=allowance)

    @property
    def is_tracked(self) -> bool:
        """Whether policies read what the run takes in, so that it must not use what others have cached."""
        extension = None if self.trace is None else self.trace.extension
        return self.sources != NO_SOURCES or (extension is not None and SOURCES in extension.others)

    def with_sources(self, sources: Sources) -> Origin:
        """The same origin after further results were taken in."""
        if sources == NO_SOURCES:
            return self
        return replace(self, sources=add_sources(self.sources, sources))

    def as_mesh(self) -> Origin:
        """The same origin with the scopes and the reach of the mesh (``runs_as: mesh``, and models)."""
        return replace(
            self,
            scopes=self.scopes | MESH_SCOPES,
            reach=Reach(through=self.reach.through, team=self.reach.team),
        )

    def to_json(self) -> dict[str, Any]:
        """The stored form, in which a trace repeats caller and rights."""
        fields_stored: dict[str, Any] = {"scopes": sorted(self.scopes), "trace": None}
        if self.trace is not None:
            fields_stored["trace"] = {
                "caller": self.caller,
                "rights": sorted(self.scopes),
                "id": self.trace.id,
                "depth": self.trace.depth,
                "path": [[hop.agent, hop.skill] for hop in self.trace.path],
                "calls_left": self.trace.calls_left,
                "traceparent": self.trace.traceparent,
                "tracestate": self.trace.tracestate,
                "baggage": dict(self.trace.baggage),
            }
            extension = self.trace.extension
            if self.trace.trusted and extension is not None and extension.others:
                fields_stored["trace"]["others"] = dict(extension.others)
        if self.digest is not None:
            fields_stored["digest"] = self.digest
        if self.limits:
            fields_stored["limits"] = as_json(self.limits)
        if self.allowance is not None:
            fields_stored["allowance"] = list(self.allowance)
        if self.reach != WHOLE_REACH:
            fields_stored["reach"] = self.reach.to_json()
        if self.sources != NO_SOURCES:
            fields_stored["sources"] = self.sources.to_json()
        return fields_stored

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origin:
        """Reads what `to_json` gave, now or in an earlier release; each part may be absent."""
        stored: Mapping[str, Any] = value.get("trace") or {}
        trace = None
        if stored.get("id"):
            trace = TraceContext(
                id=stored["id"],
                depth=stored.get("depth", 0),
                path=tuple(Hop(agent, skill) for agent, skill in stored.get("path", ())),
                calls_left=stored.get("calls_left"),
                traceparent=stored.get("traceparent"),
                tracestate=stored.get("tracestate"),
                baggage=stored.get("baggage") or {},
                trusted=True,
                extension=TraceExtension(None, stored["others"]) if stored.get("others") else None,
            )
        return cls(
            scopes=frozenset(value.get("scopes", ())),
            caller=stored.get("caller", RUN_CALLER),
            trace=trace,
            digest=value.get("digest"),
            limits=tuple(Limit(**limit) for limit in value.get("limits", ())),
            allowance=Allowance(*value["allowance"]) if value.get("allowance") else None,
            reach=Reach.from_json(value.get("reach") or {}),
            sources=(read_sources(value["sources"]) or NO_SOURCES) if "sources" in value else NO_SOURCES,
        )


@dataclass(frozen=True, slots=True)
class Extension:
    """Other limits for the step ``think`` at ``step``, by the fields of `thinking.limits.Limits`."""

    step: str
    limits: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "limits": dict(self.limits)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Extension:
        return cls(value["step"], value["limits"])


@dataclass(frozen=True, slots=True)
class RunRequest:
    """All that a run is started with.

    ``definition`` and ``input`` are JSON values; reusing a run id with other ones is a conflict. The body
    interprets the definition (``definitions.run_forms``).
    """

    name: str
    definition: Mapping[str, Any]
    input: Any
    origin: Origin = field(default_factory=Origin)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "definition": self.definition,
            "input": self.input,
            "ambient": self.origin.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRequest:
        origin = Origin.from_json(value.get("ambient", {}))
        return cls(value["name"], value["definition"], value["input"], origin)

    @property
    def digest(self) -> str:
        """A digest of definition and input."""
        return sha256(_sorted_json([self.definition, self.input])).hexdigest()

    def is_same(self, other: RunRequest) -> bool:
        """Whether definition and input are equal; the origin may differ."""
        return _sorted_json([self.definition, self.input]) == _sorted_json([other.definition, other.input])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The state of a run; times are in seconds since 1970.

    ``calls`` = the number of calls that the run and its child runs made and caused. None = unknown: the
    run has no budget, still runs, or was ended from outside. ``usage`` = what they count as spent on models;
    None = unknown, or nothing where that is not limited.
    """

    id: str
    request: RunRequest
    status: RunStatus
    started_at: float
    finished_at: float | None = None
    value: Any = None
    fault: Fault | None = None
    parent_id: str | None = None
    forked_from: str | None = None
    calls: int | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def is_half_undone(self) -> bool:
        """Whether the run failed, and steps of it are still to be undone."""
        return self.fault is not None and self.fault.data.get("undo") == INCOMPLETE

    @property
    def limited(self) -> LimitedError | None:
        """The limit of a step that ended the run; None for another end."""
        return None if self.fault is None else find_limit(self.fault.data)

    @property
    def is_extendable(self) -> bool:
        """Whether the run can go on with higher limits: nothing of it was undone, and no child run ended."""
        if self.limited is None or self.fault is None or self.limited.run is None:
            return False
        return not self.fault.data.get("compensated")

    @property
    def shown_status(self) -> str:
        """The status for readers, ``limited`` for a run that a limit ended."""
        return self.status if self.limited is None else LimitedError.type

    def get(self) -> Any:
        """The value of a done run.

        Raises StepFailedError for a failed step, LimitedError for one that reached a limit,
        NondeterminismError, CallCancelledError, ExecutionFailedError, or, if the trace guard refused the call
        of a step, that GuardError.
        """
        if self.status == "done":
            return self.value
        if self.status == "cancelled" or self.fault is None:
            raise CallCancelledError(f"run {self.id}")
        if self.fault.type == NondeterminismError.type:
            raise NondeterminismError.from_data(self.fault.data)
        if self.fault.type == StepFailedError.type:
            failed = StepFailedError.from_data(self.fault.data)
            raise self.limited or _find_refusal(failed) or failed
        raise ExecutionFailedError(self.fault.message, remedy=self.fault.remedy)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run or one of its child runs.

    ``seq`` counts from 1 within the outermost run. ``step`` is the path of the step relative to that run,
    such as ``each.left/draft``, "" for the run itself. ``facts`` of a step are those given by the body
    (kind, agent, skill, attempt, input …). ``step_started`` alone has ``input``; ``step_finished`` adds
    ``duration_ms`` and, for a failure, ``error`` (a fault). Values of steps are in `Runs.list_steps`.
    ``log`` is a line that the body of the run wrote, with ``level``, ``message`` and perhaps ``data``.
    """

    seq: int
    kind: EventKind
    run_id: str
    step: str
    at: float
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The recorded outcome of one step or receive, with its path relative to the outermost run."""

    run_id: str
    step: str
    outcome: StepOutcome


def find_limit(failure: Mapping[str, Any]) -> LimitedError | None:
    """The limit that made a step fail, by the data of its failure; None for another failure."""
    cause = failure.get("cause")
    if not isinstance(cause, Mapping) or cause.get("type") != LimitedError.type:
        return None
    return LimitedError.from_data(cause["data"])


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _find_refusal(failed: StepFailedError) -> GuardError | None:
    """The trace guard's refusal of a step, so that the start of the chain gets that error."""
    cause = failed.cause
    kind = find_guard_error(cause.get("type"))
    if kind is None or (kind is CircuitOpenError and "trace_id" not in cause["data"]):
        # The circuit of an agent is the affair of the step, which names it.
        return None
    facts = {"type": cause["type"], **cause["data"]}
    if cause["remedy"]:
        facts["remedy"] = cause["remedy"]
    facts.setdefault("step", failed.step)
    return kind.relay(str(cause["message"]), facts)


def _plain_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an error as JSON; facts that are not JSON become text."""
    try:
        return dict(orjson.loads(orjson.dumps(data)))
    except TypeError:
        return {"data": repr(data)[:1000]}
