"""The ports of durable runs: ``RunContext`` for the body of a run, ``Runs`` for all other code.

``SessionStore`` keeps the sessions of steps ``think``, which outlive single runs.

Rules for bodies. Every implementation enforces 1 and 2, because DBOS would replay wrong data silently:

1. Each durable call has a path, which is unique within the run.
2. Only the body's own task makes durable calls, one after the other. Concurrent work is done by
   `RunContext.together`, or in child runs, which are started in order.
3. A body reads no clock, no random numbers and no settings. It decides by its input and by the outcomes
   of its durable calls, which on replay are the recorded ones.
4. Arguments and results of durable calls are JSON values, and are copied.

Breaking 1 or 2 raises DurableRuleError and fails the run, even if the body catches the error. A durable call
of another path or with another mark than the recorded one raises NondeterminismError and fails the run as
well. Each later durable call of the body raises the error again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from retinue.approvals.records import ApprovalStore
from retinue.mesh.channel import LogLevel
from retinue.workflows.runs.hosting import HostedWorkflow, RunCode
from retinue.workflows.runs.records import (
    ChildOutcome,
    ChildRun,
    Extension,
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepOutcome,
    StepRecord,
)

WaitMode = Literal["first", "all"]
Effect = Callable[[], Awaitable[Any]]
"""The work of a step; returns a JSON value or raises. It may run twice if its node dies before the outcome is
recorded.
"""


class DurableRuleError(RuntimeError):
    """A body broke a rule of this module, which is a bug of the body."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a durable call was made with: a ``digest`` of its arguments, and its ``place`` in the source.

    It is recorded with the outcome. On replay another digest breaks the rules; the error names both places.
    """

    digest: str
    place: str

    def to_json(self) -> list[str]:
        return [self.digest, self.place]

    @classmethod
    def find(cls, recorded: Any) -> Mark | None:
        """The mark in what was recorded for a durable call; None for a call without one."""
        mark = recorded.get("mark") if isinstance(recorded, Mapping) else None
        return None if mark is None else cls(*mark)


@dataclass(frozen=True, slots=True)
class StepCount:
    """Counts what a step uses of the budgets of its run.

    ``record`` gives the outcome of an effect with what it used, before that is recorded. ``close`` gets each
    recorded outcome, on replay as well. ``begin``, if there is one, is told before the effect how many
    earlier attempts at it were interrupted and may have spent something; they are then counted durably.
    """

    record: Callable[[StepOutcome], StepOutcome]
    close: Callable[[StepOutcome], None]
    begin: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class StepCall:
    """One of the effects that `RunContext.together` runs; its fields are arguments of `RunContext.step`.

    ``decides`` = its success counts as one of those that are enough. ``is_long`` = it may take as long as a
    call.
    """

    path: str
    effect: Effect
    timeout_s: float
    facts: Mapping[str, Any] | None = None
    count: StepCount | None = None
    mark: Mark | None = None
    decides: bool = True
    is_long: bool = False


class RunContext(Protocol):
    """The durable calls of a body: each is done once, and its outcome is recorded."""

    @property
    def run_id(self) -> str:
        """The id of this run; a child's is ``<run>/<path>``."""

    @property
    def agent_wait_s(self) -> float:
        """The remaining seconds in which effects may wait for unknown agents.

        More than 0 after the run was taken up from a dead node, because agents may have stopped with it.
        """

    async def pause(self, seconds: float) -> None:
        """Wait within an effect, for an agent to come back; meanwhile other steps use its place."""

    async def pass_on(self, code: RunCode) -> NoReturn:
        """Let a living node that has this code execute the run, and wait until there is one.

        It is no durable call, ends this execution, and comes before the first durable call.
        """

    async def count_undo_requests(self) -> int:
        """How often this run, which failed with steps left to be undone, was resumed to undo them.

        It is no durable call. The number only grows, so a replay repeats each earlier request.
        """

    async def list_extensions(self) -> Sequence[Extension]:
        """How the limits of steps of this run were raised, after they had ended it (`Runs.extend`).

        It is no durable call. The list only grows, so a replay finds each earlier extension.
        """

    def record_usage(self, calls: int | None, usage: Mapping[str, Any] | None = None) -> None:
        """Set `RunRecord.calls` and ``usage``; the last call before the end of the body counts."""

    async def log(self, message: str, level: LogLevel, data: Mapping[str, Any] | None) -> None:
        """Add a line to the events of the run; a body that is begun again adds each line once.

        It is no durable call. Raises DurableRuleError in another task than the body's.
        """

    async def step(
        self,
        path: str,
        effect: Effect,
        *,
        timeout_s: float,
        facts: Mapping[str, Any] | None = None,
        count: StepCount | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        """Run an effect and record its outcome; failures and time-outs are outcomes too.

        ``facts`` are added to the events of the step. ``count`` records what it used; ``calls`` stay unknown
        if an earlier execution of the run was interrupted during the step.
        """

    async def patched(self, change: str) -> bool:
        """Whether the run has a change of its code, at the place where it first asks for it.

        A run without a record behind this place has it, and records that. A run that went on here before
        without it does not. Other durable calls pass such a record where the code no longer asks for it.
        """

    async def together(
        self, calls: Sequence[StepCall], *, limit: int | None = None, enough: int | None = None
    ) -> tuple[StepOutcome, ...]:
        """Run several effects at once, at most ``limit`` of them; returns their outcomes in the given order.

        Each is a step of its own, and is recorded when it ends. Their places in the journal are taken in the
        given order before any of them begins, so a resumed run repeats only those that had not ended. Once
        ``enough`` calls that decide have ended without a fault, the others are cut off, which is recorded as
        their fault.
        """

    async def child(self, path: str, request: RunRequest) -> ChildRun:
        """Start a child run; it is cancelled if it still runs when this body ends."""

    async def wait(
        self, path: str, children: Sequence[ChildRun], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        """Wait for all children and return their outcomes in the given order, or for the first to end."""

    async def cancel(self, path: str, children: Sequence[ChildRun]) -> None:
        """Cancel children with their child runs and the effects in flight."""

    async def sleep(self, path: str, seconds: float) -> None:
        """Sleep; time that passes while the run is interrupted counts."""

    async def wait_until(
        self,
        path: str,
        until: float,
        *,
        at_most_s: float,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Wait until a time, in seconds since 1970, as the clock shows it. Emits the events of a step.

        A clock that is set back makes the wait of one execution no longer than ``at_most_s``.
        """

    async def receive(
        self,
        path: str,
        topic: str,
        timeout_s: float,
        *,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        """Wait for the next signal of a topic; a time-out is a fault. Emits the events of a step."""


Body = Callable[[RunContext, RunRequest], Coroutine[Any, Any, Any]]
"""Executes a run, under the rules above; returns its value as JSON. An exception fails the run."""
Accept = Callable[[RunRecord], bool]
"""A filter for `Runs.list_all`."""


class Runs(Protocol):
    """Starts, reads and controls runs."""

    async def start(self, request: RunRequest, *, run_id: str | None = None) -> RunRecord:
        """Start a run. The id is an idempotency key: the same request again returns the first run.

        Without one the run gets a new id.

        Raises RunConflictError for the same id with another request, and for the id of a run that has ended
        and was deleted, OutputInvalidError for a request that
        is not JSON.
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
        """The runs that match all filters, newest first; child runs only with ``children``."""

    async def finish(self, run_id: str) -> RunRecord:
        """Wait for the end of a run; raises UnknownRunError."""

    async def cancel(self, run_id: str) -> RunRecord:
        """Cancel a run with its child runs and effects in flight.

        An ended run stays as it is. But a failed one with steps that could not be undone
        (`RunRecord.is_half_undone`) is given up, and is a cancelled run from then on.
        """

    async def resume(self, run_id: str) -> RunRecord:
        """Continue a cancelled run where it stopped; recorded steps are not repeated.

        A failed run with steps that could not be undone (`RunRecord.is_half_undone`) undoes these, and fails
        again. Runs in other states stay as they are: to run steps again, fork the run.
        """

    async def extend(self, run_id: str, extension: Extension) -> RunRecord:
        """Continue a run that a limit of a step has ended (`RunRecord.is_extendable`), with higher limits.

        Runs in other states stay as they are.
        """

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        """Start a new run with the same request, which keeps the outcomes recorded before ``from_step``.

        Raises UnknownRunError, UnknownStepError.
        """

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        """Send a value to a run, for its next `RunContext.receive` of the topic; raises UnknownRunError."""

    async def count_signals(self, run_id: str, topic: str) -> int:
        """The number of values of a topic that were not received yet; raises UnknownRunError."""

    async def list_hosted(self) -> tuple[HostedWorkflow, ...]:
        """The workflows in Python of all living nodes, by name; raises StateError.

        Nodes may have the same workflow with equal or different code.
        """

    async def open_approvals(self) -> ApprovalStore:
        """The approvals, which are kept with the runs; raises StateError."""

    async def open_sessions(self) -> SessionStore:
        """The sessions of steps ``think``, which are kept with the runs; raises StateError."""

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        """The recorded outcomes of a run and its child runs, those of a child after its parent's.

        A forked run includes the calls that it kept. Raises UnknownRunError.
        """

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        """The events so far with numbers above ``after``; raises UnknownRunError."""

    def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events with numbers above ``after``, past and coming, until the end of the run."""


Change = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
"""Makes the next history of a session of the one that is stored; None for a new session."""


class SessionStore(Protocol):
    """Histories of sessions by their keys (`retinue.thinking.session`); all methods may raise StateError.

    A session is deleted with the run that wrote it last.
    """

    async def find(self, key: str) -> Mapping[str, Any] | None:
        """The history of a session; None for an unknown one."""
        ...

    async def change(self, key: str, root: str, change: Change) -> None:
        """Replace the history of a session; ``root`` is the outermost run that does it.

        Changes of several runs at the same time are made one after the other.
        """
        ...
