"""Logs of a process: one JSON line each on standard error, readable lines on a terminal (P-26)."""

from __future__ import annotations

import logging
import sys

import structlog

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
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, logging.INFO)),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
