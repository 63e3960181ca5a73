"""An MCP server over stdio for imports of teams: ``python -m tests.team.import_server LOG``.

It appends a line to the file LOG when it starts and when it ends. Its tool ``tell`` gives the variable
``VERSION`` and the id of its process; ``TOOL`` is the name of a second tool, if any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import orjson

EMPTY = {"type": "object", "properties": {}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request; None for a method that the server does not have."""
    if method == "initialize":
        info = {"name": "told", "version": os.environ["VERSION"]}
        version = params.get("protocolVersion", "2025-06-18")
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}}
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        names = ["tell", *filter(None, [os.environ.get("TOOL")])]
        return {
            "tools": [{"name": name, "description": "Who answers.", "inputSchema": EMPTY} for name in names]
        }
    if method == "resources/list":
        return {"resources": [{"uri": "note://who", "name": "who"}]}
    if method == "resources/read":
        return {"contents": [{"uri": "note://who", "text": os.environ["VERSION"]}]}
    if method == "tools/call":
        text = f"{os.environ['VERSION']} {os.getpid()}"
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


def main(log: str) -> None:
    def note(event: str) -> None:
        with Path(log).open("a", encoding="utf-8") as lines:
            lines.write(f"{event} {os.environ['VERSION']}\n")

    note("began")
    for line in sys.stdin.buffer:
        request = orjson.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params") or {})
        body = (
            {"result": result} if result is not None else {"error": {"code": -32601, "message": "no method"}}
        )
        sys.stdout.buffer.write(orjson.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + b"\n")
        sys.stdout.buffer.flush()
    note("ended")


if __name__ == "__main__":
    main(sys.argv[1])
