"""The engine's log lines among ours."""

from __future__ import annotations

import logging

import structlog

_log = structlog.get_logger("retinue.runs")

QUIET_S = 10.0


class _Diverted(logging.Handler):
    """The engine's log lines in ours. It calls cancelled and failed runs errors; they are ordinary.

    Of a database that is away it speaks with every look at it; one line in a while is enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "atabase" in line and record.created >= self._quiet_until:
            self._quiet_until = record.created + QUIET_S
            _log.warning("engine", message=line.split("\n")[0])
        else:
            _log.debug("engine", message=line)


def divert_log() -> None:
    """Let the engine log through ours, and nowhere else."""
    log = logging.getLogger("dbos")
    if not any(isinstance(handler, _Diverted) for handler in log.handlers):
        log.handlers = [_Diverted()]
        log.propagate = False
