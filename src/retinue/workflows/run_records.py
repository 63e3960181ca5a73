"""What is known of runs, as values: requests, outcomes, faults, events and records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from retinue.core.errors import (
    CallCancelledError,
    ExecutionFailedError,
    GuardError,
    InvalidParametersError,
    OnErrorClass,
    Problem,
    RetinueError,
    StepFailedError,
    find_guard_error,
)

RunStatus = Literal["running", "done", "failed", "cancelled"]
EventKind = Literal["run_started", "step_started", "step_finished", "run_resumed", "run_finished"]


RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
"""What a person may call a run; the ids of branches go on with ``/``, so that none is taken for one."""


def check_run_id(run_id: str) -> str:
    """The id as it is; raises InvalidParametersError."""
    if not RUN_ID.fullmatch(run_id):
        wanted = "1 to 100 letters, digits, and . _ : - after the first"
        raise InvalidParametersError([Problem("run", f"field 'run' is no id of a run: {wanted}")])
    return run_id


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure as data, so that it survives the process that met it.

    ``type``, ``message``, ``remedy`` and ``data`` as in ``core.errors``; ``retryable`` and
    ``on_error`` are its kind.
    """

    type: str
    message: str
    remedy: str = ""
    retryable: bool = False
    on_error: OnErrorClass = "failed"
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_error(cls, error: RetinueError) -> Fault:
        return cls(
            type=error.type,
            message=error.message,
            remedy=error.remedy,
            retryable=error.kind.retryable,
            on_error=error.kind.on_error,
            data=_plain_data(error.data),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fault:
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "message": self.message,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "on_error": self.on_error,
            "data": dict(self.data),
        }


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one durable call: a value or a fault, never an exception.

    ``calls`` = the calls of the mesh that it made and that these caused; None = nobody knows.
    """

    value: Any = None
    fault: Fault | None = None
    calls: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StepOutcome:
        fault = value["fault"]
        return cls(value["value"], None if fault is None else Fault.from_json(fault), value.get("calls"))

    def to_json(self) -> dict[str, Any]:
        found = {"value": self.value, "fault": None if self.fault is None else self.fault.to_json()}
        return found if self.calls is None else found | {"calls": self.calls}


@dataclass(frozen=True, slots=True)
class Child:
    """A child run that was started; its id is ``<run>/<path>``."""

    run_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child run ended, how long it took from its start to its end, and its ``calls`` (RunRecord)."""

    child: Child
    status: RunStatus
    value: Any = None
    fault: Fault | None = None
    duration_ms: float = 0.0
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a run is given, and all it is given: JSON values only.

    ``definition`` and ``input`` make the run what it is (a run id used again with others is a
    conflict); ``ambient`` is how it was called: the trace and the scopes.
    """

    name: str
    definition: Mapping[str, Any]
    input: Any
    ambient: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "definition": self.definition,
            "input": self.input,
            "ambient": self.ambient,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRequest:
        return cls(**value)

    def is_same(self, other: RunRequest) -> bool:
        """Whether both ask for the same thing, whoever asks."""
        return _sorted_json([self.definition, self.input]) == _sorted_json([other.definition, other.input])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as seen from outside; times are seconds since 1970.

    ``calls`` = the calls that it and its branches made, and that these caused, wherever it was executed;
    None = nobody knows: it has no budget, goes on, or did not come to its own end.
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

    def get(self) -> Any:
        """The value of a done run.

        Raises StepFailedError where a step failed, CallCancelledError, or ExecutionFailedError; the
        refusal itself (GuardError) where the trace guard refused the call of a step.
        """
        if self.status == "done":
            return self.value
        if self.status == "cancelled" or self.fault is None:
            raise CallCancelledError(f"run {self.id}")
        if self.fault.type == StepFailedError.type:
            failed = StepFailedError.from_data(self.fault.data)
            raise _find_refusal(failed) or failed
        raise ExecutionFailedError(self.fault.message, remedy=self.fault.remedy)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One thing that happened in a run or one of its children.

    ``seq`` counts from 1 within the outermost run. ``step`` is the step's path seen from there,
    such as ``each.left/draft``, "" for the run itself. ``facts`` of a step are what the body gave
    (kind, agent, skill, attempt, input …); ``input`` stands only in ``step_started``, and
    ``step_finished`` adds duration_ms and error (a fault). What a step gave is in `Runs.list_steps`.
    """

    seq: int
    kind: EventKind
    run_id: str
    step: str
    at: float
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The recorded outcome of one step or receive; ``step`` is its path seen from the outermost run."""

    run_id: str
    step: str
    outcome: StepOutcome


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _find_refusal(failed: StepFailedError) -> GuardError | None:
    """The guard's refusal that a step met, as it was met: whoever began the chain must know it for one."""
    cause = failed.cause
    kind = find_guard_error(cause.get("type"))
    if kind is None:
        return None
    facts = {"type": cause["type"], **cause["data"]}
    if cause["remedy"]:
        facts["remedy"] = cause["remedy"]
    facts.setdefault("step", failed.step)
    return kind.relay(str(cause["message"]), facts)


def _plain_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an error; one that is no JSON must not cost the error itself."""
    try:
        return dict(orjson.loads(orjson.dumps(data)))
    except TypeError:
        return {"data": repr(data)[:1000]}
