"""Writes log lines without tokens: text at a terminal, JSON elsewhere, a batch in one write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

import structlog

from retinue.core.text import hide_tokens

_KIND: Final = {"event": "call", "level": "info"}


def hide_tokens_in_line(logger: Any, method: str, line: Any) -> str:
    """The last processor of structlog for a terminal: removes tokens from every log line."""
    return hide_tokens(line)


def render_json_line(logger: Any, method: str, row: Any) -> str:
    """The last processor of structlog for programs: the row as one line of JSON, without tokens."""
    import orjson  # here, because most commands log nothing

    try:
        line = orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        line = json.dumps(row, default=repr)  # an integer beyond 64 bits, or half of a surrogate pair
    return hide_tokens(line)


class JsonLines:
    """A logger factory of structlog whose lines `render_json_line` renders, for loggers of level info."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *_: Any) -> structlog.WriteLogger:
        return structlog.WriteLogger(self._stream)

    def write_calls(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write one line for each call, as ``info("call", **row)`` of a logger does, without its cost."""
        bound = structlog.contextvars.get_contextvars()
        lines = [render_json_line(None, "info", {**bound, **row, **_KIND}) for row in rows]
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def find_json_lines() -> JsonLines | None:
    """Where the log lines of this process go; None if something else renders or takes them."""
    config = structlog.get_config()
    lines, processors = config["logger_factory"], config["processors"]
    is_ours = isinstance(lines, JsonLines) and processors and processors[-1] is render_json_line
    return lines if is_ours else None
