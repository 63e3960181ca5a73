"""The guarded client: what it refuses, what it bounds, what it says when nothing comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from retinue.core.errors import CallTimedOutError
from retinue.web.fast.plain_http_client import PlainHttpClient
from retinue.web.http_client import CheckedResolver, HttpClient
from retinue.web.transport import HttpRequester, ResponseTooLargeError, TransportError, UrlRefusedError
from tests.serving import serve_app


async def _echo(request: Request) -> Response:
    body = await request.body()
    return Response(
        body,
        status_code=int(request.query_params.get("status", "200")),
        headers={
            "X-Path": request.url.path,
            "X-Query": request.url.query,
            "X-Agent": request.headers["user-agent"],
        },
    )


async def _stream(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(int(request.query_params["n"])):
            yield b"x" * 1000

    return StreamingResponse(chunks())


async def _hang(request: Request) -> Response:
    """Answers only when nobody listens any more."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
    return Response()


async def _client(request: Request) -> Response:
    assert request.client is not None
    return PlainTextResponse(str(request.client.port))


async def _cookie(request: Request) -> Response:
    """Sets a cookie and tells which one came."""
    return PlainTextResponse(request.headers.get("cookie", ""), headers={"set-cookie": "a=b"})


async def _headers(request: Request) -> Response:
    return JSONResponse(request.headers.items())


APP = Starlette(
    routes=[
        Route("/headers", _headers),
        Route("/cookie", _cookie),
        Route("/echo/{rest:path}", _echo, methods=["GET", "POST", "PUT", "DELETE"]),
        Route("/stream", _stream),
        Route("/hang", _hang, methods=["POST"]),
        Route("/client", _client),
        Route("/moved", lambda request: RedirectResponse("/echo/x")),
    ]
)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serve_app(APP) as served:
        yield served


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as opened:
        yield opened


class AiohttpClient(HttpClient):
    """The client as it sends what the plain one cannot: through aiohttp."""

    async def __aenter__(self) -> HttpClient:
        self._plain.can_request = lambda url: False  # type: ignore[method-assign]
        return await super().__aenter__()


@pytest.fixture(params=[AiohttpClient, PlainHttpClient])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[HttpRequester]:
    """Each of the two clients: what both promise is proved of both."""
    async with request.param() as opened:
        yield opened


async def test_an_answer_of_any_status_comes_back_whole(url: str, either: HttpRequester) -> None:
    answer = await either.request("POST", f"{url}/echo/a?status=418", body=b"tea", timeout_s=60)
    assert (answer.status, answer.body) == (418, b"tea")
    assert answer.headers["x-PATH"] == "/echo/a"
    assert answer.headers["x-agent"] == "retinue"


async def test_a_header_of_the_caller_replaces_the_client_s_own(url: str, either: HttpRequester) -> None:
    headers = {"Accept": "application/json", "user-agent": "x"}
    answer = await either.request("GET", f"{url}/headers", headers=headers, timeout_s=60)
    sent = [(name, value) for name, value in orjson.loads(answer.body) if name in ("accept", "user-agent")]
    assert sorted(sent) == [("accept", "application/json"), ("user-agent", "x")]


async def test_a_head_answer_larger_than_the_cap_is_no_matter(url: str, either: HttpRequester) -> None:
    answer = await either.request("HEAD", f"{url}/client", timeout_s=60, max_response_bytes=1)
    assert (answer.status, answer.body) == (200, b"")


async def test_the_url_is_sent_as_it_was_written(url: str, client: HttpClient) -> None:
    answer = await client.request("GET", f"{url}/echo/a%3Ab?x=%3D&y=:=", timeout_s=60)
    assert answer.headers["x-query"] == "x=%3D&y=:="


async def test_a_redirect_is_an_answer_not_a_journey(url: str, either: HttpRequester) -> None:
    answer = await either.request("GET", f"{url}/moved", timeout_s=60)
    assert (answer.status, answer.headers["location"]) == (307, "/echo/x")


async def test_cookies_are_not_kept_and_proxies_of_the_environment_not_asked(
    url: str, either: HttpRequester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await either.request("GET", f"{url}/cookie", timeout_s=60)).body == b""
    assert (await either.request("GET", f"{url}/cookie", timeout_s=60)).body == b""


async def test_a_large_body_arrives_whole(url: str, either: HttpRequester) -> None:
    body = bytes(range(256)) * 8192
    answer = await either.request("POST", f"{url}/echo/a", body=body, timeout_s=60)
    assert answer.body == body


async def test_connections_are_used_again(url: str, either: HttpRequester) -> None:
    ports = {(await either.request("GET", f"{url}/client", timeout_s=60)).body for _ in range(5)}
    assert len(ports) == 1


@pytest.mark.parametrize("path", ["/echo/x", "/stream?n=50"])
async def test_an_answer_over_the_cap_is_cut_off(url: str, either: HttpRequester, path: str) -> None:
    method, body = ("POST", b"x" * 50_000) if "echo" in path else ("GET", None)
    with pytest.raises(ResponseTooLargeError, match="larger than 10,000 bytes") as caught:
        await either.request(method, url + path, body=body, timeout_s=60, max_response_bytes=10_000)
    assert caught.value.sent


async def test_a_streamed_answer_under_the_cap_is_read(url: str, either: HttpRequester) -> None:
    answer = await either.request("GET", f"{url}/stream?n=9", timeout_s=60, max_response_bytes=10_000)
    assert answer.body == b"x" * 9000


async def test_a_stream_is_read_as_it_comes_and_its_connection_serves_again(
    url: str, client: HttpClient
) -> None:
    """Read to its end, or drained of what is left; the one left early is closed."""
    async with client.stream("GET", f"{url}/stream?n=50", headers={}) as reply:
        assert reply.status == 200
        assert len(await reply.read_some()) > 0
        await reply.drain(5.0)
        assert await reply.read_some() == b""
    ports = set()
    for _ in range(3):
        async with client.stream("GET", f"{url}/client", headers={}) as reply:
            ports.add(await reply.read())
    assert len(ports) == 1
    async with client.stream("GET", f"{url}/stream?n=100000", headers={}) as reply:
        await reply.read_some()
    async with client.stream("GET", f"{url}/client", headers={}) as reply:
        assert await reply.read() not in ports


async def test_a_stream_that_cannot_begin_says_whether_it_was_sent(url: str, client: HttpClient) -> None:
    """Nobody there, no url, or a cap passed on the way."""
    refused: list[tuple[str, type[TransportError]]] = [
        ("http://127.0.0.1:1/", TransportError),
        ("ftp://x/", UrlRefusedError),
    ]
    for nowhere, kind in refused:
        with pytest.raises(kind) as caught:
            async with client.stream("GET", nowhere, headers={}):
                raise AssertionError("it must not begin")
        assert caught.value.sent is False
    async with client.stream("GET", f"{url}/stream?n=50", headers={}) as reply:
        with pytest.raises(ResponseTooLargeError):
            await reply.read(1000)


async def test_a_time_limit_names_the_layer_and_the_setting(url: str, either: HttpRequester) -> None:
    with pytest.raises(
        CallTimedOutError, match=r"create_plan did not answer within 0.05 s \(caller\)"
    ) as caught:
        await either.request(
            "POST", f"{url}/hang", timeout_s=0.05, what="create_plan", layer="caller", setting="call.timeout"
        )
    assert caught.value.setting == "call.timeout"


async def test_nobody_listening_means_nothing_was_sent(either: HttpRequester) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(TransportError) as caught:
            await either.request("GET", f"http://127.0.0.1:{port}/", timeout_s=60)
    assert not caught.value.sent
    assert str(caught.value) == f"http://127.0.0.1:{port}: nothing listens there (connection refused)"


async def test_an_unknown_host_means_nothing_was_sent(either: HttpRequester) -> None:
    with pytest.raises(TransportError) as caught:
        await either.request("GET", "http://nobody.invalid/", timeout_s=60)
    assert not caught.value.sent
    assert "Errno" not in str(caught.value)


@asynccontextmanager
async def _raw_server(answer: bytes) -> AsyncIterator[str]:
    """Reads one request, sends ``answer`` and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", b"this is not http at all\r\n\r\n"],
    ids=["nothing", "half an answer", "no http"],
)
async def test_a_broken_answer_may_have_been_acted_upon(either: HttpRequester, answer: bytes) -> None:
    async with _raw_server(answer) as url:
        with pytest.raises(TransportError) as caught:
            await either.request("POST", url, body=b"{}", timeout_s=60)
    assert caught.value.sent
    assert caught.value.cause


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "//127.0.0.1/x",
        "http://",
        "127.0.0.1:80",
        "http://[::1",
        "http://h:99999/",
        "",
    ],
)
async def test_only_whole_http_urls_are_asked(either: HttpRequester, url: str) -> None:
    with pytest.raises(UrlRefusedError) as caught:
        await either.request("GET", url, timeout_s=60)
    assert not caught.value.sent


async def test_a_line_break_in_a_url_reaches_no_wire(url: str, client: HttpClient) -> None:
    answer = await client.request("GET", f"{url}/echo/a\r\nX-Evil: 1", timeout_s=60)
    assert answer.status == 200
    assert "\n" not in answer.headers["x-path"].strip() or "%0A" in answer.headers["x-path"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    ],
)
async def test_the_strict_policy_reaches_no_private_address(host: str) -> None:
    async with HttpClient(allow_private=False) as strict:
        with pytest.raises(TransportError, match="public") as caught:
            await strict.request("GET", f"http://{host}:1/", timeout_s=60)
    assert not caught.value.sent


async def test_the_strict_policy_keeps_the_public_addresses_of_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(self: object, host: str, port: int, family: int) -> list[dict[str, object]]:
        return [
            {"hostname": host, "host": found, "port": port} for found in ("10.0.0.1", "8.8.8.8", "fe80::1%2")
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    resolver = CheckedResolver(allow_private=False)
    assert [found["host"] for found in await resolver.resolve("h", 1)] == ["8.8.8.8"]
    resolver = CheckedResolver(allow_private=True)
    assert [found["host"] for found in await resolver.resolve("h", 1)] == ["10.0.0.1", "8.8.8.8"]


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.1.1",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
        # read by the system's resolver as 169.254.169.254
        "2852039166",
        "0xa9fea9fe",
        "169.254.43518",
        "0251.0376.0251.0376",
    ],
)
async def test_link_local_and_metadata_addresses_are_never_asked(host: str, client: HttpClient) -> None:
    with pytest.raises(TransportError, match=r"never asked|not a valid url|is not a url") as caught:
        await client.request("GET", f"http://{host}:1/latest/meta-data/", timeout_s=60)
    assert not caught.value.sent


async def test_a_name_that_resolves_to_a_metadata_address_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, client: HttpClient
) -> None:
    async def resolve(self: object, host: str, port: int, family: int) -> list[dict[str, object]]:
        return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": socket.AF_INET}]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    with pytest.raises(TransportError, match="never asked") as caught:
        await client.request("GET", "http://metadata.example/", timeout_s=60)
    assert not caught.value.sent


@pytest.mark.parametrize("user", ["me:secret", "me", ":secret"])
async def test_user_information_in_a_url_is_refused_and_not_sent(
    user: str, url: str, client: HttpClient
) -> None:
    with pytest.raises(UrlRefusedError, match="user information") as caught:
        await client.request("GET", url.replace("//", f"//{user}@") + "/client", timeout_s=60)
    assert "secret" not in str(caught.value)


async def test_a_closed_client_says_so() -> None:
    client = HttpClient()
    with pytest.raises(RuntimeError, match="async with"):
        await client.request("GET", "http://127.0.0.1/", timeout_s=1)


# what was sent, and what was not


class Peer:
    """A server of raw sockets in a thread, which ends connections in ways that a real one only dies in."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.served = 0

    def take(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        return connection

    def answer(self, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.served += 1


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.listener.close()


async def test_a_pooled_connection_that_has_ended_unnoticed_is_not_used_again(
    either: HttpRequester, peer: Peer
) -> None:
    ended = threading.Event()

    def serve() -> None:
        with peer.take() as first:
            peer.answer(first)
            asked_again.wait(60)
        ended.set()
        with peer.take() as second:
            peer.answer(second)

    asked_again = threading.Event()
    server = asyncio.create_task(asyncio.to_thread(serve))
    await either.request("POST", peer.url, body=b"{}", timeout_s=60)
    # the loop is busy while the connection ends, so that only the kernel knows
    asked_again.set()
    assert ended.wait(60)
    assert (await either.request("POST", peer.url, body=b"{}", timeout_s=60)).body == b"ok"
    await server
    assert peer.served == 2


async def test_a_request_that_a_dying_server_left_unread_was_not_sent(
    either: HttpRequester, peer: Peer
) -> None:
    def die() -> None:
        with peer.take() as connection:
            connection.recv(1, socket.MSG_PEEK)

    server = asyncio.create_task(asyncio.to_thread(die))
    with pytest.raises(TransportError) as caught:
        await either.request("POST", peer.url, body=b"{}", timeout_s=60)
    await server
    assert not caught.value.sent


async def test_a_request_that_a_dying_server_had_read_may_have_been_acted_on(
    either: HttpRequester, peer: Peer
) -> None:
    def die() -> None:
        with peer.take() as connection:
            connection.recv(65536)

    server = asyncio.create_task(asyncio.to_thread(die))
    with pytest.raises(TransportError) as caught:
        await either.request("POST", peer.url, body=b"{}", timeout_s=60)
    await server
    assert caught.value.sent


async def test_a_response_that_is_cut_off_at_any_byte_is_an_error(either: HttpRequester) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    for cut in range(len(whole)):
        async with _raw_server(whole[:cut]) as url:
            with pytest.raises(TransportError) as caught:
                await either.request("POST", url, body=b"{}", timeout_s=60)
        assert caught.value.sent
    async with _raw_server(whole) as url:
        assert (await either.request("POST", url, body=b"{}", timeout_s=60)).body == b"ok"


async def test_an_interim_response_is_skipped(either: HttpRequester) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with _raw_server(interim + b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok") as url:
        answer = await either.request("POST", url, body=b"{}", timeout_s=60)
    assert (answer.status, answer.body) == (201, b"ok")
    assert "link" not in answer.headers


async def test_a_body_without_length_ends_with_its_connection(either: HttpRequester) -> None:
    async with _raw_server(b"HTTP/1.1 200 OK\r\n\r\nuntil the end") as url:
        assert (await either.request("GET", url, timeout_s=60)).body == b"until the end"


async def test_a_cancelled_request_leaves_its_response_to_no_other(either: HttpRequester, url: str) -> None:
    with pytest.raises(CallTimedOutError):
        await either.request("POST", f"{url}/hang", timeout_s=0.05)
    assert (await either.request("POST", f"{url}/echo/a", body=b"tea", timeout_s=60)).body == b"tea"


async def test_a_line_break_in_a_header_is_not_sent(either: HttpRequester, url: str) -> None:
    with pytest.raises(TransportError):
        await either.request("GET", f"{url}/client", headers={"x-a": "1\r\nx-evil: 1"}, timeout_s=60)


@pytest.mark.parametrize(
    "refused", ["https://127.0.0.1/", "http://a.example/", "http://169.254.1.1/", "http://127.0.0.1/a b"]
)
async def test_the_plain_http_client_asks_only_plain_http_of_allowed_addresses(refused: str) -> None:
    async with PlainHttpClient() as local:
        with pytest.raises(UrlRefusedError):
            await local.request("GET", refused, timeout_s=60)


async def test_the_plain_http_client_works_in_the_loop_of_the_programs_as_well(url: str) -> None:
    """``retinue demo`` calls its hub from a process that runs uvloop."""

    async def ask() -> bytes:
        async with PlainHttpClient() as local:
            return (await local.request("GET", f"{url}/echo/a", timeout_s=60)).headers["x-path"].encode()

    assert await asyncio.to_thread(uvloop.run, ask()) == b"/echo/a"


async def test_a_second_response_to_one_request_is_given_to_no_other_request() -> None:
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
    async with _raw_server(twice) as url, PlainHttpClient() as plain:
        for _ in range(3):
            assert (await plain.request("GET", url, timeout_s=60)).body == b"ok"


async def test_idle_connections_are_closed_after_the_keep_alive_time(url: str) -> None:
    async with PlainHttpClient(keep_alive_s=0.05) as plain:
        await asyncio.gather(*(plain.request("GET", f"{url}/echo/a", timeout_s=30) for _ in range(5)))
        async with asyncio.timeout(30):
            while plain.idle_connections:
                await asyncio.sleep(0.01)
