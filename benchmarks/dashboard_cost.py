"""The cost of the dashboard for a hub without visitors: this hub against one without pages, at the same time.

Both have the same agent. Calls go to them in turn, because figures of two runs at different times differ by
more than the dashboard costs.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from benchmarks.hub_visitor import Visitor, await_hub, program
from retinue.storage.state import State

WARM_UP = 300
PAIRS = 3
"""Of processes; two of the same program differ by some per cent."""
ROUNDS = 20
CALLS = 100
MAX_RATIO = 1.05
"""What two equal hubs differ by, at most, in runs on a busy machine."""
MAX_MB = 5

MODULES = {"with": "retinue", "without": "benchmarks.hub_without_dashboard"}
WORKER = '''
from retinue import Agent

agent = Agent("worker-agent", version="1.0.0", description="Works")


@agent.skill(expose=True)
async def work(n: int) -> dict:
    """Works."""
    return {"n": n}
'''


def measure_cost() -> Iterator[Figure]:
    """Processor time of a call and memory, with pages that nobody reads and without pages."""
    pairs = [_measure_pair() for _ in range(PAIRS)]
    for number, side in enumerate(MODULES):
        spent = statistics.median(pair[number].call_us for pair in pairs)
        memory = statistics.median(pair[number].memory_mb for pair in pairs)
        yield Figure(f"/execute, hub {side} dashboard", spent, "µs CPU")
        yield Figure(f"memory after calls, hub {side} dashboard", memory, "MB")
    ratio = statistics.median(one.call_us / other.call_us for one, other in pairs)
    more = statistics.median(one.memory_mb - other.memory_mb for one, other in pairs)
    yield Figure("/execute, with : without", ratio, "×", target=MAX_RATIO)
    yield Figure("memory, with − without", more, "MB", target=MAX_MB)


@dataclass(frozen=True, slots=True)
class _Cost:
    call_us: float
    memory_mb: float


def _measure_pair() -> tuple[_Cost, _Cost]:
    """Two hubs, one with and one without pages, that take calls in turn."""
    with ExitStack() as stack:
        sides = [_start(stack, module) for module in MODULES.values()]
        for _, visitor in sides:
            visitor.call("work", {"n": 1}, WARM_UP)
        spent: tuple[list[float], list[float]] = [], []
        for number in range(ROUNDS):
            for side in (0, 1) if number % 2 else (1, 0):
                hub, visitor = sides[side]
                used_s = cpu_s_of(hub.pid)
                visitor.call("work", {"n": 1}, CALLS)
                spent[side].append((cpu_s_of(hub.pid) - used_s) / CALLS * 1e6)
        with_pages, without = (
            _Cost(statistics.median(times), rss_bytes_of(hub.pid) / 1e6)
            for times, (hub, _) in zip(spent, sides, strict=True)
        )
    return with_pages, without


def _start(stack: ExitStack, module: str) -> tuple[subprocess.Popen[bytes], Visitor]:
    """A hub with one agent, in a state folder of its own."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-")))
    state = State(folder / "state")
    state.prepare()
    (folder / "workers.py").write_text(WORKER)
    hub = stack.enter_context(program(folder, "hub", "--bare", "--port", "0", module=module))
    visitor = Visitor(await_hub(state), state.local_token())
    stack.enter_context(program(folder, "serve", "workers.py"))
    visitor.await_agent("worker-agent")
    return hub, visitor
