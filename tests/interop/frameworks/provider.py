"""A loopback server that speaks two interfaces of OpenAI by a script: one call of a tool, then an answer.

It stands for the model where the programs of the guide have the class of a real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

TOOL = "plan-agent__create_plan"
ARGUMENTS = json.dumps({"requirements": "write tests for textwrap"})
ANSWER = "Begin so: as the plan says"


class _Provider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = _respond(body) if self.path == "/v1/responses" else _complete(body)
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, *arguments: Any) -> None:
        """Nothing: pytest shows what a test prints."""


def _respond(body: dict[str, Any]) -> dict[str, Any]:
    """A response of ``/v1/responses``."""
    assert TOOL in [tool["name"] for tool in body["tools"]]
    items = body["input"] if isinstance(body["input"], list) else []
    outputs = [item for item in items if item.get("type") == "function_call_output"]
    if outputs:
        assert "textwrap" in json.dumps(outputs[-1]["output"])
        text = {"type": "output_text", "text": ANSWER, "annotations": []}
        item = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    else:
        item = {"id": "f", "type": "function_call", "call_id": "c", "name": TOOL, "arguments": ARGUMENTS}
    return {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": body["model"],
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _complete(body: dict[str, Any]) -> dict[str, Any]:
    """A response of ``/v1/chat/completions``."""
    assert TOOL in [tool["function"]["name"] for tool in body["tools"]]
    last = body["messages"][-1]
    message: dict[str, Any]
    if last["role"] == "tool":
        assert "textwrap" in json.dumps(last["content"])
        message, reason = {"role": "assistant", "content": ANSWER}, "stop"
    else:
        call = {"id": "c", "type": "function", "function": {"name": TOOL, "arguments": ARGUMENTS}}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {
        "id": "r",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }


@contextmanager
def run_provider() -> Iterator[str]:
    """The base URL of a server that runs meanwhile."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Provider) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
