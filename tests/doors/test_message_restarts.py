"""Accepted tasks and subscriptions of ``/messages`` over the end of their process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer, Call
from retinue.mesh.channel import Channel
from retinue.messages.codec.envelope import Envelope, new_envelope
from retinue.messages.codec.payloads import result
from retinue.messages.journal import TaskJournal
from retinue.messages.subscriptions import Subscription
from retinue.messages.tasks import KEEP, MessageTask
from retinue.storage.state import State
from retinue.storage.task_store import StoredTask, TaskStore
from tests.doors.message_worker import ASYNC, REPAIR, make_worker, open_home, open_inbox, say, until_ended
from tests.requirements import requirement
from tests.system import WAIT_S, Wire, open_system


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def open_journal(home: Path) -> TaskJournal:
    return TaskJournal(lambda: TaskStore.open(State(home), "worker", keep=KEEP, kind="messages"))


class Counter(Agent):
    """Passes on a number that its source wrote in full, as an imported server may."""

    async def run(self, call: Call, context: Context, channel: Channel) -> Answer:
        return Answer(value={"n": 2**70})


async def make_dead_url() -> str:
    """A URL at which nobody listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"http://127.0.0.1:{port}/inbox"


def request_of(performative: str = "TASK_REQUEST", **more: Any) -> Envelope:
    made = new_envelope(performative, {"task_type": "secret"}, sender="eddy", receiver="worker")
    return Envelope(**{**{name: getattr(made, name) for name in made.__slots__}, **more})


@requirement("W-20")
async def test_a_quick_task_of_a_sender_that_does_not_wait_is_accepted_and_told_as_a_long_one(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    url = (await system.start_agent(make_worker().agent)).url
    quick = {"task_type": "reveal"}
    reply = await say(wire, url, "TASK_REQUEST", quick, message_id="job-7", headers=ASYNC)
    assert (reply.status, reply.json["performative"]) == (202, "TASK_ACCEPT")
    assert (await until_ended(wire, url, "job-7"))["performative"] == "INFORM_RESULT"
    reply = await say(wire, url, "TASK_REQUEST", quick, message_id="job-8", callback_url=inbox.url)
    assert (reply.status, reply.json["performative"]) == (202, "TASK_ACCEPT")
    assert (await inbox.next())["in_reply_to"] == "job-8"
    wrong = {"task_type": "reveal", "task_parameters": {"x": 1}}
    refused = await say(wire, url, "TASK_REQUEST", wrong, callback_url=inbox.url)
    assert (refused.status, refused.json["performative"]) == (200, "NOT_UNDERSTOOD")


@requirement("W-20")
async def test_a_result_is_there_after_a_restart(stack: AsyncExitStack, tmp_path: Path, wire: Wire) -> None:
    system = await open_home(stack, tmp_path)
    worker = make_worker()
    first = await system.start_agent(worker.agent)
    await say(wire, first.url, "TASK_REQUEST", REPAIR, message_id="job-7", headers=ASYNC)
    worker.go.set()
    await until_ended(wire, first.url, "job-7")
    await first.stop()
    second = await system.start_agent(make_worker().agent)
    told = (await say(wire, second.url, "QUERY_REF", {"reference": "job-7"})).json
    assert told["performative"] == "INFORM_RESULT"
    assert told["payload"]["result_details"] == {"result": "X"}


@requirement("W-20")
async def test_a_task_that_its_process_left_unfinished_has_failed_after_a_restart(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path)
    worker = make_worker()
    first = await system.start_agent(worker.agent)
    await say(wire, first.url, "TASK_REQUEST", REPAIR, message_id="job-7", headers=ASYNC)
    await first.stop()
    second = await system.start_agent(make_worker().agent)
    told = (await say(wire, second.url, "QUERY_REF", {"reference": "job-7"})).json
    assert (told["performative"], told["payload"]["error_code"]) == ("FAILURE", "interrupted")
    assert "request it again" in told["payload"]["error_text"]


@requirement("W-24")
async def test_a_callback_learns_of_a_task_that_was_lost_with_a_killed_process(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    lost = request_of(message_id="job-7", callback_url=inbox.url)
    journal = open_journal(tmp_path)
    journal.save_task(MessageTask("t-1", "anonymous:", lost, "worker"))
    # the lock is given up and nothing else is written, as by a kill
    journal.close()
    first = await system.start_agent(make_worker().agent)
    told = await inbox.next()
    assert (told["performative"], told["in_reply_to"]) == ("FAILURE", "job-7")
    assert told["payload"]["error_code"] == "interrupted"
    await first.stop()
    left = open_journal(tmp_path).load()
    assert [one.id for one in left.tasks] == ["t-1"]
    assert not left.untold, "it was told once"


@requirement("W-24")
async def test_a_result_that_did_not_reach_its_callback_is_sent_by_the_next_process(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    task = MessageTask("t-1", "anonymous:", request_of(callback_url=inbox.url), "worker")
    task.reply = result("done", {"result": 7})
    journal = open_journal(tmp_path)
    journal.save_task(task)
    journal.close()
    await system.start_agent(make_worker().agent)
    told = await inbox.next()
    assert told["payload"]["result_details"] == {"result": 7}


@requirement("W-24")
@pytest.mark.parametrize("killed", [False, True])
async def test_a_subscriber_learns_that_its_subscription_ended_with_the_process(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, killed: bool
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    if killed:
        journal = open_journal(tmp_path)
        request = request_of("SUBSCRIBE", message_id="s-1", callback_url=inbox.url)
        journal.save_subscription(Subscription("anonymous:", request, "worker"))
        journal.close()
    first = await system.start_agent(make_worker().agent)
    if not killed:
        await say(wire, first.url, "SUBSCRIBE", {}, message_id="s-1", callback_url=inbox.url)
        await first.stop()
    told = await inbox.next()
    assert (told["performative"], told["in_reply_to"]) == ("FAILURE", "s-1")
    assert told["payload"]["error_code"] == "subscription_ended"
    if killed:
        await first.stop()
    assert not open_journal(tmp_path).load().subscriptions


@requirement("W-24")
async def test_a_lost_subscription_is_told_by_one_process_even_where_its_url_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.messages.callbacks.PAUSES_S", (0.0, 0.0))
    State(tmp_path).prepare()
    journal = open_journal(tmp_path)
    request = request_of("SUBSCRIBE", message_id="s-1", callback_url=await make_dead_url())
    journal.save_subscription(Subscription("anonymous:", request, "worker"))
    journal.close()
    async with open_system(State(tmp_path), messages={"private_callbacks": True}) as system:
        served = await system.start_agent(make_worker().agent)
        await served.stop()
    journal = open_journal(tmp_path)
    assert not journal.load().subscriptions
    journal.close()


def test_what_is_stored_and_cannot_be_read_is_removed(tmp_path: Path) -> None:
    State(tmp_path).prepare()
    store = TaskStore.open(State(tmp_path), "worker", keep=KEEP, kind="messages")
    body = {"kind": "task", "id": "t-1", "agent": "worker", "request": {"performative": "SING"}}
    store.save(StoredTask("t-1", "worker", "me", "", "task", False, body))
    store.close()
    journal = open_journal(tmp_path)
    assert not journal.load().tasks
    journal.close()
    store = TaskStore.open(State(tmp_path), "worker", keep=KEEP, kind="messages")
    assert not store.list_bodies()
    store.close()


@requirement("W-20")
async def test_a_result_that_json_cannot_carry_is_stored_and_told_as_the_failure_that_is_sent(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    counter = Counter("worker", version="1.0.0")

    @counter.skill
    async def count() -> dict[str, int]:
        """Counts."""
        return {}

    served = await system.start_agent(counter)
    task = {"task_type": "count"}
    reply = await say(wire, served.url, "TASK_REQUEST", task, message_id="job-7", callback_url=inbox.url)
    assert (reply.status, reply.json["performative"]) == (202, "TASK_ACCEPT")
    told = await inbox.next()
    assert (told["performative"], told["in_reply_to"]) == ("FAILURE", "job-7")
    assert told["payload"]["error_code"] == "output_validation_error"
    await served.stop()
    left = open_journal(tmp_path).load()
    assert not left.untold
    assert [one.reply.payload["error_code"] for one in left.tasks if one.reply] == ["output_validation_error"]


async def test_a_cancelled_subscription_is_not_told_again(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    inbox = await open_inbox(stack)
    first = await system.start_agent(make_worker().agent)
    await say(wire, first.url, "SUBSCRIBE", {}, message_id="s-1", callback_url=inbox.url)
    await say(wire, first.url, "CANCEL", {"task_id": "s-1"})
    await first.stop()
    assert inbox.got.empty()


def test_the_payload_of_a_request_is_not_stored(tmp_path: Path) -> None:
    State(tmp_path).prepare()
    journal = open_journal(tmp_path)
    journal.save_task(MessageTask("t-1", "me", request_of(), "worker"))
    assert journal.load().tasks[0].request.payload == {}
    journal.close()


@requirement("W-20")
async def test_a_task_that_cannot_be_stored_is_not_accepted(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path)
    worker = make_worker()
    agent = await system.start_agent(worker.agent)
    system.state.tasks.write_text("a file where the folder of tasks should be")
    reply = (await say(wire, agent.url, "TASK_REQUEST", REPAIR, headers={"prefer": "wait=0"})).json
    assert reply["performative"] == "FAILURE"
    assert str(system.state.tasks) in reply["payload"]["error_text"]
    if worker.began.is_set():
        async with asyncio.timeout(WAIT_S):
            await worker.cancelled.wait()
