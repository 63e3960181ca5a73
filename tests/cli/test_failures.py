"""How errors become a line, a JSON object and an exit status."""

from __future__ import annotations

import click
import orjson
import pytest

from retinue.cli.failures import ShownFailure, describe, show
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    Problem,
    RemoteFaultError,
    RetinueError,
    SkillNotOfferedError,
    UnknownRunError,
)
from retinue.web.error_table import execute_fault, exit_code, facts_of


def test_a_failure_says_message_and_remedy_and_takes_its_status_from_the_table() -> None:
    error = SkillNotOfferedError("greeet", near=["greet"])
    failure = describe(error)
    assert (failure.message, failure.remedy) == ("Unknown skill: greeet", "did you mean greet?")
    assert failure.exit_code == exit_code(error) == 3


@pytest.mark.parametrize(
    "error",
    [
        SkillNotOfferedError("greeet", near=["greet"]),
        AgentUnreachableError("plan-agent", "http://127.0.0.1:1", "refused"),
        CallTimedOutError("plan", 3.0, layer="door", setting="timeouts.door_s"),
    ],
)
def test_an_error_that_came_through_a_hub_ends_as_it_would_have_here(error: RetinueError) -> None:
    travelled = RemoteFaultError("hub", -32603, error.message, facts_of(error))
    failure = describe(travelled)
    assert failure.exit_code == exit_code(error)
    assert (failure.type, failure.remedy) == (error.type, error.remedy)


@pytest.mark.parametrize("data", [None, "text", {"type": 5}, {"type": "their_own", "remedy": ["no text"]}])
def test_what_another_agent_says_of_its_error_is_never_trusted_in_shape(data: object) -> None:
    failure = describe(RemoteFaultError("other", -32000, "boom", data))
    assert (failure.message, failure.remedy, failure.exit_code) == ("boom", "", 1)


def test_a_line_holds_nothing_that_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(ShownFailure("x", "red \x1b[31m\nnew line\r\x07", "do\tthis", 1))
    assert capsys.readouterr().err == "error: red [31m new line — do this\n"


def test_as_json_it_is_one_object_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show(describe(SkillNotOfferedError("greeet", near=["greet"])), as_json=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert orjson.loads(printed.err) == {
        "error": {
            "type": "skill_not_offered",
            "message": "Unknown skill: greeet",
            "remedy": "did you mean greet?",
            "data": {"near": ["greet"]},
        }
    }


def test_giving_up_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    failure = describe(click.Abort())
    show(failure, as_json=True)
    assert (failure.exit_code, capsys.readouterr().err) == (130, "")


def test_hints_and_the_class_of_an_exception_stand_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [
        Problem("name", "missing required field 'name'"),
        Problem("nam", "unknown field 'nam'", "did you mean 'name'?"),
    ]
    here = InvalidParametersError(problems)
    code, message, facts = execute_fault(here)
    for error in (here, RemoteFaultError("hub", code, message, facts)):
        show(describe(error))
        told = "missing required field 'name'; unknown field 'nam' — did you mean 'name'?"
        assert (
            capsys.readouterr().err.removeprefix("error: ").removeprefix("Invalid parameters: ")
            == told + "\n"
        )
    raised = ExecutionFailedError.from_exception(KeyError("x"), "look")
    show(describe(RemoteFaultError("hub", *execute_fault(raised))))
    assert capsys.readouterr().err == "error: Execution failed: KeyError: 'x' (skill look)\n"
    raised = ExecutionFailedError.from_exception(ValueError("first\n  second"), "look")
    show(describe(RemoteFaultError("hub", *execute_fault(raised))))
    assert capsys.readouterr().err == "error: Execution failed: ValueError: first (skill look)\n    second\n"


def test_an_error_of_the_hub_has_one_prefix_at_most() -> None:
    """The prefix of the wire is for programs; at the command line it would say the same twice."""
    unknown = UnknownRunError("nosuch")
    code, message, data = execute_fault(unknown)
    assert message == "Invalid parameters: Unknown run: nosuch"
    assert describe(RemoteFaultError("hub", code, message, data)).message == "Unknown run: nosuch"
    gone = AgentUnreachableError("hub", "http://127.0.0.1:9000", "connection refused")
    assert describe(gone).message == "the hub at http://127.0.0.1:9000 is unreachable: connection refused"
