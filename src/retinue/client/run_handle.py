"""A run of a workflow as a program sees it: its events, signals, its result, and its end."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from retinue.client.arguments import convert
from retinue.client.hub_skills import HubSkills
from retinue.client.received_parts import value_with_parts
from retinue.client.updates import RunUpdate
from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    LimitedError,
    StepFailedError,
)

T = TypeVar("T")

FOLLOW_WAIT_S = 20.0
"""How long one ``follow_run`` call waits for a new event."""

_PATIENCE_S = 60.0
"""How long a hub that is away is waited for: it stores its runs, and goes on with them when it is back."""

_AGAIN_S = 0.5

_ENDS = ("step_finished", "run_finished")


@dataclass(slots=True)
class RunHandle:
    """A run by its id. It goes on when the program ends, or no longer follows it."""

    id: str
    _hub: HubSkills
    _progress: bool = False
    _patience_s: float = _PATIENCE_S

    async def events(
        self, *, after: int = 0, progress: bool | None = None
    ) -> AsyncGenerator[RunUpdate, None]:
        """The events of the run after the number ``after``, each once, until the run has ended.

        With ``progress`` also what steps report while they run, and the pieces of texts that they write;
        None means as the run was started here. Steps that began before are not heard. A hub that goes away
        meanwhile is waited for, for a minute. Raises AgentUnreachableError after that, and UnknownRunError.
        """
        progress = self._progress if progress is None else progress
        async with aclosing(self._follow(after, progress=progress)) as replies:
            async for reply in replies:
                for update in _read_updates(reply, after):
                    yield update
                after = reply["next"]

    @overload
    async def result(self, *, timeout_s: float | None = None) -> Any: ...

    @overload
    async def result(self, *, timeout_s: float | None = None, into: type[T]) -> T: ...

    async def result(self, *, timeout_s: float | None = None, into: Any = None) -> Any:
        """Wait for the end of the run and return its output, as ``into`` where it is given.

        Raises StepFailedError, which names the step, its agent and the cause; LimitedError, with a last
        answer, for a limit of a step ``think``; CallCancelledError for a
        cancelled run; CallTimedOutError after ``timeout_s``, while the run goes on.
        """
        try:
            async with asyncio.timeout(timeout_s), aclosing(self._follow(0)) as replies:
                async for reply in replies:
                    if reply["done"]:
                        output = value_with_parts(result_of(self.id, reply), ())
                        return output if into is None else convert(output, into, f"run {self.id}")
        except TimeoutError:
            assert timeout_s is not None
            raise CallTimedOutError(
                f"run {self.id}", timeout_s, layer="caller", setting="timeout_s of result()"
            ) from None
        raise AssertionError("a run is followed to its end")

    async def show(self) -> Mapping[str, Any]:
        """The run with its steps as a tree: status, input, output or error, and what it will do next."""
        row: Mapping[str, Any] = await self._hub.read("show_run", {"run": self.id})
        return row

    async def status(self) -> str:
        """``running``, ``done``, ``failed``, ``limited`` or ``cancelled``."""
        return str((await self.show())["status"])

    async def signal(self, topic: str, value: Any = True, *, step: str | None = None) -> Mapping[str, Any]:
        """Answer a step that waits for ``topic``; ``step`` names it where several wait.

        ``step`` of the reply is the step, None where the value is kept until a step waits. Raises
        InvalidParametersError for a value of another form than the step asks for.
        """
        arguments = {"run": self.id, "topic": topic, "value": value}
        row: Mapping[str, Any] = await self._hub.change(
            "signal_run", arguments if step is None else arguments | {"step": step}
        )
        return row

    async def cancel(self) -> Mapping[str, Any]:
        """Cancel the run with its calls in flight; ``effects`` of the reply lists what has happened."""
        row: Mapping[str, Any] = await self._hub.read("cancel_run", {"run": self.id})
        return row

    async def resume(self) -> None:
        """Resume a cancelled run where it stopped, or the undoing of a run that failed half undone."""
        await self._hub.read("resume_run", {"run": self.id})

    async def extend(self, /, **limits: Any) -> None:
        """Continue a run that reached a limit of a step ``think``, with higher limits.

        They are keys of ``limits`` of the step, such as ``turns=20``. Raises InvalidParametersError for a
        limit that is not more than what is spent.
        """
        await self._hub.change("extend_run", {"run": self.id, "limits": limits})

    async def rerun(self, from_step: str, *, id: str | None = None) -> RunHandle:  # noqa: A002 - as of start
        """Run again from a step, as a new run with the results before it.

        Not repeated after a lost reply, because the hub refuses the id of a run that exists
        (RunConflictError).
        """
        new = uuid.uuid4().hex if id is None else id
        await self._hub.change("rerun_run", {"run": self.id, "from_step": from_step, "new_run": new})
        return RunHandle(new, self._hub, _patience_s=self._patience_s)

    async def _follow(self, after: int, *, progress: bool = False) -> AsyncGenerator[Mapping[str, Any], None]:
        """The replies of ``follow_run`` until the one that says that the run is done."""
        has_answered, away_since, reported = False, None, 0
        while True:
            arguments: dict[str, Any] = {"run": self.id, "after": after, "wait_s": FOLLOW_WAIT_S}
            if progress:
                arguments["progress_after"] = reported
            try:
                reply = await self._hub.read("follow_run", arguments, timeout_s=FOLLOW_WAIT_S + 40)
            except InvalidParametersError as error:
                if not progress or not lacks_parameter(error, "progress_after"):
                    raise
                progress = False
                continue
            except (AgentUnreachableError, BusyError):
                now = asyncio.get_running_loop().time()
                away_since = now if away_since is None else away_since
                if not has_answered or now - away_since > self._patience_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
                continue
            has_answered, away_since = True, None
            after, reported = reply["next"], reply.get("next_progress", reported)
            yield reply
            if reply["done"]:
                return


def _read_updates(reply: Mapping[str, Any], after: int) -> Iterator[RunUpdate]:
    """The events of a reply; a step's reports stand before its end, the others behind all events."""
    reports = deque(reply.get("progress", ()))
    for row in reply["events"]:
        if row["event"] in _ENDS:
            step = row.get("step", "") if row["event"] == "step_finished" else ""
            for report in tuple(reports):
                if not step or f"{report.get('step', '')}/".startswith(f"{step}/"):
                    reports.remove(report)
                    yield RunUpdate.from_report(report, after)
        update = RunUpdate.from_row(row)
        after = update.seq
        yield update
    for report in reports:
        yield RunUpdate.from_report(report, after)


def lacks_parameter(error: InvalidParametersError, name: str) -> bool:
    """Whether the hub does not know this parameter of its skill, because it is older."""
    return any(problem.path == name for problem in error.problems)


def result_of(run: str, reply: Mapping[str, Any]) -> Any:
    """The output of a run by its last reply of ``follow_run``; raises the error of a run that has none."""
    if reply["status"] == "done":
        return reply.get("output")
    if reply["status"] == "cancelled":
        raise CallCancelledError(f"run {run}")
    error = reply.get("error") or {}
    if error.get("type") == StepFailedError.type:
        cause = error["data"].get("cause") or {}
        if cause.get("type") == LimitedError.type:
            raise LimitedError.from_data(cause["data"])
        raise StepFailedError.from_data(error["data"])
    raise ExecutionFailedError(
        str(error.get("message", "no reason given")), remedy=str(error.get("remedy", ""))
    )
