"""`Context.mcp`: the tools, resources and prompts of MCP servers for a running skill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Answer, Part
from retinue.core.record import Prompt, Resource, Skill
from retinue.mesh.reading import Completion, PromptText
from retinue.mesh.servers import ServerRequest

Send = Callable[[ServerRequest], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server, or an agent as one, while a skill uses it; made by `Context.mcp`.

    Every method is one further call of the skill: it counts in the budget of the chain of calls, ends with
    the caller's time, and raises a RetinueError.
    """

    name: str
    _send: Send

    async def list_tools(self) -> tuple[Skill, ...]:
        """The tools that this skill may call, with their schemas."""
        tools: tuple[Skill, ...] = await self._send(ServerRequest("tools"))
        return tools

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The value of a tool's result: its structured content, else its text, else None (`ask_tool`)."""
        return (await self.ask_tool(name, arguments)).value

    async def ask_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Answer:
        """As `call_tool`, with the content blocks of the result as ``parts``."""
        answer: Answer = await self._send(ServerRequest("call", name, dict(arguments or {})))
        return answer

    async def list_resources(self) -> tuple[Resource, ...]:
        """The resources and templates of the server; a template has variables in its ``uri``."""
        resources: tuple[Resource, ...] = await self._send(ServerRequest("resources"))
        return resources

    async def read_resource(self, uri: str) -> tuple[Part, ...]:
        """The contents of a resource; ``value`` of a part holds ``uri`` and ``text``, or base64 ``blob``."""
        parts: tuple[Part, ...] = await self._send(ServerRequest("resource", uri))
        return parts

    async def read_text(self, uri: str) -> str:
        """The texts of a resource, joined by line ends; contents without a text are left out."""
        parts = await self.read_resource(uri)
        return "\n".join(part.value["text"] for part in parts if "text" in part.value)

    async def list_prompts(self) -> tuple[Prompt, ...]:
        """The prompts of the server."""
        prompts: tuple[Prompt, ...] = await self._send(ServerRequest("prompts"))
        return prompts

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> PromptText:
        """A prompt with its arguments inserted."""
        prompt: PromptText = await self._send(ServerRequest("prompt", name, dict(arguments or {})))
        return prompt

    async def complete(
        self, name: str, argument: str, value: str, *, given: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Values for one argument of a prompt or of a template, which its URI names; ``value`` is typed."""
        request = ServerRequest("completion", name, dict(given or {}), argument, value)
        completion: Completion = await self._send(request)
        return completion.values
