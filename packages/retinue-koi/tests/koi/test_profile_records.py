"""A record and a profile are two forms of one agent: nothing that a form holds is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings

from koi.network import parse_traits
from retinue.core.record import AgentRecord, Endpoint, Hints, Skill, Trait
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.codec.profile_records import parse_profile, render_profile, show_profile
from tests import strategies
from tests.requirements import requirement

NODE = KoiNetNode("n", "1")
EXECUTE = Endpoint("execute", "http://127.0.0.1:8001")
RECORD = AgentRecord(
    "helpful-agent",
    version="1.0",
    description="Helps",
    endpoints=(EXECUTE,),
    skills=(
        Skill("calculate", "Calculates", input_schema={"type": "object", "required": ["a"]}),
        Skill("say", "Says", visibility="exposed", hints=Hints(read_only=True), tags=("words",)),
        Skill("reset", "Resets", visibility="private"),
    ),
    traits=(Trait("mood", "How it is", "str", "calm"),),
    topics=("Maths",),
    scores={"planning": 0.5},
)


def through_json(profile: PersonalityProfile) -> PersonalityProfile:
    return PersonalityProfile.model_validate(json.loads(json.dumps(profile.model_dump())))


@requirement("K-33")
def test_skills_are_callable_traits_with_their_schemas() -> None:
    profile = render_profile(RECORD, NODE, mcp_url="http://127.0.0.1:8001")
    assert [trait.name for trait in profile.traits if trait.is_callable] == ["calculate", "say"]
    calculate = profile.get_trait("calculate")
    assert calculate is not None
    assert calculate.find_schema("input_schema") == {"type": "object", "required": ["a"]}
    facts = {trait.name: trait.value for trait in profile.traits if not trait.is_callable}
    assert facts.keys() == {"mood", "description", "topics", "scores", "retinue"}
    assert facts["topics"] == ["Maths"]
    assert "reset" not in json.dumps(profile.model_dump())


def test_a_record_survives_the_way_over_a_profile() -> None:
    profile = through_json(render_profile(RECORD, NODE, mcp_url="http://127.0.0.1:8001"))
    read = parse_profile(profile)
    shown = replace(RECORD, skills=RECORD.skills[:2])
    assert replace(read, endpoints=read.endpoints[:1]) == replace(
        shown,
        skills=tuple(replace(one, input_schema=one.input_schema or read_free()) for one in shown.skills),
    )
    assert read.url == EXECUTE.url


def read_free() -> Any:
    return {"type": "object", "properties": {"input": {"type": "string"}}}


@given(strategies.records)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=40)
def test_every_record_keeps_its_skills_and_facts(record: AgentRecord) -> None:
    try:
        AgentPersonality(record.name, record.version or "1.0")
    except ValueError:
        assume(False)
    names = [trait.name for trait in record.traits]
    assume(len({*names, *(skill.id for skill in record.skills)}) == len(names) + len(record.skills))
    assume(not {"description", "topics", "scores", "retinue"} & {*names, *(s.id for s in record.skills)})
    read = parse_profile(through_json(render_profile(record, NODE)))
    shown = [skill for skill in record.skills if skill.visibility != "private"]
    assert [skill.id for skill in read.skills] == [skill.id for skill in shown]
    for before, after in zip(shown, read.skills, strict=True):
        assert replace(after, input_schema=before.input_schema) == before
        assert before.input_schema is None or after.input_schema == before.input_schema
    # a trait without a type gets that of its value
    assert [replace(one, type="") for one in read.traits] == [replace(one, type="") for one in record.traits]
    assert all(
        before.type in ("", after.type) for before, after in zip(record.traits, read.traits, strict=True)
    )
    assert (read.description, read.topics) == (record.description, record.topics)
    assert (read.title, read.languages, read.prompts) == (record.title, record.languages, record.prompts)
    assert dict(read.scores or {}) == dict(record.scores or {})


def test_the_skills_of_a_profile_without_marks_are_exposed() -> None:
    profile = PersonalityProfile(
        rid=AgentPersonality("a", "1.0"),
        node_rid=NODE,
        base_url="http://h:1/koi-net",
        mcp_url="http://h:1",
        traits=parse_traits(
            {"mood": "calm", "say": {"description": "Says", "is_callable": True, "value": 3}}
        ),
    )
    read = parse_profile(profile)
    assert [(skill.id, skill.visibility) for skill in read.skills] == [("say", "exposed")]
    assert read.url is None
    assert {one.protocol: one.url for one in read.endpoints} == {
        "koi": "http://h:1",
        "koi-net": "http://h:1/koi-net",
    }
    back = render_profile(read, NODE, base_url=profile.base_url, mcp_url=profile.mcp_url, with_block=False)
    assert back == profile


def test_callers_see_the_traits_of_their_scopes() -> None:
    profile = render_profile(RECORD, NODE)
    shown = show_profile(profile, frozenset({"exposed"}))
    assert [trait.name for trait in shown.traits if trait.is_callable] == ["say"]
    assert "calculate" not in json.dumps(shown.model_dump())
    assert show_profile(profile, frozenset({"mesh", "exposed"})) is profile


def test_a_malformed_block_is_left_out_and_the_rest_is_read() -> None:
    profile = PersonalityProfile(
        rid=AgentPersonality("a", "1.0"),
        node_rid=NODE,
        traits=parse_traits(
            {"mood": "calm", "say": {"description": "Says", "is_callable": True}, "retinue": 1}
        ),
    )
    profile.update_trait("retinue", {"value": {"v": 1, "topics": 5}})
    read = parse_profile(profile)
    assert [skill.id for skill in read.skills] == ["say"]
    assert [trait.name for trait in read.traits] == ["mood"]
