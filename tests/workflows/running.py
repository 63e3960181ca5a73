"""What the tests of the engine share: runs over an in-memory caller, and skills that answer at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.records import RunEvent, RunRecord


@dataclass
class Bench:
    """An engine with skills; ``slept`` are the seconds that its runs waited, none of them in truth."""

    caller: MemoryCaller = field(default_factory=MemoryCaller)
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        tools = Tools(self.caller, open_sessions=lambda: self.runs.open_sessions())
        self.runs = MemoryRuns(Interpreter(tools).run, sleep=sleep)
        self.orchestrator = Orchestrator(self.runs)

    def offer(self, skill: str, answer: Any, *, agent: str | None = None, **schema: Any) -> None:
        """Offer a skill: ``answer`` is its value, or a function of its arguments."""

        async def function(arguments: Any) -> Any:
            value = answer(arguments) if callable(answer) else answer
            return await value if isinstance(value, Awaitable) else value

        self.caller.offer(skill, function, agent=agent or f"{skill}-agent", **schema)

    async def run(
        self, definition: str | Mapping[str, Any] | Definition, given: Any = None, **more: Any
    ) -> RunRecord:
        if not isinstance(definition, Definition):
            definition = load_definition(definition)
        return await self.orchestrator.run(definition, {} if given is None else given, **more)

    async def events(self, run_id: str) -> tuple[RunEvent, ...]:
        return await self.runs.list_events(run_id)

    @property
    def called(self) -> list[str]:
        return [call.skill for call in self.caller.calls]

    @property
    def arguments(self) -> list[Any]:
        return [call.arguments for call in self.caller.calls]


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        await bench.runs.aclose()


def failing(*failures: Exception, then: Any = None) -> Callable[[Any], Any]:
    """A skill that raises these one after the other, and then answers."""
    left = list(failures)

    def answer(_: Any) -> Any:
        if left:
            raise left.pop(0)
        return then

    return answer
