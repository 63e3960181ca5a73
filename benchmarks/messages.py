"""``POST /messages``: processor time per message of an agent, against ``/execute`` and a bare echo."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import orjson

from benchmarks.dispatch import BODY, ROUNDS, Server, load
from benchmarks.figures import Figure

_TASK = {"task_type": "echo", "task_parameters": {"text": "hello", "count": 3}}
_QUERY = {"query_type": "specific", "query_parameters": {"capabilities": ["echo"]}}
REQUESTS = {
    "bare echo": ("bare", "/execute", BODY, b'"result"'),
    "execute": ("retinue", "/execute", BODY, b'"result"'),
    "task": (
        "retinue",
        "/messages",
        orjson.dumps({"performative": "TASK_REQUEST", "payload": _TASK}),
        b"INFORM_RESULT",
    ),
    "query": (
        "retinue",
        "/messages",
        orjson.dumps({"performative": "QUERY_CAPABILITIES", "payload": _QUERY}),
        b'"match_result":true',
    ),
}


def measure() -> list[Figure]:
    """Interleaved rounds with sixteen connections; the best of each counts."""
    best: dict[str, tuple[float, float]] = {}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(Server(kind)) for kind in ("bare", "retinue")}
        for _ in range(ROUNDS):
            for name, (kind, path, body, wanted) in REQUESTS.items():
                cpu_s, per_s = asyncio.run(load(servers[kind], 16, path, body, wanted))
                known = best.get(name, (cpu_s, per_s))
                best[name] = (min(cpu_s, known[0]), max(per_s, known[1]))
    return [
        *(Figure(f"CPU per request, {name}", best[name][0] * 1e6, "µs") for name in REQUESTS),
        *(Figure(f"requests per second, {name}", best[name][1], "/s") for name in REQUESTS),
        Figure("CPU of a task against /execute", best["task"][0] / best["execute"][0], "×"),
    ]
