"""Metrics over OpenTelemetry: the figures of ``/metrics`` by the real SDK and over the real protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import metrics as otel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from retinue.core.call import Outcome
from retinue.mesh.admission import Admission
from retinue.mesh.observing.events import CallEndedEvent, EventBus, now
from retinue.mesh.observing.metrics import METRICS
from retinue.mesh.permissions import Access
from retinue.runtime.observing.otel_metrics import MetricExport, otel_name
from retinue.runtime.observing.process_state import ProcessState
from tests.mesh.scripted import make_call
from tests.processes.running import execute, program, write_agent
from tests.serving import serve_app


def make_state() -> tuple[ProcessState, EventBus]:
    events = EventBus()
    admission = Admission(events=events)
    return ProcessState.observing("agent", Access(), admission, lambda: False), events


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [(dict(point.attributes or {}), point) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_the_instruments_show_the_figures_of_the_process() -> None:
    state, events = make_state()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    export = MetricExport(provider.get_meter("retinue"), state.read, asyncio.get_running_loop())
    state.calls.on_duration = export.record_duration
    try:
        outcome = Outcome("1", "create_plan", "done", agent="plan-agent", duration_ms=30)
        events.emit(CallEndedEvent(make_call(), outcome, now()))
        events.flush()
        found = await asyncio.to_thread(points, reader)
        ((labels, point),) = found["retinue.calls"]
        assert labels == {
            "agent": "plan-agent",
            "skill": "create_plan",
            "endpoint": "execute",
            "outcome": "done",
        }
        assert point.value == 1
        ((labels, point),) = found["retinue.call_duration"]
        assert labels == {"agent": "plan-agent", "skill": "create_plan"}
        assert (point.count, round(point.sum, 3)) == (1, 0.03)
        assert "retinue.calls_in_flight" in found
        # after its end the exporter gets what was known last, and does not wait for a loop that is gone
        export.end()
        assert "retinue.calls" in await asyncio.to_thread(points, reader)
    finally:
        provider.shutdown()


async def test_without_an_endpoint_and_a_provider_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, _ = make_state()
    for loaded in (True, False):
        if not loaded:
            monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
        async with state.exporting("agent", {}):
            assert state.calls.on_duration is None


async def test_a_provider_that_somebody_configured_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = make_state()
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(otel, "get_meter", provider.get_meter)
    async with state.exporting("agent", {}):
        assert state.calls.on_duration is not None
    assert state.calls.on_duration is None
    provider.shutdown()


def test_names_are_those_that_prometheus_turns_back_into_its_own() -> None:
    assert otel_name("retinue_calls_total") == ("retinue.calls", "1")
    assert otel_name("retinue_lease_remaining_seconds") == ("retinue.lease_remaining", "s")
    assert otel_name("retinue_cost_dollars_total") == ("retinue.cost", "{USD}")
    assert len({otel_name(name)[0] for name in METRICS}) == len(METRICS)


@asynccontextmanager
async def collector(received: list[ExportMetricsServiceRequest]) -> AsyncIterator[str]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/v1/metrics":
            encoding = dict(scope["headers"]).get(b"content-encoding")
            assert encoding is None
            received.append(ExportMetricsServiceRequest.FromString(body))
        headers = [(b"content-type", b"application/x-protobuf")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async with serve_app(app) as url:
        yield url


async def test_an_endpoint_in_the_environment_gets_the_metrics_of_an_agent(tmp_path: Any) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    received: list[ExportMetricsServiceRequest] = []
    async with collector(received) as endpoint:
        environment = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{endpoint}/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
        }

        def serve_and_call() -> None:
            with program(
                "serve", str(agent), "--no-publish", cwd=tmp_path, environment=environment
            ) as served:
                url = served.url_in("one-agent")
                assert execute(url, "who")["result"] == "one"
                assert served.end() == 0

        await asyncio.to_thread(serve_and_call)
    names = {
        metric.name
        for request in received
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"retinue.calls", "retinue.call_duration", "retinue.ready"} <= names
    services = {
        attribute.value.string_value
        for request in received
        for resource in request.resource_metrics
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    assert services == {"one-agent"}
