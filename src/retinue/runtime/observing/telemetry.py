"""Traces over OpenTelemetry: a span for each call and for each attempt at an agent of another process.

Only the OpenTelemetry API is a dependency. The SDK comes with ``retinue[otel]`` or with the program that
configures the process (``opentelemetry-instrument``, the served module). Without a provider no spans are
created and ``traceparent`` is forwarded unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from dataclasses import replace

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from retinue.core.call import Call, Outcome, TraceContext
from retinue.core.errors import RetinueError
from retinue.mesh.observing.events import OpenSpan

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables of OpenTelemetry; either enables the export of spans to its endpoint."""

_W3C = TraceContextTextMapPropagator()
_log = structlog.get_logger("retinue.telemetry")


class CallSpan:
    """One call as a span, current until it is closed."""

    def __init__(self, tracer: otel.Tracer, call: Call, span: otel.Span, token: Token[Context]) -> None:
        self._tracer = tracer
        self._call = call
        self._span = span
        self._token = token

    def carry(self, trace: TraceContext) -> TraceContext:
        """The trace for calls made from inside: its ``traceparent`` is this span."""
        self._span.set_attributes({"retinue.trace_id": trace.id, "retinue.depth": trace.depth})
        return _carry(self._span, trace)

    @contextmanager
    def attempt(self, agent: str, trace: TraceContext) -> Iterator[TraceContext]:
        """The CLIENT span of one attempt at an agent of another process, below this span."""
        attributes = {"retinue.skill": self._call.skill, "retinue.agent": agent}
        attributes |= {"retinue.call_id": self._call.id, "retinue.trace_id": trace.id}
        parent = otel.set_span_in_context(self._span)
        span = self._tracer.start_span(self._call.skill, parent, otel.SpanKind.CLIENT, attributes)
        try:
            yield _carry(span, trace)
        except RetinueError as error:
            span.set_attribute("error.type", error.type)
            span.set_status(otel.StatusCode.ERROR, error.message)
            raise
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(otel.StatusCode.ERROR)
            raise
        finally:
            span.end()

    def close(self, outcome: Outcome) -> None:
        """End the span with the outcome's status and error; arguments and results may be secret."""
        self._span.set_attribute("retinue.status", outcome.status)
        if outcome.agent is not None:
            self._span.set_attribute("retinue.agent", outcome.agent)
        if outcome.error is not None:
            self._span.set_attribute("error.type", outcome.error.type)
            self._span.set_status(otel.StatusCode.ERROR, outcome.error.message)
        self._span.end()
        otel_context.detach(self._token)


def _carry(span: otel.Span, trace: TraceContext) -> TraceContext:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, otel.set_span_in_context(span))
    return replace(trace, traceparent=carrier.get("traceparent"), tracestate=carrier.get("tracestate"))


class CallSpans:
    """Opens a span for each call, as a child of the caller's span if it sent a ``traceparent``."""

    def __init__(self, tracer: otel.Tracer) -> None:
        self._tracer = tracer

    def open(self, call: Call) -> CallSpan:
        """Open a span that is current until it is closed."""
        parent = None
        if call.trace.traceparent is not None:
            carrier = {"traceparent": call.trace.traceparent}
            if call.trace.tracestate is not None:
                carrier["tracestate"] = call.trace.tracestate
            parent = _W3C.extract(carrier, otel_context.get_current())
        attributes = {
            "retinue.skill": call.skill,
            "retinue.door": call.endpoint,
            "retinue.caller": call.principal.id,
            "retinue.call_id": call.id,
        }
        span = self._tracer.start_span(call.skill, parent, otel.SpanKind.SERVER, attributes)
        return CallSpan(self._tracer, call, span, otel_context.attach(otel.set_span_in_context(span, parent)))


def span_opener(service: str, environ: Mapping[str, str]) -> OpenSpan | None:
    """Opens the spans of this process; None when no provider collects them. Called once, at start.

    If ``environ`` names an endpoint and no provider is configured, spans are exported to the endpoint.
    """
    if not _is_collecting() and any(environ.get(name) for name in ENDPOINT_VARIABLES):
        _send_to_endpoint(environ.get("OTEL_SERVICE_NAME") or service)
    return CallSpans(otel.get_tracer("retinue")).open if _is_collecting() else None


def _is_collecting() -> bool:
    return not isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider | otel.NoOpTracerProvider)


def _send_to_endpoint(service: str) -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("no spans are sent", reason="install retinue[otel]")
        return
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    otel.set_tracer_provider(provider)
