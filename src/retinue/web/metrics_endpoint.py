"""The endpoint ``/metrics`` in the text formats of Prometheus and OpenMetrics.

The library that writes the formats is loaded at the first scrape, and writes in a thread: two thousand
series take some milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.mesh.observing.metrics import Figures, Histogram
from retinue.web.security import identity_of

if TYPE_CHECKING:
    from prometheus_client import Metric

PATH = "/metrics"
OPEN_METRICS = "application/openmetrics-text"
"""A client that accepts this format gets it; everybody else gets the plain one."""

ReadFigures = Callable[[Principal], Awaitable[Figures]]
"""Reads the figures of this process that a caller may see."""


def metrics_route(read: ReadFigures) -> Route:
    """The route of the metrics; who may read them is checked by the security middleware."""

    async def answer(request: Request) -> Response:
        figures = await read(identity_of(request.scope).principal)
        body, media_type = await asyncio.to_thread(_render, figures, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return Route(PATH, answer, methods=["GET"])


def render_metrics(figures: Figures, accept: str = "") -> bytes:
    """The figures in the format that the header ``Accept`` asks for."""
    return _render(figures, accept)[0]


def _render(figures: Figures, accept: str) -> tuple[bytes, str]:
    # imported here: no process needs the library until somebody reads its metrics
    if OPEN_METRICS in accept:
        from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

        write: Callable[[_MetricsSource], bytes] = generate_latest  # it has no types
        return write(_MetricsSource(figures)), CONTENT_TYPE_LATEST
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
    from prometheus_client.exposition import generate_latest as generate_plain

    return generate_plain(_MetricsSource(figures)), CONTENT_TYPE_PLAIN_0_0_4


class _MetricsSource:
    """The input of the library: one collection of figures, then the figures of the operating system."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, metric in self._figures.metrics.items():
            histograms = self._figures.histograms.get(name)
            if metric.kind == "histogram":
                shape = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for labels, histogram in (histograms or {}).items():
                    shape.add_metric(labels, buckets=_buckets(histogram), sum_value=histogram.total)
                yield shape
                continue
            values = self._figures.values.get(name)
            if values is None:
                continue
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            rows = family(name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                rows.add_metric(labels, value)
            yield rows
        yield from _process_metrics().collect()


def _buckets(histogram: Histogram) -> list[Any]:
    return list(histogram.cumulate())


@lru_cache(maxsize=1)
def _process_metrics() -> Any:
    """Memory, CPU time, open files and start of this process; empty except on Linux."""
    from prometheus_client.process_collector import ProcessCollector

    return ProcessCollector(registry=None)
