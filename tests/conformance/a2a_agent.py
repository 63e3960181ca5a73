"""The agent of the A2A TCK: ``python -m tests.conformance.a2a_agent PORT [strict]``.

The TCK says by the prefix of a message's id what the agent is to do. The agent is an ordinary one with one
skill that takes the id. A message of the TCK names neither a skill nor arguments, so `NameTheSkill` adds to
its metadata what any client of Retinue writes there. The TCK sends equal messages under one id in different
tests, which would get the task of the first, so each is numbered.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue import Agent, Context
from retinue.core.call import Part
from retinue.parts.opening import open_parts
from retinue.runtime.agent_core import open_agent
from retinue.runtime.launch import Start
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.protocols import A2aPart, CardPart, ExecutePart, ProbesPart, RestPart
from retinue.runtime.run_process import make_checks
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.disconnect import read_body, replay
from tests.serving import serve_app

agent = Agent("tck", version="1.0.0", description="Does what the prefix of a message's id says")

RESUBSCRIBE_S = 4.0
"""Twice the TCK's own time limit of a stream."""

ANSWERS: dict[str, Callable[[], Any]] = {
    "tck-complete-task": lambda: "Hello from TCK",
    "tck-artifact-text": lambda: "Generated text content",
    "tck-artifact-file-url": lambda: Part.link("https://example.com/output.txt", "output.txt"),
    "tck-artifact-file": lambda: _file(b"tck"),
    "tck-artifact-data": lambda: {"key": "value", "count": 42},
    "tck-message-response": lambda: "Direct message response",
    "tck-stream-artifact-text": lambda: "Streamed text content",
    "tck-stream-artifact-file": lambda: _file(b"tck"),
    "tck-stream-artifact-chunked": lambda: "chunk-1 chunk-2",
    "tck-stream-001": lambda: "Stream hello from TCK",
    "tck-stream-003": lambda: "Stream task lifecycle",
    "tck-stream-ordering-001": lambda: "Ordered output",
}
"""Prefix of the message's id → the result; the first that fits counts."""

QUESTION = {"type": "object", "properties": {"scenario": {"type": "string"}}, "required": ["scenario"]}


def _file(content: bytes) -> Part:
    return Part("file", base64.b64encode(content).decode(), "text/plain", "output.txt")


@agent.skill
async def conform(scenario: str, ctx: Context, files: list[dict[str, Any]] | None = None) -> Any:
    """Answer as the TCK's scenarios say."""
    message_id = scenario
    while message_id.startswith("tck-input-required"):
        message_id = (await ctx.elicit("What now?", QUESTION))["scenario"]
    if message_id.startswith("tck-reject-task"):
        raise ValueError("rejected")
    if message_id.startswith("test-resubscribe-message-id"):
        await ctx.progress(0.0, "waiting")
        await asyncio.sleep(RESUBSCRIBE_S)
    if message_id.startswith("tck-stream"):
        await ctx.progress(0.5, "working")
    fitting = (answer for prefix, answer in ANSWERS.items() if message_id.startswith(prefix))
    answer = next(fitting, None)
    return f"no scenario for {message_id}" if answer is None else answer()


class NameTheSkill:
    """ASGI middleware that adds the message's id to the arguments in its metadata."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = _name_skill(await read_body(receive) or b"")
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        request: Message = {"type": "http.request", "body": body, "more_body": False}
        await self._app(scope, replay(request, receive), send)


_NUMBERS = itertools.count(1)


def _name_skill(body: bytes) -> bytes:
    try:
        request = orjson.loads(body)
        message = request["params"]["message"]
        message_id = message["messageId"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body
    call = {"skill": "conform", "arguments": {"scenario": message_id}}
    message["metadata"] = {**call, "number": next(_NUMBERS)}
    if message_id.startswith("tck-message-response"):
        message["metadata"]["reply"] = "message"
    return orjson.dumps(request)


STRICT = {"private_push_urls": True, "legacy_cards": False}
"""The TCK's receiver of push notifications is on this machine, and it asks for no version of the card, whose
schema of 1.0 refuses the keys that clients of 0.3 read.
"""


async def serve(port: int, home: Path, *, strict: bool) -> None:
    """Serve until cancelled, with the default settings unless ``strict``."""
    settings = Settings(a2a=STRICT) if strict else Settings()
    state = State(home)
    state.prepare()
    url = f"http://127.0.0.1:{port}"
    start = Start(settings, state, print, Stop(), url, url)
    parts = [ExecutePart(), MessagesPart(), A2aPart(), CardPart(), RestPart(), ProbesPart()]
    async with (
        open_agent("agent", Target(agent, ()), None, start) as process,
        open_parts(process, parts) as opened,
    ):
        app = make_checks(process, opened, "127.0.0.1")
        async with serve_app(NameTheSkill(app), port=port):
            print(f"serving {url}", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), Path(folder) / "home", strict=sys.argv[2:] == ["strict"]))
