"""A hub whose answers a test writes, on a real socket: it can stop, come back, and cut answers off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

Answer = Callable[[dict[str, Any]], Any | Awaitable[Any]]


class CutError(Exception):
    """Raised by an answer: the connection ends without a response."""


class FaultError(Exception):
    """Raised by an answer: the response is a JSON-RPC error with this message and these data."""

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data


class ScriptedHub:
    """Answers each skill of ``POST /execute`` by a function of the parameters, and keeps what came."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = asyncio.Event()
        self.connections: set[tuple[str, int]] = set()

    @property
    def skills(self) -> list[str]:
        """The skills that were called, in order."""
        return [skill for skill, _ in self.received]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.connections.add(tuple(scope["client"]))
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        request = orjson.loads(body)
        skill, params = request["method"], request.get("params") or {}
        self.received.append((skill, params))
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        answering = asyncio.ensure_future(self._answer(skill, params))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            self.cancelled.set()
            return
        leaving.cancel()
        try:
            reply["result"] = answering.result()
        except CutError:
            headers = [(b"content-length", b"100")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            return
        except FaultError as fault:
            reply["error"] = {"code": -32603, "message": str(fault), "data": fault.data}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(reply)})

    async def _answer(self, skill: str, params: dict[str, Any]) -> Any:
        answer = self.answers[skill](params)
        return await answer if asyncio.iscoroutine(answer) else answer
