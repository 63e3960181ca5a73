"""``python -m benchmarks [NAME …]``: run the benchmarks and print a table; a missed target exits with 1."""

from __future__ import annotations

import sys

from benchmarks import (
    a2a,
    client,
    cold_start,
    dashboard,
    dead_agents,
    discovery,
    dispatch,
    endpoints,
    fan_out,
    find_text,
    find_tokens,
    history,
    koi,
    lookup,
    mcp,
    mcp_hub,
    memory,
    messages,
    orchestrate,
    policies,
    processes,
    ranking,
    scale,
    search,
    startup,
    think,
    workflows,
)
from benchmarks.simulation import run as simulation

BENCHMARKS = {
    "a2a": a2a.measure,
    "client": client.measure,
    "cold_start": cold_start.measure,
    "dashboard": dashboard.measure,
    "dead_agents": dead_agents.measure,
    "discovery": discovery.measure,
    "dispatch": dispatch.measure,
    "endpoints": endpoints.measure,
    "fan_out": fan_out.measure,
    "lookup": lookup.measure,
    "scale": scale.measure,
    "find_text": find_text.measure,
    "find_tokens": find_tokens.measure,
    "history": history.measure,
    "koi": koi.measure,
    "mcp": mcp.measure,
    "mcp_hub": mcp_hub.measure,
    "memory": memory.measure,
    "messages": messages.measure,
    "orchestrate": orchestrate.measure,
    "policies": policies.measure,
    "processes": processes.measure,
    "ranking": ranking.measure,
    "search": search.measure,
    "startup": startup.measure,
    "simulation": simulation.measure,
    "think": think.measure,
    "workflows": workflows.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or BENCHMARKS:
        print(f"\n{name}", flush=True)
        for figure in BENCHMARKS[name]():
            goal = "" if figure.target is None else f"  target ≤ {figure.target:g} {figure.unit}"
            verdict = "" if figure.target is None else ("  met" if figure.is_met else "  MISSED")
            print(f"  {figure.name:<52} {figure.value:9.2f} {figure.unit}{goal}{verdict}", flush=True)
            missed += not figure.is_met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
