"""A LangGraph agent whose model calls the tools of a job.

Reads the job from its argument and prints what the model saw (`tests.interop.frameworks.peers`). The tools
come from ``langchain.mcp``, or with ``adapters`` as second argument from ``langchain-mcp-adapters``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

JOB = json.loads(sys.argv[1])


class Script(BaseChatModel):
    """Calls one tool."""

    name_of_tool: str
    arguments: dict[str, Any]

    _llm_type = "script"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        called = ToolCall(name=self.name_of_tool, args=self.arguments, id="call")
        is_done = isinstance(messages[-1], ToolMessage)
        message = AIMessage("done") if is_done else AIMessage("", tool_calls=[called])
        return ChatResult(generations=[ChatGeneration(message=message)])


async def list_tools() -> list[Any]:
    if sys.argv[2:] == ["adapters"]:
        return await list_adapted_tools()
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport
    from langchain.mcp import MCPAdapter

    if JOB["command"]:
        program = StdioTransport(JOB["command"][0], JOB["command"][1:], env=JOB["environment"])
        client: Any = Client(program)
    else:
        client = Client(JOB["url"], auth=JOB["token"])
    tools: list[Any] = await MCPAdapter(client).list_tools()
    return tools


async def list_adapted_tools() -> list[Any]:
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from mcp.types import ElicitResult

    async def answer(context: Any, params: Any, caller: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": JOB["answer"]})

    place: dict[str, Any]
    if JOB["command"]:
        place = {"transport": "stdio", "command": JOB["command"][0], "args": JOB["command"][1:]}
        place["env"] = JOB["environment"]
    else:
        headers = {"Authorization": f"Bearer {JOB['token']}"}
        place = {"transport": "streamable_http", "url": JOB["url"], "headers": headers}
    callbacks = None if JOB["answer"] is None else Callbacks(on_elicitation=answer)
    tools: list[Any] = await MultiServerMCPClient({"mesh": place}, callbacks=callbacks).get_tools()
    return tools


async def call(tools: list[Any], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    model = Script(name_of_tool=name, arguments=arguments)
    agent = create_agent(model, tools, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "thread"}}
    try:
        result = await agent.ainvoke({"messages": [{"role": "user", "content": "Call it."}]}, thread)
        while "__interrupt__" in result:
            (question,) = result["__interrupt__"]
            keys = [request["key"] for request in question.value["requests"]]
            accepted = {"action": "accept", "content": {"answer": JOB["answer"]}}
            answers = {"responses": dict.fromkeys(keys, accepted)}
            result = await agent.ainvoke(Command(resume=answers), thread)
    except Exception as error:  # noqa: BLE001 - the test says which calls end the run
        return {"raised": f"{type(error).__name__}: {error}"}
    (message,) = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    value = (message.artifact or {}).get("structured_content", message.text)
    if isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    images = [block for block in message.content if isinstance(block, dict) and block["type"] == "image"]
    return {
        "failed": message.status == "error",
        "text": message.text,
        "value": value,
        "images": [[image["mime_type"], image["base64"]] for image in images],
    }


async def main() -> None:
    tools = await list_tools()
    seen = [await call(tools, name, arguments) for name, arguments in JOB["calls"]]
    print(json.dumps({"tools": [tool.name for tool in tools], "seen": seen}))


asyncio.run(main())
