"""Writes the Grafana dashboard ``deploy/grafana/retinue.json``: one row of panels a topic.

``python -m scripts.grafana_dashboard`` rewrites it; ``tests/deploy`` fails when it is behind, and asks a live
Prometheus for every expression.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "retinue.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 7
_RATE = "[$__rate_interval]"
_HUB = 'kind="hub"'


@dataclass(frozen=True)
class Panel:
    """One graph; each query is a PromQL expression with the legend of its lines."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


ROWS: dict[str, tuple[Panel, ...]] = {
    "Calls": (
        Panel(
            "Calls per second by outcome",
            "reqps",
            ((f"sum by (outcome) (rate(retinue_calls_total{{{_HUB}}}{_RATE}))", "{{outcome}}"),),
        ),
        Panel(
            "Calls per second by agent",
            "reqps",
            (
                (
                    f'topk(10, sum by (agent) (rate(retinue_calls_total{{{_HUB}, agent!=""}}{_RATE})))',
                    "{{agent}}",
                ),
            ),
        ),
        Panel(
            "Calls per second by endpoint",
            "reqps",
            ((f"sum by (endpoint) (rate(retinue_calls_total{{{_HUB}}}{_RATE}))", "{{endpoint}}"),),
        ),
        Panel(
            "Duration of calls",
            "s",
            tuple(
                (
                    f"histogram_quantile({share}, sum by (le) "
                    f"(rate(retinue_call_duration_seconds_bucket{{{_HUB}}}{_RATE})))",
                    name,
                )
                for share, name in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"))
            ),
        ),
        Panel(
            "Slowest skills (p95)",
            "s",
            (
                (
                    "topk(10, histogram_quantile(0.95, sum by (le, agent, skill) "
                    f"(rate(retinue_call_duration_seconds_bucket{{{_HUB}}}{_RATE}))))",
                    "{{agent}} {{skill}}",
                ),
            ),
        ),
        Panel(
            "Failed calls per second by error",
            "reqps",
            ((f"sum by (error) (rate(retinue_call_errors_total{_RATE}))", "{{error}}"),),
        ),
        Panel("Calls in flight", "short", (("retinue_calls_in_flight", "{{instance}}"),)),
    ),
    "Agents": (
        Panel("Agents by health", "short", ((f"max by (health) (retinue_agents{{{_HUB}}})", "{{health}}"),)),
        Panel(
            "Circuit breakers",
            "short",
            (("sum by (instance, state) (retinue_circuit_breakers)", "{{instance}} {{state}}"),),
        ),
        Panel(
            "Missing: sources, children, imported servers",
            "short",
            (
                ("count(retinue_source_up == 0) or vector(0)", "sources"),
                ("count(retinue_child_up == 0) or vector(0)", "children"),
                ("count(retinue_upstream_up == 0) or vector(0)", "imported servers"),
            ),
        ),
        Panel(
            "Restarts of children in an hour",
            "short",
            (("increase(retinue_child_restarts_total[1h])", "{{child}}"),),
        ),
    ),
    "Runs": (
        Panel("Runs by status", "short", (("max by (status) (retinue_runs)", "{{status}}"),)),
        Panel(
            "Runs and steps",
            "short",
            (
                ("retinue_runs_executing", "runs at {{instance}}"),
                (f"sum by (outcome) (rate(retinue_run_steps_total{_RATE}))", "steps per second, {{outcome}}"),
            ),
        ),
        Panel(
            "Nodes and leases",
            "short",
            (
                ("max(retinue_nodes)", "nodes"),
                ("retinue_lease_remaining_seconds", "lease of {{instance}} in s"),
                ("retinue_lease_losses_total", "losses of {{instance}}"),
            ),
        ),
        Panel(
            "Database",
            "s",
            (
                ("retinue_database_query_seconds", "query at {{instance}}"),
                ("min(retinue_database_up)", "up"),
                ("sum by (state) (retinue_database_connections)", "connections {{state}}"),
            ),
        ),
    ),
    "Artifacts": (
        Panel(
            "Artifacts stored",
            "bytes",
            (
                ("max(retinue_artifacts_stored_bytes)", "stored"),
                ("max(retinue_artifacts_quota_bytes)", "quota"),
            ),
        ),
        Panel("Number of artifacts", "short", (("max(retinue_artifacts)", "artifacts"),)),
        Panel(
            "Artifacts read per second",
            "Bps",
            ((f"sum(rate(retinue_artifacts_read_bytes_total{_RATE}))", "read"),),
        ),
    ),
    "Models": (
        Panel(
            "Tokens per second",
            "short",
            (
                (
                    f"sum by (agent, direction) (rate(retinue_tokens_total{{{_HUB}}}{_RATE}))",
                    "{{agent}} {{direction}}",
                ),
            ),
        ),
        Panel(
            "Cost in a day",
            "currencyUSD",
            ((f"sum by (agent) (increase(retinue_cost_dollars_total{{{_HUB}}}[1d]))", "{{agent}}"),),
        ),
    ),
    "Processes": (
        Panel("Ready (1), degraded (0.5), not (0)", "short", (("retinue_ready", "{{kind}} {{instance}}"),)),
        Panel(
            "Memory", "bytes", (('process_resident_memory_bytes{job="retinue"}', "{{kind}} {{instance}}"),)
        ),
        Panel(
            "CPU",
            "percentunit",
            ((f'rate(process_cpu_seconds_total{{job="retinue"}}{_RATE})', "{{kind}} {{instance}}"),),
        ),
        Panel(
            "Versions",
            "short",
            (("count by (process, version) (retinue_build_info)", "{{process}} {{version}}"),),
        ),
    ),
}


def render_dashboard() -> str:
    """The dashboard as JSON that Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        for number, panel in enumerate(row):
            place = {
                "h": HEIGHT,
                "w": WIDTH,
                "x": number % 3 * WIDTH,
                "y": top + number // 3 * HEIGHT,
            }
            panels.append({"id": len(panels) + 1, **_render_panel(panel), "gridPos": place})
        top += -(-len(row) // 3) * HEIGHT
    dashboard = {
        "title": "Retinue",
        "uid": "retinue",
        "tags": ["retinue"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _render_panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render_dashboard(), "utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
