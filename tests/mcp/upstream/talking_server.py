"""An MCP server on standard streams that says what it is told to: ``python -m …talking_server MESSAGES``.

MESSAGES is a JSON list. The tool ``talk`` prints them, then answers; ``hold`` answers when ``let_go`` is
called, so that several calls are in flight meanwhile.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("talk", "hold", "let_go")]


def show(document: Any) -> None:
    print(json.dumps(document), flush=True)


def reply(request_id: Any, result: dict[str, Any]) -> None:
    show({"jsonrpc": "2.0", "id": request_id, "result": result})


def main(messages: list[Any]) -> None:
    """Answer to the end of standard input."""
    held: list[Any] = []
    done = {"content": [{"type": "text", "text": "done"}]}
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        if asked["method"] == "initialize":
            offers: dict[str, Any] = {"tools": {}, "logging": {}}
            info = {"serverInfo": {"name": "talking", "version": "1"}, "protocolVersion": "2025-11-25"}
            reply(asked["id"], {**info, "capabilities": offers})
        elif asked["method"] != "tools/call":
            reply(asked["id"], {"tools": TOOLS} if asked["method"] == "tools/list" else {})
        elif asked["params"]["name"] == "hold":
            held.append(asked["id"])
        else:
            if asked["params"]["name"] == "talk":
                for message in messages:
                    show(message)
            else:
                while held:
                    reply(held.pop(), done)
            reply(asked["id"], done)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
