"""Look-up by skill id in a large directory, against a plain dict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.figures import Figure
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.directory.listings import MemoryListings

AGENTS = 100_000
SKILLS_EACH = 5
LOOKUPS = 2_000
CHANGES = 50
SHARED = "create_plan"


def measure() -> list[Figure]:
    directory = Directory(MemoryListings())
    listings = [_listing(number) for number in range(AGENTS)]
    for listing in listings:
        directory.upsert(listing)
    wanted = [f"skill_{(number * 7919) % (AGENTS * SKILLS_EACH)}" for number in range(LOOKUPS)]
    plain = {skill.id: listing for listing in listings for skill in listing.record.skills}
    ours = _median_s(lambda skill: directory.find_by_skill(skill, MESH_VIEW), wanted)
    floor = _median_s(plain.get, wanted)
    directory.find_by_skill(SHARED, MESH_VIEW)
    changes = [_after_a_change(directory, listing) for listing in listings[:: AGENTS // CHANGES]]
    return [
        Figure(
            "find the agents of a skill that all have, once one changed", max(changes) * 1e3, "ms", target=50
        ),
        Figure(f"find by skill id in {AGENTS:,} agents", ours * 1e6, "µs", target=50),
        Figure("the same, against a plain dict", ours / floor, "×"),
    ]


def _listing(number: int) -> Listing:
    skills = tuple(Skill(f"skill_{number * SKILLS_EACH + at}", "does one thing") for at in range(SKILLS_EACH))
    record = AgentRecord(
        f"agent-{number}",
        "1.0.0",
        endpoints=(Endpoint("execute", f"http://h:{number}"),),
        skills=(*skills, Skill(SHARED)),
    )
    return Listing(record=record, source="bench", key=f"agents/{number}")


def _after_a_change(directory: Directory, listing: Listing) -> float:
    directory.mark_unreachable(listing, "refused")
    started = time.perf_counter()
    found = directory.find_by_skill(SHARED, MESH_VIEW)
    spent_s = time.perf_counter() - started
    assert found[-1].reachable is False
    return spent_s


def _median_s(find: Callable[[str], object], wanted: list[str]) -> float:
    spent = []
    for skill in wanted:
        started = time.perf_counter()
        found = find(skill)
        spent.append(time.perf_counter() - started)
        assert found, skill
    return statistics.median(spent)
