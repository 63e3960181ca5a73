"""A program that speaks MCP on its standard streams, as an imported server: started, written to, ended.

One message a line. What the program prints on standard output without being a message is skipped and
counted; standard error is drained, and its last lines explain why a program ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import structlog

from retinue.core.errors import AgentUnreachableError
from retinue.mcp.codec.foreign import SUBSCRIPTION_KEY, ServerFacts
from retinue.mcp.codec.messages import Message

MAX_LINE_BYTES = 32 * 1024 * 1024
STOP_WITHIN_S = 2.0
_KEPT_LINES = 10
_SHOWN_CHARACTERS = 300
_QUEUED = 1_000
"""Messages that belong to no request and wait to be read; further ones are dropped."""

_INHERITED = frozenset(
    {
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""Variables of this process that the program gets; others only where the import names them."""

_log = structlog.get_logger("retinue.imports")

Document = Mapping[str, Any]


class ServerProgram:
    """The transport to the program ``command``; ``place`` names it in errors."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        own: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self._name = name
        self._command = list(command)
        self._environment = {key: own[key] for key in _INHERITED if key in own} | dict(environment)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._open: dict[Any, asyncio.Queue[Document | None]] = {}
        self._others: asyncio.Queue[Document | None] = asyncio.Queue(_QUEUED)
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._junk_lines = 0
        self._writing = asyncio.Lock()

    @property
    def place(self) -> str:
        """The command, shortened."""
        return " ".join(self._command)[:100]

    @property
    def ends_with_stream(self) -> bool:
        return True

    async def open(self) -> None:
        """Start the program. Raises AgentUnreachableError when it cannot be started."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                cwd=self._folder,
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            cause = f"{self._command[0]} does not start: {error.strerror or error}"
            raise AgentUnreachableError(self._name, self.place, cause) from error
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def exchange(self, message: Message) -> AsyncGenerator[Document, None]:
        inbox: asyncio.Queue[Document | None] = asyncio.Queue()
        self._open[message.id] = inbox
        try:
            await self._write(message.document)
            while (document := await inbox.get()) is not None:
                yield document
            raise self._ended(sent=True)
        finally:
            self._open.pop(message.id, None)

    async def listen(self) -> AsyncGenerator[Document, None]:
        while (document := await self._others.get()) is not None:
            yield document

    async def send(self, message: Message) -> None:
        await self._write(message.document)

    def agree(self, facts: ServerFacts) -> None:
        return None

    async def aclose(self) -> None:
        """Close its input, then terminate and kill its process group."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await process.wait()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._process = None

    async def _write(self, document: Document) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise self._ended(sent=False)
        async with self._writing:
            try:
                process.stdin.write(orjson.dumps(document) + b"\n")
                await process.stdin.drain()
            except (ConnectionError, RuntimeError) as error:
                raise self._ended(sent=False) from error

    def _ended(self, *, sent: bool) -> AgentUnreachableError:
        code = None if self._process is None else self._process.returncode
        last = self._tail[-1] if self._tail else ""
        cause = "it ended" if code is None else f"it ended with code {code}"
        return AgentUnreachableError(self._name, self.place, cause + (f": {last}" if last else ""), sent=sent)

    async def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None, "piped"
        stream = process.stdout
        try:
            while line := await stream.readline():
                self._sort(line)
        except ValueError:
            self._tail.append(f"a message is longer than {MAX_LINE_BYTES:,} bytes")
        if stream.at_eof():
            await process.wait()
        for inbox in (*self._open.values(), self._others):
            with suppress(asyncio.QueueFull):
                inbox.put_nowait(None)

    def _sort(self, line: bytes) -> None:
        """Give a message to the request that it belongs to."""
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
            if line.strip():
                self._junk_lines += 1
                if self._junk_lines == 1:
                    shown = line.decode("utf-8", "replace").strip()[:_SHOWN_CHARACTERS]
                    _log.warning("not a message on standard output", server=self._name, line=shown)
            return
        inbox = self._open.get(_owner_of(document))
        if inbox is not None:
            inbox.put_nowait(document)
        elif "method" in document:
            with suppress(asyncio.QueueFull):
                self._others.put_nowait(document)

    async def _read_errors(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None, "piped"
        rest = b""
        while chunk := await process.stderr.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_SHOWN_CHARACTERS:]
            for line in lines[-_KEPT_LINES:]:
                if text := line.decode("utf-8", "replace").strip():
                    self._tail.append(text[:_SHOWN_CHARACTERS])
        if rest.strip():
            self._tail.append(rest.decode("utf-8", "replace").strip())


def _owner_of(document: Document) -> Any:
    """The request that a message names; None for questions and log lines, which name none."""
    if "method" not in document:
        return document.get("id")
    params = document.get("params")
    if not isinstance(params, dict):
        return None
    if document["method"] == "notifications/progress":
        return params.get("progressToken")
    meta = params.get("_meta")
    return meta.get(SUBSCRIPTION_KEY) if isinstance(meta, dict) else None
