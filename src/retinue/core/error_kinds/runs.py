"""Errors of runs: expressions, failed steps, replays of other steps, and ids that were used before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.error_kinds.admission import CircuitOpenError
from retinue.core.error_kinds.base import REQUEST, Kind, RetinueError
from retinue.core.error_kinds.execution import ExecutionError


class ExpressionError(ExecutionError):
    """A workflow expression failed at run time: a missing key, a wrong type, an exceeded limit."""

    type = "expression_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(self, source: str, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"expression {source!r}: {problem}", remedy=remedy)
        self.source = source


INCOMPLETE = "incomplete"
"""The value of ``undo`` in the data of a failed run with steps that are still to be undone."""


class StepFailedError(ExecutionError):
    """A step failed, and so the run; names the step, its agent and the cause.

    ``cause`` is the failure as data: type, message, remedy, retryable, on_error, data. ``compensated``
    lists the steps to be undone, last first: step, skill, agent, ok, error. ``run`` is the id of the run,
    once it has ended: the remedy names the command that goes on.
    """

    type = "step_failed"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(
        self,
        step: str,
        agent: str | None,
        cause: Mapping[str, Any],
        compensated: Sequence[Mapping[str, Any]] = (),
        run: str | None = None,
    ) -> None:
        by = f" (agent {agent})" if agent else ""
        super().__init__(f"step {step}{by} failed: {cause.get('message', '')}")
        self.step = step
        self.agent = agent
        self.cause = dict(cause)
        self.compensated = tuple(compensated)
        self.run = run
        self.remedy = "; then ".join(part for part in (str(cause.get("remedy", "")), self._way_on()) if part)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepFailedError:
        """The error with this ``data``."""
        return cls(data["step"], data["agent"], data["cause"], data.get("compensated", ()), data.get("run"))

    @property
    def is_half_undone(self) -> bool:
        """Whether steps are still to be undone."""
        return any(not row["ok"] for row in self.compensated)

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"step": self.step, "agent": self.agent, "cause": self.cause}
        if self.compensated:
            facts["compensated"] = [dict(row) for row in self.compensated]
        if self.run is not None:
            facts["run"] = self.run
            if self.is_half_undone:
                facts["undo"] = INCOMPLETE
        return facts

    def _way_on(self) -> str:
        if self.run is None:
            return ""
        if self.is_half_undone:
            return f"finish the undoing: retinue resume {self.run}"
        is_away = (
            self.cause.get("on_error") == "unreachable" or self.cause.get("type") == CircuitOpenError.type
        )
        if not is_away:
            return ""
        # What was undone is to be done again as well.
        first = self.compensated[-1]["step"] if self.compensated else self.step
        return f"run again: retinue rerun {self.run} --from {str(first).partition('/')[0]}"


class NondeterminismError(ExecutionError):
    """A run that was taken up asks for another step than the recorded one.

    ``asked`` and ``recorded`` name the steps; the same name means other arguments. ``place`` and
    ``recorded_place`` are file and line of both (``flows.py:12``), "" where they are unknown.
    """

    type = "nondeterminism"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(self, asked: str, recorded: str, *, place: str = "", recorded_place: str = "") -> None:
        difference = (
            f"with other arguments than those recorded from {recorded_place or 'before'}"
            if asked == recorded
            else f"where {recorded} was recorded{f' from {recorded_place}' if recorded_place else ''}"
        )
        super().__init__(
            f"on replay {place or 'the body'} asks for {asked} {difference}",
            remedy="let the workflow make the same steps again, and read time, random numbers and files in "
            "steps; a run of older code needs that code, or the new steps behind run.patched",
        )
        self.asked = asked
        self.recorded = recorded
        self.place = place
        self.recorded_place = recorded_place

    @property
    def data(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "recorded": self.recorded,
            "place": self.place,
            "recorded_place": self.recorded_place,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> NondeterminismError:
        """The error with this ``data``."""
        place, recorded_place = str(data["place"]), str(data["recorded_place"])
        return cls(str(data["asked"]), str(data["recorded"]), place=place, recorded_place=recorded_place)


class RunConflictError(RetinueError):
    """A run id, which is an idempotency key, was used again with other input, or of a deleted run."""

    type = "run_conflict"
    kind = REQUEST

    def __init__(self, run_id: str, *, is_deleted: bool = False) -> None:
        """``is_deleted`` = it was the same request, whose ended run is not stored any more."""
        problem = (
            "has ended and was deleted; its id does not run again"
            if is_deleted
            else "exists with another workflow or input"
        )
        super().__init__(f"Run {run_id} {problem}", remedy="leave the id out, or choose a new one")
        self.run_id = run_id
        self.is_deleted = is_deleted

    def named(self, run_id: str) -> RunConflictError:
        """The same error under the id that the caller chose."""
        return RunConflictError(run_id, is_deleted=self.is_deleted)


class RepeatedEventError(RetinueError):
    """The same sending of an event arrived again, as when somebody replays a recorded request."""

    type = "repeated_event"
    kind = REQUEST

    def __init__(self, event: str, run: str) -> None:
        super().__init__(
            f"Event {event[:100]} was received before, in this very request",
            remedy="to send it once more, sign it with the time of now",
        )
        self.event = event
        self.run = run

    @property
    def data(self) -> dict[str, Any]:
        return {"run": self.run}
