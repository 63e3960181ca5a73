"""Messages that arrive at a hub start workflows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import ANONYMOUS, Hop, Principal, TraceContext
from retinue.hub.scheduling import message_events
from retinue.hub.scheduling.events import EventStarter
from retinue.hub.scheduling.message_events import MessageEvents
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.durable.tables.triggers import TriggerTable
from tests.hub.scheduling.bench import TOKEN, WORK, Node, ScheduleBench

ON_MESSAGE = f"""on: {{message: {{performative: TASK_REQUEST, sender: "ci-*", topic: build}}}}
{WORK}"""

MESSAGE = {
    "performative": "TASK_REQUEST",
    "sender": "ci-runner",
    "receiver": "retinue",
    "message_id": "m1",
    "payload": {"topic": "build", "commit": "ab12"},
}


def listen(bench: ScheduleBench, node: Node, **options: Any) -> MessageEvents:
    starter = EventStarter(node.firing, clock=bench.read_clock)
    # a run is stored when `note` returns, also on a machine that is busy
    return MessageEvents(
        node.open_triggers, starter, clock=bench.read_clock, **{"patience_s": 300.0, **options}
    )


async def add(node: Node, **given: Any) -> dict[str, Any]:
    return await node.all.add(LOCAL_TOKEN, "nightly", None, **given)


async def test_a_fitting_message_starts_one_run_with_the_rights_of_the_owner(bench: ScheduleBench) -> None:
    node = bench.node(ON_MESSAGE)
    row = await add(node)
    assert (row["on"], row["performative"], row["sender"]) == ("message", ["TASK_REQUEST"], "ci-*")
    first, second = listen(bench, node), listen(bench, bench.node(ON_MESSAGE, home="two"))
    for hub in (first, second, first):
        await hub.note(MESSAGE, TOKEN, None)
        bench.now += 1
    (run,) = await bench.list_runs()
    record = await bench.runs.finish(run)
    assert record.request.input == MESSAGE
    assert record.request.origin.caller == LOCAL_TOKEN.id
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert (row["last"]["status"], row["last"]["run"]) == ("done", run)
    await first.note({**MESSAGE, "message_id": "m2"}, TOKEN, None)
    await first.note(MESSAGE, LOCAL_TOKEN, None)
    assert len(await bench.list_runs()) == 3, "another message, and the same id of another sender"


@pytest.mark.parametrize(
    "changed",
    [
        {"performative": "QUERY_IF"},
        {"sender": "other"},
        {"payload": {"topic": "test"}},
        {"payload": {}},
        {"payload": {"topic": 7}},
    ],
)
async def test_a_message_that_does_not_fit_starts_nothing(
    bench: ScheduleBench, changed: dict[str, Any]
) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    await listen(bench, node).note({**MESSAGE, **changed}, TOKEN, None)
    assert await bench.list_runs() == []


@pytest.mark.parametrize(
    "principal",
    [
        ANONYMOUS,
        Principal("token:app", "token", frozenset({"exposed"})),
        replace(TOKEN, agents=("plan-*",)),
    ],
)
async def test_a_sender_without_a_token_of_the_whole_mesh_starts_nothing(
    bench: ScheduleBench, principal: Principal
) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    await listen(bench, node).note(MESSAGE, principal, None)
    assert await bench.list_runs() == []


async def test_a_paused_trigger_starts_nothing_and_the_message_is_not_concerned(bench: ScheduleBench) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    await node.all.change(LOCAL_TOKEN, "nightly", "pause")
    await listen(bench, node).note(MESSAGE, TOKEN, None)
    assert await bench.list_runs() == []


async def test_a_run_continues_the_chain_of_its_message_so_that_a_loop_ends(bench: ScheduleBench) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    chain = TraceContext("a" * 32, depth=3, path=(Hop("x", "y"),))
    await listen(bench, node).note(MESSAGE, TOKEN, chain)
    (run,) = await bench.list_runs()
    trace = (await bench.runs.finish(run)).request.origin.trace
    assert trace is not None
    assert (trace.id, trace.depth, trace.path) == (chain.id, 4, chain.path)


async def test_a_trigger_that_was_added_again_is_judged_as_it_is_now(bench: ScheduleBench) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    hub = listen(bench, node)
    await hub.note({**MESSAGE, "sender": "other"}, TOKEN, None)
    await add(node, on={"message": {"sender": "release-*"}})
    await hub.note(MESSAGE, TOKEN, None)
    assert await bench.list_runs() == []


async def test_a_message_that_was_claimed_without_a_run_gets_its_run(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    claim = node.trigger_table.claim
    claims: list[Any] = []

    async def claim_twice(*given: Any, **options: Any) -> Any:
        # as when the database does not answer the commit, and the claim is repeated
        if not claims:
            claims.append(await claim(*given, **options))
        return await claim(*given, **options)

    monkeypatch.setattr(node.trigger_table, "claim", claim_twice)
    await listen(bench, node).note(MESSAGE, TOKEN, None)
    assert len(await bench.list_runs()) == 1


async def test_a_message_whose_input_cannot_be_made_is_shown_as_failed(bench: ScheduleBench) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node, on={"message": {"input": {"n": "${{ input.payload.missing }}"}}})
    await listen(bench, node).note(MESSAGE, TOKEN, None)
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert row["last"]["status"] == "failed"
    assert "cannot be made of the event" in row["last"]["reason"]


async def test_an_answer_does_not_wait_for_a_database_that_is_slow(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)
    answering = asyncio.Event()
    opened = node.open_triggers

    async def open_late() -> TriggerTable:
        await answering.wait()
        return await opened()

    monkeypatch.setattr(node, "open_triggers", open_late)
    monkeypatch.setattr(message_events, "MAX_LATE", 2)
    hub = listen(bench, node, patience_s=0.01)
    await hub.note(MESSAGE, TOKEN, None)
    hub._patience_s = 3_600.0
    async with asyncio.timeout(60):
        await hub.note({**MESSAGE, "message_id": "m2"}, TOKEN, None)
        await hub.note({**MESSAGE, "message_id": "m3"}, TOKEN, None)
    answering.set()
    await asyncio.gather(*hub._tasks)
    assert len(await bench.list_runs()) == 2, "the third message was one too many"
    await hub.note({**MESSAGE, "message_id": "m4"}, TOKEN, None)
    assert len(await bench.list_runs()) == 3


async def test_what_is_late_ends_with_the_hub(bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.node(ON_MESSAGE)
    await add(node)

    async def open_never() -> TriggerTable:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(node, "open_triggers", open_never)
    hub = listen(bench, node, patience_s=0.01)
    await hub.note(MESSAGE, TOKEN, None)
    await hub.aclose()
    assert not hub._tasks
    assert await bench.list_runs() == []
