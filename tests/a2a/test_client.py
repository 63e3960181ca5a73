"""Calls to an agent of the SDK of A2A, in both versions, streamed and not, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given

from retinue.a2a.client.agent_client import A2aClient, AgentPlace
from retinue.a2a.codec.exchange import TaskState, read_result
from retinue.core.call import Answer, Hop, Part, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    InputRequiredError,
    NotAuthenticatedError,
    RemoteFaultError,
)
from retinue.core.record import Skill
from retinue.mesh.channel import NullChannel
from retinue.testing.scripted_caller import ScriptedCaller
from retinue.web.codec.trace import parse_trace_meta
from retinue.web.disconnect import read_body
from retinue.web.http_client import HttpClient
from tests.a2a.foreign_agent import Executor, app_of, card_of
from tests.serving import serve_app
from tests.strategies import json_values

TRACE = TraceContext("t1", depth=2, path=(Hop("hub", "run"),))
WAYS = [("1.0", True), ("1.0", False), ("0.3", True), ("0.3", False)]


@dataclass
class Peer:
    client: A2aClient
    executor: Executor

    async def call(self, skill: str, text: str = "hi", channel: Any = None, **more: Any) -> Answer:
        given = {"prompt": text, **more}
        async with asyncio.timeout(60):
            return await self.client.call(Skill(skill), given, TRACE, channel or NullChannel())


class Listening(NullChannel):
    """A caller that notices the first progress."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self.heard.set()


@asynccontextmanager
async def serve(version: str, *, streams: bool) -> AsyncIterator[Peer]:
    executor = Executor()
    # the card that decides whether a stream is answered at all
    app = app_of(card_of("http://127.0.0.1/a2a", version, streams=streams), executor)
    async with serve_app(app) as url, HttpClient() as http:
        place = AgentPlace("foreign", f"{url}/a2a", version, streams=streams)
        yield Peer(A2aClient(http, place), executor)


@pytest.fixture(params=WAYS, ids=["1.0 streamed", "1.0", "0.3 streamed", "0.3"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    version, streams = request.param
    async with serve(version, streams=streams) as found:
        yield found


async def test_text_goes_in_and_comes_out(peer: Peer) -> None:
    assert (await peer.call("say")).value == "HI"


async def test_data_comes_out_with_whole_numbers(peer: Peer) -> None:
    assert (await peer.call("count", "abc")).value == {"letters": 3, "ratio": 0.5}


async def test_a_message_in_reply_is_a_result(peer: Peer) -> None:
    assert (await peer.call("reply")).value == "message: hi"


async def test_text_and_data_and_files_are_kept_apart(peer: Peer) -> None:
    answer = await peer.call("mixed")
    assert answer.value["text"] == "see"
    assert answer.parts == (Part("image", "cG5n", "image/png"),)


async def test_the_agent_gets_the_skill_the_data_and_the_trace(peer: Peer) -> None:
    got = (await peer.call("echo", "look", data={"a": 1})).value
    assert got["metadata"]["skill"] == "echo"
    assert [part.get("text", part.get("data")) for part in got["parts"]] == ["look", {"a": 1}]
    trace = parse_trace_meta(got["metadata"])
    assert trace is not None
    assert (trace.id, trace.depth, trace.path) == ("t1", 2, TRACE.path)


async def test_a_question_reaches_the_caller_and_its_answer_the_agent(peer: Peer) -> None:
    caller = ScriptedCaller(answers=[{"answer": "Ada"}])
    assert (await peer.call("greet", channel=caller)).value == "Hello, Ada!"
    assert caller.questions == ["Who are you?"]


async def test_a_question_to_nobody_fails_and_cancels_the_task(peer: Peer) -> None:
    with pytest.raises(InputRequiredError, match="Who are you"):
        await peer.call("greet")
    assert len(peer.executor.cancelled) == 1


async def test_failures_have_the_agents_reason(peer: Peer) -> None:
    with pytest.raises(RemoteFaultError, match="agent foreign failed: the disk is full"):
        await peer.call("fail")
    with pytest.raises(RemoteFaultError, match="agent foreign rejected the task: not today"):
        await peer.call("reject")


async def test_a_login_that_is_asked_for_names_the_remedy(peer: Peer) -> None:
    with pytest.raises(NotAuthenticatedError, match=r"log in at example\.org") as caught:
        await peer.call("login")
    assert "--token-env" in caught.value.remedy


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_progress_of_a_stream_reaches_the_caller(version: str) -> None:
    async with serve(version, streams=True) as peer:
        caller = ScriptedCaller()
        assert (await peer.call("slow", channel=caller)).value == "HI"
    assert [text for _, text in caller.progress_reports] == ["one", "two", "three"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_cancelled_call_cancels_the_task(version: str) -> None:
    async with serve(version, streams=True) as peer:
        channel = Listening()
        calling = asyncio.create_task(peer.call("hang", channel=channel))
        await asyncio.wait_for(channel.heard.wait(), 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert len(peer.executor.cancelled) == 1


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_cancelled_call_without_a_stream_cancels_the_task(version: str) -> None:
    async with serve(version, streams=False) as peer:
        calling = asyncio.create_task(peer.call("hang"))
        await asyncio.wait_for(peer.executor.began.wait(), 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(peer.executor.stopped.wait(), 60)
        assert len(peer.executor.cancelled) == 1


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_call_that_is_cancelled_before_the_agent_has_named_its_task_cancels_it_too(
    version: str,
) -> None:
    got, answer, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Queue[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked = orjson.loads(await read_body(receive) or b"")
        if asked["method"] in ("SendMessage", "message/send"):
            got.set()
            await answer.wait()
        else:
            cancelled.put_nowait(f"{asked['method']} {asked['params']['id']}")
        task = {"kind": "task", "id": "t-1", "contextId": "c", "status": {"state": "working"}}
        body = orjson.dumps({"jsonrpc": "2.0", "id": "1", "result": task})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with serve_app(app) as url, HttpClient() as http:
        client = A2aClient(http, AgentPlace("late", url, version))
        calling = asyncio.create_task(client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel()))
        await got.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        answer.set()
        async with asyncio.timeout(60):
            said = await cancelled.get()
    assert said == f"{'tasks/cancel' if version == '0.3' else 'CancelTask'} t-1"


async def test_a_card_that_promises_streams_in_vain_is_asked_without() -> None:
    app = app_of(card_of("http://127.0.0.1/a2a", streams=False), Executor())
    async with serve_app(app) as url, HttpClient() as http:
        client = A2aClient(http, AgentPlace("foreign", f"{url}/a2a", streams=True))
        assert (await client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel())).value == "A"


class _Breaking:
    """An agent of 0.3 whose streams break after the first event; its task stays in ``working``.

    ``resubscribed`` and ``later`` are the replies to a client that follows the task again, and that asks for
    it.
    """

    def __init__(self, resubscribed: dict[str, Any], later: dict[str, Any]) -> None:
        self.replies = {"tasks/resubscribe": resubscribed, "tasks/get": later, "tasks/cancel": later}
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = orjson.loads(await read_body(receive) or b"")["method"]
        self.asked.append(method)
        is_stream = method == "message/stream"
        reply = orjson.dumps(_RPC | ({"result": _task("working")} if is_stream else self.replies[method]))
        body = b"data: " + reply + b"\n\n" if is_stream else reply
        kind = b"text/event-stream" if is_stream else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body, "more_body": is_stream})
        if is_stream:
            raise ConnectionError("the agent breaks the stream")


_RPC = {"jsonrpc": "2.0", "id": "1"}


def _task(state: str) -> dict[str, Any]:
    artifacts = [{"artifactId": "a", "parts": [{"kind": "text", "text": "done after all"}]}]
    task = {"kind": "task", "id": "t-1", "contextId": "c", "status": {"state": state}}
    return task | ({"artifacts": artifacts} if state == "completed" else {})


_NOT_FOUND = {"error": {"code": -32001, "message": "Task not found"}}
_NOT_SUPPORTED = {"error": {"code": -32004, "message": "This operation is not supported"}}


@pytest.mark.parametrize(
    ("resubscribed", "limits"),
    [
        (_NOT_FOUND, {"abandoned_s": 0.05}),
        (_NOT_SUPPORTED, {"quiet_s": 0.05}),
        ({"result": _task("working")}, {"quiet_s": 0.05}),
    ],
)
async def test_a_task_whose_stream_broke_is_given_up_if_it_shows_no_change(
    resubscribed: dict[str, Any], limits: dict[str, float]
) -> None:
    agent = _Breaking(resubscribed, {"result": _task("working")})
    async with serve_app(agent) as url, HttpClient() as http:
        client = A2aClient(http, AgentPlace("broken", url, "0.3", streams=True), **limits)
        async with asyncio.timeout(30):
            with pytest.raises(AgentUnreachableError) as error:
                await client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel())
    assert "its stream broke, and task t-1 shows no change for 0.05 s" in error.value.message
    assert error.value.sent
    assert agent.asked[-1] == "tasks/cancel"


@pytest.mark.parametrize(
    ("resubscribed", "later"),
    [({"result": _task("completed")}, _NOT_FOUND), (_NOT_FOUND, {"result": _task("completed")})],
)
async def test_a_task_whose_stream_broke_is_followed_to_its_end(
    resubscribed: dict[str, Any], later: dict[str, Any]
) -> None:
    agent = _Breaking(resubscribed, later)
    async with serve_app(agent) as url, HttpClient() as http:
        client = A2aClient(http, AgentPlace("broken", url, "0.3", streams=True))
        async with asyncio.timeout(30):
            answer = await client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel())
    assert answer.value == "done after all"


async def test_an_agent_that_is_gone_is_unreachable() -> None:
    async with HttpClient() as http:
        client = A2aClient(http, AgentPlace("gone", "http://127.0.0.1:1/a2a"))
        with pytest.raises(AgentUnreachableError) as caught:
            await client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel())
    assert not caught.value.sent


@pytest.mark.parametrize("streams", [True, False])
async def test_what_is_no_a2a_reply_is_an_error_of_the_agent(streams: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"jsonrpc": "2.0", "id": "1", "result": 3}'})

    async with serve_app(app) as url, HttpClient() as http:
        client = A2aClient(http, AgentPlace("odd", url, streams=streams))
        with pytest.raises(RemoteFaultError, match="agent odd: its reply is no object"):
            await client.call(Skill("say"), {"prompt": "a"}, TRACE, NullChannel())


def test_the_chunks_of_an_artifact_are_one_text_and_artifacts_are_lines() -> None:
    task = TaskState()
    for number in range(3):
        for name in ("a", "b"):
            artifact = {"artifactId": name, "parts": [{"text": f"{name}{number} "}]}
            update = {"taskId": "t", "artifact": artifact, "append": number > 0}
            task.take({"artifactUpdate": update}, "odd")
    assert read_result(task.list_results(), has_schema=False) == ("a0 a1 a2 \nb0 b1 b2 ", ())
    assert read_result(task.list_results(), has_schema=True)[0] == "b0 b1 b2 "


def test_the_chunks_that_a_finished_task_holds_are_one_text() -> None:
    task = TaskState()
    parts = [{"kind": "text", "text": "part0 "}, {"kind": "text", "text": "part1"}]
    status = {"state": "completed"}
    task.take({"kind": "task", "id": "t", "status": status, "artifacts": [{"parts": parts}]}, "odd")
    assert read_result(task.list_results(), has_schema=False) == ("part0 part1", ())


def test_data_between_two_chunks_keeps_them_apart() -> None:
    task = TaskState()
    for part in ({"text": "one"}, {"data": {"n": 1}}, {"text": "two"}):
        update = {"taskId": "t", "artifact": {"artifactId": "a", "parts": [part]}, "append": True}
        task.take({"artifactUpdate": update}, "odd")
    (parts,) = task.list_results()
    assert [part.get("text") for part in parts] == ["one", None, "two"]


@given(json_values)
def test_any_event_is_taken_or_refused(event: Any) -> None:
    task = TaskState()
    for wrapped in (event, {"task": event}, {"statusUpdate": event}, {"artifactUpdate": event}):
        try:
            task.take(wrapped, "odd")
        except RemoteFaultError:
            continue
        read_result(task.list_results(), has_schema=True)
        read_result(task.list_results(), has_schema=False)
