"""Exports the metrics of a process over OpenTelemetry, with the extra ``otel``.

The same figures as at ``/metrics``, as observable instruments, and a histogram of durations. Without a
provider and without an endpoint in the environment nothing is loaded and nothing is recorded.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from retinue.mesh.observing.call_metrics import CallMetrics
from retinue.mesh.observing.metrics import LATENCY_BOUNDS_S, METRICS, Figures, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
EXPORTER_VARIABLE = "OTEL_METRICS_EXPORTER"
"""``none`` exports no metrics although there is an endpoint."""

_API = "opentelemetry.metrics"
_FRESH_S = 0.5
"""All instruments of one collection read the same figures."""

_READ_S = 5.0
_FLUSH_MS = 2_000
_log = structlog.get_logger("retinue.telemetry")


@asynccontextmanager
async def exporting_metrics(
    service: str,
    environ: Mapping[str, str],
    calls: CallMetrics,
    read: Callable[[], Awaitable[Figures]],
    metrics: Mapping[str, Metric] = METRICS,
) -> AsyncIterator[None]:
    """Export the metrics of this process while inside, where a provider or an endpoint is configured."""
    wanted = any(environ.get(name) for name in ENDPOINT_VARIABLES)
    if not wanted and _API not in sys.modules:
        yield  # no provider can have been configured
        return
    own = None
    if not _is_collecting() and wanted and environ.get(EXPORTER_VARIABLE) != "none":
        own = _send_to_endpoint(environ.get("OTEL_SERVICE_NAME") or service)
    if not _is_collecting():
        yield
        return
    from opentelemetry.metrics import get_meter

    export = MetricExport(get_meter("retinue"), read, asyncio.get_running_loop(), metrics)
    calls.on_duration = export.record_duration
    try:
        yield
    finally:
        calls.on_duration = None
        if own is not None:
            await asyncio.to_thread(own.force_flush, _FLUSH_MS)
        export.end()


class MetricExport:
    """The instruments of one process; their callbacks run in a thread of the exporter."""

    def __init__(
        self,
        meter: Meter,
        read: Callable[[], Awaitable[Figures]],
        loop: asyncio.AbstractEventLoop,
        metrics: Mapping[str, Metric] = METRICS,
    ) -> None:
        self._metrics = metrics
        self._read = read
        self._loop: asyncio.AbstractEventLoop | None = loop
        self._lock = threading.Lock()
        self._figures = Figures()
        self._read_at = -_FRESH_S
        self._durations = meter.create_histogram(
            "retinue.call_duration",
            "s",
            METRICS["retinue_call_duration_seconds"].help,
            explicit_bucket_boundaries_advisory=LATENCY_BOUNDS_S,
        )
        for name, metric in metrics.items():
            callbacks = [partial(self._observe, name)]
            shown, unit = otel_name(name)
            if metric.kind == "counter":
                meter.create_observable_counter(shown, callbacks, unit, metric.help)
            elif metric.kind == "gauge":
                meter.create_observable_gauge(shown, callbacks, unit, metric.help)

    def record_duration(self, seconds: float, agent: str, skill: str) -> None:
        """Record the duration of one call."""
        self._durations.record(seconds, {"agent": agent, "skill": skill})

    def end(self) -> None:
        """Stop reading: the loop is about to end."""
        self._loop = None

    def _observe(self, name: str, options: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        labels = self._metrics[name].labels
        for values, value in self._read_now().values.get(name, {}).items():
            yield Observation(value, dict(zip(labels, values, strict=True)))

    def _read_now(self) -> Figures:
        with self._lock:
            loop = self._loop
            if loop is not None and time.monotonic() - self._read_at >= _FRESH_S:
                reading = asyncio.run_coroutine_threadsafe(_as_coroutine(self._read), loop)
                try:
                    self._figures, self._read_at = reading.result(_READ_S), time.monotonic()
                except TimeoutError:
                    reading.cancel()
                    _log.warning("metrics not read", reason=f"the process did not answer in {_READ_S:g} s")
            return self._figures


async def _as_coroutine(read: Callable[[], Awaitable[Figures]]) -> Figures:
    return await read()


def otel_name(name: str) -> tuple[str, str]:
    """The name and unit of a metric in OpenTelemetry, which Prometheus turns back into its own."""
    shown, unit = name.replace("retinue_", "retinue.", 1).removesuffix("_total"), "1"
    for suffix, symbol in (("_seconds", "s"), ("_dollars", "{USD}"), ("_bytes", "By")):
        if shown.endswith(suffix):
            shown, unit = shown.removesuffix(suffix), symbol
    return shown, unit


def _is_collecting() -> bool:
    from opentelemetry import metrics
    from opentelemetry.metrics import _internal

    return not isinstance(
        metrics.get_meter_provider(), _internal._ProxyMeterProvider | metrics.NoOpMeterProvider
    )


def _send_to_endpoint(service: str) -> MeterProvider | None:
    from opentelemetry import metrics

    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        _log.warning("no metrics are sent", reason="install retinue[otel]")
        return None
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    provider = MeterProvider([reader], resource=Resource.create({"service.name": service}))
    metrics.set_meter_provider(provider)
    return provider
