"""The profile of a record: its traits, what it leaves out, the names that it refuses."""

from __future__ import annotations

import pytest

from retinue.cards.personality_profile import (
    MAX_RID_BYTES,
    ShownPersonality,
    node_rid_of_url,
    personality_rid,
    render_profile,
)
from retinue.core.record import AgentRecord, Endpoint, Skill, Trait

URL = "http://127.0.0.1:8001"
RECORD = AgentRecord(
    "helper",
    version="1.0",
    description="Helps",
    endpoints=(Endpoint("execute", URL),),
    skills=(
        Skill("say", "Says", visibility="exposed", extra={"koi": {"cost": 2, "name": "other"}}),
        Skill("count", "Counts", input_schema={"type": "string"}),
        Skill("reset", "Resets", visibility="private"),
    ),
    traits=(
        Trait("mood", "How it is", "", "calm", extra={"koi": {"since": "May"}}),
        Trait("reset", "A fact with the name of a skill", "int", 1),
        Trait("count", "Counts", "int", 7, skill_id="count"),
    ),
    extra={"koi": {"colour": "blue", "rid": "orn:agent.personality:other/1"}},
)


def test_fields_come_first_and_keys_of_the_record_never_replace_them() -> None:
    profile = render_profile(RECORD, node_rid_of_url("helper", URL), mcp_url=URL, with_block=False)
    assert list(profile) == ["rid", "node_rid", "base_url", "mcp_url", "traits", "colour"]
    assert profile["rid"] == "orn:agent.personality:helper/1.0"
    assert profile["node_rid"].startswith("orn:koi-net.node:helper+")
    mood, say, count = profile["traits"]
    assert list(mood.items()) == [
        ("name", "mood"),
        ("description", "How it is"),
        ("type", "str"),
        ("value", "calm"),
        ("is_callable", False),
        ("since", "May"),
    ]
    assert (say["name"], say["type"], say["cost"], say["is_callable"]) == ("say", "NoneType", 2, True)
    assert (count["type"], count["value"], count["input_schema"]) == ("int", 7, {"type": "string"})


def test_private_skills_are_left_out_and_others_by_scope() -> None:
    def names(scopes: set[str]) -> list[str]:
        profile = render_profile(RECORD, "orn:koi-net.node:n+1", scopes=frozenset(scopes))
        return [tool["name"] for tool in ShownPersonality("helper", profile).render_tools()]

    assert names({"mesh", "exposed"}) == ["say", "count"]
    assert names({"exposed"}) == ["say"]


def test_the_block_keeps_what_the_seed_has_no_key_for() -> None:
    traits = render_profile(RECORD, "orn:koi-net.node:n+1")["traits"]
    block = traits[-1]
    assert (block["name"], block["value"]["v"]) == ("retinue", 1)
    assert block["value"]["endpoints"] == [{"protocol": "execute", "url": URL}]
    assert [trait["name"] for trait in traits if not trait["is_callable"]] == [
        "mood",
        "description",
        "retinue",
    ]


def test_the_input_of_a_tool_is_an_object_at_its_root() -> None:
    shown = ShownPersonality("helper", render_profile(RECORD, "orn:koi-net.node:n+1", mcp_url=f"{URL}/"))
    say, count = shown.render_tools(prefixed=True)
    assert say["inputSchema"] == {"type": "object", "properties": {"input": {"type": "string"}}}
    assert count["inputSchema"] == {"type": "object", "properties": {"input": {"type": "string"}}}
    assert (count["name"], count["url"]) == ("helper.count", f"{URL}/tools/call/count")
    assert shown.render_tools(relative=True)[0]["url"] == "/tools/call/say"


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", ""), ("a/b", "1"), ("a", "1/2")])
def test_names_that_no_rid_can_hold_are_refused(name: str, version: str) -> None:
    with pytest.raises(ValueError, match="is empty or has a slash"):
        personality_rid(name, version)


def test_a_rid_has_a_greatest_length_in_bytes() -> None:
    longest = "a" * (MAX_RID_BYTES - len("orn:agent.personality:/1"))
    assert len(personality_rid(longest, "1")) == MAX_RID_BYTES
    for name in (f"{longest}a", "é" * (MAX_RID_BYTES // 2)):
        with pytest.raises(ValueError, match="has more than 184 bytes"):
            personality_rid(name, "1")
