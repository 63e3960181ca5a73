"""Images, sounds and files as results: endpoints, relays, imports, runs (specification 7.17)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from click.testing import CliRunner
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.cli.program import program
from retinue.core.call import Answer, Part
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.storage.state import State
from tests.a2a.foreign_agent import Executor, app_of, card_of
from tests.mcp.clients import connect
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Hub, System, Wire, open_system

SDK = ServerRequestContext[Any, Any]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20)
PNG_TEXT, WAV_TEXT = base64.b64encode(PNG).decode(), base64.b64encode(WAV).decode()
IMAGE = {"kind": "image", "mime_type": "image/png", "name": None, "size": len(PNG), "data": PNG_TEXT}
SOUND = {"kind": "audio", "mime_type": "audio/wav", "name": None, "size": len(WAV), "data": WAV_TEXT}

pytestmark = pytest.mark.timeout(600)


def make_painter() -> Agent:
    agent = Agent("painter", version="1.0.0")

    @agent.skill(expose=True)
    async def draw() -> Part:
        """Draws a picture."""
        return Part.image(PNG)

    @agent.skill(expose=True)
    async def explain() -> list[Part | str]:
        """Draws a picture and says what it shows."""
        return ["a house", Part.image(PNG)]

    @agent.skill(expose=True)
    async def measure() -> Answer:
        """Draws a picture and gives its size."""
        return Answer({"width": 3}, parts=(Part.image(PNG),))

    @agent.skill(expose=True)
    async def link() -> Part:
        """Links to a picture."""
        return Part.link("https://example.org/a.png", "a picture", "image/png")

    @agent.skill(expose=True)
    async def large(size: int) -> Part:
        """Draws a picture of so many bytes."""
        return Part.image(bytes(size))

    return agent


class LateApp:
    """An app that is made once its address is known."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Studio:
    """An MCP server of somebody else, whose tools give a sound, and an image after a text."""

    def __init__(self) -> None:
        self.server: Server[Any] = Server("studio", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, context: SDK, params: Any) -> types.ListToolsResult:
        names = ("sing", "photograph", "document")
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names]
        )

    async def _call(self, context: SDK, params: types.CallToolRequestParams) -> types.CallToolResult:
        content: list[Any] = [types.AudioContent(data=WAV_TEXT, mime_type="audio/wav")]
        if params.name == "photograph":
            content = [
                types.TextContent(text="a cat"),
                types.ImageContent(data=PNG_TEXT, mime_type="image/png"),
            ]
        elif params.name == "document":
            page = types.TextResourceContents(
                uri="file:///a/page.html", mime_type="text/html", text="<b>é</b>"
            )
            content = [types.EmbeddedResource(resource=page)]
        return types.CallToolResult(content=content)


@pytest.fixture
async def hub(retinue_home: Path) -> AsyncIterator[Hub]:
    """A hub with the painter and the imported studio."""
    async with open_system(State(retinue_home)) as system:
        yield await start(system)


async def start(system: System) -> Hub:
    app = Studio().server.streamable_http_app()
    url = await system.stack.enter_async_context(serve_app(app)) + "/mcp"
    system.settings = Settings(imports=ImportsTable.model_validate({"studio": ImportTable(url=url)}))
    hub = await system.start_hub(dashboard=True)
    await system.start_agent(make_painter())
    await hub.mesh.directory.refresh()
    await hub.wait_until_healthy("studio")
    return hub


async def execute(wire: Wire, url: str, skill: str, arguments: Any = None) -> tuple[Any, Any]:
    """The result of a call over /execute, and the parts beside it."""
    reply = await wire.call(url, skill, arguments or {})
    assert "error" not in reply.json, reply.json
    return reply.result, reply.json.get("retinue/parts")


async def retinue(*arguments: str) -> tuple[str, str]:
    """What a command prints on standard output and on standard error, without the log of the hub."""
    result = await asyncio.to_thread(CliRunner().invoke, program, arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("level=")), result.stderr


@requirement("S-11")
async def test_execute_gives_the_value_else_the_text_else_the_parts(hub: Hub, wire: Wire) -> None:
    """Agent and hub give the same reply; a result without parts has no further member."""
    agent = hub.mesh.directory.find("painter")
    assert agent is not None
    assert agent.url is not None
    for url in (agent.url, hub.url, f"{hub.url}/agents/painter"):
        assert await execute(wire, url, "draw") == ({"parts": [IMAGE]}, [IMAGE])
        assert await execute(wire, url, "explain") == ("a house", [IMAGE])
        assert await execute(wire, url, "measure") == ({"width": 3}, [IMAGE])
        linked = {"kind": "resource", "mime_type": "image/png", "name": "a picture", "size": None}
        linked["url"] = "https://example.org/a.png"
        assert await execute(wire, url, "link") == ({"parts": [linked]}, [linked])
    reply = await wire.call(hub.url, "list_agents", {})
    assert set(reply.json) == {"jsonrpc", "result", "id"}


@requirement("S-16")
async def test_parts_of_an_imported_server_pass_every_endpoint(hub: Hub, wire: Wire) -> None:
    assert await execute(wire, hub.url, "sing") == ({"parts": [SOUND]}, [SOUND])
    assert await execute(wire, hub.url, "photograph") == ("a cat", [IMAGE])
    result, beside = await execute(wire, hub.url, "document")
    page = {"kind": "resource", "mime_type": "text/html", "name": None, "size": 9}
    page |= {"data": base64.b64encode("<b>é</b>".encode()).decode(), "url": "file:///a/page.html"}
    assert (result, beside) == ({"parts": [page]}, [page])
    async with connect(f"{hub.url}/mcp") as client:
        for tool, arguments in (
            ("studio__photograph", {}),
            ("call_skill", {"skill": "photograph"}),
        ):
            called = await client.call_tool(tool, arguments)
            assert [block.type for block in called.content] == ["text", "image"], tool
            assert called.structured_content is None
        drawn = await client.call_tool("call_skill", {"skill": "draw"})
        assert [block.type for block in drawn.content] == ["image"]


async def test_files_of_an_imported_a2a_agent_are_results(system: System, wire: Wire, tmp_path: Path) -> None:
    later = LateApp()
    url = await system.stack.enter_async_context(serve_app(later))
    later.app = app_of(card_of(f"{url}/a2a"), Executor())
    system.settings = Settings(imports=ImportsTable.model_validate({"sketches": ImportTable(a2a=url)}))
    hub = await system.start_hub()
    await hub.wait_until_healthy("sketches")
    image = IMAGE | {"size": 3, "data": "cG5n"}
    result, beside = await execute(wire, f"{hub.url}/agents/sketches", "mixed", {"prompt": "see"})
    assert (result, beside) == ({"text": "see", "data": [1, 2]}, [image])
    out = tmp_path / "drawn.png"
    printed, _ = await retinue("call", "mixed", '{"prompt": "see"}', "--out", str(out))
    assert out.read_bytes() == b"png"
    assert orjson.loads(printed) == {"text": "see", "data": [1, 2]}


async def test_a_run_carries_parts_up_to_a_megabyte_each(hub: Hub, wire: Wire) -> None:
    async def run(*steps: dict[str, Any], output: Any = "last") -> Any:
        workflow = {"name": "w", "steps": list(steps), "output": output}
        started = await wire.call(hub.url, "start_run", {"workflow": workflow, "input": {}})
        reply: Any = {"done": False, "next": 0}
        while not reply["done"]:
            asked = {"run": started.result["run"], "after": reply["next"]}
            reply = (await wire.call(hub.url, "follow_run", asked)).result
        return (await wire.call(hub.url, "show_run", {"run": started.result["run"]})).result

    sung = await run({"id": "a", "skill": "sing"})
    assert sung["output"] == {"parts": [SOUND]}
    shown = await run({"id": "a", "skill": "photograph"})
    assert shown["output"] == {"result": "a cat", "parts": [IMAGE]}
    chained = await run(
        {"id": "a", "skill": "photograph"},
        output={"text": "${{ steps.a.output }}", "type": "${{ steps.a.parts[0].mime_type }}"},
    )
    assert chained["output"] == {"text": "a cat", "type": "image/png"}
    size = 1024 * 1024
    fits = await run({"id": "a", "skill": "large", "with": {"size": size}})
    assert fits["output"]["parts"][0]["size"] == size
    over = await run({"id": "a", "skill": "large", "with": {"size": size + 1}})
    assert over["status"] == "failed"
    text = orjson.dumps(over["error"]).decode()
    assert (
        "part 1 of the result of step a (image/png, 1,048,577 bytes) is over the limit of 1,048,576" in text
    )


async def test_the_command_line_writes_what_an_imported_server_draws(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    printed, noted = await retinue("call", "photograph")
    assert orjson.loads(printed) == "a cat"
    assert f"the result has image (image/png, {len(PNG)} bytes); save it: add --out FILE" in noted
    printed, _ = await retinue("call", "photograph", "--out", "cat.png")
    assert (tmp_path / "cat.png").read_bytes() == PNG
    assert orjson.loads(printed) == "a cat"
    # over /mcp, as at a terminal
    printed, _ = await retinue("call", "sing", "--progress", "--out", "sounds/")
    assert printed == ""
    assert (tmp_path / "sounds/audio-1.wav").read_bytes() == WAV
    printed, _ = await retinue("call", "sing", "--out", "sounds/", "--json")
    row = {key: SOUND[key] for key in ("kind", "mime_type", "name", "size")}
    assert orjson.loads(printed) == {"parts": [{**row, "file": "sounds/audio-1-2.wav"}]}
    _, noted = await retinue("call", "list_agents", "--out", "x")
    assert "nothing was written to x" in noted
    assert not (tmp_path / "x").exists()


async def test_the_dashboard_shows_images_and_sounds_by_their_bytes(
    hub: Hub, wire: Wire, retinue_home: Path
) -> None:
    """The page holds a link; the bytes come with the type that they have, for the same visitor only."""
    token = f"Bearer {State(retinue_home).local_token()}"
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}

    async def call(agent: str, skill: str) -> str:
        page = await wire.post(
            f"{hub.url}/ui/agents/{agent}/skills/{skill}", b"action=call", authorization=token, **form
        )
        assert page.status == 200
        assert "media-src 'self'" in page.headers["content-security-policy"]
        assert "data:" not in page.headers["content-security-policy"]
        return page.body.decode()

    page = await call("studio", "photograph")
    assert PNG_TEXT not in page
    path = page.partition('<img src="')[2].partition('"')[0]
    image = await wire.get(f"{hub.url}{path}", authorization=token)
    assert (image.status, image.headers["content-type"], image.body) == (200, "image/png", PNG)
    assert image.headers["content-disposition"].startswith("inline")
    assert image.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert (await wire.get(f"{hub.url}{path}")).status != 200
    assert "<audio controls" in await call("studio", "sing")
    page = await call("studio", "document")
    assert "<img" not in page
    path = page.partition('class="file"')[2].partition('<a href="')[2].partition('"')[0]
    document = await wire.get(f"{hub.url}{path}", authorization=token)
    assert document.headers["content-type"] == "application/octet-stream"
    assert document.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
