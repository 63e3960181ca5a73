"""An MCP server on standard streams whose tool ``nest`` replies with lists within lists: LEVELS of them."""

from __future__ import annotations

import json
import sys

from tests.mcp.upstream.talking_server import reply

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("nest", "plain")]


def main(levels: int) -> None:
    """Answer to the end of standard input."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        if asked["method"] == "initialize":
            info = {"serverInfo": {"name": "nesting", "version": "1"}, "protocolVersion": "2025-11-25"}
            reply(asked["id"], {**info, "capabilities": {"tools": {}}})
        elif asked["method"] == "tools/list":
            reply(asked["id"], {"tools": TOOLS})
        elif asked["params"]["name"] == "plain":
            reply(asked["id"], {"content": [{"type": "text", "text": "done"}]})
        else:
            nested = "[" * levels + "]" * levels
            request_id = json.dumps(asked["id"])
            print(
                f'{{"result":{{"structuredContent":{{"x":{nested}}},"content":[]}},"id":{request_id},'
                '"jsonrpc":"2.0"}',
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
