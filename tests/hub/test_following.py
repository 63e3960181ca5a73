"""Following a run to its end: every event is told, whenever the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from retinue import Agent, Context
from retinue.core.call import TextPiece
from retinue.hub.run_access import RunAccess
from retinue.hub.runs import add_run_skills
from retinue.hub.step_reports import passed_on
from retinue.mesh.channel import Capability, NullChannel
from retinue.mesh.permissions import Access
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.run_progress import RunProgress, StepReport
from retinue.workflows.runs.records import RunRecord

FLOW = {"name": "w", "steps": [{"id": "first", "wait_for": "go"}, {"id": "last", "skill": "work"}]}


class EndingRuns(MemoryRuns):
    """Runs of which one ends just before its record is read for the ``at``-th time."""

    at = 0

    async def get(self, run_id: str) -> RunRecord:
        self.at -= 1
        if self.at == 0:
            await self.signal(run_id, "go", True)
            await self.finish(run_id)
        return await super().get(run_id)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_run_that_ends_while_its_events_are_read_is_told_whole(at: int) -> None:
    caller = MemoryCaller()

    async def work(arguments: object) -> str:
        return "done"

    caller.offer("work", work)
    async with EndingRuns(Interpreter(caller).run) as runs:
        hub = Agent("hub")
        add_run_skills(hub, runs, RunAccess(runs, Access()))
        await Orchestrator(runs).start(load_definition(FLOW), {}, run_id="r")
        while not any(event.facts.get("kind") == "wait" for event in await runs.list_events("r")):
            await asyncio.sleep(0)
        began = seen = (await runs.list_events("r"))[-1].seq
        runs.at = at
        told: list[int] = []
        done = False
        while not done:
            reply = await hub.call("follow_run", {"run": "r", "after": seen, "wait_s": 0.05})
            told += [event["seq"] for event in reply["events"]]
            seen, done = reply["next"], reply["done"]
        assert reply["output"] == "done"
        events = await runs.list_events("r", after=began)
        assert told == [event.seq for event in events]
        assert events[-1].kind == "run_finished"


class LongStep(RunProgress):
    """Reports of which none is kept."""

    def list_after(self, run_id: str, number: int) -> Sequence[StepReport]:
        return ()


async def test_reports_that_were_not_kept_are_passed_over_so_that_the_next_call_waits() -> None:
    progress = LongStep()
    async with MemoryRuns(Interpreter(MemoryCaller()).run) as runs:
        hub = Agent("hub")
        add_run_skills(hub, runs, RunAccess(runs, Access()), progress=progress)
        await Orchestrator(runs).start(load_definition(FLOW), {}, run_id="r")
        while not any(event.facts.get("kind") == "wait" for event in await runs.list_events("r")):
            await asyncio.sleep(0)
        after = (await runs.list_events("r"))[-1].seq
        progress.watch("r")
        await progress.open_channel("r", "first").stream_text(TextPiece("x"))
        asked = {"run": "r", "after": after, "wait_s": 0.05, "progress_after": 0}
        reply = await hub.call("follow_run", asked)
        assert (reply["progress"], reply["next_progress"]) == ([], progress.last("r"))
        asked["progress_after"] = reply["next_progress"]
        assert (await hub.call("follow_run", asked))["next_progress"] == progress.last("r")


async def test_a_reader_without_interest_in_reports_waits_without_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float | None] = []
    wait = asyncio.wait

    async def counted(waited: Any, *, timeout: float | None = None) -> Any:
        looks.append(timeout)
        return await wait(waited, timeout=timeout)

    async with MemoryRuns(Interpreter(MemoryCaller()).run) as runs:
        hub = Agent("hub")
        add_run_skills(hub, runs, RunAccess(runs, Access()))
        await Orchestrator(runs).start(load_definition(FLOW), {}, run_id="r")
        while not any(event.facts.get("kind") == "wait" for event in await runs.list_events("r")):
            await asyncio.sleep(0)
        after = (await runs.list_events("r"))[-1].seq
        monkeypatch.setattr("retinue.hub.runs.asyncio.wait", counted)
        await hub.call("follow_run", {"run": "r", "after": after, "wait_s": 0.35})
    assert len([timeout for timeout in looks if timeout is not None]) == 1


class SlowCaller(NullChannel):
    """A caller that takes its first piece only when it is let go on."""

    capabilities: frozenset[Capability] = frozenset({"progress"})

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_taking = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def stream_text(self, piece: TextPiece) -> None:
        self.pieces.append(piece.text)
        self.is_taking.set()
        await self.may_go_on.wait()


async def test_the_last_reports_are_sent_when_the_run_ends_while_earlier_ones_are_sent() -> None:
    progress, caller = RunProgress(), SlowCaller()
    agent = Agent("hub")

    @agent.skill
    async def pass_on_all(ctx: Context) -> None:
        """Passes on the reports of a run."""
        progress.watch("r")
        channel = progress.open_channel("r", "plan")
        async with passed_on(progress, "r", ctx):
            await channel.stream_text(TextPiece("first"))
            await caller.is_taking.wait()
            await channel.stream_text(TextPiece("last", 5))
            asyncio.get_running_loop().call_soon(caller.may_go_on.set)

    async with asyncio.timeout(30):
        await agent.call("pass_on_all", {}, channel=caller)
    assert caller.pieces == ["first", "last"]
