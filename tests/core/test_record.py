"""The data model, to the field."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from retinue.core import call, record
from retinue.core.call import ANONYMOUS, Outcome, Status
from retinue.core.errors import UnknownSkillError
from retinue.core.record import AgentRecord, Endpoint, Listing, ListingKey, Skill

FIELDS = {
    "AgentRecord": "name version title description maintainer provider endpoints skills traits resources"
    " prompts topics scores context_window languages labels annotations resource_globs security extra",
    "Endpoint": "protocol url wire_version",
    "Skill": "id title description input_schema output_schema tags similes examples roles visibility hints"
    " timeout_s extra",
    "Hints": "read_only destructive idempotent open_world runs_code",
    "Example": "text arguments result",
    "Trait": "name description type value skill_id extra",
    "Resource": "uri name mime visibility",
    "Prompt": "name arguments",
    "Listing": "record source key tag digest raw published_at fetched_at owner signature"
    " enabled reachable since last_error stats source_trust",
    "Call": "id agent version_range skill arguments principal endpoint trace deadline idempotency_key"
    " run_step listing",
    "Principal": "id kind scopes",
    "Outcome": "call_id agent version skill status value parts attempts duration_ms usage warnings"
    " error meta",
    "Part": "kind value mime name annotations",
    "Attempt": "agent duration_ms error",
    "TraceContext": "id depth path via calls_left seconds_left traceparent tracestate baggage kid mac"
    " trusted",
    "Hop": "agent skill",
}

ADDED_FIELDS = {
    "TraceContext": {"depth_given", "sent_at_ms", "extension"},
    "Outcome": {"calls_used"},
    "Principal": {"agents", "through", "send", "groups", "team"},
    "AgentRecord": {"deprecated", "weight"},
    "Skill": {"channel", "listed"},
    "Resource": {"title", "description", "live"},
    "Prompt": {"title", "description", "visibility"},
}
"""``depth_given``: an id that came without a depth is worked out by the guard (specification 7.5);
``sent_at_ms`` is the replay window's, ``calls_used`` gives back what is left of a budget (decision 0018);
``extension``: what a chain may spend on models, and fields of newer releases (specification 7.5);
``agents``: a token may show a part of the mesh only; ``through`` and ``send``: the agent that started a run
for its caller, and what it may call (decision 0102); ``groups``: those of a JWT, for policies; ``team``:
whose policies bind the agent that calls; what MCP says
of resources and prompts, and whether readers may subscribe (specification 5); whether a skill talks to its
caller, and whether it is in the list of tools; ``deprecated`` and ``weight``: versions side by side
(specification 7.9).
"""


@pytest.mark.parametrize("name", FIELDS)
def test_a_noun_has_the_fields_of_the_design_and_no_others(name: str) -> None:
    noun = getattr(record, name, None) or getattr(call, name)
    found = {one.name for one in fields(noun)}
    assert found - ADDED_FIELDS.get(name, set()) == set(FIELDS[name].split())


@pytest.mark.parametrize("name", FIELDS)
def test_a_noun_is_frozen_and_has_no_room_for_other_attributes(name: str) -> None:
    noun = getattr(record, name, None) or getattr(call, name)
    # type checkers hold the nouns of the hot path to it, which are plain at runtime (`core.quick_dataclass`)
    assert "dataclass(frozen=True, slots=True)\nclass" in inspect.getsource(noun)
    assert "__slots__" in vars(noun)


def test_a_record_has_no_status_no_metrics_and_no_provenance() -> None:
    names = {one.name for one in fields(AgentRecord)}
    assert names.isdisjoint({"status", "metrics", "stats", "source", "reachable", "enabled", "digest"})


def test_a_skill_is_of_the_mesh_unless_it_says_otherwise() -> None:
    assert Skill("create_plan").visibility == "mesh"
    assert get_args(record.Visibility) == ("private", "mesh", "exposed")


def test_the_status_of_an_outcome_is_one_of_four() -> None:
    assert get_args(Status) == ("done", "failed", "needs_input", "refused")


def test_a_listing_is_known_by_source_and_key() -> None:
    listing = Listing(AgentRecord("plan-agent"), "home", "agents/plan")
    assert listing.id == ListingKey("home", "agents/plan")
    with pytest.raises(FrozenInstanceError):
        listing.enabled = False  # type: ignore[misc]


def test_the_url_of_a_record_is_its_execute_endpoint_exactly_as_authored() -> None:
    a2a = Endpoint("a2a", "http://h:1/a2a")
    assert AgentRecord("a", endpoints=(a2a, Endpoint("execute", "http://h:1/"))).url == "http://h:1/"
    assert AgentRecord("a", endpoints=(a2a,)).url is None


def test_a_skill_is_found_by_its_exact_id() -> None:
    agent = AgentRecord("a", skills=(Skill("x"), Skill("fs:read_file")))
    assert agent.find_skill("fs:read_file") is agent.skills[1]
    assert agent.find_skill("X") is None


def test_the_value_of_an_outcome_is_given_or_its_error_raised() -> None:
    assert Outcome("1", "x", "done", value=5).get() == 5
    with pytest.raises(UnknownSkillError):
        Outcome("1", "x", "refused", error=UnknownSkillError("x")).get()


def test_an_anonymous_caller_sees_mesh_and_exposed_and_runs_no_code() -> None:
    assert ANONYMOUS.scopes == {"exposed", "mesh"}
