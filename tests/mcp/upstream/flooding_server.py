"""An MCP server that sends without end: ``python -m tests.mcp.upstream.flooding_server WHAT [FILE]``.

It answers with one tool, ``echo``. Until FILE exists it floods, in threads of its own: ``stderr``, ``junk``
on standard output, or ``news`` that its tools have changed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

ECHO = {
    "name": "echo",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
NEWS = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
LINES = {"stderr": "warning " * 100, "junk": "Server listening! " * 50, "news": json.dumps(NEWS)}


def flood(what: str, stop: Path | None, writing: threading.Lock) -> None:
    """Write the same lines until the file exists."""
    target, piece = (sys.stderr if what == "stderr" else sys.stdout), f"{LINES[what]}\n" * 20
    while stop is None or not stop.exists():
        with writing:
            target.write(piece)
            target.flush()


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request."""
    if method == "initialize":
        tools = {"tools": {"listChanged": True}}
        info = {"name": "flooding", "version": "1.0.0"}
        return {"serverInfo": info, "protocolVersion": "2025-11-25", "capabilities": tools}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    return {"tools": [ECHO]}


def main(what: str, stop: Path | None) -> None:
    """Answer to the end of standard input."""
    # standard error has a lock of its own: a program that waits there goes on answering
    writing = threading.Lock()
    threading.Thread(
        target=flood, args=(what, stop, threading.Lock() if what == "stderr" else writing), daemon=True
    ).start()
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            result = answer(asked["method"], asked.get("params") or {})
            text = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
            with writing:
                print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None)
