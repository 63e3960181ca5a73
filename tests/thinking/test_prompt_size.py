"""Estimates of the tokens of a conversation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from retinue.core.call import Part
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Tool,
    UserMessage,
)
from retinue.thinking.prompt_size import IMAGE_TOKENS, estimate_conversation
from tests.thinking.conversations import replies, requests


@given(requests)
def test_more_to_read_is_never_fewer_tokens(request: CompletionRequest) -> None:
    tokens = estimate_conversation(request)
    longer = UserMessage((Part.text("x" * 30),))
    assert estimate_conversation(replace(request, messages=(*request.messages, longer))) >= tokens + 10
    tool = Tool("another", "x" * 30, {})
    assert estimate_conversation(replace(request, tools=(*request.tools, tool))) >= tokens + 10
    assert estimate_conversation(replace(request, system=request.system + "x" * 30)) >= tokens + 10


@given(requests)
def test_the_estimate_counts_at_least_each_three_bytes_of_text(request: CompletionRequest) -> None:
    texts = [request.system]
    for message in request.messages:
        if isinstance(message, UserMessage):
            texts += [part.value for part in message.content if part.kind == "text"]
    assert estimate_conversation(request) >= sum(len(text.encode()) for text in texts) / 3


def test_an_image_has_the_same_tokens_whatever_its_size() -> None:
    def estimate(content: bytes) -> int:
        return estimate_conversation(CompletionRequest("", (UserMessage((Part.image(content),)),)))

    assert estimate(b"x") == estimate(b"x" * 100_000)
    assert estimate(b"x") > IMAGE_TOKENS


@given(replies)
def test_thinking_and_signatures_count_at_any_place_of_the_history(reply: CompletionReply) -> None:
    def estimate(history: object) -> int:
        user = UserMessage((Part.text("x"),))
        request = CompletionRequest("", (user, AssistantMessage(replace(reply, history=history)), user))
        return estimate_conversation(request)

    part = {"part_kind": "thinking", "content": "x" * 300, "signature": "y" * 300}
    assert estimate({"response": {"parts": [part]}}) >= estimate(None) + 200
