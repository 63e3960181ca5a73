"""Small workflows in Python, killed at every point as the shapes in YAML are: `CODE_SHAPES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue import RetinueError, Run, workflow
from retinue.flows.workflow import CodeWorkflow
from retinue.workflows.library import WorkflowBundle

OWN = "own-"
"""The names of steps of own functions begin so; their effects are no calls."""

Log = Callable[[str, str], None]
_logs: list[Log] = []


def log_own_to(log: Log) -> None:
    """Log what own functions do."""
    _logs.append(log)


def note(run: str, name: str, n: int) -> int:
    """An own function: logs that it begins and ends, and adds 1."""
    for what in ("begin", "end"):
        for log in _logs:
            log(what, f"{run}/{OWN}{name}")
    return n + 1


def own(run: Run, name: str, n: int) -> Any:
    """The step of an own function, under the name that it logs."""
    return run.options(name=f"{OWN}{name}").step(note, run.id, name, n)


@workflow
async def steps_in_a_row(run: Run, n: int) -> dict[str, int]:
    await run.log("begins")
    first = await run.call("add", n=n)
    second = await own(run, "note", first["n"])
    third = await run.call("flaky", n=second, retry=3)
    await run.log("nearly done", data={"n": third["n"]})
    return {"n": (await run.call("add", n=third["n"]))["n"]}


@workflow
async def together(run: Run, n: int) -> dict[str, int]:
    first = await run.call("add", n=n)
    values = await run.gather(
        *(run.call("add", n=first["n"] + number) for number in range(3)), own(run, "beside", 1), limit=2
    )
    return {"n": (await run.call("add", n=sum(one["n"] for one in values[:3]) + values[3]))["n"]}


@workflow
async def race_and_some(run: Run, n: int) -> dict[str, int]:
    won = await run.race(run.call("hang", n=n), run.call("late", n=n))
    some = await run.gather(run.call("hang", n=n), run.call("late", n=1), own(run, "quick", 5), enough=2)
    return {"n": won["n"] + some[0]["n"] + some[1]}


@workflow
async def waits_and_asks(run: Run, n: int) -> dict[str, int]:
    began = await run.now()
    await run.sleep(0.01)
    drawn = await run.random()
    approved = await run.elicit("Go on?", bool)
    given = await run.receive("number", int)
    again = await run.call("add", n=given)
    later = await run.now()
    return {"n": again["n"] + int(approved) + int(0 <= drawn <= 1) + int(later >= began)}


@workflow
async def child_runs(run: Run, n: int) -> dict[str, int]:
    first = await run.workflow("steps_in_a_row", {"n": n})
    second = await run.workflow("together", {"n": 1})
    return {"n": first["n"] + second["n"]}


@workflow
async def handles_failures(run: Run, n: int) -> dict[str, int]:
    run.undo("add", {"n": 7})
    try:
        await run.call("flaky", n=n)
    except RetinueError:
        n = await own(run, "after", n)
    return {"n": (await run.call("add", n=n))["n"]}


FLOWS = (steps_in_a_row, together, race_and_some, waits_and_asks, child_runs, handles_failures)


@dataclass(frozen=True)
class CodeShape:
    """As `Shape`, of the workflow of this name."""

    name: str
    signals: Mapping[str, Any] = field(default_factory=dict)
    cuts_off: bool = False

    async def bundle(self) -> WorkflowBundle:
        return WorkflowBundle(find_flow(self.name).loaded)


def find_flow(name: str) -> CodeWorkflow:
    return next(flow for flow in FLOWS if flow.name == name)


CODE_SHAPES = {
    "code: steps in a row": CodeShape("steps_in_a_row"),
    "code: together": CodeShape("together"),
    "code: race and some": CodeShape("race_and_some", cuts_off=True),
    "code: waits and asks": CodeShape("waits_and_asks", signals={"answer": True, "number": 4}),
    "code: child runs": CodeShape("child_runs"),
    "code: handles failures": CodeShape("handles_failures"),
}
