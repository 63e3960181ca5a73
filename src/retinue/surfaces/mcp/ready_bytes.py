"""Lists that are written once: the bytes of a long list take the place of a mark in the answer.

The SDK would turn a thousand tools into JSON anew for each client that asks (FACTS 2, 3b: 10 ms of a
processor). A handler leaves a mark that nobody can guess, and what passes to the HTTP client has the list
in its place. On stdio, where nothing passes here, the list itself is sent.
"""

from __future__ import annotations

import secrets

from starlette.types import Message, Scope, Send

_KEY = "retinue.mcp.ready"
_MARK = f"retinue:{secrets.token_hex(16)}"
_MARK_BYTES = f'"{_MARK}"'.encode()


def leave_mark(scope: Scope, ready: bytes) -> str:
    """What stands for ``ready`` in the answer to this request."""
    scope[_KEY] = ready
    return _MARK


def fill_in(scope: Scope, send: Send) -> Send:
    """``send`` with the bytes in place of the mark, where one was left."""

    async def send_filled(message: Message) -> None:
        ready: bytes | None = scope.get(_KEY)
        if ready is not None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [_longer(one, ready) for one in message["headers"]]}
            elif message["type"] == "http.response.body":
                message = {**message, "body": message.get("body", b"").replace(_MARK_BYTES, ready)}
        await send(message)

    return send_filled


def _longer(header: tuple[bytes, bytes], ready: bytes) -> tuple[bytes, bytes]:
    name, value = header
    if name.lower() != b"content-length":
        return name, value
    return name, str(int(value) - len(_MARK_BYTES) + len(ready)).encode()
