"""Skills that are not listed as tools, and are found and called all the same."""

from __future__ import annotations

import pytest

from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mcp.codec.tools import tool_id
from retinue.mcp.server.offer import ToolCatalog
from retinue.mesh.entry import entry_of

EXPOSED = frozenset({"exposed"})
SHOWN = Skill("agent.ask", "Asks.", input_schema={"type": "object"}, visibility="exposed")
UNLISTED = Skill(
    "plan", "Plans.", input_schema={"type": "object"}, roles=("plan",), visibility="exposed", listed=False
)


def test_an_unlisted_skill_is_found_by_every_spelling_but_not_in_the_list() -> None:
    catalog = ToolCatalog([("claude", SHOWN), ("claude", UNLISTED)])
    assert [tool["name"] for tool in catalog.tools] == ["claude__ask"]
    assert b"claude__plan" not in catalog.listed
    for name in ("claude__plan", "claude.plan"):
        found = catalog.find(name)
        assert found is not None
        assert found.skill is UNLISTED
        assert catalog.find_input_schema(name) == {"type": "object"}


@pytest.mark.parametrize("name", ["claude__ask", "claude__agent.ask", "claude.agent.ask"])
def test_agent_ask_is_named_by_its_agent_alone(name: str) -> None:
    found = ToolCatalog([("claude", SHOWN)]).find(name)
    assert found is not None
    assert found.alias == "claude__ask"
    assert tool_id(None, "agent.ask") == "agent.ask"


def test_an_entry_counts_what_is_listed_apart_from_what_may_be_called() -> None:
    record = AgentRecord("claude", skills=(SHOWN, UNLISTED, Skill("own", visibility="mesh")))
    entry = entry_of(Listing(record=record, source="home", key="agents/claude"))
    assert entry.count_listed(EXPOSED) == 1
    assert entry.count_skills(EXPOSED) == 2
    assert entry.list_skills(EXPOSED) == ["agent.ask", "plan"]
    assert entry.offers("plan", EXPOSED)
    assert entry.has_role("plan", EXPOSED)
    assert entry.count_listed(EXPOSED | {"mesh"}) == 2
