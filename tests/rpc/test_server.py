"""``POST /execute`` over a real socket, with a dispatcher that records what reached it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.call import ANONYMOUS, Call, Hop, Outcome, TraceContext
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidParametersError,
    Problem,
    RemoteFaultError,
    RetinueError,
    UnknownSkillError,
)
from retinue.mesh.channel import Channel
from retinue.rpc.server import MAX_AT_ONCE, execute_route, health_route
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, Tokens
from tests.requirements import requirement
from tests.serving import serve_app

WAIT_S = 60.0


class Recorder:
    """Dispatches by answering ``{"echo": arguments}``, by failing, or by waiting until told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.running = 0
        self.most_running = 0
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._run(call)
        except RetinueError as error:
            return Outcome(call.id, call.skill, "failed", error=error)
        finally:
            self.running -= 1

    async def _run(self, call: Call) -> Outcome:
        match call.skill:
            case "missing" | "":
                raise UnknownSkillError(call.skill)
            case "invalid":
                raise InvalidParametersError([Problem("a", "missing required field 'a'")])
            case "fail":
                raise ExecutionFailedError.from_exception(TimeoutError("Claude API timeout"))
            case "relayed":
                raise RemoteFaultError("peer", -32050, "its own words", {"its": "data"})
            case "crash":
                raise ZeroDivisionError("a secret of ours")
            case "unspeakable":
                return Outcome(call.id, call.skill, "done", value=object())
            case "breathe":
                await asyncio.sleep(0)
            case "wait":
                self.waiting.set()
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
        return Outcome(call.id, call.skill, "done", value={"echo": call.arguments})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def base(recorder: Recorder) -> AsyncIterator[str]:
    routes = [
        health_route(),
        execute_route(recorder),
        execute_route(recorder, path="/watched/execute", watch_after_s=0.0),
        execute_route(recorder, path="/agents/{agent}/execute"),
        execute_route(
            recorder, path="/talkative/execute", agent="a", answer_without_id=True, validation_code=-32602
        ),
    ]
    app = SecurityMiddleware(Starlette(routes=routes), tokens=Tokens({"t": LOCAL_TOKEN}))
    async with serve_app(app) as url:
        yield url


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


Post = Callable[..., Any]


@pytest.fixture
def post(base: str, session: aiohttp.ClientSession) -> Post:
    """Post a body (bytes, or a value as JSON) and give status and decoded reply (None when empty)."""

    async def send(body: Any, path: str = "/execute", **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        given = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        async with session.post(base + path, data=io.BytesIO(raw), headers=given) as answer:
            reply = await answer.read()
            return answer.status, orjson.loads(reply) if reply else None

    return send


def request(method: str = "echo", params: Any = None, request_id: Any = "orch") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}, "id": request_id}


@requirement("P-07")
@requirement("P-08")
@requirement("P-09")
async def test_the_seeds_request_is_answered_with_exactly_the_seeds_keys(
    post: Post, recorder: Recorder
) -> None:
    status, reply = await post(request("create_plan", {"requirements": "..."}))
    assert status == 200
    assert list(reply.items()) == [
        ("jsonrpc", "2.0"),
        ("result", {"echo": {"requirements": "..."}}),
        ("id", "orch"),
    ]
    call = recorder.calls[0]
    assert (call.skill, call.arguments, call.endpoint) == ("create_plan", {"requirements": "..."}, "execute")
    assert (call.agent, call.principal, call.trace) == (None, ANONYMOUS, TraceContext(""))


@pytest.mark.parametrize("request_id", ["orch", "", 1, 0, -3, None, 2**63])
async def test_an_id_comes_back_with_its_type(post: Post, request_id: Any) -> None:
    _, reply = await post(request(request_id=request_id))
    assert reply["id"] == request_id
    assert type(reply["id"]) is type(request_id)


@requirement("P-22")
async def test_an_unknown_skill_is_the_seeds_error_under_http_200(post: Post) -> None:
    status, reply = await post(request("missing"))
    assert status == 200
    assert (reply["error"]["code"], reply["error"]["message"]) == (-32601, "Unknown skill: missing")
    assert (reply["id"], "result" in reply) == ("orch", False)


@requirement("P-23")
async def test_bad_parameters_are_the_seeds_error(post: Post) -> None:
    _, reply = await post(request("invalid"))
    assert reply["error"]["code"] == -32603
    assert reply["error"]["message"] == "Invalid parameters: missing required field 'a'"
    assert reply["error"]["data"]["errors"] == [{"path": "a", "message": "missing required field 'a'"}]
    _, reply = await post(request("invalid"), "/talkative/execute")
    assert reply["error"]["code"] == -32602


@requirement("P-24")
async def test_a_failed_execution_is_the_seeds_error(post: Post) -> None:
    status, reply = await post(request("fail"))
    assert status == 200
    assert reply["error"] == {
        "code": -32603,
        "message": "Execution failed: Claude API timeout",
        "data": {"type": "execution_error", "exception": "TimeoutError"},
    }


async def test_another_agents_error_is_relayed_unchanged(post: Post) -> None:
    _, reply = await post(request("relayed"))
    assert reply["error"] == {"code": -32050, "message": "its own words", "data": {"its": "data"}}


async def test_a_mistake_of_ours_is_answered_without_its_text(post: Post) -> None:
    _, reply = await post(request("crash"))
    assert reply["error"]["message"] == "Execution failed: internal error"
    assert "secret" not in str(reply)


async def test_a_value_that_is_no_json_is_an_output_error(post: Post) -> None:
    _, reply = await post(request("unspeakable"))
    assert reply["error"]["code"] == -32603
    assert reply["error"]["data"]["type"] == "output_validation_error"


async def test_params_may_be_absent(post: Post) -> None:
    assert (await post({"method": "echo", "id": 1}))[1]["result"] == {"echo": {}}


async def test_a_notification_runs_and_is_answered_by_204_alone(post: Post, recorder: Recorder) -> None:
    assert await post({"jsonrpc": "2.0", "method": "echo"}) == (204, None)
    assert await post({"jsonrpc": "2.0", "method": "missing"}) == (204, None)
    assert [call.skill for call in recorder.calls] == ["echo", "missing"]


async def test_a_setting_answers_requests_without_id(post: Post) -> None:
    status, reply = await post({"method": "echo"}, "/talkative/execute")
    assert (status, reply) == (200, {"jsonrpc": "2.0", "result": {"echo": {}}, "id": None})


async def test_a_batch_is_answered_in_order_without_its_notifications(post: Post, recorder: Recorder) -> None:
    status, replies = await post(
        [request("echo", {"n": 1}, 1), {"method": "echo"}, request("missing", request_id="x"), 7, {"id": 3}]
    )
    assert status == 200
    assert [reply["id"] for reply in replies] == [1, "x", None, 3]
    assert replies[0]["result"] == {"echo": {"n": 1}}
    assert [reply["error"]["code"] for reply in replies[1:]] == [-32601, -32600, -32600]
    assert len(recorder.calls) == 3


async def test_a_batch_of_notifications_is_answered_by_204(post: Post, recorder: Recorder) -> None:
    assert await post([{"method": "echo"}, {"method": "echo"}]) == (204, None)
    assert len(recorder.calls) == 2


async def test_a_batch_runs_together_but_bounded(post: Post, recorder: Recorder) -> None:
    _, replies = await post([request("breathe", request_id=n) for n in range(200)])
    assert [reply["id"] for reply in replies] == list(range(200))
    assert recorder.most_running == MAX_AT_ONCE


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", -32700, "not JSON"),
        (b"", -32700, "not JSON"),
        (b"[]", -32600, "the batch is empty"),
        (b"3", -32600, "the message is a number"),
        (orjson.dumps([request()] * 1001), -32600, "1,000 requests"),
        (b'{"method":"echo","id":1,"params":' + b"[" * 2000 + b"]" * 2000 + b"}", -32700, "128 levels"),
        (b'{"method":"echo","id":1,"params":' + b"[" * 200 + b"]" * 200 + b"}", -32700, "128 levels"),
    ],
    ids=[
        "invalid JSON",
        "empty body",
        "batch of 0",
        "a number",
        "batch of 1,001",
        "2,000 levels",
        "200 levels",
    ],
)
async def test_an_unusable_message_is_one_error_under_the_id_null(
    post: Post, recorder: Recorder, body: bytes, code: int, words: str
) -> None:
    status, reply = await post(body)
    assert status == 200
    assert (reply["error"]["code"], reply["id"]) == (code, None)
    assert words in reply["error"]["message"]
    assert recorder.calls == []


async def test_a_body_of_10_mb_is_refused(post: Post, recorder: Recorder) -> None:
    status, reply = await post(b" " * 10_000_000)
    assert status == 413
    assert reply["error"]["data"]["type"] == "too_large"
    assert recorder.calls == []


async def test_a_web_page_cannot_post_text_plain(post: Post, recorder: Recorder) -> None:
    status, _ = await post(request(), content_type="text/plain", origin="https://evil.example")
    assert status == 403
    status, reply = await post(request(), content_type="text/plain")
    assert (status, reply["error"]["code"]) == (415, -32600)
    assert recorder.calls == []


@requirement("S-13")
async def test_the_callers_trace_reaches_the_call(post: Post, recorder: Recorder) -> None:
    await post(
        request(),
        X_OpenStarry_Trace_ID="abc",
        X_OpenStarry_Trace_Depth="3",
        X_Retinue_Trace='{"path":[["a","x"]],"calls_left":7}',
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    trace = recorder.calls[0].trace
    assert (trace.id, trace.depth, trace.path, trace.calls_left) == ("abc", 3, (Hop("a", "x"),), 7)
    assert trace.traceparent is not None
    assert not trace.trusted


async def test_token_agent_and_key_reach_the_call(post: Post, recorder: Recorder) -> None:
    await post(request(), "/agents/plan-agent/execute", Authorization="Bearer t", Idempotency_Key="k")
    await post([request(), request()], "/talkative/execute", Idempotency_Key="k")
    first, *batch = recorder.calls
    assert (first.principal, first.agent, first.idempotency_key) == (LOCAL_TOKEN, "plan-agent", "k")
    assert [(call.agent, call.idempotency_key) for call in batch] == [("a", "k/0"), ("a", "k/1")]
    assert len({call.id for call in recorder.calls}) == 3


async def test_an_idempotency_key_too_long_is_refused(post: Post, recorder: Recorder) -> None:
    _, reply = await post(request(), Idempotency_Key="k" * 201)
    assert reply["error"]["code"] == -32600
    assert recorder.calls == []


@pytest.mark.parametrize("body", [request("wait"), [request("wait"), request("echo")]])
async def test_a_client_that_hangs_up_cancels_its_call(post: Post, recorder: Recorder, body: Any) -> None:
    pending = asyncio.ensure_future(post(body))
    async with asyncio.timeout(WAIT_S):
        await recorder.waiting.wait()
        pending.cancel()
        await recorder.cancelled.wait()


async def test_a_client_that_stays_gets_its_late_answer(post: Post, recorder: Recorder) -> None:
    pending = asyncio.ensure_future(post(request("wait"), "/watched/execute"))
    async with asyncio.timeout(WAIT_S):
        await recorder.waiting.wait()
        # A whole round trip later the endpoint has begun to watch for a hang-up.
        assert (await post(request()))[0] == 200
        recorder.go_on.set()
        status, reply = await pending
    assert (status, reply["result"]) == (200, {"echo": {}})
    assert not recorder.cancelled.is_set()
    assert (await post(request()))[0] == 200


async def test_a_client_that_leaves_within_its_body_calls_nothing(base: str, recorder: Recorder) -> None:
    host, port = base.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert recorder.calls == []


async def test_a_body_in_pieces_is_read_whole(base: str, session: aiohttp.ClientSession) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in orjson.dumps(request("echo", {"a": 1})):
            yield bytes([byte])

    headers = {"content-type": "application/json"}
    async with session.post(f"{base}/execute", data=pieces(), headers=headers) as answer:
        assert orjson.loads(await answer.read())["result"] == {"echo": {"a": 1}}


async def test_other_methods_are_refused(base: str, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{base}/execute") as answer:
        assert answer.status == 405


async def test_health_answers_with_the_time(base: str, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{base}/health") as answer:
        body = orjson.loads(await answer.read())
    assert body["status"] == "ok"
    assert body["timestamp"].endswith("Z")
