"""The pallet card: the seed's own, everybody's, and ours."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card
from hypothesis import given
from hypothesis import strategies as st

from retinue.cards.pallet_card import MAX_CARD_BYTES, encode_card, parse_card, parse_skill, render_card
from retinue.core.errors import MalformedArtifactError
from retinue.core.record import AgentRecord, Endpoint, Example, Hints, Resource, Skill, Trait
from tests.requirements import requirement
from tests.strategies import json_objects, json_values, records, texts, words

MESH = frozenset({"exposed", "mesh"})

SEED_CARD = b"""{
  "name": "plan-agent",
  "url": "http://localhost:8001",
  "version": "1.0.0",
  "skills": [
    {
      "id": "create_plan",
      "description": "Creates structured implementation plans from requirements",
      "input_schema": {
        "type": "object",
        "properties": {
          "requirements": {"type": "string"}
        },
        "required": ["requirements"]
      },
      "output_schema": {
        "type": "object",
        "properties": {
          "plan": {"type": "string"},
          "steps": {"type": "array"}
        }
      }
    }
  ]
}"""


def parse(card: Any) -> AgentRecord:
    return parse_card(orjson.dumps(card), reference="agents/x:v1")


def render(record: AgentRecord, scopes: frozenset[str] = MESH) -> dict[str, Any]:
    return render_card(record, scopes=scopes)


def problem_of(card: Any) -> str:
    with pytest.raises(MalformedArtifactError) as caught:
        parse_card(card if isinstance(card, bytes) else orjson.dumps(card), reference="agents/x:v1")
    assert caught.value.message.startswith("agents/x:v1: ")
    return caught.value.message.removeprefix("agents/x:v1: ")


@requirement("P-20")
def test_the_seeds_card_is_read_to_the_field() -> None:
    record = parse_card(SEED_CARD, reference="agents/plan:v1")
    assert (record.name, record.version, record.url) == ("plan-agent", "1.0.0", "http://localhost:8001")
    assert record.endpoints == (Endpoint("execute", "http://localhost:8001"),)
    skill = record.skills[0]
    assert (skill.id, skill.visibility) == ("create_plan", "mesh")
    assert skill.input_schema is not None
    assert skill.input_schema["required"] == ["requirements"]
    assert record.extra == {}


@requirement("P-20")
def test_the_seeds_card_renders_with_its_order_and_without_an_added_key() -> None:
    card = render(parse_card(SEED_CARD, reference="agents/plan:v1"))
    assert encode_card(card) == orjson.dumps(orjson.loads(SEED_CARD))


def test_an_a2a_client_accepts_the_seeds_card() -> None:
    card = parse_agent_card(render(parse_card(SEED_CARD, reference="agents/plan:v1")))
    assert card.name == "plan-agent"
    assert card.supported_interfaces[0].url == "http://localhost:8001"
    assert [skill.id for skill in card.skills] == ["create_plan"]


@given(records)
def test_an_a2a_client_accepts_every_card_of_ours(record: AgentRecord) -> None:
    parse_agent_card(orjson.loads(encode_card(render(record))))


@requirement("P-20")
@pytest.mark.parametrize("absent", ["version", "url", "skills"])
def test_a_card_without_this_is_taken_and_rendered_without_it(absent: str) -> None:
    card = orjson.loads(SEED_CARD)
    del card[absent]
    record = parse(card)
    assert (absent == "url") == (record.endpoints == ())
    assert render(record) == card


@requirement("P-21")
def test_metadata_description_and_maintainer_are_kept() -> None:
    card = {
        "name": "a",
        "description": "Plans",
        "maintainer": "ops@example.org",
        "metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}},
        "skills": [],
    }
    record = parse(card)
    assert (record.description, record.maintainer) == ("Plans", "ops@example.org")
    assert (record.labels, record.annotations) == ({"team": "x"}, {"note": "y"})
    assert record.extra == {}
    assert render(record) == card


FOREIGN: list[dict[str, Any]] = [
    {"skills": [], "x": {"y": [None]}, "name": "a", "version": None, "description": ""},
    {"name": "a", "metadata": {}, "maintainer": {"name": "n"}},
    {"name": "a", "url": "", "metadata": "none", "maintainer": "", "skills": []},
    {
        "name": "a",
        "metadata": {"z": 1, "labels": {"replicas": 3, "on": True, "deep": {}}, "annotations": None},
    },
    {"name": "a", "metadata": {"annotations": {"b": "c"}, "labels": {"d": "e"}}, "skills": []},
    {
        "name": "a",
        "skills": [{"tags": ["t"], "name": "N", "id": "s", "input_schema": None, "description": ""}],
    },
    {"name": "a", "skills": [{"id": "s", "input_schema": {}, "examples": "x"}], "capabilities": {}},
]


@pytest.mark.parametrize("card", FOREIGN)
def test_a_foreign_card_renders_to_the_same_json_in_the_same_order(card: dict[str, Any]) -> None:
    assert encode_card(render(parse(card))) == orjson.dumps(card)


@given(
    words,
    st.fixed_dictionaries(
        {},
        optional={
            "url": texts,
            "version": st.none() | texts,
            "description": st.none() | texts,
            "maintainer": json_values,
            "metadata": json_values
            | st.dictionaries(st.sampled_from(["labels", "annotations"]), json_objects),
        },
    ),
    json_objects,
    st.lists(st.tuples(words, json_objects), max_size=3, unique_by=lambda pair: pair[0]),
    st.randoms(),
)
def test_any_card_renders_to_the_same_json(
    name: str, known: dict[str, Any], unknown: dict[str, Any], skills: list[Any], random: Any
) -> None:
    entries = [{**extra, "id": skill_id} for skill_id, extra in skills]
    items = list({**unknown, **known, "name": name, "skills": entries}.items())
    random.shuffle(items)
    card = dict(items)
    try:
        record = parse(card)
    except MalformedArtifactError:
        return
    assert encode_card(render(record)) == orjson.dumps(card)


@given(records)
def test_a_record_comes_back_from_its_card_as_far_as_the_reader_may_see(record: AgentRecord) -> None:
    card = render(record)
    seen = parse_card(encode_card(card), reference="agents/x:v1")
    hidden = {skill.id for skill in record.skills if skill.visibility == "private"}
    plain = replace(seen, extra={}, skills=tuple(replace(skill, extra={}) for skill in seen.skills))
    assert plain == replace(
        record,
        skills=tuple(skill for skill in record.skills if skill.id not in hidden),
    )
    assert render(seen) == card


@given(records)
def test_one_skill_read_by_itself_is_that_of_the_whole_card(record: AgentRecord) -> None:
    raw = encode_card(render(record))
    whole = parse_card(raw, reference="agents/x:v1")
    for skill in whole.skills:
        assert parse_skill(raw, skill.id, reference="agents/x:v1") == skill
    assert parse_skill(raw, "none has this id", reference="agents/x:v1") is None


@given(st.binary(max_size=40) | json_values.map(orjson.dumps))
def test_junk_is_refused_and_never_crashes(raw: bytes) -> None:
    with suppress(MalformedArtifactError):
        parse_card(raw, reference="agents/x:v1")
    with suppress(MalformedArtifactError):
        parse_skill(raw, "s", reference="agents/x:v1")


@given(json_values)
def test_junk_in_the_block_is_refused_or_kept(block: Any) -> None:
    try:
        record = parse({"name": "a", "skills": [{"id": "s"}], "retinue": {"v": 1, "skills": {"s": block}}})
    except MalformedArtifactError:
        return
    encode_card(render(record))


def test_what_differs_from_the_defaults_stands_in_the_block_and_nothing_else() -> None:
    skill = Skill(
        "run",
        tags=("t",),
        examples=(Example(text="do it", arguments={"a": 1}),),
        visibility="exposed",
        hints=Hints(runs_code=True),
        timeout_s=5.0,
        channel=False,
    )
    record = AgentRecord(
        "a",
        endpoints=(Endpoint("execute", "http://h:1"), Endpoint("mcp", "http://h:1/mcp", "2025-11-25")),
        skills=(skill, Skill("plain")),
        topics=("Python",),
        scores={"execution": 0.8},
        traits=(Trait("mood", value="calm"),),
    )
    assert render(record) == {
        "name": "a",
        "url": "http://h:1",
        "skills": [{"id": "run"}, {"id": "plain"}],
        "retinue": {
            "v": 1,
            "endpoints": [
                {"protocol": "execute", "url": "http://h:1"},
                {"protocol": "mcp", "url": "http://h:1/mcp", "wire_version": "2025-11-25"},
            ],
            "topics": ["Python"],
            "scores": {"execution": 0.8},
            "traits": [{"name": "mood", "value": "calm"}],
            "skills": {
                "run": {
                    "tags": ["t"],
                    "examples": [{"text": "do it", "arguments": {"a": 1}}],
                    "visibility": "exposed",
                    "hints": {"runs_code": True},
                    "timeout_s": 5.0,
                    "channel": False,
                }
            },
        },
    }


def test_a_later_version_of_the_block_is_read_as_far_as_it_is_understood() -> None:
    card = {
        "name": "a",
        "skills": [{"id": "s"}],
        "retinue": {
            "v": 2,
            "topics": ["T"],
            "skills": {"s": {"tags": ["x"], "new": 1}, "gone": {"y": 2}},
            "z": 3,
        },
    }
    record = parse(card)
    assert (record.topics, record.skills[0].tags) == (("T",), ("x",))
    assert render(record) == card


def test_private_things_never_leave_whoever_asks() -> None:
    record = AgentRecord(
        "a",
        skills=(
            Skill("open", visibility="exposed"),
            Skill("inner", tags=("t",)),
            Skill("secret", tags=("t",), visibility="private", extra={"retinue": {"k": 1}}),
        ),
        traits=(Trait("call-secret", skill_id="secret"), Trait("call-open", skill_id="open")),
        resources=(Resource("r:secret", "s", visibility="private"), Resource("r:inner", "i")),
        resource_globs={"expose": ("profile",), "private": ("secret*",)},
        extra={"retinue": {"skills": {"secret": {"k": 1}}}},
    )
    for scopes in (MESH, frozenset({"exposed", "mesh", "private", "runs_code"}), frozenset({"private"})):
        assert b"secret" not in encode_card(render(record, scopes))
    assert [skill["id"] for skill in render(record)["skills"]] == ["open", "inner"]
    assert b"inner" not in encode_card(render(record, frozenset({"exposed"})))
    assert [skill["id"] for skill in render(record, frozenset({"exposed"}))["skills"]] == ["open"]
    assert render(record, frozenset())["skills"] == []


def test_a_record_changed_after_reading_renders_the_change() -> None:
    record = parse({"skills": [], "name": "a", "version": "", "metadata": {"z": 1, "labels": {"n": 3}}})
    changed = replace(record, version="2.0.0", labels={}, annotations={"b": "c"})
    card = render(changed)
    assert list(card) == ["skills", "name", "version", "metadata"]
    assert (card["version"], card["metadata"]["annotations"]) == ("2.0.0", {"b": "c"})
    assert card["metadata"].get("labels", {}) == {}


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        (b"{", "the card is not JSON: .*line 1"),
        (b"", "the card is not JSON"),
        ([], "the card is a list; make it an object"),
        ({}, "name is missing; give it a non-empty string"),
        ({"name": " "}, "name is empty"),
        ({"name": 3}, "name is a number"),
        ({"name": "a", "url": 8001}, "url is a number; make it a string"),
        ({"name": "a", "version": 1.0}, "version is a number; make it a string"),
        ({"name": "a", "skills": {"s": {}}}, "skills is an object; make it a list of objects"),
        ({"name": "a", "skills": ["s"]}, r"skills\[0\] is a string; make it an object with an id"),
        ({"name": "a", "skills": [{"id": "s"}, {}]}, r"skills\[1\]\.id is missing"),
        ({"name": "a", "skills": [{"id": "s"}, {"id": "s"}]}, r"skills\[1\]\.id repeats 's'"),
        ({"name": "a", "skills": [{"id": "s", "input_schema": []}]}, r"skills\[0\]\.input_schema is a list"),
        ({"name": "a", "skills": [{"id": "s", "output_schema": True}]}, "output_schema is a boolean"),
        ({"name": "a", "retinue": 1}, "retinue is a number; make it an object"),
        ({"name": "a", "retinue": {"topics": "x"}}, r"retinue\.topics is a string: .*array"),
        ({"name": "a", "retinue": {"skills": []}}, r"retinue\.skills is a list"),
        (
            {"name": "a", "skills": [{"id": "s"}], "retinue": {"skills": {"s": {"hints": {"runs_code": 1}}}}},
            r"retinue\.skills\.s\.hints\.runs_code is a number: .*boolean",
        ),
        (
            {"name": "a", "skills": [{"id": "s"}], "retinue": {"skills": {"s": {"visibility": "all"}}}},
            r"retinue\.skills\.s\.visibility is a string: .*'exposed'",
        ),
        (b'{"name":"a","x":' + b"[" * 200 + b"]" * 200 + b"}", "nested over 128 levels"),
        (b'{"name":"a","x":' + b"[" * 2000 + b"]" * 2000 + b"}", "not JSON: depth limit"),
        (b'{"name":"' + b"a" * MAX_CARD_BYTES + b'"}', "bytes; make it at most"),
    ],
)
def test_a_malformed_card_names_field_shape_and_remedy(card: Any, problem: str) -> None:
    assert re.search(problem, problem_of(card))
