"""Steps that think over both implementations of the ports: cut off in any call, limited and continued."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from retinue.testing.memory_caller import MemoryCaller
from retinue.thinking.completion import AssistantMessage, CompletionRequest
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import Extension, RunRecord
from tests.requirements import requirement
from tests.support.thinking import say, think, use
from tests.workflows.implementations import Open

TURNS = 5
TOOLS = 3


class ThinkingEngine:
    """A model that makes three calls in each of five turns; the ``stop_at``-th call of all hangs.

    ``made`` counts the idempotency keys with which calls began.
    """

    def __init__(self, stop_at: int = 0, *, keeps_keys: bool = True) -> None:
        self.requests: list[CompletionRequest] = []
        self.begun = 0
        self.reached = asyncio.Event()
        self._stop_at = stop_at
        self.caller = MemoryCaller()
        self.caller.offer("execute", self._add, agent="thinker", roles=["execute"])
        self.caller.offer("complete", self._complete, agent="thinker")
        self.caller.offer("add", self._add, agent="adder", keeps_keys=keeps_keys)

    @property
    def made(self) -> Counter[str]:
        return Counter(call.idempotency_key for call in self.caller.calls)

    async def _begin(self) -> None:
        self.begun += 1
        if self.begun == self._stop_at:
            self.reached.set()
            await asyncio.Event().wait()

    async def _complete(self, arguments: Any) -> Any:
        request = CompletionRequest.from_json(arguments)
        self.requests.append(request)
        await self._begin()
        if request.tool_choice == "none":
            return say("as far as I came").to_json()
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        if turn >= TURNS:
            return say("the end").to_json()
        return use(*(("adder__add", {"n": turn * 10 + n}) for n in range(TOOLS))).to_json()

    async def _add(self, arguments: Any) -> Any:
        await self._begin()
        return arguments["n"] + 1

    async def run(self, runs: Runs, **options: Any) -> RunRecord:
        """Run to the end; the call that hangs is cut off by a cancellation, and the run is resumed."""
        definition = load_definition(think(tools=["adder/*"], **options))
        await Orchestrator(runs).start(definition, {}, run_id="r")
        ended = asyncio.ensure_future(runs.finish("r"))
        reached = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait([ended, reached], return_when=asyncio.FIRST_COMPLETED, timeout=120)
        reached.cancel()
        await ended if not self.reached.is_set() else None
        if self.reached.is_set():
            assert (await runs.cancel("r")).status == "cancelled"
            await ended
            await runs.resume("r")
        return await runs.finish("r")


ALL_CALLS = (TURNS + 1) + TURNS * TOOLS


@requirement("T-01")
@requirement("T-13")
@pytest.mark.parametrize("stop_at", [1, 2, 4, 5, 6, ALL_CALLS - 1, ALL_CALLS])
async def test_a_loop_cut_off_in_any_call_and_resumed_makes_no_finished_call_again(
    stop_at: int, open_runs: Open
) -> None:
    engine = ThinkingEngine(stop_at)
    async with open_runs(Interpreter(engine.caller).run) as runs:
        record = await engine.run(runs)
        steps = [step.step for step in await runs.list_steps("r")]
    assert record.get() == "the end"
    assert len(steps) == len(set(steps)) == 1 + ALL_CALLS
    repeated = {key: count for key, count in engine.made.items() if count > 1}
    assert len(engine.made) == ALL_CALLS
    # those in flight are made again under their keys
    assert 1 <= len(repeated) <= TOOLS
    assert set(repeated.values()) == {2}
    results = [
        message.to_json()
        for message in engine.requests[-1].messages
        if not isinstance(message, AssistantMessage)
    ]
    assert all(not result["is_error"] for message in results[1:] for result in message["results"])


@requirement("T-02")
@pytest.mark.parametrize("stop_at", [2, 3, 4])
async def test_a_call_that_must_not_be_made_twice_is_unknown_after_an_interruption(
    stop_at: int, open_runs: Open
) -> None:
    engine = ThinkingEngine(stop_at, keeps_keys=False)
    async with open_runs(Interpreter(engine.caller).run) as runs:
        record = await engine.run(runs)
    assert record.get() == "the end"
    assert max(engine.made.values()) == 1
    (results,) = [one for one in engine.requests[1].messages if one.to_json()["role"] == "tool"]
    texts = [str(result.content[0].value) for result in results.results]  # type: ignore[union-attr]
    unknown = ["may have had its effect" in text for text in texts]
    # the others of the turn may have been in flight as well
    assert any(unknown)
    assert all(
        is_unknown or "the result of adder/add" in text
        for is_unknown, text in zip(unknown, texts, strict=True)
    )
    assert len(texts) == TOOLS


@requirement("T-03")
async def test_a_request_that_was_cut_off_counts_once_more_by_its_reservation(open_runs: Open) -> None:
    spent = []
    for stop_at in (0, 5):
        engine = ThinkingEngine(stop_at)
        async with open_runs(Interpreter(engine.caller).run) as runs:
            record = await engine.run(runs, limits={"turns": 3})
        assert record.limited is not None
        spent.append(record.limited.spent["tokens"])
    assert spent[1] > spent[0] + 1_000


@requirement("T-06")
async def test_a_limited_run_goes_on_with_more_and_makes_no_recorded_call_again(open_runs: Open) -> None:
    engine = ThinkingEngine()
    async with open_runs(Interpreter(engine.caller).run) as runs:
        record = await engine.run(runs, limits={"turns": 2})
        assert record.shown_status == "limited"
        assert (await runs.resume("r")).shown_status == "limited"
        await runs.extend("r", Extension("research", {"turns": 3}))
        again = await runs.finish("r")
        assert again.limited is not None
        assert again.limited.value == 3
        await runs.extend("r", Extension("research", {"turns": 20}))
        assert (await runs.finish("r")).get() == "the end"
        # nothing to extend any more
        assert (await runs.extend("r", Extension("research", {"turns": 30}))).status == "done"
        await runs.fork("r", from_step="research/turn-6", new_run_id="f")
        assert (await runs.finish("f")).get() == "the end"
        kinds = [event.kind for event in await runs.list_events("r")]
    assert [kinds.count(kind) for kind in ("run_started", "run_resumed", "run_finished")] == [1, 2, 3]
    assert max(engine.made.values()) == 1
