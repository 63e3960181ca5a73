"""The A2A agent card of both versions: ours read by the SDK, the SDK's read by us, and the way back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card as read_with_sdk
from a2a.compat.v0_3.types import AgentCard as LegacyCard
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from hypothesis import given

from retinue.cards.a2a_card import (
    EXTENSION,
    CardOptions,
    find_interface,
    parse_agent_card,
    render_agent_card,
)
from retinue.core.errors import MalformedArtifactError
from retinue.core.record import AgentRecord, Endpoint, Example, Skill
from tests.requirements import requirement
from tests.strategies import json_values, records

MESH = frozenset({"exposed", "mesh"})
URL = "http://127.0.0.1:8001/"

AGENT = AgentRecord(
    "plan-agent",
    version="1.2.0",
    description="Plans work",
    maintainer="ops@example.org",
    endpoints=(Endpoint("execute", "http://127.0.0.1:8001"),),
    labels={"team": "x"},
    skills=(
        Skill(
            "create_plan",
            "Creates plans",
            input_schema={"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}},
            output_schema={"type": "object"},
            tags=("planning",),
            roles=("plan",),
            examples=(Example("Plan a party"), Example(arguments={"n": 1})),
            visibility="exposed",
        ),
        Skill("hidden", "Is private", visibility="private"),
    ),
)


def render(record: AgentRecord = AGENT, **options: Any) -> dict[str, Any]:
    return render_agent_card(record, URL, scopes=MESH, options=CardOptions(**options))


def parse(card: Any) -> AgentRecord:
    return parse_agent_card(orjson.dumps(card), reference="the card")


def problem_of(card: Any) -> str:
    with pytest.raises(MalformedArtifactError) as caught:
        parse_agent_card(card if isinstance(card, bytes) else orjson.dumps(card), reference="it")
    return caught.value.message


def test_the_sdk_reads_our_card_as_1_x_and_as_0_3() -> None:
    card = render()
    LegacyCard.model_validate(card)
    read = read_with_sdk(orjson.loads(orjson.dumps(card)))
    assert [(one.url, one.protocol_version) for one in read.supported_interfaces] == [
        (URL, "1.0"),
        (URL, "0.3"),
    ]
    assert [(one.id, list(one.tags), list(one.examples)) for one in read.skills] == [
        ("create_plan", ["planning"], ["Plan a party", '{"n":1}'])
    ]


def test_private_skills_are_in_no_part_of_the_card() -> None:
    assert b"hidden" not in orjson.dumps(render())
    seen = render_agent_card(AGENT, URL, scopes=frozenset({"mesh", "private"}))
    assert b"hidden" not in orjson.dumps(seen)


def test_schemas_and_facts_of_our_agents_survive_the_way_through_the_sdk() -> None:
    served = agent_card_to_dict(read_with_sdk(orjson.loads(orjson.dumps(render()))))
    read = parse(served)
    planned = read.find_skill("create_plan")
    assert planned is not None
    assert planned.input_schema == AGENT.skills[0].input_schema
    assert (planned.roles, planned.visibility, planned.tags) == (("plan",), "exposed", ("planning",))
    assert (read.version, read.maintainer, read.labels) == ("1.2.0", "ops@example.org", {"team": "x"})
    assert read.url == "http://127.0.0.1:8001"
    assert find_interface(read) == Endpoint("a2a", URL, "1.0")


@given(records)
def test_a_card_is_read_back_with_the_skills_that_it_shows(record: AgentRecord) -> None:
    card = render(record)
    read = parse(card)
    shown = [skill for skill in record.skills if skill.visibility != "private"]
    assert [one.id for one in read.skills] == [one.id for one in shown]
    assert [one.roles for one in read.skills] == [one.roles for one in shown]
    assert [one.input_schema for one in read.skills] == [one.input_schema or None for one in shown]
    assert (read.name, read.traits, read.topics) == (record.name, record.traits, record.topics)
    again = replace(read, endpoints=tuple(e for e in read.endpoints if e.protocol != "a2a"))
    assert orjson.loads(orjson.dumps(render(again)))["skills"] == orjson.loads(orjson.dumps(card))["skills"]


@given(json_values)
def test_any_json_is_a_card_or_refused_with_a_reason(value: Any) -> None:
    with suppress(MalformedArtifactError):
        assert parse(value).name == value["name"]


def test_a_card_of_0_3_is_asked_at_its_url_in_its_version() -> None:
    card = {
        "name": "old",
        "description": "An old one",
        "url": "http://127.0.0.1:9/a2a",
        "protocolVersion": "0.3.0",
        "version": "1",
        "capabilities": {},
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}],
    }
    read = parse(card)
    assert find_interface(read) == Endpoint("a2a", "http://127.0.0.1:9/a2a", "0.3")
    assert read.skills == (Skill("s", "d", title="S", tags=("t",)),)


def test_the_interfaces_of_1_x_win_over_the_url_of_0_3_which_no_signature_covers() -> None:
    read = parse({**render(), "url": "http://evil.example/"})
    assert {one.url for one in read.endpoints if one.protocol == "a2a"} == {URL}


@requirement("P-20")
def test_unknown_keys_of_a_foreign_card_are_kept() -> None:
    foreign = {**render(), "iconUrl": "http://x/i.png", "future": {"a": 1}}
    foreign["skills"][0]["inputModes"] = ["text/plain"]
    again = render(parse(foreign))
    assert (again["iconUrl"], again["future"]) == ("http://x/i.png", {"a": 1})
    assert again["skills"][0]["inputModes"] == ["text/plain"]


def test_a_card_of_1_x_holds_no_key_that_1_x_does_not_define() -> None:
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "x-key"}}
    foreign = {
        **render(extended_card=True),
        "iconUrl": "http://x/i.png",
        "provider": {"organization": "x", "url": "http://x"},
        "future": {"a": 1},
        "securitySchemes": schemes,
        "security": [{"key": []}],
    }
    foreign["skills"][0] |= {"inputModes": ["text/plain"], "security": [{"key": []}]}
    foreign["capabilities"]["extensions"].append({"uri": "http://x/e", "future": 1})
    read = parse(foreign)
    card = render(read, legacy=False)
    ParseDict(card, types.AgentCard())
    assert (card["iconUrl"], card["provider"]["organization"]) == ("http://x/i.png", "x")
    assert card["skills"][0]["inputModes"] == ["text/plain"]
    old = render(read, extended_card=True)
    LegacyCard.model_validate(old)
    assert (old["supportsAuthenticatedExtendedCard"], old["securitySchemes"]) == (True, schemes)
    kept = {"key": {"apiKeySecurityScheme": {"location": "header", "name": "x-key"}}}
    modern = render(parse({**render(legacy=False), "securitySchemes": kept}), legacy=False)
    ParseDict(modern, types.AgentCard())
    assert modern["securitySchemes"] == kept


@pytest.mark.parametrize(
    ("card", "says"),
    [
        (b"[", "the card is not JSON"),
        ([], "the card is a list; make it an object"),
        ({}, "name is missing"),
        ({"name": 3}, "name is a number; make it a string"),
        ({"name": "a", "skills": {}}, "skills is an object; make it a list of objects"),
        ({"name": "a", "skills": [{"id": "s"}, {"id": "s"}]}, "skills[1].id repeats 's'"),
        ({"name": "a", "supportedInterfaces": [{}]}, "the url of an interface is missing"),
        (
            {"name": "a", "capabilities": {"extensions": [{"uri": EXTENSION, "params": {"weight": "x"}}]}},
            "retinue.weight is a string",
        ),
    ],
)
def test_a_malformed_card_is_refused_with_its_field(card: Any, says: str) -> None:
    assert says in problem_of(card)
