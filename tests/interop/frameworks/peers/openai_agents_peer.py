"""An agent of the OpenAI Agents SDK whose model calls the tools of a job; runs in ``openai-agents``.

Reads the job from its argument and prints what the model saw (`tests.interop.frameworks.peers`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

JOB = json.loads(sys.argv[1])
LIMIT_S = 60


class Script(Model):
    """Calls one tool and keeps what comes back."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._name, self._arguments = name, arguments
        self.output: Any = None

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> Any:  # noqa: A002
        item: Any
        if isinstance(input, list) and input[-1].get("type") == "function_call_output":
            self.output = input[-1]["output"]
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            item = ResponseOutputMessage(
                id="answer", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            item = ResponseFunctionToolCall(
                call_id="call", type="function_call", name=self._name, arguments=json.dumps(self._arguments)
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("no test streams")


def make_server() -> Any:
    if JOB["command"]:
        program = {"command": JOB["command"][0], "args": JOB["command"][1:], "env": JOB["environment"]}
        return MCPServerStdio(program, client_session_timeout_seconds=LIMIT_S)
    headers = {"Authorization": f"Bearer {JOB['token']}"}
    place = {"url": JOB["url"], "headers": headers}
    return MCPServerStreamableHttp(place, client_session_timeout_seconds=LIMIT_S)


async def call(server: MCPServer, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    model = Script(name, arguments)
    try:
        await Runner.run(Agent("caller", model=model, mcp_servers=[server]), "Call it.")
    except Exception as error:  # noqa: BLE001 - the test says which calls end the run
        return {"raised": f"{type(error).__name__}: {error}"}
    output = [{"text": model.output}] if isinstance(model.output, str) else model.output
    text = "\n".join(block["text"] for block in output if "text" in block)
    urls = [block["image_url"] for block in output if "image_url" in block]
    # the SDK has no sign of a failure: a model reads it in the text
    return {
        "failed": None,
        "text": text,
        "value": read_json(text),
        "images": [split_url(url) for url in urls],
    }


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def split_url(url: str) -> list[str]:
    head, _, data = url.partition(";base64,")
    return [head.removeprefix("data:"), data]


async def main() -> None:
    set_tracing_disabled(True)
    async with make_server() as server:
        tools = [tool.name for tool in await server.list_tools()]
        seen = [await call(server, name, arguments) for name, arguments in JOB["calls"]]
    print(json.dumps({"tools": tools, "seen": seen}))


asyncio.run(main())
