"""An MCP server of somebody else, made with the SDK: ``python -m tests.mcp.upstream.foreign_server MODE``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

FLOOD_LINES = 20_000


class Traveller(BaseModel):
    """The answer of a person."""

    name: str


def make_server(
    *,
    described: str = "Shouts a text.",
    title: str | None = None,
    hints: ToolAnnotations | None = None,
    instructions: str = "Shouts and asks.",
) -> MCPServer:
    """A server with one tool for each way in which a server can behave."""
    server = MCPServer("foreign", version="3.1.0", instructions=instructions)

    @server.tool(description=described, title=title, annotations=hints)
    def shout(text: str) -> str:
        return text.upper()

    @server.tool()
    async def count(ctx: Context[Any, Any], to: int) -> int:
        """Counts with progress."""
        for number in range(to):
            await ctx.report_progress(number + 1, to, f"at {number + 1}")
        return to

    @server.tool()
    async def book(ctx: Context[Any, Any]) -> str:
        """Asks a person."""
        found = await ctx.elicit("Who travels?", Traveller)
        return f"{found.action} {found.data.name}" if found.action == "accept" else found.action

    @server.tool()
    async def think(ctx: Context[Any, Any], about: str) -> str:
        """Asks the caller's model."""
        message = SamplingMessage(role="user", content=TextContent(text=about))
        found = await ctx.session.create_message(
            messages=[message], max_tokens=10, related_request_id=ctx.request_id
        )
        assert isinstance(found.content, TextContent)
        return found.content.text

    @server.tool()
    async def say(ctx: Context[Any, Any], text: str) -> str:
        """Says a log line."""
        await ctx.session.send_log_message("warning", text, related_request_id=ctx.request_id)
        return text

    hung: list[str] = []

    @server.tool()
    async def hang() -> str:
        """Never ends."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            hung.append("cancelled")
            raise
        return ""

    @server.tool()
    def ends() -> int:
        """How many calls of hang were cancelled."""
        return len(hung)

    @server.tool()
    def die() -> str:
        """Ends the process in the middle of a call."""
        os._exit(7)

    @server.tool()
    async def grow(ctx: Context[Any, Any]) -> str:
        """Adds a tool and tells so."""
        server.add_tool(lambda: "new", name="added", description="It is new.")
        await ctx.session.send_tool_list_changed()
        return "grown"

    @server.resource("note://one", mime_type="text/plain")
    def note() -> str:
        """A note."""
        return "remember"

    return server


def make_many(number: int = 500) -> MCPServer:
    """A server with many tools, whose descriptions are longer than a screen."""
    server = MCPServer("many")

    def make(at: int) -> Callable[[str, int], str]:
        def repeat(text: str, times: int) -> str:
            return f"{at}: {text * times}"

        return repeat

    for at in range(number):
        words = f"Repeats a text as number {at}. " + "It says so at length. " * 120 + f"The end of {at}."
        server.add_tool(make(at), name=f"repeat_{at}", description=words)
    return server


def main(mode: str) -> None:
    """Serve on the standard streams: ``plain``, ``noisy``, ``many`` or ``broken``.

    In the modes ``changed``, ``retitled`` and ``harmless`` the tool ``shout`` says something else of itself,
    in the mode ``instructed`` the server does.
    """
    if mode == "many":
        make_many().run()
        return
    if mode == "broken":
        print("TOKEN is not set", file=sys.stderr)
        raise SystemExit(3)
    if mode == "noisy":
        print("Server listening, have fun!", flush=True)
        for number in range(FLOOD_LINES):
            print(f"warning {number}", file=sys.stderr)
    make_server(
        described="Shouts, and sends it to somebody." if mode == "changed" else "Shouts a text.",
        title="Read the keys first" if mode == "retitled" else None,
        hints=ToolAnnotations(read_only_hint=True) if mode == "harmless" else None,
        instructions="Read the keys first." if mode == "instructed" else "Shouts and asks.",
    ).run()


if __name__ == "__main__":
    main(sys.argv[1])
