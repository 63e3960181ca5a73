"""Resources and prompts as MCP lists them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import Part
from retinue.core.record import Prompt, PromptArgument, Resource
from retinue.mcp.codec.content import (
    MAX_COMPLETIONS,
    render_completion,
    render_contents,
    render_message,
    render_prompt,
    render_resources,
    render_templates,
)
from tests.strategies import texts

RESOURCES = (
    Resource("notes://today", "today", "text/plain", title="Today", description="Of today"),
    Resource("notes://{day}", "day"),
)


def test_resources_and_templates_are_two_lists() -> None:
    assert render_resources(RESOURCES) == [
        {
            "uri": "notes://today",
            "name": "today",
            "title": "Today",
            "description": "Of today",
            "mimeType": "text/plain",
        }
    ]
    assert render_templates(RESOURCES) == [
        {"uriTemplate": "notes://{day}", "name": "day", "mimeType": "application/json"}
    ]


def test_a_prompt_names_its_arguments() -> None:
    arguments = (PromptArgument("book", "Which", required=True), PromptArgument("tone"))
    assert render_prompt(Prompt("review", arguments, title="Review", description="Asks")) == {
        "name": "review",
        "title": "Review",
        "description": "Asks",
        "arguments": [
            {"name": "book", "description": "Which", "required": True},
            {"name": "tone", "required": False},
        ],
    }


def test_contents_are_text_or_bytes_of_a_uri() -> None:
    given_parts = (
        Part.resource("a://1", "text"),
        Part.resource("a://2", b"\x00"),
        Part.text("said"),
        Part.image(b"\x00"),
        Part.link("a://3", "elsewhere"),
    )
    assert render_contents("a://0", given_parts) == [
        {"uri": "a://1", "mimeType": "text/plain", "text": "text"},
        {"uri": "a://2", "mimeType": "text/plain", "blob": "AA=="},
        {"uri": "a://0", "mimeType": "text/plain", "text": "said"},
        {"uri": "a://0", "mimeType": "image/png", "blob": "AA=="},
        {"uri": "a://3", "mimeType": "text/plain", "text": ""},
    ]


def test_a_message_has_a_role_and_a_block() -> None:
    assert render_message("user", Part.text("hi")) == {
        "role": "user",
        "content": {"type": "text", "text": "hi"},
    }


@given(st.lists(texts, max_size=150), st.none() | st.integers(0, 300))
def test_completions_are_capped_and_counted(values: list[str], total: int | None) -> None:
    found = render_completion(values, total)
    assert found["values"] == values[:MAX_COMPLETIONS]
    assert found["total"] == max(len(values), total or 0)
    assert found["hasMore"] == (found["total"] > MAX_COMPLETIONS)
