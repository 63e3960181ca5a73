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
from typing import Any, Literal, Protocol

from retinue.workflows.run_records import (
    Child,
    ChildOutcome,
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepOutcome,
    StepRecord,
)

WaitMode = Literal["first", "all"]
Effect = Callable[[], Awaitable[Any]]
"""What a step does: gives a JSON value or raises; may run twice when its node dies (never after
its outcome was recorded)."""
Count = Callable[[], int | None]
"""How many calls an effect made and caused, asked when it has ended; None = nobody knows."""


class DurableRuleError(RuntimeError):
    """A body broke a rule of this module: a fault of the program, not of a definition."""


class RunContext(Protocol):
    """What the body of a run may do. Every call is durable: done once, then remembered."""

    @property
    def run_id(self) -> str:
        """The id of this run; a child's is ``<run>/<path>``."""

    @property
    def patience_s(self) -> float:
        """How long effects may still wait for agents that are not there.

        More than 0 after a run was taken up, because what stopped its node may have stopped them too.
        """

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

    async def count_signals(self, run_id: str, topic: str) -> int:
        """How many values of a topic nobody has received yet; raises UnknownRunError."""

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        """The recorded outcomes of this run and its children, a child's after those of its parent.

        A forked run has those that it kept. Raises UnknownRunError.
        """

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        """What has happened so far, past ``after``; raises UnknownRunError."""

    def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        """What has happened past ``after`` and what happens next, until the run has ended."""
