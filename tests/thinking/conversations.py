"""Hypothesis strategies for conversations in the format of the skill ``complete``."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from hypothesis import strategies as st

from retinue.core.call import Part
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Message,
    Tool,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from tests.strategies import json_objects, json_values, texts

tool_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,12}", fullmatch=True)
media = st.builds(
    Part,
    st.sampled_from(["image", "audio", "file"]),
    st.binary(max_size=12).map(lambda content: b64encode(content).decode()),
    st.sampled_from(["image/png", "audio/wav", "application/pdf"]),
)
contents: st.SearchStrategy[tuple[Part, ...]] = st.lists(texts.map(Part.text) | media, max_size=3).map(tuple)
calls = st.lists(
    st.builds(ToolCall, texts, tool_names, json_objects | texts), max_size=3, unique_by=lambda call: call.id
).map(tuple)
replies = st.builds(
    CompletionReply,
    texts,
    calls,
    st.sampled_from(["stop", "calls", "length", "refused"]),
    texts,
    texts,
    output=json_values,
    history=json_values,
)
tools = st.lists(
    st.builds(Tool, tool_names, texts, json_objects), max_size=3, unique_by=lambda tool: tool.name
).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Messages in an order that a provider takes: each call has its result."""
    messages: list[Message] = [UserMessage(draw(contents))]
    for reply in draw(st.lists(replies, max_size=3)):
        messages.append(AssistantMessage(reply))
        if reply.calls:
            results = [
                ToolResult(call.id, call.name, draw(contents), draw(st.booleans())) for call in reply.calls
            ]
            messages.append(ToolMessage(tuple(draw(st.permutations(results)))))
        else:
            messages.append(UserMessage(draw(contents)))
    return tuple(messages)


requests: st.SearchStrategy[CompletionRequest] = st.builds(
    CompletionRequest,
    texts,
    conversations(),
    tools,
    st.sampled_from(["auto", "none"]),
    st.none() | json_objects,
    st.none() | st.integers(1, 100_000),
)


def without_nothing(value: Any) -> Any:
    """A JSON object without the members that are null."""
    return {key: member for key, member in value.items() if member is not None}
