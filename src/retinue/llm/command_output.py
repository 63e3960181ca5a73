"""Reads the output of command-line agents: JSON lines of claude and codex, JSON of gemini, plain text.

Pure. A program that prints no such JSON, such as one of your own, is taken at its word: its output is the
answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.llm.completion import Usage


@dataclass(slots=True)
class CommandAnswer:
    """The answer of a program so far; ``problem`` is its own report of a failure."""

    text: str = ""
    usage: Usage | None = None
    model: str | None = None
    problem: str = ""


class OutputReader:
    """Reads the output of a command-line agent while it comes."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._plain: list[str] = []
        self._said: list[str] = []
        self._answer = CommandAnswer()
        self._is_json = False

    def feed(self, chunk: bytes) -> str:
        """Take more output; returns the text of the answer that came with it."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            # joined once: a line of many megabytes comes in thousands of chunks
            lines[0] = b"".join((*self._pending, lines[0]))
            self._pending = []
        self._pending.append(rest)
        return "".join(self._read_line(line) for line in lines)

    def finish(self) -> CommandAnswer:
        """The answer, at the end of the output."""
        rest, self._pending = b"".join(self._pending), []
        if rest:
            self._read_line(rest)
        plain = "\n".join(self._plain).strip()
        if not self._is_json and (document := _parse(plain)) is not None:
            # gemini prints one object over several lines
            self._read_event(document)
            plain = "" if self._is_json else plain
        if not self._is_json:
            self._answer.text = plain
        elif not self._answer.text:
            self._answer.text = "\n\n".join(self._said)
        return self._answer

    def _read_line(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip("\r")
        event = _parse(text)
        if event is not None:
            piece = self._read_event(event)
            if piece is not None:
                return piece
        if text or self._plain:
            self._plain.append(text)
        # what begins with a brace may be gemini's object, of which only one member is the answer
        is_told = not self._is_json and self._plain and not self._plain[0].lstrip().startswith("{")
        return f"{text}\n" if is_told else ""

    def _read_event(self, event: Mapping[str, Any]) -> str | None:
        """The text of the answer in one event; None for JSON that is no event."""
        answer = self._answer
        kind = event.get("type")
        if "response" in event and kind is None:  # gemini
            self._is_json = True
            answer.text = _text(event["response"])
            answer.usage, answer.model = _gemini_usage(event.get("stats"))
            return answer.text
        if "error" in event and kind is None and set(event) <= {"error", "session_id", "stats"}:  # gemini
            self._is_json = True
            answer.problem = _message(event["error"])
            return ""
        if not isinstance(kind, str):
            return None
        piece = ""
        match kind:
            case "system":  # claude
                answer.model = _optional(event.get("model")) or answer.model
            case "assistant":  # claude
                piece = _claude_text(event.get("message"))
                if piece:
                    self._said.append(piece)
            case "result":  # claude
                if event.get("is_error"):
                    answer.problem = _text(event.get("result")) or str(event.get("subtype", "error"))
                else:
                    answer.text = _text(event.get("result"))
                answer.usage = _claude_usage(event)
            case "item.completed":  # codex
                item = event.get("item")
                if isinstance(item, Mapping) and item.get("type") == "agent_message":
                    piece = _text(item.get("text"))
                    answer.text = piece  # the last message is the answer
            case "turn.completed":  # codex
                answer.usage = _codex_usage(event.get("usage"))
                answer.problem = ""  # it reports lost connections as errors, and connects again
            case "turn.failed" | "error":
                answer.problem = _message(event.get("error") or event.get("message"))
            case _ if not self._is_json and not _is_known(kind):
                return None
        self._is_json = True
        return piece


def read_errors(errors: bytes) -> str:
    """The error message on standard error: the message of a JSON object, else the last line."""
    text = errors.decode("utf-8", "replace").strip()
    report = _parse(text[text.find("{") : text.rfind("}") + 1]) if "{" in text else None
    if report is not None and "error" in report:  # gemini
        return _message(report["error"])
    return text.rpartition("\n")[2].strip()


def _is_known(kind: str) -> bool:
    return kind in ("user", "stream_event", "rate_limit_event") or kind.startswith(
        ("thread.", "turn.", "item.")
    )


def _parse(text: str) -> Mapping[str, Any] | None:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _claude_text(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = content if isinstance(content, list) else []
    texts = [
        block.get("text") for block in blocks if isinstance(block, Mapping) and block.get("type") == "text"
    ]
    return "".join(text for text in texts if isinstance(text, str))


def _claude_usage(event: Mapping[str, Any]) -> Usage | None:
    figures = event.get("usage")
    if not isinstance(figures, Mapping):
        return None
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    cost = event.get("total_cost_usd")
    return Usage(
        sum(_count(figures, key) for key in read),
        _count(figures, "output_tokens"),
        float(cost) if isinstance(cost, int | float) else None,
    )


def _codex_usage(figures: Any) -> Usage | None:
    if not isinstance(figures, Mapping):
        return None
    return Usage(_count(figures, "input_tokens"), _count(figures, "output_tokens"))


def _gemini_usage(stats: Any) -> tuple[Usage | None, str | None]:
    models = stats.get("models") if isinstance(stats, Mapping) else None
    if not isinstance(models, Mapping) or not models:
        return None, None
    usages = {}
    for name, model in models.items():
        tokens = model.get("tokens") if isinstance(model, Mapping) else None
        if isinstance(tokens, Mapping):
            total, read = _count(tokens, "total"), _count(tokens, "prompt")
            usages[str(name)] = Usage(read, max(_count(tokens, "candidates"), total - read))
    if not usages:
        return None, None
    # small models route and summarise; the answer is of the one that worked most
    return sum(usages.values(), Usage()), max(usages, key=lambda name: usages[name].tokens)


def _count(figures: Mapping[str, Any], key: str) -> int:
    value = figures.get(key)
    return int(value) if isinstance(value, int | float) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _optional(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) and message else "it reports an error"
