"""The events by which each vendor answers, as bytes of its stream."""

from __future__ import annotations

import json
from typing import Any

from tests.llm.vendor_turns import INPUT_TOKENS, OUTPUT_TOKENS, Act, Fail, Say, Vendor

HEADS: dict[Vendor, int] = {"anthropic": 2, "openai": 1, "google": 0}
"""How many events come before the text of an answer."""


def sse(data: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def _pieces(text: str) -> list[str]:
    third = max(1, len(text) // 3)
    return [text[at : at + third] for at in range(0, len(text), third)]


def begin(kind: Vendor, text: str) -> list[bytes]:
    if kind == "anthropic":
        events = [_message_start({"input_tokens": INPUT_TOKENS, "output_tokens": 1})]
        if text:
            block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            events.append(sse(block, "content_block_start"))
        for piece in _pieces(text):
            delta = {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            }
            events.append(sse(delta, "content_block_delta"))
        return events
    if kind == "openai":
        first = {"role": "assistant", "content": ""}
        return [_chunk(first), *(_chunk({"content": piece}) for piece in _pieces(text))]
    return [_candidate(piece) for piece in _pieces(text)]


def _message_start(usage: dict[str, int]) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "model-of-anthropic",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return sse({"type": "message_start", "message": message}, "message_start")


def answer(kind: Vendor, turn: Say) -> list[bytes]:
    events = begin(kind, turn.text)
    if kind == "anthropic":
        reason = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}[turn.ends]
        if turn.text:
            events.append(sse({"type": "content_block_stop", "index": 0}, "content_block_stop"))
        ending = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": OUTPUT_TOKENS},
        }
        return [*events, sse(ending, "message_delta"), sse({"type": "message_stop"}, "message_stop")]
    if kind == "openai":
        reason = {"stop": "stop", "length": "length", "filter": "content_filter"}[turn.ends]
        usage = {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        return [*events, _chunk({}, reason), _chunk(None, usage=usage), sse("[DONE]")]
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[turn.ends]
    return [*events, _candidate("", reason)]


def refusal(kind: Vendor) -> list[bytes]:
    if kind == "anthropic":
        return answer(kind, Say("", "filter"))
    if kind == "openai":
        return [
            _chunk({"role": "assistant", "content": None, "refusal": "I cannot help with that."}),
            _chunk({}, "stop"),
            sse("[DONE]"),
        ]
    usage = {"promptTokenCount": INPUT_TOKENS, "totalTokenCount": INPUT_TOKENS}
    return [sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage})]


def _chunk(delta: Any, reason: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_764_000_000,
        "model": "model-of-openai",
        "choices": choices,
    }
    return sse(document | ({"usage": usage} if usage else {}))


def _candidate(text: str, reason: str | None = None, cached: int = 0) -> bytes:
    return _candidate_of([{"text": text}], reason, cached)


def _candidate_of(parts: list[dict[str, Any]], reason: str | None = None, cached: int = 0) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    document: dict[str, Any] = {"candidates": [candidate], "modelVersion": "model-of-google"}
    if reason:
        candidate["finishReason"] = reason
    document["usageMetadata"] = {
        "promptTokenCount": INPUT_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
        **({"cachedContentTokenCount": cached} if cached else {}),
    }
    return sse(document)


def error(kind: Vendor, turn: Fail) -> Any:
    if kind == "anthropic":
        return {"type": "error", "error": {"type": turn.kind, "message": turn.message}}
    if kind == "openai":
        return {"error": {"type": turn.kind, "message": turn.message, "code": turn.kind, "param": None}}
    return {"error": {"code": turn.status, "message": turn.message, "status": turn.kind.upper()}}


def act(kind: Vendor, turn: Act) -> list[bytes]:
    """The events of an answer with calls of tools."""
    if kind == "anthropic":
        events = _act_anthropic(turn)
    elif kind == "openai":
        events = _act_openai(turn)
    else:
        events = _act_google(turn)
    return events[: -_TAILS[kind]] if turn.stops else events


_TAILS: dict[Vendor, int] = {"anthropic": 4, "openai": 4, "google": 1}
"""How many events there are that a stopped answer lacks: the second half of its last call, and its end."""


def _act_anthropic(turn: Act) -> list[bytes]:
    usage = {
        "input_tokens": INPUT_TOKENS - turn.cached - turn.written,
        "cache_read_input_tokens": turn.cached,
        "cache_creation_input_tokens": turn.written,
        "output_tokens": 1,
    }
    events = [_message_start(usage)]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if turn.thinking or turn.signature:
        deltas: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": piece} for piece in _pieces(turn.thinking)
        ]
        deltas.append({"type": "signature_delta", "signature": turn.signature})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if turn.text:
        texts: list[dict[str, Any]] = [{"type": "text_delta", "text": piece} for piece in _pieces(turn.text)]
        blocks.append(({"type": "text", "text": ""}, texts))
    for call in turn.calls:
        halves: list[dict[str, Any]] = [
            {"type": "input_json_delta", "partial_json": half} for half in _halves(call.arguments)
        ]
        blocks.append(({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, halves))
    for index, (block, deltas) in enumerate(blocks):
        start = {"type": "content_block_start", "index": index, "content_block": block}
        events.append(sse(start, "content_block_start"))
        events += [
            sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            for delta in deltas
        ]
        events.append(sse({"type": "content_block_stop", "index": index}, "content_block_stop"))
    ends = "tool_use" if turn.calls else "end_turn"
    reason = {"stop": ends, "length": "max_tokens", "filter": "refusal"}[turn.ends]
    ending = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": OUTPUT_TOKENS},
    }
    return [*events, sse(ending, "message_delta"), sse({"type": "message_stop"}, "message_stop")]


def _act_openai(turn: Act) -> list[bytes]:
    events = [_chunk({"role": "assistant", "content": None})]
    events += [_chunk({"reasoning_content": piece}) for piece in _pieces(turn.thinking)]
    events += [_chunk({"content": piece}) for piece in _pieces(turn.text)]
    for index, call in enumerate(turn.calls):
        first, second = _halves(call.arguments)
        head = {"index": index, "id": call.id, "type": "function"}
        begin = {**head, "function": {"name": call.name, "arguments": first}}
        events.append(_chunk({"tool_calls": [begin]}))
        events.append(_chunk({"tool_calls": [{"index": index, "function": {"arguments": second}}]}))
    ends = "tool_calls" if turn.calls else "stop"
    reason = {"stop": ends, "length": "length", "filter": "content_filter"}[turn.ends]
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": turn.cached},
    }
    return [*events, _chunk({}, reason), _chunk(None, usage=usage), sse("[DONE]")]


def _act_google(turn: Act) -> list[bytes]:
    rows: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in _pieces(turn.thinking)]
    rows += [{"text": piece} for piece in _pieces(turn.text)]
    for number, call in enumerate(turn.calls):
        row: dict[str, Any] = {"functionCall": {"name": call.name, "args": json.loads(call.arguments)}}
        if call.id:
            row["functionCall"]["id"] = call.id
        if turn.signature and not number:
            row["thoughtSignature"] = turn.signature
        rows.append(row)
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[turn.ends]
    return [*(_candidate_of([row], cached=turn.cached) for row in rows), _candidate("", reason, turn.cached)]


def _halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    return text[:middle], text[middle:]
