"""What one question to ``find_skills`` costs a model, in tokens (bytes / 4), and what it gives for them.

The tools and requests are those of the second set of `benchmarks.ranking`; without npm, those of the OpenAPI
documents only. "found" are the questions whose tool is in the reply. The comparison is the reply as it was
before: up to 50 rows with whole schemas, as indented JSON. "the whole list" is ``tools/list`` of all tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from benchmarks.figures import Figure
from benchmarks.ranking import Catalogue
from benchmarks.tool_catalogue import (
    NoToolsError,
    load_operations_only,
    load_tool_set,
)
from retinue.cards.rows import render_short_skill_row, render_skill_row
from retinue.hub.search import MAX_SHORT_BYTES, shorten_reply
from retinue.mcp.codec.tools import render_tool
from retinue.mesh.search.ranking import SkillSearch

SCOPES = frozenset({"mesh"})
BYTES_PER_TOKEN = 4
SHORT_LIMIT = 5
LONG_LIMIT = 50

Reply = Callable[[str], dict[str, Any]]


def measure() -> list[Figure]:
    return list(_measure())


def _measure() -> Iterator[Figure]:
    try:
        tools = load_tool_set()
        name = "MCP servers and HTTP APIs"
    except NoToolsError as error:
        print(f"  without MCP servers: {error}", flush=True)
        try:
            tools, name = load_operations_only(), "HTTP APIs"
        except NoToolsError as missing:
            print(f"  SKIPPED: {missing}", flush=True)
            return
    questions = [(request.text, request.tools) for request in (*tools.tuning, *tools.held_out)]
    catalogue = Catalogue(name, tools.listings, questions)
    search = catalogue.open_search()
    yield from _cost(catalogue, "now", lambda text: _ask_short(search, text), 0)
    yield from _cost(catalogue, "before", lambda text: _ask_long(search, text), orjson.OPT_INDENT_2)
    listed = [
        render_tool(skill, skill.id, agent=listing.record.name)
        for listing in tools.listings
        for skill in listing.record.skills
    ]
    yield Figure(f"the whole list of {len(listed):,} tools", _tokens(orjson.dumps(listed)), "tokens")


def _ask_short(search: SkillSearch, text: str) -> dict[str, Any]:
    found = search.find_skills(text, SCOPES, limit=SHORT_LIMIT)
    rows = [render_short_skill_row(hit.entry, hit.skill) for hit in found.hits[:SHORT_LIMIT]]
    return shorten_reply({"skills": rows, "more": found.more, "missing": []})


def _ask_long(search: SkillSearch, text: str) -> dict[str, Any]:
    found = search.find_skills(text, SCOPES, limit=LONG_LIMIT)
    rows = [render_skill_row(hit.entry, hit.skill) for hit in found.hits]
    return {"skills": rows, "more": found.more, "missing": []}


def _cost(catalogue: Catalogue, when: str, ask: Reply, option: int) -> Iterator[Figure]:
    sizes: list[int] = []
    found = 0
    for text, tools in catalogue.questions:
        reply = ask(text)
        sizes.append(len(orjson.dumps(reply, option=option)))
        names = {one.rpartition("/")[2] for one in tools}
        found += any(row["skill"] in names for row in reply["skills"])
    sizes.sort()
    label = f"{catalogue.name}, {when}"
    is_now = when == "now"
    yield Figure(f"{label}: tokens per question", _mean(sizes) / BYTES_PER_TOKEN, "tokens")
    yield Figure(f"{label}: tokens per found tool", sum(sizes) / BYTES_PER_TOKEN / max(found, 1), "tokens")
    yield Figure(f"{label}: questions whose tool is in the reply", 100 * found / len(sizes), "%")
    yield Figure(f"{label}: largest reply", sizes[-1], "bytes", MAX_SHORT_BYTES if is_now else None)


def _mean(sizes: Sequence[int]) -> float:
    return sum(sizes) / len(sizes)


def _tokens(content: bytes) -> float:
    return len(content) / BYTES_PER_TOKEN
