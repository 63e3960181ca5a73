"""Estimates how many tokens a prompt has, before the provider counts them.

The estimates are upper bounds for usual texts, because a budget reserves them before the call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.call import Part
from retinue.core.parts import count_bytes
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Message,
    Tool,
    ToolMessage,
)

BYTES_PER_TOKEN = 3
"""Less than the usual four, because an estimate must not be too small."""

OVERHEAD_TOKENS = 50
"""The tokens around the text of a prompt."""

IMAGE_TOKENS = 5_000
"""An image has at most so many tokens: vendors scale larger ones down."""

MESSAGE_TOKENS = 10
TOOL_TOKENS = 20
TOOLS_TOKENS = 600
"""Tokens that vendors add to a prompt once it has tools."""


def estimate_tokens(size_bytes: int) -> int:
    """At most as many tokens as a text of this size has, but for unusual ones."""
    return math.ceil(size_bytes / BYTES_PER_TOKEN) + OVERHEAD_TOKENS


def estimate_conversation(request: CompletionRequest) -> int:
    """At most as many tokens as a conversation with its tools has, but for unusual texts."""
    sizes = sum((measure_message(message) for message in request.messages), MessageSize())
    return estimate_request(request.system, sizes, request.tools, request.output_schema)


@dataclass(frozen=True, slots=True)
class MessageSize:
    """What messages add to a prompt."""

    size_bytes: int = 0
    images: int = 0
    messages: int = 0

    @property
    def tokens(self) -> int:
        """At most as many tokens as they add."""
        return (
            math.ceil(self.size_bytes / BYTES_PER_TOKEN)
            + self.images * IMAGE_TOKENS
            + self.messages * MESSAGE_TOKENS
        )

    def __add__(self, other: MessageSize) -> MessageSize:
        return MessageSize(
            self.size_bytes + other.size_bytes, self.images + other.images, self.messages + other.messages
        )


def measure_message(message: Message) -> MessageSize:
    """The size of one message."""
    if isinstance(message, AssistantMessage):
        return MessageSize(_measure_reply(message.reply), 0, 1)
    contents = [message.content] if not isinstance(message, ToolMessage) else []
    if isinstance(message, ToolMessage):
        contents = [result.content for result in message.results]
    images = sum(part.kind == "image" for content in contents for part in content)
    return MessageSize(sum(_measure_content(content) for content in contents), images, 1)


def estimate_request(
    system: str, messages: MessageSize, tools: Sequence[Tool], output_schema: Mapping[str, Any] | None
) -> int:
    """As `estimate_conversation`, by the size of the messages."""
    size_bytes = len(system.encode("utf-8", "surrogatepass")) + messages.size_bytes
    tokens = estimate_tokens(size_bytes) + messages.images * IMAGE_TOKENS + messages.messages * MESSAGE_TOKENS
    if tools:
        schemas = sum(len(orjson.dumps(tool.to_json())) for tool in tools)
        tokens += TOOLS_TOKENS + len(tools) * TOOL_TOKENS + math.ceil(schemas / BYTES_PER_TOKEN)
    if output_schema is not None:
        tokens += TOOLS_TOKENS + math.ceil(len(orjson.dumps(output_schema)) / BYTES_PER_TOKEN)
    return tokens


def _measure_content(content: Iterable[Part]) -> int:
    """The bytes of a content without its images."""
    size_bytes = 0
    for part in content:
        if part.kind == "text":
            size_bytes += len(part.value.encode("utf-8", "surrogatepass"))
        elif part.kind != "image":
            size_bytes += count_bytes(part.value)
    return size_bytes


def _measure_reply(reply: CompletionReply) -> int:
    """The bytes of a reply, with the thinking and the signatures that its history holds."""
    size_bytes = len(reply.text.encode("utf-8", "surrogatepass"))
    size_bytes += sum(len(orjson.dumps(call.to_json())) for call in reply.calls)
    if reply.output is not None:
        size_bytes += len(orjson.dumps(reply.output))
    return size_bytes + _measure_hidden(reply.history)


def _measure_hidden(value: Any) -> int:
    """The bytes of thinking and of signatures at any place of a history."""
    if isinstance(value, Mapping):
        names = {"signature", "thought_signature"}
        if value.get("part_kind") == "thinking":
            names.add("content")
        own = sum(len(value[name]) for name in names if isinstance(value.get(name), str))
        return own + sum(_measure_hidden(member) for member in value.values())
    if isinstance(value, list):
        return sum(_measure_hidden(item) for item in value)
    return 0
