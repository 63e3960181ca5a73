"""Bad input at ``/execute``, at an agent and through its hub: the same answer, and nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from retinue.storage.state import State
from tests.doors.bench import ENDPOINTS, Endpoints, open_endpoints
from tests.requirements import requirement
from tests.system import WAIT_S, Wire, open_wire

# One system for each kind of endpoint, because the matrix is large; nothing here changes it.
pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILED = "Execution failed: "
PARAMETERS = "Invalid parameters: "


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENDPOINTS)
async def running_endpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Endpoints]:
    async with open_endpoints(State(tmp_path_factory.mktemp("doors")), request.param) as endpoints:
        yield endpoints


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire() -> AsyncIterator[Wire]:
    async with open_wire() as wire:
        yield wire


@pytest.fixture
def endpoints(running_endpoints: Endpoints) -> Endpoints:
    running_endpoints.bench.forget()
    return running_endpoints


def _request(skill: str = "create_plan", params: Any = None, **more: Any) -> dict[str, Any]:
    given = {"requirements": "x"} if params is None else params
    return {"jsonrpc": "2.0", "method": skill, "params": given, "id": 1, **more}


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"method": "create_plan", ', -32700, "not JSON"),
        (b"\xff\xfe", -32700, "not JSON"),
        (b"[]", -32600, "the batch is empty"),
        (orjson.dumps([_request()] * 1001), -32600, "1,000 requests"),
        (
            b'{"method":"create_plan","id":1,"params":{"requirements":' + b"[" * 2000 + b"]" * 2000 + b"}}",
            -32700,
            "128 levels",
        ),
        (b"null", -32600, "null"),
    ],
    ids=["invalid JSON", "no UTF-8", "batch of 0", "batch of 1,001", "2,000 levels", "null"],
)
@requirement("P-27")
async def test_an_unusable_message_is_one_error_under_the_id_null(
    endpoints: Endpoints, wire: Wire, body: bytes, code: int, words: str
) -> None:
    """JSON-RPC 2.0, section 5.1; each limit is named."""
    reply = await wire.post(f"{endpoints.base}/execute", body)
    assert reply.status == 200
    assert (reply.error["code"], reply.json["id"]) == (code, None)
    assert words in reply.error["message"]
    assert endpoints.bench.ran == []


async def test_a_batch_of_1000_is_answered_whole_and_in_order(endpoints: Endpoints, wire: Wire) -> None:
    """The largest batch that is taken."""
    reply = await wire.post(f"{endpoints.base}/execute", [_request(id=n) for n in range(1000)])
    assert [one["id"] for one in reply.json] == list(range(1000))
    assert all(one["result"] == {"plan": "x"} for one in reply.json)


async def test_a_body_of_10_mb_is_refused_with_its_limit(endpoints: Endpoints, wire: Wire) -> None:
    """Payloads are capped, and the refusal names the cap."""
    body = orjson.dumps(_request(params={"requirements": "x" * 10_000_000}))
    reply = await wire.post(f"{endpoints.base}/execute", body)
    assert reply.status == 413
    assert reply.error["code"] == -32600
    assert reply.error["data"] == {
        "type": "too_large",
        "limit": 4194304,
        "unit": "bytes",
        "remedy": "send at most 4,194,304 bytes",
    }
    assert endpoints.bench.ran == []


@requirement("P-22")
async def test_an_unknown_skill_keeps_the_words_of_the_seed(endpoints: Endpoints, wire: Wire) -> None:
    """The error of seed 001 for an unknown skill, at every endpoint (exchange 1-8)."""
    reply = await wire.call(endpoints.base, "unknown_skill_id", {"x": 1}, id=7)
    assert reply.status == 200
    assert list(reply.json) == ["jsonrpc", "error", "id"]
    assert reply.json["id"] == 7
    assert (reply.error["code"], reply.error["message"]) == (-32601, "Unknown skill: unknown_skill_id")


@pytest.mark.parametrize(
    ("wanted", "code", "kind"),
    [(">=2", -32601, "version_conflict"), ("about two", -32603, "invalid_setting")],
)
async def test_a_version_that_nobody_offers_is_a_conflict(
    endpoints: Endpoints, wire: Wire, wanted: str, code: int, kind: str
) -> None:
    """P-30: what ``ctx.call(…, version=…)`` wishes reaches the endpoint that chooses the agent."""
    params = {"requirements": "x"}
    reply = await wire.call(endpoints.base, "create_plan", params, x_retinue_version=wanted)
    assert (reply.error["code"], reply.error["data"]["type"]) == (code, kind)
    assert endpoints.bench.ran == []
    fitting = await wire.call(endpoints.base, "create_plan", params, x_retinue_version=">=1,<2")
    assert fitting.result == {"plan": "x"}


@requirement("P-23")
@pytest.mark.parametrize(
    ("skill", "params", "message", "path"),
    [
        ("create_plan", {}, "missing required field 'requirements'", "requirements"),
        ("create_plan", {"requirements": 3}, "field 'requirements' must be string", "requirements"),
        ("create_plan", ["x"], "the value must be object", ""),
        (
            "nested",
            {"job": {"files": [{"size": 1}, {}]}},
            "missing required field 'job.files.1.size'",
            "job.files.1.size",
        ),
        ("nested", {"job": 1}, "field 'job' must be object", "job"),
    ],
    ids=["missing", "wrong type", "a list", "missing deep down", "wrong type of an object"],
)
async def test_bad_parameters_name_the_field_and_its_path(
    endpoints: Endpoints, wire: Wire, skill: str, params: Any, message: str, path: str
) -> None:
    """The error of seed 001 for invalid parameters, at every endpoint (exchange 1-9)."""
    reply = await wire.post(f"{endpoints.base}/execute", {"method": skill, "params": params, "id": "a"})
    assert reply.status == 200
    assert reply.error["code"] == -32603
    assert reply.error["message"].startswith(PARAMETERS + message)
    data = reply.error["data"]
    assert (data["type"], data["jsonrpc_code"]) == ("validation_error", -32602)
    assert data["errors"][0]["path"] == path
    assert endpoints.bench.ran == []


@requirement("P-24")
@requirement("P-13")
@pytest.mark.parametrize(
    ("skill", "message", "kind"),
    [
        ("fail", f"{FAILED}the first line", "execution_error"),
        ("fail_silently", f"{FAILED}KeyError", "execution_error"),
        ("leave", f"{FAILED}SystemExit: 3", "execution_error"),
        ("hang", f"{FAILED}hang did not answer within 0.2 s (skill hang)", "timeout"),
        (
            "break_output",
            f"{FAILED}the result of break_output breaks its output schema: field 'plan' must be string",
            "output_validation_error",
        ),
        (
            "unspeakable",
            f"{FAILED}the result of unspeakable is not a JSON value at plan: an object",
            "output_validation_error",
        ),
        (
            "not_finite",
            f"{FAILED}the result of not_finite is not a JSON value at plan: a float that is not finite",
            "output_validation_error",
        ),
    ],
)
async def test_a_skill_that_does_not_deliver_says_why_in_one_line(
    endpoints: Endpoints, wire: Wire, skill: str, message: str, kind: str
) -> None:
    """At every endpoint the type tells the failures apart; no traceback, no second line (exchange 1-10)."""
    reply = await wire.call(endpoints.base, skill)
    assert reply.status == 200
    assert list(reply.json) == ["jsonrpc", "error", "id"]
    assert reply.error["code"] == -32603
    assert reply.error["message"].startswith(message)
    assert reply.error["data"]["type"] == kind
    assert b"Traceback" not in reply.body
    assert "\n" not in reply.error["message"]


async def test_the_callers_deadline_ends_a_call_and_is_named(endpoints: Endpoints, wire: Wire) -> None:
    """Each limit is cut to what is left of the caller's; the skill is cancelled."""
    reply = await wire.call(
        endpoints.base, "wait", x_openstarry_trace_id="t", x_retinue_trace='{"seconds_left":0.3}'
    )
    assert reply.error["data"]["type"] == "timeout"
    assert reply.error["data"]["layer"] == "caller"
    async with asyncio.timeout(WAIT_S):
        await endpoints.bench.cancelled.wait()


@pytest.mark.parametrize("request_id", ["orch", "", 0, 7, -(2**53), None, 1.5])
async def test_an_id_comes_back_with_its_type_and_value(
    endpoints: Endpoints, wire: Wire, request_id: Any
) -> None:
    """Null is an id as well, not a notification (specification 2, doubt 11)."""
    reply = await wire.call(endpoints.base, "create_plan", {"requirements": "x"}, id=request_id)
    assert reply.status == 200
    assert list(reply.json) == ["jsonrpc", "result", "id"]
    assert (reply.json["id"], type(reply.json["id"])) == (request_id, type(request_id))


async def test_a_notification_runs_and_is_not_answered(endpoints: Endpoints, wire: Wire) -> None:
    """The status is 204, without a body (specification 2, doubt 11)."""
    request = {"jsonrpc": "2.0", "method": "create_plan", "params": {"requirements": "x"}}
    reply = await wire.post(f"{endpoints.base}/execute", request)
    assert (reply.status, reply.body) == (204, b"")
    assert endpoints.bench.ran == ["create_plan"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "text/plain", "origin": "https://evil.example"},
        {"content_type": "application/json", "origin": "https://evil.example"},
        {"content_type": "application/json", "origin": "null"},
        {"content_type": "text/plain", "origin": "http://localhost:1"},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"sec_fetch_site": "cross-site"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
    ],
    ids=lambda headers: ", ".join(f"{k} {v}" for k, v in headers.items()),
)
async def test_a_web_page_cannot_make_anything_run(
    endpoints: Endpoints, wire: Wire, headers: dict[str, str]
) -> None:
    """Host, Origin and media type are checked before anything is read."""
    reply = await wire.post(f"{endpoints.base}/execute", _request(), **headers)
    assert reply.status in (403, 415)
    assert reply.error["data"]["type"] in ("not_allowed", "unsupported_media_type")
    assert "result" not in reply.json
    assert endpoints.bench.ran == []


async def test_a_wrong_token_is_refused_and_a_right_one_runs_code(endpoints: Endpoints, wire: Wire) -> None:
    """Whoever sends a token must be known, even where none is required."""
    params = {"code": "1 + 1"}
    wrong = await wire.call(endpoints.base, "run_code", params, authorization="Bearer wrong")
    assert (wrong.status, wrong.error["code"]) == (401, -33001)
    assert wrong.headers["www-authenticate"] == "Bearer"
    assert endpoints.bench.ran == []
    right = await wire.call(endpoints.base, "run_code", params, authorization=endpoints.system.token)
    assert right.result == "ran 1 + 1"


async def test_a_stranger_runs_no_code(endpoints: Endpoints, wire: Wire) -> None:
    """``runs_code`` requires the mesh key or a token."""
    reply = await wire.call(endpoints.base, "run_code", {"code": "1 + 1"})
    assert (reply.status, reply.error["code"]) == (200, -33001)
    assert reply.error["data"]["type"] == "not_authenticated"
    assert endpoints.bench.ran == []


@requirement("P-22")
async def test_a_private_skill_answers_as_one_that_is_not_there(endpoints: Endpoints, wire: Wire) -> None:
    """The replies differ in the name only, with or without a token; no card has the skill (exchange 1-8)."""
    for headers in ({}, {"authorization": endpoints.system.token}):
        hidden = await wire.call(endpoints.base, "zz_secret", {"x": 1}, **headers)
        missing = await wire.call(endpoints.base, "zz_nobody", {"x": 1}, **headers)
        assert (hidden.status, hidden.error["code"]) == (200, -32601)
        assert hidden.body.replace(b"zz_secret", b"zz_nobody") == missing.body
        for url in (
            f"{endpoints.served.url}/agent-card",
            f"{endpoints.hub.url}/agents/bench-agent/agent-card",
        ):
            assert b"zz_secret" not in (await wire.get(url, **headers)).body
    assert endpoints.bench.ran == []


@pytest.mark.parametrize("skill", ["wait", "hang"])
async def test_a_client_that_leaves_cancels_the_skill(endpoints: Endpoints, skill: str) -> None:
    """A caller that hangs up in the middle is not worked for, also at the other end of a hub."""
    host, _, port = endpoints.base.removeprefix("http://").partition("/")[0].partition(":")
    path = endpoints.base.removeprefix(f"http://{host}:{port}")
    body = orjson.dumps(_request(skill, {}))
    head = f"POST {path}/execute HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    async with asyncio.timeout(WAIT_S):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        await endpoints.bench.waiting.wait()
        writer.close()
        await endpoints.bench.cancelled.wait()


@requirement("S-14")
async def test_hop_6_is_refused_with_its_path_and_hop_5_runs(endpoints: Endpoints, wire: Wire) -> None:
    """The depth guard at ``/execute`` (exchange 4-7)."""
    chain = {"x_openstarry_trace_id": "abc", "x_retinue_trace": '{"path":[["a","x"],["b","y"]]}'}
    params = {"requirements": "x"}
    fifth = await wire.call(endpoints.base, "create_plan", params, x_openstarry_trace_depth="5", **chain)
    assert fifth.result == {"plan": "x"}
    sixth = await wire.call(endpoints.base, "create_plan", params, x_openstarry_trace_depth="6", **chain)
    assert (sixth.status, sixth.error["code"]) == (200, -33007)
    data = sixth.error["data"]
    assert (data["trace_id"], data["depth"], data["max_depth"]) == ("abc", 6, 5)
    assert data["path"].startswith("a:x → b:y → ")
    assert data["path"] in sixth.error["message"]
    assert endpoints.bench.ran == ["create_plan"]
