"""An MCP server over HTTP that sends without end.

``python -m tests.mcp.upstream.flooding_http_server WHAT FILE`` prints its url. It has the tools ``echo``, and
``chat`` that floods its own answer. Until FILE exists it floods the stream of its changes, or the answer to
the first request. ``WHAT`` is a key of `PIECES`.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

HUGE_BYTES = 100_000_000
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("echo", "chat")]
MODERN = "2026-07-28"


def event(method: str, **more: Any) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode() + b"\n\n"


NEWS = event("notifications/tools/list_changed")
PIECES = {
    "news": NEWS,
    "subscription": NEWS,
    "log lines": event("notifications/message", params={"level": "info", "data": "working " * 10}),
    "updates": event("notifications/resources/updated", params={"uri": "note://one"}),
    "comments": b":\n\n",
    "comment lines": b": still there\n",
    "one event": b"data: " + b"x" * HUGE_BYTES,
    "questions": event("ping", id=1),
    "questions without end": event("ping", id=1),
    "odd ids": event("ping", id=[1]),
    "start": b": starting\n\n",
    "answer": event("notifications/message", params={"level": "info", "data": "chat " * 20}),
}
"""What each flood consists of."""


class Flooding(BaseHTTPRequestHandler):
    """Answers to one connection."""

    protocol_version = "HTTP/1.1"
    what: ClassVar[str]
    stop: ClassVar[Path]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Print nothing."""

    def do_GET(self) -> None:
        """The stream of changes of a session."""
        if self.what in ("subscription", "answer", "end of a session"):
            self._answer(405, b"")
        else:
            self._flood(PIECES[self.what])

    def do_DELETE(self) -> None:
        if self.what == "end of a session":
            threading.Event().wait()  # it is never answered
        self._answer(200, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = asked.get("method"), asked.get("params") or {}
        if "id" not in asked or method is None:
            if self.what == "questions without end" and method is None:
                threading.Event().wait()  # the answer to a question is never acknowledged
            self._answer(202, b"")
        elif method == "subscriptions/listen":
            self._flood(PIECES[self.what])
        elif method == "initialize" and self.what == "start" and not self.stop.exists():
            self._flood(PIECES["start"])
        elif method == "tools/call" and params["name"] == "chat":
            self._flood(PIECES["answer"])
        elif (result := self._result(method, params)) is None:
            self._reply(asked, {"error": {"code": -32601, "message": "Method not found"}})
        else:
            self._reply(asked, {"result": {**result, "resultType": "complete"}})

    def _result(self, method: str, params: Any) -> dict[str, Any] | None:
        is_modern = self.what == "subscription"
        info = {"serverInfo": {"name": "flooding", "version": "1.0.0"}}
        offers = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
        match method:
            case "initialize" if not is_modern:
                return {**info, "protocolVersion": "2025-11-25", "capabilities": offers}
            case "server/discover" if is_modern:
                return {**info, "supportedVersions": [MODERN], "capabilities": {"tools": offers["tools"]}}
            case "tools/list":
                return {"tools": TOOLS}
            case "resources/list":
                return {"resources": [{"uri": "note://one", "name": "one"}]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "tools/call":
                return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
            case _:
                return None

    def _reply(self, asked: Any, outcome: dict[str, Any]) -> None:
        self._answer(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], **outcome}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", "one")
        self.end_headers()
        self.wfile.write(body)

    def _flood(self, piece: bytes) -> None:
        """Send pieces until the file exists, then nothing; the stream stays open until the client goes."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        block = piece * max(1, 65536 // len(piece))
        try:
            while not self.stop.exists():
                self.wfile.write(block)
            self.connection.recv(1)
        except ConnectionError:
            return


def main(what: str, stop: str) -> None:
    """Serve until the program is ended."""
    Flooding.what, Flooding.stop = what, Path(stop)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flooding)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}/mcp", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
