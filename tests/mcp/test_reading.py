"""Resources, prompts and completion, read by the official client in both eras."""

from __future__ import annotations

import base64
from typing import Any, Literal

import orjson
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    BlobResourceContents,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.core.record import Trait
from retinue.mesh.observing.events import record_calls
from retinue.mesh.reading import PromptMessage
from tests.mcp.clients import MODES, connect
from tests.requirements import requirement
from tests.support.memory_audit import MemoryAudit
from tests.system import System


def library_agent() -> Agent:
    agent = Agent(
        "library-agent", version="1.0.0", traits=[Trait("mood", "how it is", "str", "calm")], topics=["Books"]
    )

    @agent.skill
    async def shelf(number: int) -> list[str]:
        return [f"book {number}.{n}" for n in range(2)]

    @agent.resource("books://welcome", expose=True, title="Welcome")
    async def welcome() -> str:
        """What to know first."""
        return "Be quiet."

    @agent.resource("books://cover", mime="image/png", expose=True)
    def cover() -> bytes:
        return b"png"

    @agent.resource("books://shelf/{number}", mime="application/json", expose=True)
    async def read_shelf(number: int, ctx: Context) -> Any:
        return await ctx.call("shelf", {"number": number})

    @agent.resource("books://path/{+path}", expose=True)
    async def read_path(path: str) -> list[Part | str]:
        return [Part.resource(f"books://path/{path}", path), "and more"]

    @agent.resource("books://staff")
    async def staff() -> str:
        return "for the mesh"

    @agent.resource("books://vault", private=True)
    async def vault() -> str:
        return "for nobody"

    @agent.resource("books://broken", expose=True)
    async def broken() -> str:
        raise ValueError("torn")

    @agent.prompt(expose=True, title="Review")
    async def review(book: str, tone: Literal["kind", "keen", "harsh"] = "kind") -> list[PromptMessage | str]:
        """Asks for a review."""
        return [f"Review {book}, {tone}.", PromptMessage("assistant", Part.text("Gladly."))]

    @agent.completes("review", "book")
    async def books(value: str, tone: str = "") -> list[str]:
        return [f"{value}{n} {tone}".strip() for n in range(150)]

    @agent.completes("books://shelf/{number}", "number")
    def numbers(value: str) -> list[str]:
        return [str(n) for n in range(20) if str(n).startswith(value)]

    @agent.prompt
    async def internal() -> str:
        return "for the mesh"

    return agent


async def read_text(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


@pytest.mark.parametrize("mode", MODES)
@requirement("S-02")
async def test_resources_are_listed_and_read(system: System, mode: str) -> None:
    served = await system.start_agent(library_agent())
    async with connect(served, mode) as client:
        listed = (await client.list_resources()).resources
        assert [one.uri for one in listed] == ["books://welcome", "books://cover", "books://broken"]
        assert (listed[0].name, listed[0].title, listed[0].description, listed[0].mime_type) == (
            "welcome",
            "Welcome",
            "What to know first.",
            "text/plain",
        )
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["books://shelf/{number}", "books://path/{+path}"]
        assert await read_text(client, "books://welcome") == "Be quiet."
        assert orjson.loads(await read_text(client, "books://shelf/7")) == ["book 7.0", "book 7.1"]
        (cover,) = (await client.read_resource("books://cover")).contents
        assert isinstance(cover, BlobResourceContents)
        assert base64.b64decode(cover.blob) == b"png"
        parts = (await client.read_resource("books://path/a/b%20c")).contents
        assert [(one.uri, getattr(one, "text", None)) for one in parts] == [
            ("books://path/a/b c", "a/b c"),
            ("books://path/a/b%20c", "and more"),
        ]


@pytest.mark.parametrize("mode", MODES)
@requirement("S-06")
async def test_hidden_and_missing_resources_are_refused_alike(system: System, mode: str) -> None:
    served = await system.start_agent(library_agent())
    async with connect(served, mode) as client:
        for uri in ("books://staff", "books://vault", "books://nope", "agent:library-agent", "result:nope"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            error = refused.value.error
            assert (error.code, error.message, error.data) == (-32602, "Resource not found", {"uri": uri})
        for name in ("internal", "nope"):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name)
            assert refused.value.message == f"Unknown prompt: {name}"


async def test_the_mesh_reads_what_is_for_the_mesh(system: System) -> None:
    served = await system.start_agent(library_agent())
    async with connect(served, "auto", authorization=system.token) as client:
        assert await read_text(client, "books://staff") == "for the mesh"
        with pytest.raises(MCPError):
            await client.read_resource("books://vault")
        profile = orjson.loads(await read_text(client, "agent:library-agent"))
        assert (profile["name"], profile["version"]) == ("library-agent", "1.0.0")
        mood = orjson.loads(await read_text(client, "agent:library-agent/traits/mood"))
        assert mood == {"name": "mood", "description": "how it is", "type": "str", "value": "calm"}


async def test_the_profile_is_exposed_on_demand(system: System) -> None:
    served = await system.start_agent(Agent("open-agent", expose_resources=["profile"]))
    async with connect(served, "auto") as client:
        (profile,) = (await client.list_resources()).resources
        assert (profile.name, profile.uri) == ("profile", "agent:open-agent")
        assert orjson.loads(await read_text(client, profile.uri))["name"] == "open-agent"


@pytest.mark.parametrize("mode", MODES)
async def test_what_fails_to_be_read_says_why(system: System, mode: str) -> None:
    served = await system.start_agent(library_agent())
    async with connect(served, mode) as client:
        with pytest.raises(MCPError, match="Execution failed: torn"):
            await client.read_resource("books://broken")
        with pytest.raises(MCPError, match="Invalid parameters") as refused:
            await client.read_resource("books://shelf/seven")
        assert refused.value.code == -32602
        with pytest.raises(MCPError, match="Invalid parameters"):
            await client.get_prompt("review")


@pytest.mark.parametrize("mode", MODES)
async def test_prompts_are_listed_and_filled_in(system: System, mode: str) -> None:
    served = await system.start_agent(library_agent())
    async with connect(served, mode) as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title, prompt.description) == ("review", "Review", "Asks for a review.")
        assert [(one.name, one.required) for one in prompt.arguments or ()] == [
            ("book", True),
            ("tone", False),
        ]
        found = await client.get_prompt("review", {"book": "Emma", "tone": "harsh"})
        assert found.description == "Asks for a review."
        assert [(one.role, one.content) for one in found.messages] == [
            ("user", TextContent(text="Review Emma, harsh.")),
            ("assistant", TextContent(text="Gladly.")),
        ]


@pytest.mark.parametrize("mode", MODES)
async def test_arguments_are_completed(system: System, mode: str) -> None:
    served = await system.start_agent(library_agent())
    prompt = PromptReference(name="review")
    async with connect(served, mode) as client:
        tones = await client.complete(prompt, {"name": "tone", "value": "k"})
        assert tones.completion.values == ["kind", "keen"]
        books = (
            await client.complete(prompt, {"name": "book", "value": "E"}, context_arguments={"tone": "kind"})
        ).completion
        assert (books.values[1], len(books.values), books.total, books.has_more) == (
            "E1 kind",
            100,
            150,
            True,
        )
        template = ResourceTemplateReference(uri="books://shelf/{number}")
        numbers = await client.complete(template, {"name": "number", "value": "1"})
        assert len(numbers.completion.values) == 11
        with pytest.raises(MCPError):
            await client.complete(PromptReference(name="internal"), {"name": "x", "value": ""})


async def test_an_agent_without_prompts_has_no_such_methods(system: System) -> None:
    served = await system.start_agent(Agent("plain-agent"))
    async with connect(served, "legacy") as client:
        assert client.server_capabilities is not None
        assert client.server_capabilities.model_dump(exclude_none=True) == {
            "tools": {"list_changed": True},
            "resources": {"list_changed": True},
        }
        with pytest.raises(MCPError) as refused:
            await client.list_prompts()
        assert refused.value.code == -32601


async def test_each_read_is_a_row_of_the_audit(system: System) -> None:
    audit = MemoryAudit()
    served = await system.start_agent(library_agent(), observers=(record_calls(audit.append),))
    async with connect(served, "auto") as client:
        await client.read_resource("books://welcome")
        with pytest.raises(MCPError):
            await client.read_resource("books://vault")
    rows = [(row["skill"], row["status"], row["door"], row["caller"]) for row in audit.recent(10)]
    assert rows == [
        ("resource books://vault", "refused", "mcp", "anonymous"),
        ("resource books://welcome", "done", "mcp", "anonymous"),
    ]
    assert all(row["trace_id"] for row in audit.recent(1)[:1])
