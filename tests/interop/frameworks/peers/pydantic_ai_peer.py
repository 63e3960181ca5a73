"""A pydantic-ai agent whose model calls the tools of a job; runs in the environment ``pydantic-ai``.

Reads the job from its argument and prints what the model saw (`tests.interop.frameworks.peers`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from pydantic_ai import (
    Agent,
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import AgentInfo, FunctionModel

JOB = json.loads(sys.argv[1])


def make_toolset() -> MCPToolset[Any]:
    async def answer(message: str, form: Any, params: Any, context: Any) -> Any:
        return form(answer=JOB["answer"])

    if JOB["command"]:
        transport: Any = StdioTransport(JOB["command"][0], JOB["command"][1:], env=JOB["environment"])
    else:
        transport = StreamableHttpTransport(JOB["url"], auth=JOB["token"])
    return MCPToolset(
        transport,
        tool_error_behavior="failed",
        init_timeout=60,  # of 5 s: a server starts slowly while other tests run
        elicitation_handler=None if JOB["answer"] is None else answer,
    )


async def call(toolset: MCPToolset[Any], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(name, arguments)])
        return ModelResponse(parts=[TextPart("done")])

    try:
        result = await Agent(FunctionModel(script), toolsets=[toolset]).run("Call it.")
    except Exception as error:  # noqa: BLE001 - the test says which calls end the run
        return {"raised": f"{type(error).__name__}: {error}"}
    parts: list[Any] = [part for message in result.all_messages() for part in message.parts]
    (part,) = [part for part in parts if isinstance(part, ToolReturnPart)]
    pieces = part.content if isinstance(part.content, list) else [part.content]
    images = [piece for piece in pieces if isinstance(piece, BinaryContent)]
    return {
        "failed": part.outcome != "success",
        "text": "\n".join(piece for piece in pieces if isinstance(piece, str)),
        "value": None if images else part.content,
        "images": [[image.media_type, base64.b64encode(image.data).decode()] for image in images],
    }


async def main() -> None:
    toolset = make_toolset()
    async with toolset:
        tools = [tool.name for tool in await toolset.list_tools()]
        seen = [await call(toolset, name, arguments) for name, arguments in JOB["calls"]]
    print(json.dumps({"tools": tools, "seen": seen}))


asyncio.run(main())
