"""The checks before every endpoint."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from retinue.core.call import ANONYMOUS, Principal
from retinue.core.errors import InvalidSettingError
from retinue.web.security import (
    LOCAL_TOKEN,
    SecurityMiddleware,
    SecuritySettings,
    Tokens,
    check_bind,
    identity_of,
)
from tests.serving import serve_app

JSON = {"content-type": "application/json"}


class Endpoint:
    """An app behind the security middleware that reads the body and remembers who came."""

    def __init__(self) -> None:
        self.visitors: list[Principal] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.visitors.append(identity_of(scope).principal)
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client went away")
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})


class Answer:
    """What the security middleware or the endpoint sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert self.status == 0
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message.get("body", b"")


async def knock(
    settings: SecuritySettings | None = None,
    *,
    method: str = "POST",
    path: str = "/messages",
    headers: dict[str, str] | None = None,
    chunks: list[bytes] | None = None,
    tokens: Tokens | None = None,
    endpoint: Endpoint | None = None,
    more: Sequence[tuple[str, str]] = (),
) -> Answer:
    """One request to an endpoint behind the security middleware, without a socket."""
    answer = Answer()
    sent = {"host": "127.0.0.1:9000", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "server": ("127.0.0.1", 9000),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items() if value]
        + [(name.encode(), value.encode("latin-1")) for name, value in more],
    }
    pending = list(chunks or [b""])

    async def receive() -> Message:
        if not pending:
            return {"type": "http.disconnect"}
        body = pending.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(pending)}

    await SecurityMiddleware(endpoint or Endpoint(), settings, tokens)(scope, receive, answer.send)
    return answer


async def test_a_plain_local_request_passes_as_anonymous() -> None:
    endpoint = Endpoint()
    assert (await knock(headers=JSON, endpoint=endpoint)).body == b"in"
    assert endpoint.visitors == [ANONYMOUS]


@pytest.mark.parametrize(
    "host", ["localhost:9000", "127.0.0.1", "127.8.8.8:1", "[::1]:9000", "LOCALHOST", "hub.example:80", "box"]
)
async def test_our_own_names_are_taken_with_any_port(host: str) -> None:
    settings = SecuritySettings(host="box", hosts=["hub.example"])
    assert (await knock(settings, headers={**JSON, "host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.1.5",
        "[::2]",
        "[::1].evil.example",
        "[::1]evil",
        "[::1]:80x",
        "[localhost]",
        "[::1",
        "",
        ":9000",
    ],
)
async def test_a_foreign_host_is_refused(host: str) -> None:
    answer = await knock(headers={**JSON, "host": host})
    assert answer.status == 403
    assert "Host" in orjson.loads(answer.body)["detail"]


async def test_bound_to_every_address_we_are_known_by_address_but_not_by_any_name() -> None:
    settings = SecuritySettings(host="0.0.0.0")
    assert (await knock(settings, headers={**JSON, "host": "192.168.1.5:9000"})).status == 200
    assert (await knock(settings, headers={**JSON, "host": "evil.example"})).status == 403


async def test_a_flood_of_host_names_is_not_remembered_for_ever() -> None:
    keeper = SecurityMiddleware(Endpoint())
    for port in range(200):
        answer = Answer()
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost:%d" % port)]}

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        await keeper(scope, receive, answer.send)
        assert answer.status == 200
    assert keeper.remembered_hosts <= 64


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:9000", "http://127.0.0.1:9000", "https://pages.example", "http://hub.example:9000"],
)
async def test_pages_of_our_own_are_taken(origin: str) -> None:
    settings = SecuritySettings(hosts=["hub.example"], origins=["https://pages.example/"])
    assert (await knock(settings, headers={**JSON, "origin": origin})).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost.evil.example",
        "chrome-extension://abc",
        "file://",
        "http://[",
        "http://pages.example",
        # other programs of this machine
        "http://localhost:3000",
        "http://127.0.0.1",
        "https://localhost",
        "http://[::1].evil.example:9000",
    ],
)
async def test_a_page_from_elsewhere_is_refused(origin: str) -> None:
    settings = SecuritySettings(origins=["https://pages.example"])
    assert (await knock(settings, headers={**JSON, "origin": origin})).status == 403


async def test_a_page_behind_a_tunnel_or_a_proxy_is_our_own_by_its_host() -> None:
    through = {**JSON, "host": "localhost:7777", "origin": "http://localhost:7777"}
    assert (await knock(headers=through)).status == 200


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("host", ("evil.example", "127.0.0.1:9000")),
        ("origin", ("https://evil.example", "http://127.0.0.1:9000")),
        ("content-type", ("text/plain", "application/json")),
        ("authorization", ("Bearer a", "Bearer b")),
        ("x-retinue-for", ("a", "b")),
        ("mcp-session-id", ("a", "a")),
    ],
)
async def test_a_header_that_counts_once_is_refused_when_it_comes_twice(
    name: str, values: tuple[str, str]
) -> None:
    without = {"host": "", name: "", **({} if name == "host" else {"host": "127.0.0.1:9000"})}
    answer = await knock(
        headers={**({} if name == "content-type" else JSON), **without}, more=[(name, v) for v in values]
    )
    assert answer.status == 400
    assert name in orjson.loads(answer.body)["detail"]


async def test_a_header_that_is_a_list_may_come_twice() -> None:
    more = [("accept", "text/html"), ("accept", "application/json")]
    assert (await knock(headers=JSON, more=more)).status == 200


async def test_a_cross_site_request_is_refused_but_a_followed_link_is_not() -> None:
    cross = {"sec-fetch-site": "cross-site"}
    followed = {**cross, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    framed = {**cross, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert (await knock(method="GET", headers=cross)).status == 403
    assert (await knock(method="GET", headers=framed)).status == 403
    assert (await knock(method="POST", headers={**JSON, **followed})).status == 403
    assert (await knock(method="GET", headers=followed)).status == 200


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.x+json", 200),
        ("text/plain", 415),
        ("text/plain; x=application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data", 415),
        ("text/x+json", 415),
        ("applicationjson", 415),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_json_endpoint_reads_json_only(media_type: str, status: int, method: str) -> None:
    assert (await knock(method=method, headers={"content-type": media_type})).status == status


async def test_no_media_type_is_taken_only_from_what_is_no_browser() -> None:
    assert (await knock()).status == 200
    assert (await knock(headers={"origin": "http://localhost:9000"})).status == 415
    assert (await knock(headers={"sec-fetch-site": "same-origin"})).status == 415


async def test_endpoints_with_media_types_of_their_own_keep_the_other_checks() -> None:
    manifest = {"content-type": "application/vnd.oci.image.manifest.v1+json"}
    blob = {"content-type": "application/octet-stream"}
    taken = SecuritySettings(any_media_type=("/v2/", "/hooks/registry"))
    place = "/v2/agents/plan/manifests/v1"
    assert (await knock(taken, method="PUT", path=place, headers=manifest)).status == 200
    assert (await knock(taken, path="/v2/agents/plan/blobs/uploads/", headers=blob)).status == 200
    assert (await knock(taken, path="/hooks/registry", headers=blob)).status == 200
    assert (
        await knock(taken, path="/v2/x", headers={**blob, "origin": "https://evil.example"})
    ).status == 403
    assert (await knock(taken, path="/v22", headers=blob)).status == 415
    assert (await knock(path="/v2/agents/plan/blobs/uploads/", headers=blob)).status == 415


async def test_refusals_at_execute_speak_json_rpc_under_their_own_status() -> None:
    answer = await knock(path="/agents/plan/execute", headers={"content-type": "text/plain"})
    reply = orjson.loads(answer.body)
    assert answer.status == 415
    assert answer.headers[b"content-type"] == b"application/json"
    assert (reply["jsonrpc"], reply["id"], reply["error"]["code"]) == ("2.0", None, -32600)
    assert "application/json" in reply["error"]["message"]


TOKENS = Tokens({"secret-1": LOCAL_TOKEN, "secret-2": Principal("bob", "token")})


async def test_a_known_token_makes_its_principal() -> None:
    endpoint = Endpoint()
    await knock(headers={**JSON, "authorization": "Bearer secret-1"}, tokens=TOKENS, endpoint=endpoint)
    await knock(headers={**JSON, "authorization": "bearer secret-2 "}, tokens=TOKENS, endpoint=endpoint)
    await knock(headers={**JSON, "authorization": "Basic abc"}, tokens=TOKENS, endpoint=endpoint)
    assert [visitor.id for visitor in endpoint.visitors] == ["local", "bob", "anonymous"]


@pytest.mark.parametrize("token", ["secret", "secret-11", "SECRET-1", "", "é"])
async def test_an_unknown_token_is_refused_even_where_none_is_wanted(token: str) -> None:
    answer = await knock(headers={**JSON, "authorization": f"Bearer {token}"}, tokens=TOKENS)
    assert answer.status == 401
    assert answer.headers[b"www-authenticate"] == b"Bearer"
    assert b"secret" not in answer.body


async def test_without_anonymous_callers_everything_but_health_wants_a_token() -> None:
    settings = SecuritySettings(anonymous=False)
    assert (await knock(settings, headers=JSON)).status == 401
    assert (await knock(settings, method="GET", path="/health")).status == 200
    known = {**JSON, "authorization": "Bearer secret-1"}
    assert (await knock(settings, headers=known, tokens=TOKENS)).status == 200


async def test_an_endpoint_without_the_middleware_is_an_error() -> None:
    with pytest.raises(LookupError, match="SecurityMiddleware"):
        identity_of({"type": "http"})


SMALL = SecuritySettings(max_body_bytes=10)


@pytest.mark.parametrize("length", ["11", "99999999999999999999", "-1", "x"])
async def test_a_length_over_the_cap_is_refused_before_anything_is_read(length: str) -> None:
    endpoint = Endpoint()
    answer = await knock(
        SMALL, headers={**JSON, "content-length": length}, chunks=[b"x" * 11], endpoint=endpoint
    )
    assert answer.status == 413
    assert orjson.loads(answer.body)["data"]["limit"] == 10
    assert endpoint.visitors == []


async def test_a_body_of_unknown_length_is_cut_off_at_the_cap() -> None:
    streamed = {**JSON, "transfer-encoding": "chunked"}
    endpoint = Endpoint()
    assert (
        await knock(SMALL, headers=streamed, chunks=[b"x" * 5, b"y" * 5], endpoint=endpoint)
    ).status == 200
    answer = await knock(SMALL, headers=streamed, chunks=[b"x" * 5, b"y" * 6, b"z"], endpoint=endpoint)
    assert answer.status == 413
    assert endpoint.bodies == [b"xxxxxyyyyy"]


async def test_an_endpoint_that_fails_by_itself_is_not_hidden() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    streamed = {**JSON, "transfer-encoding": "chunked"}
    with pytest.raises(ValueError, match="broken"):
        await knock(SMALL, headers=streamed, endpoint=broken)  # type: ignore[arg-type]


async def test_lifespan_passes_and_websockets_do_not() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        await SecurityMiddleware(app)({"type": kind, "headers": [], "path": "/"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_binds_freely(host: str) -> None:
    check_bind(host, has_auth=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "", "box"])
def test_an_open_bind_without_a_token_is_refused_unless_told_so(host: str) -> None:
    with pytest.raises(InvalidSettingError, match="host") as caught:
        check_bind(host, has_auth=False)
    assert "--insecure-bind" in caught.value.remedy
    check_bind(host, has_auth=True)
    check_bind(host, has_auth=False, insecure_ok=True)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serve_app(SecurityMiddleware(Endpoint())) as url:
        yield url


def send_everything_then_read(url: str, head: bytes, body: bytes) -> bytes:
    """What a simple client sees that reads only after it has sent its whole body."""
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=10) as connection:
        connection.sendall(head)
        for at in range(0, len(body), 65536):
            connection.sendall(body[at : at + 65536])
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


async def test_a_client_that_sends_10_mb_blindly_still_reads_its_413(url: str) -> None:
    body = b" " * 10_000_000
    head = b"POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sized = head + b"content-length: %d\r\n\r\n" % len(body)
    answer = await asyncio.to_thread(send_everything_then_read, url, sized, body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["data"]["type"] == "too_large"


async def test_a_client_that_streams_10_mb_still_reads_its_413(url: str) -> None:
    body = b"989680\r\n" + b" " * 10_000_000 + b"\r\n0\r\n\r\n"
    head = b"POST /messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    streamed = head + b"transfer-encoding: chunked\r\n\r\n"
    answer = await asyncio.to_thread(send_everything_then_read, url, streamed, body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["data"]["limit"] == 4 * 1024 * 1024


async def test_a_refused_small_body_leaves_the_connection_usable(url: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        async with session.post(
            f"{url}/messages", data=b"hi", headers={"content-type": "text/plain"}
        ) as answer:
            assert answer.status == 415
            assert "connection" not in answer.headers
        async with session.post(f"{url}/messages", data=b"{}", headers=JSON) as answer:
            assert await answer.read() == b"in"
