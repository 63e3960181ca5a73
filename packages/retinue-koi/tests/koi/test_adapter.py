"""The adapter's rules: what replaces what, which version a name means, what FORGET leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koi.network import parse_traits
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from tests.requirements import requirement

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def profile(name: str = "a", version: str = "1.0", **traits: Any) -> PersonalityProfile:
    return PersonalityProfile(
        rid=AgentPersonality(name, version), node_rid=KoiNetNode(name, "1"), traits=parse_traits(traits)
    )


def at(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


@requirement("K-20")
def test_the_same_content_again_changes_nothing() -> None:
    adapter = MCPAdapter()
    told: list[str] = []
    adapter.subscribe(lambda rid, held: told.append(str(rid)))
    assert adapter.register_agent(profile(mood="calm"), timestamp=at(0), sha256_hash="1") is True
    assert adapter.register_agent(profile(mood="calm"), timestamp=at(5), sha256_hash="1") is False
    assert adapter.register_agent(profile(mood="calm"), timestamp=at(5)) is False
    assert told == ["orn:agent.personality:a/1.0"]


@requirement("K-20")
def test_a_newer_manifest_replaces_and_an_older_one_is_ignored() -> None:
    adapter = MCPAdapter()
    adapter.register_agent(profile(mood="calm"), timestamp=at(0), sha256_hash="1")
    assert adapter.register_agent(profile(mood="stern"), timestamp=at(1), sha256_hash="2") is True
    assert adapter.register_agent(profile(mood="calm"), timestamp=at(0), sha256_hash="1") is False
    held = adapter.get_agent("a")
    assert held is not None
    assert held.get_trait("mood") == parse_traits({"mood": "stern"})[0]


@requirement("K-20")
def test_a_name_means_the_highest_version_whatever_came_last() -> None:
    adapter = MCPAdapter()
    for position, version in enumerate(["1.10", "1.9", "2.0-beta", "1.2"]):
        adapter.register_agent(profile(version=version), timestamp=at(position))
    assert adapter.agents["a"].rid.version == "1.10"
    assert [held.profile.rid.version for held in adapter.list_versions("a")] == [
        "1.10",
        "1.9",
        "1.2",
        "2.0-beta",
    ]
    assert len(adapter.list_agents()) == 1


@requirement("K-38")
def test_forgetting_the_newest_version_falls_back_to_the_one_before() -> None:
    adapter = MCPAdapter()
    told: list[tuple[str, bool]] = []
    adapter.register_agent(profile(version="1.0"), timestamp=at(0))
    adapter.register_agent(profile(version="2.0"), timestamp=at(1))
    adapter.subscribe(lambda rid, held: told.append((rid.version, held is None)))
    assert adapter.forget_agent(AgentPersonality("a", "2.0")) is True
    assert adapter.agents["a"].rid.version == "1.0"
    assert adapter.forget_agent(AgentPersonality("a", "2.0")) is False
    assert adapter.forget_agent(AgentPersonality("a", "1.0")) is True
    assert adapter.get_agent("a") is None
    assert adapter.list_agents() == []
    assert adapter.get_tools_for_agent("a") == []
    assert told == [("2.0", True), ("1.0", True)]


@requirement("K-20")
def test_tools_are_prefixed_in_the_list_of_all_and_plain_in_that_of_one() -> None:
    adapter = MCPAdapter()
    for name in ("b", "a"):
        adapter.register_agent(
            profile(name, mood="calm", add={"description": "Adds", "is_callable": True}), timestamp=at(0)
        )
    assert [tool["name"] for tool in adapter.get_tools_for_agent("a")] == ["add"]
    assert [tool["name"] for tool in adapter.get_all_tools()] == ["a.add", "b.add"]
    assert [one["id"] for one in adapter.list_agents()] == ["agent:a", "agent:b"]


def test_a_profile_that_its_owner_changes_later_stays_as_it_was_registered() -> None:
    adapter = MCPAdapter()
    own = profile(mood="calm")
    adapter.register_agent(own, timestamp=at(0))
    own.update_trait("mood", "stern")
    assert adapter.agents["a"].traits[0].value == "calm"
    assert adapter.register_agent(own, timestamp=at(1)) is True


steps = st.lists(
    st.tuples(st.sampled_from(["1.0", "1.1", "2.0"]), st.integers(0, 3), st.sampled_from(["x", "y", None])),
    max_size=12,
)


@requirement("K-38")
@given(steps)
def test_any_sequence_leaves_the_newest_of_what_was_kept(given: list[tuple[str, int, str | None]]) -> None:
    """A model: by version the content of the greatest time; None forgets."""
    adapter, model = MCPAdapter(), dict[str, tuple[int, str]]()
    for version, second, mood in given:
        if mood is None:
            adapter.forget_agent(AgentPersonality("a", version))
            model.pop(version, None)
            continue
        adapter.register_agent(profile(version=version, mood=mood), timestamp=at(second), sha256_hash=mood)
        held = model.get(version)
        if held is None or (held[1] != mood and second >= held[0]):
            model[version] = (second, mood)
    kept = {one.profile.rid.version: one.profile.traits[0].value for one in adapter.list_held()}
    assert kept == {version: mood for version, (_, mood) in model.items()}
    newest = adapter.get_agent("a")
    assert (None if newest is None else newest.rid.version) == max(model, default=None)


@pytest.mark.parametrize("base", ["http://h:1", "http://h:1/"])
def test_the_url_of_a_tool_is_below_the_agents_mcp_url(base: str) -> None:
    adapter = MCPAdapter()
    one = profile()
    one.traits = parse_traits({"fs:read file": {"description": "Reads", "is_callable": True}})
    one.mcp_url = base
    adapter.register_agent(one)
    assert [tool["url"] for tool in adapter.get_all_tools()] == ["http://h:1/tools/call/fs:read%20file"]


@pytest.mark.parametrize("hidden", ["\u200b", "\u2028", "\x1b", "\U000e0041", "\U000e0100"], ids=ascii)
def test_lists_show_no_hidden_character_and_the_profile_stays_as_it_came(hidden: str) -> None:
    adapter = MCPAdapter()
    sent = profile(description=f"calm{hidden}", topics=[f"rest{hidden}"])
    sent.traits += parse_traits(
        {f"sl{hidden}eep": {"type": "action", "is_callable": True, "description": hidden}}
    )
    adapter.register_agent(sent, timestamp=at(0))
    shown = [adapter.list_agents(), adapter.get_tools_for_agent("a"), adapter.get_all_tools()]
    assert hidden not in str(shown)
    assert ascii(hidden)[1:-1] not in str(shown)
    held = adapter.get_agent("a")
    assert held is not None
    assert held.model_dump() == sent.model_dump()
