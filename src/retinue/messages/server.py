"""``POST /messages``: one envelope in the request body, the reply in the response.

The status is 200, or 202 when a further reply follows (TASK_ACCEPT, SUBSCRIBE). An unreadable message is
answered with NOT_UNDERSTOOD and 200. The header ``Prefer: respond-async`` asks for TASK_ACCEPT at once,
``Prefer: wait=N`` sets how many seconds to wait for the result of a task (RFC 7240).
"""

from __future__ import annotations

import re

import orjson
from starlette.types import Receive, Scope, Send

from retinue.core.call import MAX_KEY_LENGTH
from retinue.messages.codec.envelope import NotUnderstoodError, read_json, render_envelope, reply_to
from retinue.messages.codec.payloads import not_understood
from retinue.messages.exchange import MessageReply
from retinue.messages.receiver import Receiver, unread
from retinue.web.codec.trace import parse_raw_trace_headers
from retinue.web.disconnect import CancelOnDisconnect, read_body
from retinue.web.security import Headers, identity_of

MAX_WAIT_S = 300.0

_WAIT = re.compile(r"\bwait\s*=\s*\"?(\d{1,6})")


class MessagesEndpoint:
    """The endpoint as an ASGI app, for the receiver's agent or the one that ``{agent}`` in the path names."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = identity_of(scope)
        body = await read_body(receive)
        if body is None:
            return
        agent = scope.get("path_params", {}).get("agent")
        with CancelOnDisconnect(receive):
            try:
                message = read_json(body)
            except NotUnderstoodError as error:
                reply = not_understood(error.reason_code, error.text)
                sender = self._receiver.own if agent is None else agent
                envelope = reply_to(unread(), reply.performative, reply.payload, sender=sender)
                answer = MessageReply(render_envelope(envelope))
            else:
                answer = await self._receiver.answer(
                    message,
                    identity,
                    parse_raw_trace_headers(identity.headers),
                    agent=agent,
                    wait_s=_read_wait(identity.headers),
                    idempotency_key=_read_key(identity.headers),
                )
            await _send(send, answer)


async def _send(send: Send, answer: MessageReply) -> None:
    body = orjson.dumps(answer.message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    status = 202 if answer.later else 200
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read_wait(headers: Headers) -> float | None:
    """The preference of a request; None where it has none."""
    prefer = headers.get(b"prefer", b"").decode("latin-1").lower()
    if match := _WAIT.search(prefer):
        return min(float(match[1]), MAX_WAIT_S)
    return 0.0 if "respond-async" in prefer else None


def _read_key(headers: Headers) -> str | None:
    """The idempotency key; a key that is too long is ignored, because a message has no status for it."""
    key = headers.get(b"idempotency-key", b"").decode("latin-1")
    return key if 0 < len(key) <= MAX_KEY_LENGTH else None
