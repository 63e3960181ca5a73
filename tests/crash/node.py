"""A process that runs workflows, with the points at which it can be told to die.

Its skills write to a log what they do: ``begin``, ``end`` or ``cut`` and, once a step's outcome is recorded,
``recorded``, each with the key of the effect or the path of the step. The log is what really happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from retinue.core.call import Outcome, TraceContext
from retinue.core.errors import BusyError
from retinue.flows.body import CodeBody, HostedWorkflows
from retinue.mesh.channel import LogLevel
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.caller import Choice
from retinue.workflows.durable.runs import DurableOptions, DurableRuns
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.hosting import RunCode
from retinue.workflows.runs.ports import Effect, Mark, RunContext, StepCall, StepCount, WaitMode
from retinue.workflows.runs.records import (
    MESH_SCOPES,
    ChildOutcome,
    ChildRun,
    Extension,
    Origin,
    RunRequest,
    StepOutcome,
)
from tests.crash.code_flows import FLOWS, CodeShape, log_own_to
from tests.workflows.shapes import Shape, think_in_turns

END_S = 600.0
GIVEN, FURTHER = 10_000, 2
"""The budget of each run, and how many further calls each of its calls causes."""

_key: ContextVar[str] = ContextVar("_key")


@dataclass(frozen=True)
class Plan:
    """What a node does: start these runs of a shape, or wait for the end of runs of one that exist.

    All of them get the signals of their shape: one that died may not have. The node dies at its
    ``die_at``-th point, 0 = never. ``slow_s`` is how long each skill takes.
    """

    database: str
    nodes: str
    log: str
    start: Mapping[str, Shape | CodeShape]
    wait_for: Mapping[str, Shape | CodeShape] = field(default_factory=dict)
    die_at: int = 0
    slow_s: float = 0.0
    lease_s: float = 15.0
    stay: bool = False


class Points:
    """Counts the points that a process passes, and kills it at one of them."""

    def __init__(self, plan: Plan) -> None:
        self.passed = 0
        self._plan = plan

    def log(self, what: str, key: str) -> None:
        with Path(self._plan.log).open("a") as log:
            log.write(f"{what} {key} {os.getpid()}\n")

    def reach(self) -> None:
        self.passed += 1
        if self.passed == self._plan.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


class LoggingCaller(MemoryCaller):
    """The skills of the shapes, logged; ``flaky`` fails in its first attempt, whoever makes it."""

    def __init__(self, points: Points, slow_s: float) -> None:
        super().__init__()
        self._points = points
        self._slow_s = slow_s
        self._hanging: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.offer("add", self._add, agent="adder")
        self.offer("flaky", self._flaky, agent="flake")
        self.offer("hang", self._hang, agent="hanger")
        self.offer("complete", self._think, agent="thinker")
        self.offer("late", self._add_late, agent="latecomer")
        for agent in ("one", "two", "three"):
            self.offer("ask", self._answer, agent=agent, roles=["execute"])
        self.offer("ask", self._hang, agent="idle", roles=["execute"])
        self.offer("ask", self._answer_late, agent="tardy", roles=["execute"])

    async def call(
        self, choice: Choice, skill: str, arguments: Any, *, idempotency_key: str, **more: Any
    ) -> Outcome:
        self._points.log("begin", idempotency_key)
        self._points.reach()
        _key.set(idempotency_key)
        try:
            outcome = await super().call(choice, skill, arguments, idempotency_key=idempotency_key, **more)
        except asyncio.CancelledError:
            self._points.log("cut", idempotency_key)
            raise
        self._points.log("end", idempotency_key)
        self._points.reach()
        return replace(outcome, calls_used=FURTHER)

    async def _add(self, given: Any) -> Any:
        await asyncio.sleep(self._slow_s)
        return {"n": given["n"] + 1}

    async def _think(self, given: Any) -> Any:
        await asyncio.sleep(self._slow_s)
        return think_in_turns(given)

    async def _answer(self, given: Any) -> Any:
        await asyncio.sleep(self._slow_s)
        return {"n": int(given["prompt"])}

    async def _flaky(self, given: Any) -> Any:
        if "@" not in _key.get():
            raise BusyError("full", 0)
        return {"n": given["n"] * 10}

    async def _hang(self, given: Any) -> Any:
        self._hanging[_current_run()].set()
        await asyncio.Event().wait()

    async def _add_late(self, given: Any) -> Any:
        await self._hanging[_current_run()].wait()
        return await self._add(given)

    async def _answer_late(self, given: Any) -> Any:
        await self._hanging[_current_run()].wait()
        return await self._answer(given)


def _current_run() -> str:
    """The outermost run that the call at hand is part of."""
    return _key.get().partition("/")[0]


class Watched:
    """A RunContext with a point before and after each durable call."""

    def __init__(self, context: RunContext, points: Points) -> None:
        self._context = context
        self._points = points

    @property
    def run_id(self) -> str:
        return self._context.run_id

    @property
    def agent_wait_s(self) -> float:
        return self._context.agent_wait_s

    async def pause(self, seconds: float) -> None:
        await self._context.pause(seconds)

    async def log(self, message: str, level: LogLevel, data: Mapping[str, Any] | None) -> None:
        await self._context.log(message, level, data)

    async def pass_on(self, code: RunCode) -> NoReturn:
        await self._context.pass_on(code)

    async def count_undo_requests(self) -> int:
        return await self._context.count_undo_requests()

    async def list_extensions(self) -> Sequence[Extension]:
        return await self._context.list_extensions()

    def record_usage(self, calls: int | None, usage: Mapping[str, Any] | None = None) -> None:
        self._context.record_usage(calls, usage)

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
        self._points.reach()
        outcome = await self._context.step(
            path, effect, timeout_s=timeout_s, facts=facts, count=count, mark=mark
        )
        self._points.log("recorded", f"{self.run_id}/{path}")
        self._points.reach()
        return outcome

    async def together(
        self, calls: Sequence[StepCall], *, limit: int | None = None, enough: int | None = None
    ) -> tuple[StepOutcome, ...]:
        self._points.reach()
        outcomes = await self._context.together(calls, limit=limit, enough=enough)
        for call in calls:
            self._points.log("recorded", f"{self.run_id}/{call.path}")
        self._points.reach()
        return outcomes

    async def child(self, path: str, request: RunRequest) -> ChildRun:
        self._points.reach()
        child = await self._context.child(path, request)
        self._points.reach()
        return child

    async def wait(
        self, path: str, children: Sequence[ChildRun], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        self._points.reach()
        outcomes = await self._context.wait(path, children, mode)
        self._points.reach()
        return outcomes

    async def cancel(self, path: str, children: Sequence[ChildRun]) -> None:
        self._points.reach()
        await self._context.cancel(path, children)
        self._points.reach()

    async def patched(self, change: str) -> bool:
        self._points.reach()
        answer = await self._context.patched(change)
        self._points.reach()
        return answer

    async def sleep(self, path: str, seconds: float) -> None:
        self._points.reach()
        await self._context.sleep(path, seconds)
        self._points.reach()

    async def wait_until(
        self,
        path: str,
        until: float,
        *,
        at_most_s: float,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> None:
        self._points.reach()
        await self._context.wait_until(path, until, at_most_s=at_most_s, facts=facts, mark=mark)
        self._points.reach()

    async def receive(
        self,
        path: str,
        topic: str,
        timeout_s: float,
        *,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        self._points.reach()
        outcome = await self._context.receive(path, topic, timeout_s, facts=facts, mark=mark)
        self._points.reach()
        return outcome


@dataclass(frozen=True)
class Report:
    """How the runs of a node ended, what they say that they used, and how many points it passed."""

    passed: int
    values: Mapping[str, Any]
    calls: Mapping[str, int | None]
    finished_steps: Mapping[str, list[str]]


async def run_node(plan: Plan) -> Report:
    """Run to the end of all runs of a plan; with ``stay`` until killed."""
    points = Points(plan)
    tools, hosted = Tools(LoggingCaller(points, plan.slow_s)), HostedWorkflows(FLOWS)
    interpreter = Interpreter(tools, code=CodeBody(hosted, tools).run)

    def log_own(what: str, key: str) -> None:
        points.log(what, key)
        points.reach()

    log_own_to(log_own)

    async def body(context: RunContext, request: RunRequest) -> Any:
        return await interpreter.run(Watched(context, points), request)

    options = DurableOptions(lease_s=plan.lease_s, poll_s=0.05)
    runs = DurableRuns(
        body, url=plan.database, nodes=Path(plan.nodes), options=options, hosted=hosted.list_hosted()
    )
    try:
        await runs.launch()
        points.log("ready", "-")
        values, calls, steps = {}, {}, {}
        for run_id, shape in plan.start.items():
            whole = await shape.bundle()
            await Orchestrator(runs).start(
                whole.loaded.definition,
                {"n": 0},
                run_id=run_id,
                nested=whole.nested,
                origin=Origin(MESH_SCOPES, trace=TraceContext("t", calls_left=GIVEN)),
            )
        wanted = {**plan.start, **plan.wait_for}
        for run_id, shape in wanted.items():
            for topic, value in shape.signals.items():
                await runs.signal(run_id, topic, value)
        async with asyncio.timeout(END_S):
            for run_id in wanted:
                record = await runs.finish(run_id)
                values[run_id], calls[run_id] = record.value, record.calls
                events = await runs.list_events(run_id)
                steps[run_id] = [event.step for event in events if event.kind == "step_finished"]
        if plan.stay:
            points.log("done", "-")
            await asyncio.Event().wait()
        return Report(points.passed, values, calls, steps)
    finally:
        await runs.aclose()


def main(plan: Plan, report_to: Any) -> None:
    """The process: runs a plan and sends its Report through a pipe."""
    report_to.send(asyncio.run(run_node(plan)))
    report_to.close()
