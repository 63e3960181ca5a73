"""Questions what an agent can do, answered from its record and from its author's judgement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidParametersError, InvalidSettingError
from retinue.core.record import AgentRecord, Example, Skill
from retinue.mesh.asking.query import Can, Query, answer_query, fold, parse_query
from tests.requirements import requirement

MESH = frozenset({"mesh", "exposed"})

JULES = AgentRecord(
    "jules",
    provider="example",
    topics=("Software Engineering", "Debugging", "Python", "API Development"),
    skills=(
        Skill(
            "EXECUTE_DELEGATED_CODING_TASK",
            "Receives an MCP TASK_REQUEST",
            input_schema={"type": "object"},
            similes=("write code",),
            tags=("database_interaction",),
            examples=(Example("Fix this"),),
        ),
        Skill("open_door", "For clients", visibility="exposed"),
        Skill("secret_recipe", "Hidden", visibility="private", tags=("cooking",)),
    ),
)


def ask(scopes: frozenset[str] = MESH, /, **payload: Any) -> Any:
    return answer_query(JULES, parse_query(payload), scopes)


def specific(*capabilities: str, **parameters: Any) -> Any:
    return ask(query_type="specific", query_parameters={"capabilities": list(capabilities), **parameters})


@requirement("W-11")
@requirement("W-16")
@pytest.mark.parametrize("more", [{}, {"query_parameters": {}}, {"query_parameters": None}])
def test_a_summary_has_the_topics_and_the_visible_actions(more: dict[str, Any]) -> None:
    assert ask(query_type="summary", **more) == {
        "status": "success",
        "capabilities": {
            "topics": ["Software Engineering", "Debugging", "Python", "API Development"],
            "actions": [
                {"name": "EXECUTE_DELEGATED_CODING_TASK", "description": "Receives an MCP TASK_REQUEST"},
                {"name": "open_door", "description": "For clients"},
            ],
        },
    }


@requirement("W-05")
@requirement("W-12")
def test_a_specific_question_is_answered_flat_and_in_the_spelling_of_the_asker() -> None:
    assert specific("python", "database_interaction", match_type="all") == {
        "status": "success",
        "match_result": True,
        "matched_capabilities": ["python", "database_interaction"],
    }


@requirement("W-17")
@pytest.mark.parametrize(
    "spelt",
    ["Database-Interaction", "DATABASE INTERACTION", "database_interaction", " Database  interaction"],
)
def test_capabilities_match_whatever_their_case_and_separators(spelt: str) -> None:
    assert specific(spelt)["matched_capabilities"] == [spelt]


@requirement("W-06")
def test_all_wants_every_capability_and_any_wants_one() -> None:
    partial = {"matched_capabilities": ["python"], "missing_capabilities": ["cobol"], "status": "success"}
    assert specific("cobol", "python") == {**partial, "match_result": False}
    assert specific("cobol", "python", match_type="any") == {**partial, "match_result": True}
    assert specific("cobol", match_type="any")["match_result"] is False


@requirement("W-25")
def test_topics_ids_tags_and_similes_match_and_what_is_hidden_never_does() -> None:
    for seen in ("debugging", "open door", "database interaction", "Write_Code"):
        assert specific(seen)["match_result"] is True
    for hidden in ("secret_recipe", "cooking"):
        assert specific(hidden)["match_result"] is False
    clients = frozenset({"exposed"})
    by_client = {"capabilities": ["open_door", "write code"], "match_type": "any"}
    reply = ask(clients, query_type="specific", query_parameters=by_client)
    assert reply["matched_capabilities"] == ["open_door"]


@requirement("W-07")
@requirement("W-13")
@pytest.mark.parametrize(
    "name", ["EXECUTE_DELEGATED_CODING_TASK", "execute delegated coding task", "Write Code"]
)
def test_details_are_the_whole_specification_of_one_action(name: str) -> None:
    reply = ask(query_type="action_details", query_parameters={"action_name": name})
    assert reply["action"] == {
        "name": "EXECUTE_DELEGATED_CODING_TASK",
        "description": "Receives an MCP TASK_REQUEST",
        "similes": ["write code"],
        "input_schema": {"type": "object"},
        "output_schema": None,
        "examples": [{"text": "Fix this"}],
        "provider": "example",
    }
    assert reply["capabilities"]["actions"] == [reply["action"]]


@pytest.mark.parametrize("name", ["FLY", "secret_recipe"])
def test_an_unknown_or_hidden_action_is_a_failure_in_the_answer(name: str) -> None:
    reply = ask(query_type="action_details", query_parameters={"action_name": name})
    assert (reply["status"], reply["error_code"]) == ("failure", "unknown_action")
    assert name in reply["error_text"]


@requirement("W-03")
@requirement("W-04")
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ([], ""),
        ("summary", ""),
        ({}, "query_type"),
        ({"query_type": "summary | specific | action_details"}, "query_type"),
        ({"query_type": ["summary"]}, "query_type"),
        ({"query_type": "specific", "query_parameters": []}, "query_parameters"),
        ({"query_type": "specific"}, "query_parameters.capabilities"),
        *(
            (
                {"query_type": "specific", "query_parameters": {"capabilities": bad}},
                "query_parameters.capabilities",
            )
            for bad in ([], "python", [""], [" "], [1], [None], {"a": 1}, ["x"] * 101)
        ),
        (
            {"query_type": "specific", "query_parameters": {"capabilities": ["a"], "match_type": "some"}},
            "query_parameters.match_type",
        ),
        (
            {"query_type": "specific", "query_parameters": {"capabilities": ["a"], "match_type": None}},
            "query_parameters.match_type",
        ),
        ({"query_type": "action_details"}, "query_parameters.action_name"),
        (
            {"query_type": "action_details", "query_parameters": {"action_name": ""}},
            "query_parameters.action_name",
        ),
    ],
)
def test_a_malformed_question_is_refused_with_the_field(payload: Any, path: str) -> None:
    with pytest.raises(InvalidParametersError) as caught:
        parse_query(payload)
    assert caught.value.problems[0].path == path
    assert path in caught.value.message
    assert caught.value.remedy


def test_the_authors_judgement_goes_before_the_record() -> None:
    query = parse_query(
        {"query_type": "specific", "query_parameters": {"capabilities": ["python", "chess", "debugging"]}}
    )
    said = {
        "python": Can(False, reason="the queue is full"),
        "chess": Can(True, price=2, time_s=30, confidence=0.9),
        "debugging": Can(price=5, confidence=0.4),
    }
    assert answer_query(JULES, query, MESH, said) == {
        "status": "success",
        "match_result": False,
        "matched_capabilities": ["chess", "debugging"],
        "missing_capabilities": ["python"],
        "price": 5,
        "time_s": 30,
        "confidence": 0.4,
        "reasons": {"python": "the queue is full"},
    }


@pytest.mark.parametrize("field", ["price", "time_s", "confidence"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "cheap", True])
def test_terms_that_are_no_numbers_of_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidSettingError, match=f"Can.{field}"):
        Can(**{field: value})


@given(st.text(), st.sampled_from(["_", "-", " ", "  "]))
def test_folding_twice_changes_nothing_and_separators_are_alike(text: str, separator: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert fold(f"{text}{separator}x") == fold(f"{text} X")


names = st.text(min_size=1).filter(str.strip)


@given(
    st.one_of(
        st.just(Query("summary")),
        st.builds(
            Query,
            st.just("specific"),
            st.lists(names, min_size=1, max_size=9).map(tuple),
            st.sampled_from(["all", "any"]),
        ),
        names.map(lambda name: Query("action_details", action_name=name)),
    )
)
def test_a_question_survives_its_payload(query: Query) -> None:
    assert parse_query(query.as_payload()) == query
