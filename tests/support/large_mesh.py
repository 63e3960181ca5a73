"""A state folder of a large mesh: thousand published cards, ten thousand recorded calls, a long workflow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import orjson

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.state import State

AGENTS = 1_000
CALLS = 10_000
CALLS_OF_TRACE = 1_500
LONG_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
STEPS = 500

WORKERS = '''
from retinue import Agent

agent = Agent("worker-agent", version="1.0.0", description="Works on the items of a long run")


@agent.skill(expose=True)
async def work(n: int) -> dict:
    """Works on one item."""
    if n % 100 == 99:
        raise ValueError(f"item {n} is bad")
    return {"n": n, "text": "x" * 200}
'''

WORKFLOW = """
name: long
description: Works on many items at once
input: {type: object, properties: {items: {type: array, items: {type: integer}}}, required: [items]}
steps:
  - {id: first, skill: work, with: {n: 0}}
  - id: each
    foreach: {in: "${{ input.items }}", concurrency: 16}
    steps:
      - {id: item, skill: work, with: {n: "${{ loop.item }}"}, on_error: continue}
  - {id: last, skill: work, with: {n: 1}}
output: "${{ steps.last.output }}"
"""


async def fill_state(state: State, *, agents: int = AGENTS, calls: int = CALLS) -> None:
    """Fill a state folder that no process uses yet."""
    state.prepare()
    await _publish(LayoutRegistry(state.registry), agents)
    (state.root / "workflows").mkdir(exist_ok=True)
    (state.root / "workflows" / "long.yaml").write_text(WORKFLOW)
    audit = SqliteAudit(state.database)
    for row in _make_calls(calls, agents):
        audit.append(row)
    audit.close()


def make_card(number: int) -> bytes:
    """The card of one agent; nothing answers at its address."""
    skills = [
        {
            "id": f"skill_{number}_{at}",
            "description": f"Does the work of kind {number % 40} in the way {at}, and says how it went",
            "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        }
        for at in range(3)
    ]
    card = {
        "name": f"agent-{number:04}",
        "url": f"http://127.0.0.1:{9 if number % 3 else 10}",
        "version": f"1.{number % 20}.0",
        "description": f"Agent {number} of many: it plans, builds and reviews things of kind {number % 40}",
        "skills": skills,
    }
    return orjson.dumps(card)


async def _publish(registry: LayoutRegistry, agents: int) -> None:
    now = datetime.now(UTC)
    for number in range(agents):
        name = f"agent-{number:04}"
        await publish_card(registry, name, make_card(number), version="1.0.0", skills=[], created=now)


def _make_calls(count: int, agents: int) -> Sequence[dict[str, object]]:
    now = datetime.now(UTC)
    rows: list[dict[str, object]] = []
    for number in range(count):
        is_long = number >= count - CALLS_OF_TRACE
        row: dict[str, object] = {
            "type": "CALL:ENDED",
            "id": f"call-{number}",
            "door": "execute",
            "caller": "local",
            "skill": f"skill_{number % agents}_0",
            "agent": f"agent-{number % agents:04}",
            "version": "1.0.0",
            "status": "failed" if number % 50 == 0 else "done",
            "duration_ms": 1.0 + number % 90,
            "attempts": 1,
            "trace_id": LONG_TRACE if is_long else f"{number:032x}",
            "depth": 1 + number % 5,
            "timestamp": (now - timedelta(milliseconds=20 * (count - number))).isoformat(),
        }
        if number % 50 == 0:
            row["error"] = "timeout"
        rows += [{"type": "EXEC:TOOL_CALL", "id": row["id"], "tool": row["skill"]}, row]
    return rows
