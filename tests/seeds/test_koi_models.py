"""Exchanges 3-1 and 3-2 of seed 003: the RID of a personality, its traits and its profile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from koi.network import parse_traits
from retinue.cards.personality_profile import MAX_RID_BYTES
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile, PersonalityTrait, is_described
from tests.requirements import requirement

NODE = KoiNetNode("helpful-agent", "0b8a")
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=20)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def profile(**traits: Any) -> PersonalityProfile:
    return PersonalityProfile(
        rid=AgentPersonality("helpful-agent", "1.0"), node_rid=NODE, traits=parse_traits(traits)
    )


@requirement("K-01")
def test_the_rid_of_a_personality_is_the_seeds() -> None:
    rid = AgentPersonality("helpful-agent", "1.0")
    assert str(rid) == "orn:agent.personality:helpful-agent/1.0"
    assert rid.reference == "helpful-agent/1.0"
    assert AgentPersonality.namespace == "agent.personality"
    parsed = AgentPersonality.from_reference(rid.reference)
    assert (parsed.name, parsed.version) == ("helpful-agent", "1.0")
    assert parsed == rid
    assert len({parsed, rid}) == 1
    assert rid != AgentPersonality("helpful-agent", "1.1")
    assert rid != str(rid)


@requirement("K-01")
@pytest.mark.parametrize(("name", "version"), [("a/b", "1.0"), ("a", "1/0"), ("", "1.0"), ("a", "")])
def test_a_rid_without_a_name_or_a_version_is_refused(name: str, version: str) -> None:
    with pytest.raises(ValueError, match="of a personality"):
        AgentPersonality(name, version)


@requirement("K-01")
@pytest.mark.parametrize("reference", ["helpful-agent", "a/b/c", "/1.0", "a/", "", "x" * 300 + "/1.0"])
def test_a_reference_that_is_no_name_and_version_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match=r"personality|bytes"):
        AgentPersonality.from_string(f"orn:agent.personality:{reference}")


def test_a_rid_of_another_namespace_is_no_personality() -> None:
    with pytest.raises(ValueError, match="does not start"):
        AgentPersonality.from_string("orn:koi-net.node:a+b")


@requirement("K-01")
@given(names, names)
def test_every_rid_survives_its_text(name: str, version: str) -> None:
    try:
        rid = AgentPersonality(name, version)
    except ValueError:
        assert len(f"orn:agent.personality:{name}/{version}".encode()) > MAX_RID_BYTES
        return
    assert AgentPersonality.from_string(str(rid)) == rid


@requirement("K-02")
@requirement("K-04")
def test_traits_are_plain_values_or_described_ones() -> None:
    mood, calculate = parse_traits(
        {"mood": "helpful", "calculate": {"description": "Calculates", "is_callable": True}}
    )
    assert mood.model_dump() == {
        "name": "mood",
        "description": "mood trait",
        "type": "str",
        "value": "helpful",
        "is_callable": False,
    }
    assert calculate.model_dump() == {
        "name": "calculate",
        "description": "Calculates",
        "type": "NoneType",
        "value": None,
        "is_callable": True,
    }


@requirement("K-02")
def test_a_trait_of_a_value_infers_its_type() -> None:
    types = {value: PersonalityTrait.from_value("x", value).type for value in ("a", 1, 2.0, True, None)}
    assert types == {"a": "str", 1: "bool", 2.0: "float", None: "NoneType"}
    assert PersonalityTrait.from_value("x", ["a"]).type == "list"
    assert PersonalityTrait(name="x").description == ""


@requirement("K-04")
def test_a_value_that_is_an_object_is_no_metadata() -> None:
    [plain] = parse_traits({"address": {"street": "Elm", "value": 3}})
    assert plain.value == {"street": "Elm", "value": 3}
    [described] = parse_traits({"size": {"value": 3, "type": "metres"}})
    assert (described.value, described.type) == (3, "metres")
    assert not is_described({})


@requirement("K-04")
def test_metadata_of_a_wrong_type_is_refused_with_its_field() -> None:
    with pytest.raises(ValidationError, match="description"):
        parse_traits({"mood": {"description": 5}})


@requirement("K-03")
def test_a_profile_dumps_the_seeds_keys() -> None:
    dump = profile(mood="helpful").model_dump()
    assert list(dump) == ["rid", "node_rid", "base_url", "mcp_url", "traits"]
    assert dump["rid"] == "orn:agent.personality:helpful-agent/1.0"
    assert dump["node_rid"] == "orn:koi-net.node:helpful-agent+0b8a"
    assert dump["base_url"] is None
    assert dump["mcp_url"] is None
    assert PersonalityProfile.model_validate(json.loads(json.dumps(dump))) == profile(mood="helpful")


@requirement("K-03")
def test_a_trait_is_updated_by_a_value_or_by_metadata() -> None:
    held = profile(mood="helpful", calculate={"description": "Calculates", "is_callable": True})
    assert held.update_trait("mood", 7) is True
    mood = held.get_trait("mood")
    assert mood is not None
    assert (mood.value, mood.type, mood.description) == (7, "int", "mood trait")
    assert held.update_trait("calculate", {"description": "Adds"}) is True
    calculate = held.get_trait("calculate")
    assert calculate is not None
    assert (calculate.description, calculate.is_callable, calculate.type) == ("Adds", True, "NoneType")
    assert held.update_trait("colour", "red") is False
    assert held.get_trait("colour") is None


@requirement("K-03")
def test_a_trait_of_a_known_name_replaces_the_other_in_its_place() -> None:
    held = profile(mood="helpful", tone="calm")
    held.add_trait(PersonalityTrait.from_value("mood", "stern"))
    held.add_trait(PersonalityTrait.from_value("new", 1))
    assert [(trait.name, trait.value) for trait in held.traits] == [
        ("mood", "stern"),
        ("tone", "calm"),
        ("new", 1),
    ]


@requirement("K-03")
@given(st.dictionaries(st.text(max_size=10), json_values, max_size=4))
def test_every_profile_survives_json(traits: dict[str, Any]) -> None:
    try:
        held = profile(**traits)
    except ValidationError:  # metadata of a wrong type
        assert any(is_described(value) for value in traits.values())
        return
    assert PersonalityProfile.model_validate(json.loads(json.dumps(held.model_dump()))) == held


def test_unknown_keys_of_a_profile_are_kept() -> None:
    content = {
        "rid": "orn:agent.personality:a/1",
        "node_rid": str(NODE),
        "traits": [{"name": "f", "is_callable": True, "input_schema": {"type": "object"}}],
        "colour": "red",
    }
    held = PersonalityProfile.model_validate(content)
    assert held.model_dump()["colour"] == "red"
    assert held.traits[0].find_schema("input_schema") == {"type": "object"}
    assert held.traits[0].find_schema("output_schema") is None
