"""A stock node as a process of a test, and a recorder of what it and a node of ours say to each other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpResponse
from scripts.peer_environment import PeerNotInstalledError
from scripts.stock_koi import PROGRAM, install_stock_koi
from tests.ports import reserve_port

STARTED_WITHIN_S = 90.0
ANSWER_WITHIN_S = 90.0


def stock_python() -> Path:
    """The interpreter with koi-net; skips loudly where PyPI cannot be reached."""
    try:
        return install_stock_koi()
    except PeerNotInstalledError as error:
        pytest.skip(f"koi-net 2.1.2 cannot be installed (is PyPI reachable?): {error}")


class StockNode:
    """A stock node that runs; ``rid`` and ``url`` are its own."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors
        self.rid = ""
        self.url = ""

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def read(self, within_s: float = ANSWER_WITHIN_S) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            while True:
                line = await self._process.stdout.readline()
                assert line, f"the stock node has ended: {self._errors.read_text()[-2000:]}"
                if line.startswith(b'{"') or line == b"{}\n":
                    return json.loads(line)

    async def do(self, what: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.read()

    async def until(self, check: Any, within_s: float = ANSWER_WITHIN_S) -> Any:
        """Wait until its state passes a check."""
        async with asyncio.timeout(within_s):
            while True:
                state = await self.do("state")
                if check(state):
                    return state
                await asyncio.sleep(0.05)


@asynccontextmanager
async def run_stock_node(
    name: str, folder: Path, *contact: str, polls: bool = False
) -> AsyncIterator[StockNode]:
    """Start a stock node on a free port, joined to a contact ``(RID, url)``; or one that polls."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    port = 0 if polls else reserve_port()
    errors = folder / "stderr.txt"
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            str(stock_python()),
            str(PROGRAM),
            name,
            str(folder),
            str(port),
            *contact,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            limit=16 * 1024 * 1024,
        )
    node = StockNode(process, errors)
    try:
        started = await node.read(STARTED_WITHIN_S)
        node.rid, node.url = started["rid"], started["url"] or ""
        yield node
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


class Recorder:
    """Keeps each request and reply between our node and others, in the order of the replies."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def note(self, to: str, path: str, request: bytes, status: int, reply: bytes) -> None:
        self.lines.append(
            {
                "t": round(time.time(), 3),
                "to": to,
                "path": path,
                "req": request.decode(),
                "status": status,
                "resp": reply.decode(),
            }
        )

    def incoming(self, app: ASGIApp) -> ASGIApp:
        """The app, with what comes in and goes out noted."""

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            request, reply = bytearray(), bytearray()
            status = 0

            async def receive_noting() -> Message:
                message = await receive()
                request.extend(message.get("body", b""))
                return message

            async def send_noting(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                reply.extend(message.get("body", b""))
                await send(message)

            await app(scope, receive_noting, send_noting)
            self.note("ours", scope["path"], bytes(request), status, bytes(reply))

        return noting


class RecordingClient:
    """Our HTTP client, with what goes out and comes in noted."""

    def __init__(self, http: HttpClient, recorder: Recorder) -> None:
        self._http = http
        self._recorder = recorder

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_response_bytes: int = 32 * 1024 * 1024,
        what: str = "",
        layer: str = "http",
        setting: str = "the timeout",
    ) -> HttpResponse:
        response = await self._http.request(
            method,
            url,
            timeout_s=timeout_s,
            headers=headers,
            body=body,
            max_response_bytes=max_response_bytes,
        )
        path = "/" + url.split("/", 3)[3]
        self._recorder.note("stock", path, body or b"", response.status, response.body)
        return response
