"""Runs an imported MCP server as a child program and exchanges messages over its standard streams.

Each line of standard output is one message; other output there is skipped; standard error is drained, and its
lines of the last seconds explain why a program ended. A program that floods either is read more slowly, so it
waits.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from retinue.core.errors import AgentUnreachableError
from retinue.core.json_values import MAX_DEPTH, is_nested_deeper
from retinue.core.text import hide_tokens
from retinue.mcp.codec.foreign import SUBSCRIPTION_KEY, ForeignServerFacts
from retinue.mcp.codec.messages import Message
from retinue.mcp.upstream.flood import FloodMeter
from retinue.processes.environment import select_inherited

MAX_LINE_BYTES = 32 * 1024 * 1024
STOP_WITHIN_S = 2.0
LAST_WORDS_S = 5.0
"""How long before its end a program may have printed the line that explains it."""

_KEPT_LINES = 40
_CHUNK = 65536
_SHOWN_CHARACTERS = 300
_QUEUED = 1_000
"""Messages that belong to no request and wait to be read; further ones are dropped."""

_NODE_VERSION = re.compile(r"Node\.js v\d")
_ERROR = re.compile(r"(?:Uncaught )?[\w.]*(?:Error|Exception)\b[^:]{0,40}: ")
_NPM_ERROR = re.compile(r"npm (?:error|ERR!) (?!code )(?:\S+ )?(?=\S+ )")
_BESIDE = re.compile(r"npm (?:notice|warn|WARN)\b|Node\.js v\d|at |[^a-zA-Z]*$")
"""Lines that explain no end: notes of npm, the version that Node prints last, frames of a stack, rules."""

_log = structlog.get_logger("retinue.imports")

UNREADABLE = -32603
"""The code of the error in place of a reply that cannot be read."""

_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,15}|"[A-Za-z0-9_.:-]{1,100}")')

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Pipe:
    """The reading end of a pipe, which can be left unread for a while."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @classmethod
    async def open(cls, number: int, limit: int) -> _Pipe:
        reader = asyncio.StreamReader(limit=limit)
        file = os.fdopen(number, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        return cls(reader, transport)


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
        flood: FloodMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flood = flood or FloodMeter()
        self._clock = clock
        self._name = name
        self._command = list(command)
        self._environment = select_inherited(own) | dict(environment)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._pipes: list[_Pipe] = []
        self._readers: list[asyncio.Task[None]] = []
        self._open: dict[Any, asyncio.Queue[Document | None]] = {}
        self._others: asyncio.Queue[Document | None] = asyncio.Queue(_QUEUED)
        self._tail: deque[tuple[float, str]] = deque(maxlen=_KEPT_LINES)
        """The last lines of standard error, each with the time at which it was read."""
        self._ended_at: float | None = None
        self._junk = ""
        self._fault = ""
        self._writing = asyncio.Lock()

    @property
    def place(self) -> str:
        """The command, shortened."""
        return hide_tokens(" ".join(self._command))[:100]

    @property
    def ends_with_stream(self) -> bool:
        return True

    @property
    def hint(self) -> str:
        if self.flood.reason:
            return self.flood.reason
        if self._junk:
            return f"it prints to standard output what is no message: {self._junk}"
        return f"it said: {last}" if (last := find_cause([line for _, line in self._tail])) else ""

    async def open(self) -> None:
        """Start the program. Raises AgentUnreachableError when it cannot be started."""
        output, errors = os.pipe(), os.pipe()
        try:
            self._pipes = [await _Pipe.open(output[0], MAX_LINE_BYTES), await _Pipe.open(errors[0], _CHUNK)]
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output[1],
                stderr=errors[1],
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        except OSError as error:
            cause = f"{self._command[0]} does not start: {self._explain(error)}"
            raise AgentUnreachableError(self._name, self.place, cause) from error
        finally:
            os.close(output[1])
            os.close(errors[1])
        reading = (self._read(self._process, self._pipes[0]), self._read_errors(self._pipes[1]))
        self._readers = [asyncio.create_task(work) for work in reading]

    def _explain(self, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            if self._folder is not None and not self._folder.is_dir():
                return f"its folder {self._folder} does not exist"
            if "/" not in self._command[0]:
                return "it is not on the PATH of the hub; install it, or give its full path"
        return error.strerror or str(error)

    async def exchange(self, message: Message) -> AsyncGenerator[Document, None]:
        inbox: asyncio.Queue[Document | None] = asyncio.Queue()
        self._open[message.id] = inbox
        try:
            await self._write(message.document)
            while (document := await inbox.get()) is not None:
                yield document
            raise await self._ended(sent=True)
        finally:
            self._open.pop(message.id, None)

    async def listen(self) -> AsyncGenerator[Document, None]:
        while (document := await self._others.get()) is not None:
            yield document
        raise await self._ended(sent=False)

    async def send(self, message: Message) -> None:
        await self._write(message.document)

    def agree(self, facts: ForeignServerFacts) -> None:
        return None

    async def aclose(self) -> None:
        """Close its input, then terminate and kill its process group."""
        self.flood.close()
        try:
            await self._end()
        finally:
            for pipe in self._pipes:
                pipe.transport.close()

    async def _end(self) -> None:
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
            raise await self._ended(sent=False)
        async with self._writing:
            try:
                process.stdin.write(orjson.dumps(document) + b"\n")
                await process.stdin.drain()
            except (ConnectionError, RuntimeError) as error:
                raise await self._ended(sent=False) from error

    async def _ended(self, *, sent: bool) -> AgentUnreachableError:
        if self._readers:
            # its last line may still wait to be read
            await asyncio.wait(self._readers[1:], timeout=STOP_WITHIN_S)
        code = None if self._process is None else self._process.returncode
        ended_at = self._clock() if self._ended_at is None else self._ended_at
        last = find_cause([line for read_at, line in self._tail if read_at >= ended_at - LAST_WORDS_S])
        cause = _describe_end(code) + (f": {last}" if last else "")
        return AgentUnreachableError(self._name, self.place, self._fault or cause, sent=sent)

    async def _read(self, process: asyncio.subprocess.Process, pipe: _Pipe) -> None:
        stream = pipe.reader
        try:
            while line := await stream.readline():
                if not self._sort(line):
                    await self._count("standard output", len(line), pipe)
        except ValueError:
            self._fault = f"it sent a message of more than {MAX_LINE_BYTES:,} bytes"
        if stream.at_eof():
            await process.wait()
        self._ended_at = self._clock()
        for inbox in (*self._open.values(), self._others):
            with suppress(asyncio.QueueFull):
                inbox.put_nowait(None)

    def _sort(self, line: bytes) -> bool:
        """Give a message to the request that it belongs to; False if it belongs to none."""
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            document = None
        if document is None or is_nested_deeper(line, document):
            document = self._refuse_unreadable(line, document)
        if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
            if not self._junk and (shown := hide_tokens(line.decode("utf-8", "replace").strip())):
                self._junk = shown[:_SHOWN_CHARACTERS]
                _log.warning("not a message on standard output", server=self._name, line=self._junk)
            return False
        owner = _owner_of(document)
        inbox = self._open.get(owner) if isinstance(owner, str | int) else None
        if inbox is not None:
            inbox.put_nowait(document)
            return True
        if "method" in document:
            with suppress(asyncio.QueueFull):
                self._others.put_nowait(document)
        return False

    def _refuse_unreadable(self, line: bytes, document: Any) -> Document | None:
        """An error in place of a reply that cannot be read, so that its request fails at once.

        None for any other text: a program may print what it likes.
        """
        if isinstance(document, dict):
            request_id = document.get("id")
        else:
            ids = (orjson.loads(match[1]) for match in _ID.finditer(line))
            request_id = next((own_id for own_id in ids if own_id in self._open), None)
        if not line.lstrip().startswith(b"{") or not isinstance(request_id, str | int):
            return None
        problem = (
            f"server {self._name}: its reply is no JSON that can be read, or nested over {MAX_DEPTH} levels"
        )
        return {"jsonrpc": "2.0", "id": request_id, "error": {"code": UNREADABLE, "message": problem}}

    async def _count(self, what: str, size: int, pipe: _Pipe) -> None:
        """Count the read bytes; beyond the budget, leave the rest in the program until it may be read."""
        if self.flood.count(what, size):
            pipe.transport.pause_reading()
            await self.flood.wait()
            pipe.transport.resume_reading()

    async def _read_errors(self, pipe: _Pipe) -> None:
        rest = b""
        while chunk := await pipe.reader.read(_CHUNK):
            *lines, rest = (rest + chunk).rsplit(b"\n", _KEPT_LINES + 1)
            rest = rest[-_SHOWN_CHARACTERS:]
            for line in lines[-_KEPT_LINES:]:
                if text := hide_tokens(line.decode("utf-8", "replace").strip()):
                    self._tail.append((self._clock(), text[:_SHOWN_CHARACTERS]))
            await self._count("standard error", len(chunk), pipe)
        if rest.strip():
            self._tail.append((self._clock(), hide_tokens(rest.decode("utf-8", "replace").strip())))


def find_cause(lines: Sequence[str]) -> str:
    """The line that best explains why a program ended: usually its last line; "" without any.

    npm and Node print other lines after the cause.
    """
    if (npm := next((line for line in lines if _NPM_ERROR.match(line)), None)) is not None:
        return npm
    shown = [line.lstrip("| ") for line in lines]
    if any(map(_NODE_VERSION.match, shown)):
        errors = [line for line in shown if _ERROR.match(line)]
        if errors:
            return errors[-1]
    telling = [line for line in shown if not _BESIDE.match(line)]
    return (telling or list(lines) or [""])[-1]


def _describe_end(code: int | None) -> str:
    if code is None:
        return "it ended"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with code {code}"


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
