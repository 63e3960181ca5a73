"""An error that came over the wire is again what it was; people and models read what the wire keeps apart."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core import errors as e
from retinue.core.errors import Problem, RemoteFaultError, RetinueError
from retinue.core.remote_faults import describe_fault, describe_for_model, rebuild_error
from retinue.web.error_table import execute_fault

ERRORS: list[RetinueError] = [
    e.InvalidParametersError([Problem("a", "missing required field 'a'"), Problem("b", "unknown", "hint")]),
    e.InvalidRequestError("Run r1 has ended: done", remedy="see retinue runs ID"),
    e.InvalidSettingError("version range", "'abc' is no range", remedy="write it like '>=1.2,<2'"),
    e.AmbiguousNameError("lint", ["lint-a", "lint-b"]),
    e.UnknownSkillError("lint", near=["lint2"]),
    e.SkillNotOfferedError("lint", near=["lint2"], unasked=["http://r"]),
    e.UnknownAgentError("a", near=["b"]),
    e.VersionConflictError("lint", "<2", ["2.0"]),
    e.NotAuthenticatedError("no token", remedy="give one"),
    e.NotAllowedError("not you"),
    e.InsufficientScopeError("not you", scopes=["mesh"]),
    e.BusyError("10 calls", 1.5),
    e.ExecutionFailedError.from_exception(KeyError("x\ny"), "look"),
    e.OutputInvalidError("lint", [Problem("a", "field 'a' must be string")]),
    e.OutputInvalidError.not_json("lint", "a.1", "an object"),
    e.CallTimedOutError("lint", 3.0, layer="skill lint", setting="timeout_s"),
    e.CallCancelledError("lint"),
    e.AgentUnreachableError("a", "http://a", "gone", sent=True),
    e.InputRequiredError("input required: Who?"),
    e.CannotAskError("sampling"),
    e.InputRefusedError("declined"),
    e.StepFailedError("s", "a", {"type": "timeout", "message": "late"}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_another_process_has_class_type_text_and_data_of_this_one(error: RetinueError) -> None:
    code, message, facts = execute_fault(error)
    found = rebuild_error(RemoteFaultError("peer", code, message, facts))
    assert type(found) is type(error)
    assert (found.type, found.message, str(found)) == (error.type, error.message, str(error))
    assert (found.remedy, found.data) == (error.remedy, error.data)
    assert found.kind == error.kind


@pytest.mark.parametrize(
    "facts",
    [
        None,
        "text",
        {},
        {"type": 5},
        {"type": "of_their_own"},
        {"type": "timeout"},
        {"type": "busy", "retry_after_s": "x"},
    ],
)
def test_what_does_not_belong_to_its_type_stays_an_error_of_the_agent(facts: Any) -> None:
    error = RemoteFaultError("peer", -32000, "boom", facts)
    assert rebuild_error(error) is error


def test_an_error_of_this_process_stays_what_it_is() -> None:
    error = e.CallCancelledError("x")
    assert rebuild_error(error) is error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            e.InvalidParametersError(
                [Problem("a", "missing 'a'"), Problem("b", "unknown 'b'", "did you mean 'a'?")]
            ),
            "Invalid parameters: missing 'a'; unknown 'b' — did you mean 'a'?",
        ),
        (
            e.InvalidParametersError([Problem("a", "missing 'a'")]),
            "Invalid parameters: missing 'a' — send what the skill's input schema asks for",
        ),
        (
            e.ExecutionFailedError.from_exception(KeyError("x"), "s"),
            "Execution failed: KeyError: 'x' (skill s)",
        ),
        (e.ExecutionFailedError.from_exception(KeyError(), "s"), "Execution failed: KeyError (skill s)"),
        (
            e.ExecutionFailedError.from_exception(SystemExit(3), "s"),
            "Execution failed: SystemExit: 3 (skill s)",
        ),
        (
            e.ExecutionFailedError.from_exception(ValueError("one\ntwo"), "s"),
            "Execution failed: ValueError: one (skill s)\ntwo",
        ),
        (e.ExecutionFailedError("as raised"), "Execution failed: as raised"),
    ],
)
def test_a_model_reads_the_hints_the_class_of_an_exception_and_the_remedy(
    error: RetinueError, told: str
) -> None:
    _, message, facts = execute_fault(error)
    assert describe_for_model(message, facts) == told


@pytest.mark.parametrize("facts", [None, {"errors": 5}, {"errors": [5]}, {"exception": 5, "detail": []}])
def test_facts_of_another_shape_change_no_text(facts: Any) -> None:
    assert describe_fault("boom", facts) == describe_for_model("boom", facts) == "boom"


def test_much_text_of_an_exception_is_cut_with_a_word_about_it() -> None:
    error = e.ExecutionFailedError.from_exception(ValueError("first\n" + "x" * 3_000))
    assert error.detail.endswith("… (1,000 characters more)")


def test_a_busy_agent_further_on_is_known_to_have_been_further_on() -> None:
    busy = e.BusyError("x", 1.0)
    busy.is_nested = True
    found = rebuild_error(RemoteFaultError("peer", *execute_fault(busy)))
    assert isinstance(found, e.BusyError)
    assert found.is_nested
