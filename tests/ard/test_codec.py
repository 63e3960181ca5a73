"""The codecs of ARD: entries of agents and of others, requests, filters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given

from retinue.ard.codec.catalog import (
    A2A_TYPE,
    CATALOG_TYPE,
    MCP_TYPE,
    Publisher,
    iterate_catalog,
    parse_entry,
    referral_entry,
    render_catalog,
    render_entries,
)
from retinue.ard.codec.search import (
    Search,
    matches,
    merge,
    parse_results,
    parse_search,
    parse_visited,
    render_results,
)
from retinue.core.errors import InvalidParametersError
from retinue.core.record import AgentRecord, Example, Listing, Skill
from tests.strategies import json_values, records

HERE = Publisher("acme.com", "Acme", "http://127.0.0.1:9000")
MESH = frozenset({"exposed", "mesh"})
ENTRY = {"identifier": "urn:air:acme.com:agent:a", "displayName": "A", "type": A2A_TYPE, "url": "http://x/"}


def listed(*skills: Skill) -> Listing:
    record = AgentRecord(
        "weather agent", version="1.0.0", description="Weather", topics=("sky",), skills=skills
    )
    return Listing(record, "home", "agents/weather", published_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_an_agent_has_an_entry_for_a2a_and_one_for_mcp() -> None:
    skill = Skill("rain", "Tells rain", tags=("weather",), visibility="exposed")
    a2a, mcp = render_entries(listed(skill), HERE, MESH)
    assert a2a == {
        "identifier": "urn:air:acme.com:agent:weather-agent",
        "type": A2A_TYPE,
        "url": "http://127.0.0.1:9000/agents/weather%20agent/.well-known/agent-card.json",
        "displayName": "weather agent",
        "description": "Weather",
        "tags": ["sky", "weather"],
        "capabilities": ["rain"],
        "version": "1.0.0",
        "updatedAt": "2026-01-01T00:00:00+00:00",
    }
    assert (mcp["type"], mcp["data"]["tools"][0]["name"]) == (MCP_TYPE, "rain")


def test_a_reader_sees_its_skills_only_and_agents_without_one_are_left_out() -> None:
    skills = (Skill("own", visibility="private"), Skill("ours"), Skill("all", visibility="exposed"))
    for scopes, seen in (
        (MESH, ["ours", "all"]),
        (frozenset({"exposed"}), ["all"]),
        (frozenset[str](), None),
    ):
        entries = render_entries(listed(*skills), HERE, scopes)
        assert (entries[0]["capabilities"] if entries else None) == seen
    assert [one["type"] for one in render_entries(listed(Skill("ours")), HERE, MESH)] == [A2A_TYPE]


def test_queries_are_two_to_five_from_examples_of_several_skills() -> None:
    rain = Skill("rain", "Tells rain", examples=tuple(Example(f"rain {n}") for n in range(4)))
    wind = Skill("wind", "Tells wind", examples=(Example("wind 0"), Example(arguments={"a": 1})))
    queries = render_entries(listed(rain, wind), HERE, MESH)[0]["representativeQueries"]
    assert queries == ["rain 0", "wind 0", "rain 1", "rain 2", "rain 3"]
    one = render_entries(listed(Skill("rain", "Tells rain", examples=(Example("rain?"),))), HERE, MESH)
    assert one[0]["representativeQueries"] == ["rain?", "Tells rain"]
    assert "representativeQueries" not in render_entries(listed(Skill("rain")), HERE, MESH)[0]


@given(records)
def test_every_entry_of_ours_is_read_back_as_it_is(record: AgentRecord) -> None:
    entries = render_entries(Listing(record, "home", "k"), HERE, MESH)
    catalog = orjson.loads(orjson.dumps(render_catalog(HERE, entries)))
    assert [one for one in catalog["entries"] if parse_entry(one) is None] == []


@given(json_values)
def test_any_json_as_an_entry_or_a_catalog_is_taken_or_left_out(value: Any) -> None:
    parse_entry(value)
    assert len(list(iterate_catalog({"entries": [value, ENTRY]}))) <= 2


@pytest.mark.parametrize(
    "change",
    [
        {"identifier": "urn:other:a"},
        {"displayName": " "},
        {"type": 3},
        {"url": None},
        {"data": {}},
        {"url": "file:///etc/passwd"},
    ],
)
def test_a_malformed_entry_is_left_out(change: dict[str, Any]) -> None:
    assert parse_entry(ENTRY) is not None
    assert parse_entry({**ENTRY, **change}) is None


def test_catalogs_within_catalogs_are_read_four_levels_deep() -> None:
    def nest(depth: int) -> dict[str, Any]:
        inner: list[dict[str, Any]] = [{**ENTRY, "identifier": f"urn:air:acme.com:agent:{depth}"}]
        if depth < 9:
            bundle = {"identifier": "urn:air:a:b", "displayName": "b", "type": CATALOG_TYPE}
            inner.append({**bundle, "data": nest(depth + 1)})
        return {"entries": inner}

    found = [one["identifier"][-1] for one in iterate_catalog(nest(1))]
    assert found == ["1", "2", "3", "4"]


def test_a_request_is_read_with_its_defaults() -> None:
    search = parse_search(b'{"query": {"text": "rain", "filter": {"type": "a", "tags": ["b", "c"]}}}')
    assert search == Search("rain", {"type": ("a",), "tags": ("b", "c")}, "auto", 10, 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "the body is a list"),
        (b"{}", "query: it is null"),
        (b'{"query": {"text": " "}}', "query.text: it is missing"),
        (b'{"query": {"text": "a", "filter": []}}', "query.filter: "),
        (b'{"query": {"text": "a", "filter": {"type": {}}}}', "query.filter.type: "),
        (b'{"query": {"text": "a"}, "federation": "all"}', "federation: it is unknown"),
        (b'{"query": {"text": "a"}, "pageSize": 0}', "pageSize: "),
        (b'{"query": {"text": "a"}, "pageToken": "x"}', "pageToken: "),
    ],
)
def test_a_malformed_request_is_refused_with_its_field(body: bytes, says: str) -> None:
    with pytest.raises(InvalidParametersError) as caught:
        parse_search(body)
    assert says in caught.value.message


def test_filters_are_any_value_of_each_key() -> None:
    entry = {
        **ENTRY,
        "tags": ["x", "y"],
        "trustManifest": {"attestations": [{"type": "SOC2"}, {"type": "GDPR"}]},
    }
    assert matches(entry, {"tags": ("y", "z"), "publisher": ("acme.com",)})
    assert matches(entry, {"trustManifest.attestations.type": ("GDPR",)})
    assert not matches(entry, {"tags": ("y",), "type": ("other",)})
    assert not matches(entry, {"no.such.path": ("y",)})


def test_pages_follow_each_other() -> None:
    results = [{**ENTRY, "identifier": f"urn:air:a:b:{n}", "score": 9 - n, "source": "s"} for n in range(5)]
    first = render_results(Search("a", {}, page_size=2), results)
    assert first["pageToken"] == "2"
    last = render_results(Search("a", {}, page_size=2, offset=4), results)
    assert ([one["score"] for one in last["results"]], "pageToken" in last) == ([5], False)


def test_results_of_others_are_bounded_and_the_own_one_wins() -> None:
    sent = [{**ENTRY, "score": 900, "source": "javascript:x"}, {"score": 3}, 7]
    (taken,) = parse_results(orjson.dumps({"results": sent}), "http://them/")
    assert (taken["score"], taken["source"]) == (100, "http://them/")
    own = {**ENTRY, "score": 5, "source": "http://us/"}
    assert merge([[own], [taken]]) == [own]


def test_what_a_search_has_passed_is_read_leniently() -> None:
    assert parse_visited("ard-1, ard-2,, a b") == ("ard-1", "ard-2")
    assert parse_visited(None) == ()


def test_a_referral_is_an_entry() -> None:
    for url in ("https://finder.example/api", "https://finder.example/.well-known/ai-catalog.json"):
        assert parse_entry(referral_entry(url)) is not None
