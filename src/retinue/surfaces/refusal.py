"""The answer of whoever stands before a door, in the form of that door, in place of the door's own."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
from starlette.types import Message, Receive, Scope, Send

from retinue.core.errors import RetinueError
from retinue.protocols.jsonrpc import render_error
from retinue.surfaces.faults import execute_fault, rest_fault

REGISTRY_PATH = "/v2/"
REGISTRY_CHALLENGE = 'Basic realm="retinue"'
"""How registry clients are told to send the token: as a password, for that is what they know."""

_LINGER_BYTES = 64 * 1024 * 1024
_LINGER_S = 5.0


class Refusal:
    """One answer in place of the door's, given before the client has ended sending if need be."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self.given = False

    async def send_unless_given(self, message: Message) -> None:
        if not self.given:
            self._started = True
            await self._send(message)

    async def answer(self, error: RetinueError, *, drain: bool, challenge: str | None = None) -> None:
        """Send the answer; with ``drain`` go on reading for a while, so that a client which reads only
        after it has sent everything finds the answer and not a reset connection."""
        self.given = True
        if self._started:
            return
        fault = rest_fault(error)
        if self._scope["path"].endswith("/execute"):
            body = render_error(None, *execute_fault(error))
        else:
            body = orjson.dumps(fault.body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        told = dict(fault.headers)
        if is_registry(self._scope["path"]):
            challenge = REGISTRY_CHALLENGE if "www-authenticate" in told else None
        if challenge is not None:
            told["www-authenticate"] = challenge
        headers += [(name.encode(), value.encode()) for name, value in told.items()]
        if drain:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": drain})
        if drain:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self) -> None:
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return


def is_registry(path: str) -> bool:
    """Whether a path is of the door at which registry clients ask."""
    return path.startswith(REGISTRY_PATH) or path == REGISTRY_PATH.rstrip("/")
