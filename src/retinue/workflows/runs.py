"""The two ports of durability (DESIGN 4): ``RunContext`` inside a run, ``Runs`` outside.

The rules that every implementation enforces, because the durable engine breaks silently without
them (FACTS part 1):

1. A durable call has a path, and a path is used once in a run.
2. One body is one sequential thread of durable calls: only the body's own task makes them, one
   after the other. What shall run side by side is a child run; children are started in order.
3. A body reads no clock, no random numbers and no settings; it decides by its input and by the
   outcomes of its steps, which on replay are the recorded ones.
4. What crosses a durable call is a JSON value, and is copied.

Breaking 1 or 2 raises DurableRuleError, which fails the run whatever the body does with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from retinue.core.errors import (
    CallCancelledError,
    ExecutionFailedError,
    GuardError,
    OnErrorClass,
    OutputInvalidError,
    Problem,
    RetinueError,
    StepFailedError,
    find_guard_error,
)

RunStatus = Literal["running", "done", "failed", "cancelled"]
WaitMode = Literal["first", "all"]
EventKind = Literal["run_started", "step_started", "step_finished", "run_resumed", "run_finished"]

Effect = Callable[[], Awaitable[Any]]
"""What a step does: gives a JSON value or raises; may run twice when its node dies (never after
its outcome was recorded)."""


Count = Callable[[], int | None]
"""How many calls an effect made and caused, asked when it has ended; None = nobody knows."""


class DurableRuleError(RuntimeError):
    """A body broke a rule of this module: a fault of the program, not of a definition."""


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


class RunContext(Protocol):
    """What the body of a run may do. Every call is durable: done once, then remembered."""

    @property
    def run_id(self) -> str:
        """The id of this run; a child's is ``<run>/<path>``."""

    def tell_calls(self, calls: int | None) -> None:
        """Say what the run has used before it ends: `RunRecord.calls`. The last word counts."""

    async def step(
        self,
        path: str,
        effect: Effect,
        *,
        timeout_s: float,
        facts: Mapping[str, Any] | None = None,
        count: Count | None = None,
    ) -> StepOutcome:
        """Run an effect and record what became of it; a failure or a time-out is an outcome too.

        ``facts`` go into the events of the step. ``count`` is asked for ``calls`` of the outcome, except
        after a try that was cut off together with the body: what that one used nobody knows.
        """

    async def child(self, path: str, request: RunRequest) -> Child:
        """Start a child run, which goes on beside this body; one that still runs when the body ends
        is cancelled."""

    async def wait(
        self, path: str, children: Sequence[Child], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        """The outcomes of all children in the given order, or the one of the first to end."""

    async def cancel(self, path: str, children: Sequence[Child]) -> None:
        """Stop children, their children and the effects in flight."""

    async def sleep(self, path: str, seconds: float) -> None:
        """Wait; a run resumed later does not wait again for time that has passed."""

    async def receive(
        self, path: str, topic: str, timeout_s: float, *, facts: Mapping[str, Any] | None = None
    ) -> StepOutcome:
        """The next signal of a topic; a time-out is a fault. Seen in the events as a step is."""


Body = Callable[[RunContext, RunRequest], Awaitable[Any]]
"""What a run does; must keep the rules above. Its value is JSON; a RetinueError fails the run."""


Accept = Callable[[RunRecord], bool]
"""Whether a run is to be listed."""


class Runs(Protocol):
    """The runs, from outside."""

    async def start(self, request: RunRequest, *, run_id: str) -> RunRecord:
        """Start a run; the id is an idempotency key: the same request again gives the first run.

        Raises RunConflictError for the same id with another request, OutputInvalidError for a
        request that is no JSON.
        """

    async def get(self, run_id: str) -> RunRecord:
        """Raises UnknownRunError."""

    async def list_all(
        self,
        *,
        status: RunStatus | None = None,
        name: str | None = None,
        children: bool = False,
        limit: int | None = None,
        accept: Accept | None = None,
    ) -> tuple[RunRecord, ...]:
        """The runs, newest first; those of a status, of a workflow, that are accepted; with children only
        when asked."""

    async def finish(self, run_id: str) -> RunRecord:
        """Wait until a run has ended; raises UnknownRunError."""

    async def cancel(self, run_id: str) -> RunRecord:
        """Stop a run, its children and effects in flight; a run that has ended stays as it is."""

    async def resume(self, run_id: str) -> RunRecord:
        """Go on with a cancelled run where it stopped; recorded steps do not run again.

        A run in another state stays as it is: a failed one would only fail again (fork it).
        """

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        """A new run with the same request that keeps the outcomes recorded before ``from_step``.

        Raises UnknownRunError, UnknownStepError.
        """

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        """Hand a value to a run that receives, or will; raises UnknownRunError."""

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        """The recorded outcomes of this run and its children, a child's after those of its parent.

        A forked run has those that it kept. Raises UnknownRunError.
        """

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        """What has happened so far, past ``after``; raises UnknownRunError."""

    def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        """What has happened past ``after`` and what happens next, until the run has ended."""


def copy_json(value: Any, what: str) -> Any:
    """A deep copy through JSON text, so that nobody shares it; raises OutputInvalidError."""
    return orjson.loads(encode_json(value, what))


def encode_json(value: Any, what: str) -> bytes:
    """The JSON text of a value; raises OutputInvalidError where JSON cannot carry it."""
    try:
        encoded = orjson.dumps(
            value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
        )
    except TypeError as error:
        problem = str(error)
        if "64-bit" in problem:
            problem = "an integer beyond 64 bits: carry such a number as text"
        raise OutputInvalidError(what, [Problem("", problem)]) from None
    # orjson writes NaN and infinity as null: only then is it worth looking for them.
    if b"null" in encoded and _holds_no_number(value):
        raise OutputInvalidError(what, [Problem("", "NaN and infinity are no JSON")])
    return encoded


def _holds_no_number(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return True
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return False


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
