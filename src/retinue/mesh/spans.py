"""The port of distributed tracing: one span for each call, joined to the caller's by ``traceparent``."""

from __future__ import annotations

from typing import Protocol

from retinue.core.call import Call, Outcome, TraceContext


class Span(Protocol):
    """One call while it runs."""

    def carry(self, trace: TraceContext) -> TraceContext:
        """The trace for calls made from inside: its ``traceparent`` is this span."""

    def close(self, outcome: Outcome) -> None:
        """The call has ended; in the task that opened the span."""


class Spans(Protocol):
    """Opens spans; a process in which nobody collects them has none, so that calls pay nothing."""

    def open(self, call: Call) -> Span:
        """A span that is current until it is closed."""
