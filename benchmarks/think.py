"""A turn of the step ``think`` beside pydantic-ai's agent, plain and with its DBOS wrapper.

All three run the same script with the model and the tools in their process: three calls in each turn, then
the answer. What is left is the loop. Each has a process of its own, because the engine is one per process;
they work in turn, and the least of all turns counts, because other programs use the machine, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

TURNS = 6
TOOLS = ("lookup_a", "lookup_b", "lookup_c")
HISTORY = 100
"""So many turns come before those of the long conversation that are measured."""

ROUNDS = 9
STEPS = 100
LOOP_SHARE = 1.5
"""At most so many times the plain loop may take a turn of ours, beside the steps of the engine."""

STEPS_A_TURN = 1 + len(TOOLS)
EVENTS = "retinue_events"
RESULT = "x" * 200
QUESTION = "Look up everything."
INSTRUCTIONS = "You look things up."

Loop = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in milliseconds: of a turn of a short loop, of one after a long history, of a start.

    ``start_ms`` is what a loop takes beside its turns, ``step_ms`` one step of the engine. ``journal_bytes``
    is what a turn of a long loop adds to the engine's tables, ``event_bytes`` what it adds for readers.
    """

    short_ms: float
    long_ms: float
    start_ms: float
    journal_bytes: float = 0.0
    event_bytes: float = 0.0
    step_ms: float = 0.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="think-") as folder, _open_all(Path(folder)) as workers:
        for _ in range(ROUNDS):
            for worker in workers.values():
                worker.work()
        spent = {name: worker.read() for name, worker in workers.items()}
    plain, wrapped, ours = spent["plain"], spent["wrapped"], spent["think"]
    steps_ms = STEPS_A_TURN * ours.step_ms
    figures = [Figure("a step of the engine, CPU", ours.step_ms, "ms")]
    for what, field in ((f"{TURNS} turns", "short_ms"), (f"after {HISTORY} turns", "long_ms")):
        plain_ms, wrapped_ms, ours_ms = (getattr(one, field) for one in (plain, wrapped, ours))
        figures += [
            Figure(f"{what}: a turn of the plain loop, CPU", plain_ms, "ms"),
            Figure(f"{what}: a turn with the DBOS wrapper, CPU", wrapped_ms, "ms"),
            Figure(f"{what}: a turn of think, CPU", ours_ms, "ms"),
            Figure(f"{what}: think against the DBOS wrapper", ours_ms / wrapped_ms, "×"),
            Figure(
                f"{what}: think without its steps against the plain loop",
                (ours_ms - steps_ms) / plain_ms,
                "×",
                target=LOOP_SHARE,
            ),
        ]
    return [
        *figures,
        Figure("start and end of a plain loop, CPU", plain.start_ms, "ms"),
        Figure("start and end of a loop with the DBOS wrapper, CPU", wrapped.start_ms, "ms"),
        Figure("start and end of think, CPU", ours.start_ms, "ms"),
        Figure("journal of a turn, DBOS wrapper", wrapped.journal_bytes / 1000, "kB"),
        Figure("journal of a turn, think", ours.journal_bytes / 1000, "kB"),
        Figure("events of a turn for readers, think", ours.event_bytes / 1000, "kB"),
    ]


class _Worker:
    """The process of one loop."""

    def __init__(self, name: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.think", name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._rounds: list[dict[str, float]] = []

    def work(self) -> None:
        """Let it work for one round, while the others wait."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._rounds.append(json.loads(self._process.stdout.readline()))

    def read(self) -> Spent:
        """The least of each figure; the first round warms up."""
        rounds = self._rounds[1:]
        return Spent(**{key: min(one[key] for one in rounds) for key in rounds[0]})

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _open_all(folder: Path) -> Iterator[dict[str, _Worker]]:
    workers: dict[str, _Worker] = {}
    try:
        for name in _LOOPS:
            (folder / name).mkdir()
            workers[name] = _Worker(name, folder / name)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


# What the child processes do.


class _Clock:
    """The processor time at each request to the model."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def stamp(self) -> None:
        self.stamps.append(time.process_time())

    async def run(self, loop: Loop, turns: int) -> tuple[float, float]:
        """The processor time in milliseconds: of one of the last `TURNS` turns, and of all but the turns."""
        self.stamps.clear()
        began = time.process_time()
        await loop(turns)
        whole_s = time.process_time() - began
        assert len(self.stamps) == turns + 1, self.stamps
        turns_s = self.stamps[-1] - self.stamps[0]
        last_s = self.stamps[-1] - self.stamps[-1 - TURNS]
        return 1000 * last_s / TURNS, 1000 * (whole_s - turns_s)


async def _work(loop: Loop, clock: _Clock, database: Path | None, steps: Loop | None = None) -> None:
    """Do a round for each line of the input, and print what it took."""
    while await asyncio.to_thread(sys.stdin.readline):
        short_ms, start_ms = await clock.run(loop, TURNS)
        before = _measure_tables(database)
        long_ms, _ = await clock.run(loop, HISTORY + TURNS)
        added = _measure_tables(database) - before
        result = {
            "short_ms": short_ms,
            "long_ms": long_ms,
            "start_ms": start_ms,
            "journal_bytes": (added.total() - added[EVENTS]) / (HISTORY + TURNS),
            "event_bytes": added[EVENTS] / (HISTORY + TURNS),
        }
        if steps is not None:
            began = time.process_time()
            await steps(STEPS)
            result["step_ms"] = 1000 * (time.process_time() - began) / STEPS
        print(json.dumps(result), flush=True)


def _measure_tables(database: Path | None) -> Counter[str]:
    """The bytes of all values in each table of a database."""
    sizes: Counter[str] = Counter()
    if database is None:
        return sizes
    with closing(sqlite3.connect(database)) as connection:
        for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            columns = [row[1] for row in connection.execute(f'pragma table_info("{table}")')]
            lengths = " + ".join(f'coalesce(length(cast("{column}" as blob)), 0)' for column in columns)
            sizes[table] = connection.execute(
                f'select coalesce(sum({lengths}), 0) from "{table}"'
            ).fetchone()[0]
    return sizes


def _make_agent(clock: _Clock, turns: list[int], **options: Any) -> Any:
    """An agent of pydantic-ai with the script; ``turns`` holds how many turns it has."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        clock.stamp()
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn >= turns[0]:
            return ModelResponse([TextPart("done")])
        calls = [ToolCallPart(tool, {"key": f"{turn}"}, f"c{turn}_{tool}") for tool in TOOLS]
        return ModelResponse([TextPart(f"turn {turn}"), *calls])

    return Agent(FunctionModel(reply), name="bench", instructions=INSTRUCTIONS, **options)


async def _look_up(key: str) -> str:
    return RESULT


def _add_tools(agent: Any, wrap: Callable[[str], Callable[[Any], Any]] | None = None) -> None:
    for tool in TOOLS:
        function = _look_up if wrap is None else wrap(tool)(_look_up)
        agent.tool_plain(name=tool, description="Looks a key up.")(function)


def _limits() -> Any:
    from pydantic_ai.usage import UsageLimits

    return UsageLimits(request_limit=None)


async def _plain(folder: Path) -> None:
    clock, turns = _Clock(), [0]
    agent = _make_agent(clock, turns)
    _add_tools(agent)

    async def loop(number: int) -> None:
        turns[0] = number
        result = await agent.run(QUESTION, usage_limits=_limits())
        assert result.output == "done"

    await _work(loop, clock, None)


async def _wrapped(folder: Path) -> None:
    """Each tool is a step by its own decorator, because the wrapper makes steps of model requests only."""
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    clock, turns = _Clock(), [0]
    database = folder / "dbos.db"
    agent = _make_agent(clock, turns, capabilities=[DBOSDurability()])
    _add_tools(agent, lambda name: DBOS.step(name=name))

    @DBOS.workflow()
    async def run() -> str:
        result = await agent.run(QUESTION, usage_limits=_limits())
        return str(result.output)

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{database}", "log_level": "ERROR"})
    DBOS.launch()

    async def loop(number: int) -> None:
        turns[0] = number
        assert await run() == "done"

    await _work(loop, clock, database)


async def _think(folder: Path) -> None:
    from retinue.core.call import Answer
    from retinue.testing.memory_caller import MemoryCaller
    from retinue.workflows.definitions.loading import load_definition
    from retinue.workflows.durable.runs import DurableRuns
    from retinue.workflows.interpreter.frame import Tools
    from retinue.workflows.interpreter.step_loop import Interpreter
    from retinue.workflows.orchestrator import Orchestrator
    from retinue.workflows.runs.records import RunRequest

    clock, turns, numbers = _Clock(), [0], count()
    usage = {"model": "scripted", "input_tokens": 100, "output_tokens": 10}

    async def complete(arguments: Any) -> Answer:
        clock.stamp()
        turn = sum(message["role"] == "assistant" for message in arguments["messages"])
        is_last = turn >= turns[0]
        calls = [
            {"id": f"c{turn}_{tool}", "name": f"bench__{tool}", "arguments": {"key": f"{turn}"}}
            for tool in TOOLS
        ]
        reply = {
            "text": "done" if is_last else f"turn {turn}",
            "calls": [] if is_last else calls,
            "finish": "stop" if is_last else "calls",
            "model": "scripted",
            "provider": "bench",
        }
        return Answer(reply, usage=usage)

    async def look_up(arguments: Any) -> str:
        return RESULT

    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    caller = MemoryCaller()
    caller.offer("complete", complete, agent="model")
    for tool in TOOLS:
        caller.offer(tool, look_up, agent="bench", input_schema=schema)
    interpreter = Interpreter(Tools(caller))

    async def body(context: Any, request: Any) -> Any:
        if request.name != "steps":
            return await interpreter.run(context, request)
        for number in range(request.input):
            await context.step(f"s{number}", _nothing, timeout_s=60)
        return None

    database = folder / "runs.db"
    runs = DurableRuns(body, url=f"sqlite:///{database}", nodes=folder / "nodes")
    orchestrator = Orchestrator(runs)
    step = {
        "model": "model",
        "instructions": INSTRUCTIONS,
        "prompt": QUESTION,
        "tools": list(TOOLS),
        "limits": {"turns": 200, "calls": 1_000, "tokens": 1_000_000_000},
    }
    definition = load_definition(json.dumps({"name": "bench", "steps": [{"id": "work", "think": step}]}))

    async def loop(number: int) -> None:
        turns[0] = number
        caller.calls.clear()
        record = await orchestrator.run(definition, {})
        assert record.get() == "done"

    async def steps(number: int) -> None:
        run_id = f"steps-{next(numbers)}"
        await runs.start(RunRequest("steps", {}, number), run_id=run_id)
        (await runs.finish(run_id)).get()

    await _work(loop, clock, database, steps)


async def _nothing() -> int:
    return 1


_LOOPS = {"plain": _plain, "wrapped": _wrapped, "think": _think}

if __name__ == "__main__":
    asyncio.run(_LOOPS[sys.argv[1]](Path(sys.argv[2])))
    os._exit(0)
