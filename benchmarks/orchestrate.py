"""The time that orchestration adds to a call: ``orchestrate`` → ``direct`` → an agent that answers at once.

Against calling that agent directly, and through the hub; and the same request answered from the cache. All
are real processes, asked one call at a time over ``/execute``; each run of a workflow is durable (SQLite).
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.figures import Figure
from benchmarks.memory import COMMAND, Process

ROUNDS = 3
CALLS = 100

MODEL = """
from retinue import Agent

agent = Agent("instant", version="1.0.0", scores={"execution": 0.9})


@agent.skill("execute", roles=["execute"], expose=True)
async def execute(prompt: str) -> str:
    "Answers at once."
    return "done"
"""


def measure() -> list[Figure]:
    """Median milliseconds of a call; the ways take turns, so that noise meets all of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchestrate-")))
        hub = Process(stack, folder, *COMMAND, "hub", "--bare", "--port")
        hub.wait_for("/health")
        (folder / "instant.py").write_text(MODEL)
        agent = Process(stack, folder, *COMMAND, "serve", "instant.py", "--port")
        agent.wait_for("/health")
        prompt = {"prompt": "Say done"}
        asked = {**prompt, "preferences": {"workflow": "direct"}}
        unread = {**prompt, "preferences": {"workflow": "direct", "cache": False}}
        to_hub, to_agent = Connection(hub.url), Connection(agent.url)
        _wait_for_agent(to_hub, prompt)
        ways: dict[str, Callable[[], Any]] = {
            "the agent itself": lambda: to_agent.call("execute", prompt),
            "the agent through the hub": lambda: to_hub.call("execute", prompt),
            "orchestrate, direct": lambda: to_hub.call("orchestrate", unread),
            "orchestrate, from the cache": lambda: to_hub.call("orchestrate", asked),
        }
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                call()
                spent[name] += [_time_ms(call) for _ in range(CALLS)]
    medians = {name: statistics.median(times) for name, times in spent.items()}
    added = medians["orchestrate, direct"] - medians["the agent itself"]
    return [
        *(Figure(f"{name}: one call", median, "ms") for name, median in medians.items()),
        Figure("orchestrate, direct: added to the agent's call", added, "ms"),
        Figure(
            "a cache hit against the agent's call",
            medians["orchestrate, from the cache"] / medians["the agent itself"],
            "×",
        ),
    ]


class Connection:
    """One kept connection to ``/execute``."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def call(self, method: str, params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self._connection.request("POST", "/execute", body, {"content-type": "application/json"})
        reply = json.loads(self._connection.getresponse().read())
        if "error" in reply:
            raise RuntimeError(reply["error"]["message"])
        return reply["result"]


def _wait_for_agent(hub: Connection, prompt: Any) -> None:
    """Until the hub has found the agent and has opened the database of its runs."""
    give_up = time.monotonic() + 60
    while True:
        try:
            hub.call("orchestrate", {**prompt, "preferences": {"workflow": "direct", "cache": False}})
            return
        except RuntimeError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def _time_ms(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000
