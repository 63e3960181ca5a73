"""Logs of a process: one JSON line each on standard error, readable lines on a terminal (P-26)."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

from retinue.mesh.redaction import hide_tokens

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: str = "info") -> None:
    """Set up structlog for this process; standard output stays free for what was asked for."""
    stream = sys.stderr
    readable, plain = structlog.dev.ConsoleRenderer, structlog.processors.JSONRenderer
    renderer = readable() if stream.isatty() else plain()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
            _hide_tokens,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, logging.INFO)),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    _catch_others(stream)


def _hide_tokens(logger: Any, method: str, line: Any) -> str:
    """The last processor: no log holds a token, whoever put it into the event."""
    return hide_tokens(line)


class _HidingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hide_tokens(super().format(record))


def _catch_others(stream: TextIO) -> None:
    """What libraries log goes to the same place under the same rule."""
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_HidingFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old.formatter, _HidingFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
