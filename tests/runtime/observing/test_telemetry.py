"""Spans for calls: none where nobody collects, else one each, below the caller's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Call, Outcome, TraceContext
from retinue.core.errors import ExecutionFailedError
from retinue.runtime.observing.telemetry import CallSpans, span_opener
from tests.mesh.scripted import make_call, make_dispatcher
from tests.requirements import requirement

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Collected:
    """A provider and what it has collected."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = CallSpans(self.provider.get_tracer("retinue"))

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    collected.provider.shutdown()


def test_where_nobody_collects_there_are_no_spans() -> None:
    assert span_opener("agent", {}) is None


def test_where_somebody_has_configured_a_provider_there_are(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: collected.provider)
    open_span = span_opener("agent", {})
    assert open_span is not None
    open_span(make_call()).close(Outcome("1", "create_plan", "done"))
    assert [span.name for span in collected.ended] == ["create_plan"]


def test_an_endpoint_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's own variables; the service is named after the agent."""
    given: list[TracerProvider] = []
    monkeypatch.setattr(otel, "set_tracer_provider", given.append)
    monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    span_opener("my-agent", os.environ)
    assert given[0].resource.attributes["service.name"] == "my-agent"
    given[0].shutdown()


@requirement("S-13")
async def test_a_call_is_a_span_below_its_caller_and_above_the_calls_that_it_makes(
    collected: Collected,
) -> None:
    seen: list[TraceContext] = []

    async def act(call: Call) -> dict[str, str]:
        seen.append(call.trace)
        with collected.provider.get_tracer("of a library").start_as_current_span("inside"):
            return {"plan": ""}

    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": act}, open_span=collected.spans.open)
    await dispatcher.dispatch(make_call(trace=TraceContext("t", 1, traceparent=PARENT, tracestate="v=1")))
    inside, attempt, span = collected.ended
    assert span.parent is not None
    assert inside.parent is not None
    assert format(span.parent.span_id, "016x") == "b" * 16
    assert seen[0].traceparent == f"00-{'a' * 32}-{attempt.context.span_id:016x}-01"
    assert seen[0].tracestate == "v=1"
    assert inside.parent.span_id == span.context.span_id
    assert (span.name, span.kind) == ("create_plan", otel.SpanKind.SERVER)
    assert attempt.parent is not None
    assert attempt.parent.span_id == span.context.span_id
    assert (attempt.name, attempt.kind) == ("create_plan", otel.SpanKind.CLIENT)
    assert (attempt.attributes or {})["retinue.agent"] == "plan-agent"
    attributes = dict(span.attributes or {})
    assert attributes.pop("retinue.call_id")
    assert attributes == {
        "retinue.skill": "create_plan",
        "retinue.agent": "plan-agent",
        "retinue.door": "execute",
        "retinue.caller": "anonymous",
        "retinue.trace_id": "t",
        "retinue.depth": 1,
        "retinue.status": "done",
    }


async def test_a_failure_and_a_refusal_are_said_in_the_span(collected: Collected) -> None:
    async def act(_: Call) -> dict[str, str]:
        raise ExecutionFailedError("boom")

    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": act}, open_span=collected.spans.open)
    await dispatcher.dispatch(make_call())
    await dispatcher.dispatch(make_call(trace=TraceContext("t", 6, trusted=True)))
    found = [
        (dict(span.attributes or {}).get("error.type"), span.status.status_code) for span in collected.ended
    ]
    assert found == [
        ("execution_error", otel.StatusCode.ERROR),  # of the attempt
        ("execution_error", otel.StatusCode.ERROR),
        ("recursion_limit", otel.StatusCode.ERROR),
    ]
    assert not otel.get_current_span().get_span_context().is_valid


async def test_without_a_collector_the_callers_span_is_handed_on_as_it_came() -> None:
    seen: list[TraceContext] = []

    async def act(call: Call) -> dict[str, str]:
        seen.append(call.trace)
        return {"plan": ""}

    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": act})
    await dispatcher.dispatch(make_call(trace=TraceContext("t", 1, traceparent=PARENT, tracestate="v=1")))
    assert (seen[0].traceparent, seen[0].tracestate) == (PARENT, "v=1")


async def test_a_skill_of_the_same_process_has_no_span_of_an_attempt(collected: Collected) -> None:
    agent = Agent("a", version="1.0.0")

    @agent.skill
    async def work() -> str:
        """Works."""
        return "done"

    await local_dispatcher(agent, open_span=collected.spans.open).dispatch(make_call("work", {}))
    assert [span.kind for span in collected.ended] == [otel.SpanKind.SERVER]
