"""The executions in this process, by run: look-up, cancellation and waiting.

A run is known here from before its execution begins, so that it can be stopped while it is started, until its
end is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.workflows.durable.dbos_engine import Invocation
from retinue.workflows.durable.run_rows import RunRow


@dataclass(eq=False)
class Execution:
    """One execution of a run in this process, from before it begins until its end is recorded.

    ``args`` is what this process started the run with, () for a run that it took from its queue. ``ended``
    is set once the end is recorded, or the run belongs to another execution; ``row`` is the row with that
    end, None where it was not read. ``is_released`` = another execution continues the run, here or at
    another node, and emits its end.
    """

    run_id: str
    args: Sequence[Any] = ()
    root: str = ""
    task: asyncio.Task[Any] | None = None
    aborted: bool = False
    is_released: bool = False
    row: RunRow | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        """Cancel it once, because a second cancellation would interrupt its clean-up."""
        if not self.aborted:
            self.aborted = True
            if self.task is not None:
                self.task.cancel()


class ExecutionsHere:
    """The executions of this process, by run."""

    def __init__(self) -> None:
        self._executions: dict[str, Execution] = {}
        self._starting: dict[str, Execution] = {}

    @property
    def outermost(self) -> int:
        """How many outermost runs are here."""
        return sum(execution.root == execution.run_id for execution in self._executions.values())

    def find(self, run_id: str) -> Execution | None:
        return self._executions.get(run_id)

    def list_all(self) -> list[Execution]:
        return list(self._executions.values())

    def list_within(self, ids: Iterable[str]) -> list[Execution]:
        """The executions of these runs and of all below them."""
        within = tuple(f"{run_id}/" for run_id in ids)
        return [
            execution for execution in self._executions.values() if f"{execution.run_id}/".startswith(within)
        ]

    def announce(self, run_id: str, args: Sequence[Any]) -> Execution:
        """A run is being started; it is known before its execution begins, so that it can be stopped."""
        execution = Execution(run_id, args)
        if run_id not in self._executions:
            self._executions[run_id] = self._starting[run_id] = execution
        return execution

    def withdraw(self, execution: Execution) -> None:
        """An announced execution does not begin; nothing where it has begun."""
        if self._starting.get(execution.run_id) is execution:
            del self._starting[execution.run_id]
            self.end(execution)

    def begin(self, invocation: Invocation) -> tuple[Execution, bool]:
        """An execution begins; tells whether it is the first of a run that was started here."""
        run_id, announced = invocation.run_id, self._starting.get(invocation.run_id)
        # The time among the arguments tells a run that is started from one with its id that was stored.
        is_new = announced is not None and announced.args[-1] == invocation.args[-1]
        execution = self._starting.pop(run_id) if is_new else Execution(run_id)
        self._executions[run_id] = execution
        return execution, is_new

    def end(self, execution: Execution) -> None:
        """An execution has ended; another one of the same run may have begun."""
        if self._executions.get(execution.run_id) is execution:
            del self._executions[execution.run_id]
        execution.ended.set()

    async def await_change(self, ids: Sequence[str], look_s: float, *, all_of_them: bool) -> None:
        """Return when one of these runs, or all, ended here, or it is time to look at other nodes."""
        here = [execution for run_id in ids if (execution := self.find(run_id)) is not None]
        elsewhere = len(here) < len(ids)
        waiting = [asyncio.create_task(execution.ended.wait()) for execution in here]
        if not waiting:
            await asyncio.sleep(look_s)
            return
        try:
            await asyncio.wait(
                waiting,
                timeout=look_s if elsewhere else None,
                return_when=asyncio.ALL_COMPLETED if all_of_them else asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in waiting:
                task.cancel()
