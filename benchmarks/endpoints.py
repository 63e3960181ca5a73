"""Processor time of a hub with 100,000 agents for each page, each endpoint and each skill of its own.

The hub is a process of its own. Its agents are in its state folder; the registry that lists them is away, so
that nothing else is at work. A request is sent some times, and the least counts: the processor time of the
whole request, and in a second hub the longest time that other tasks wait meanwhile. ``/tools/list`` and
``/resources/list`` of the REST endpoint are asked once, because seed 003 has no pages and the answer is a
list of half a million skills.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import quote

from benchmarks.figures import Figure, cpu_s_of
from benchmarks.find_text import AGENTS, RandomWords, draw_batches
from benchmarks.hub_visitor import START_S, Visitor, program
from benchmarks.hub_with_watch import PATH as BLOCK
from retinue.mesh.search.skill_texts import render_text
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.storage.state import State

SOURCE = "http://127.0.0.1:9"
TIMES = 5
TARGET_MS = 50

AGENT = "agent-77777"

PATHS = (
    "/health",
    "/ready",
    "/metrics",
    "/agent-card",
    "/.well-known/agent-card.json",
    "/.well-known/ai-catalog.json",
    "/openapi.json",
    f"/agents/{AGENT}/agent-card",
    f"/agents/{AGENT}/.well-known/agent-card.json",
    f"/agents/{AGENT}/openapi.json",
    "/agents/nosuch/agent-card",
    f"/resources/read/agent:{AGENT}",
    "/artifacts",
    "/v2/_catalog",
    "/",
    "/ui/agents",
    "/ui/agents?after=agent-5",
    "/ui/agents?q=plan+build",
    f"/ui/agents/{AGENT}",
    "/ui/agents/nosuch",
    "/ui/calls",
    "/ui/runs",
    "/ui/workflows",
    "/ui/mesh",
    "/ui/approvals",
    "/ui/policies",
    "/ui/teams",
)

WHOLE = ("/tools/list", "/resources/list")
"""Paths whose answers have no pages."""

SKILLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("list_agents", {}),
    ("list_agents", {"query": "plan"}),
    ("map_agents", {}),
    ("map_agents", {"limit": 20}),
    ("show_agent", {"name": AGENT}),
    ("show_agent", {"name": "agent-7777x"}),
    ("find_skills", {"query": "plan a trip"}),
    ("call_skill", {"skill": "no_such_skill", "arguments": {}}),
    ("explain_policies", {"skill": "no_such_skill"}),
    ("get_capabilities", {}),
    ("list_imports", {}),
    ("list_workflows", {}),
    ("list_runs", {}),
    ("list_calls", {}),
    ("list_schedules", {}),
    ("show_mesh", {}),
    ("show_history", {}),
    ("list_wishes", {}),
    ("show_receipts", {}),
    ("publish_receipts", {}),
)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="endpoints-") as name:
        folder = Path(name)
        state = State(folder / "state")
        state.prepare()
        fill(state)
        (folder / "retinue.toml").write_text(
            f'registries = ["{SOURCE}"]\n[directory]\nrefresh_s = 3600\nttl_s = 3600\n'
        )
        with program(folder, "hub", "--bare", "--port", "0") as hub:
            visitor = Visitor(_await_address(state), state.local_token())
            _wait_until_idle(hub.pid)
            works = list(_list_works(visitor))
            figures = [_measure_cpu(hub.pid, name, work) for name, work in works]
        with program(folder, "hub", "--bare", "--port", "0", module="benchmarks.hub_with_watch") as hub:
            visitor = Visitor(_await_address(state), state.local_token())
            works = [*_list_works(visitor), *((path, partial(visitor.ask, "GET", path)) for path in WHOLE)]
            return [*figures, *(_measure_block(visitor, name, work) for name, work in works)]


def fill(state: State) -> None:
    """Store the agents and their texts, as a hub does that has read them."""
    listings, texts = SqliteListings(state.database), SqliteTextIndex(state.database)
    for batch in draw_batches(RandomWords(Random(1))):
        held = [replace(listing, source=SOURCE, tag="v1", reachable=True) for listing in batch]
        listings.put_all(held)
        texts.put_all([render_text(listing) for listing in held])
    listings.close()
    texts.close()


def _await_address(state: State) -> str:
    """The address of the hub, which is not ready without its registry, and serves."""
    until = time.monotonic() + START_S
    while (hub := state.read_hub()) is None:
        if time.monotonic() > until:
            raise RuntimeError("the hub does not start")
        time.sleep(0.1)
    return hub.url


def _wait_until_idle(pid: int) -> None:
    """Wait until the work of the start has ended."""
    used_s = 0.0
    while cpu_s_of(pid) - used_s > 0.05:
        used_s = cpu_s_of(pid)
        time.sleep(1.0)


def _list_works(visitor: Visitor) -> Iterator[tuple[str, Callable[[], object]]]:
    for path in PATHS:
        yield path, partial(visitor.ask, "GET", quote(path, safe="/?=&+:.-_"))
    for skill, arguments in SKILLS:
        shown = ", ".join(f"{key}={value}" for key, value in arguments.items())
        yield f"{skill}({shown})", partial(visitor.try_call, skill, arguments)


def _measure_cpu(pid: int, name: str, work: Callable[[], object]) -> Figure:
    spent = []
    for _ in range(TIMES):
        used_s = cpu_s_of(pid)
        work()
        spent.append(cpu_s_of(pid) - used_s)
    return Figure(f"{AGENTS:,} agents, {name}", min(spent) * 1e3, "ms")


def _measure_block(visitor: Visitor, name: str, work: Callable[[], object]) -> Figure:
    blocks = []
    for _ in range(1 if name in WHOLE else TIMES):
        visitor.ask("GET", BLOCK)
        work()
        blocks.append(float(visitor.read(BLOCK)))
    return Figure(f"others wait for {name}", min(blocks) * 1e3, "ms", target=TARGET_MS)
