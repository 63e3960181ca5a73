"""Whether all of it happened that the demo is to show."""

from __future__ import annotations

import json
from collections import Counter

from scripts.think_demo.mesh import TOOLS, Mesh
from scripts.think_demo.screen import Screen

REQUESTS = [1, 2, 3, 4, 4, 5, 6]
"""The turns that the scripted model was asked for: five with calls and the answer, one of them twice."""

CALLS = 6
"""The calls of the scripted model, without its searches."""


def check_story(mesh: Mesh, screen: Screen, run: str) -> list[str]:
    """Say what happened; returns what did not."""
    record = mesh.call("show_run", run=run)
    steps = mesh.list_steps(run)
    first = next(path for path in steps if path.endswith("/model"))
    made = [step for path, step in steps.items() if "/call-" in path and step["status"] == "done"]
    logged = [
        Counter(row["id"] for row in calls if row["door"] == "workflow" and row["skill"] != "complete")
        for calls in mesh.list_calls()
    ]
    approvals = [row["state"] for row in json.loads(screen.read("approvals", "--all", "--json"))["approvals"]]
    kept = [path.read_text("utf-8") for path in mesh.kept.glob("*.py")]
    agents = {step["agent"] for step in made}
    once = sum(logged, Counter()) == Counter(f"{run}/{step['step']}" for step in made)
    results = {
        "It found its tools by search.": steps[first]["input"]["tools"] == ["find_skills"],
        f"It made {len(made)} calls of {len(agents)} agents, each once.": bool(made) and once,
        f"It asked for {len(approvals)} approval, and used it once.": {*approvals} == {"used"},
        "The file was written.": any("def test_" in text for text in kept),
        "It answered.": record["status"] == "done" and bool(record["output"]),
    }
    if mesh.is_scripted:
        turns = [json.loads(line)["turn"] for line in mesh.read_requests().splitlines()]
        results |= {
            "Calls were made before the kill and after it, of all five agents.": (
                len(logged) == 2 and all(logged) and agents == TOOLS and len(made) == CALLS
            ),
            "The knowledge graph has its note.": "4 tests pass" in mesh.read_notes(),
            "Its answer says what the tests came to.": "4 pass, 0 fail" in str(record["output"]),
            "The model was asked six times; the request that the kill cut off was sent again.": turns
            == REQUESTS,
        }
    for text, is_true in results.items():
        screen.say(f"  {'ok' if is_true else 'NOT SO'}  {text}")
    return [f"not so: {text}" for text, is_true in results.items() if not is_true]
