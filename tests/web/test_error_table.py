"""THE table: every error has a form on every surface."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, get_args

import orjson
import pytest

from retinue.core import errors as e
from retinue.core.errors import Problem, RetinueError
from retinue.web import error_table as faults
from retinue.web.error_table import (
    TABLE,
    a2a_fault,
    execute_fault,
    exit_code,
    list_error_classes,
    mcp_fault,
    performative_fault,
    rest_fault,
    row_of,
)
from tests.requirements import requirement

SAMPLES: dict[str, Any] = {
    "problems": [Problem("a.b", "missing required field 'a.b'")],
    "limit": 10,
    "timeout_s": 3.0,
    "retry_after_s": 2.6,
    "depth": 6,
    "max_depth": 5,
    "pid": 1,
    "port": 9000,
    "status": 500,
    "code": -32000,
    "line": 3,
    "cause": {"type": "timeout", "message": "boom"},
    "candidates": ["a", "b"],
    "circle": [SimpleNamespace(name="a"), SimpleNamespace(name="b")],
    "offered": ["1.0"],
    "now_s": 1_800_000_000.0,
    "value": 5.0,
    "spent": {"turns": 5},
    "used": 900,
    "size": 200,
    "quota": 1_000,
}
MISSING = Problem("requirements", "missing required field 'requirements'")
CLASSES = list_error_classes()
RESERVED = {-32700, -32600, -32601, -32602, -32603}


def make(kind: type[RetinueError]) -> RetinueError:
    """An error of this class, its arguments by name."""
    wanted = inspect.signature(kind.__init__).parameters.values()
    given = {
        p.name: SAMPLES.get(p.name, f"<{p.name}>")
        for p in wanted
        if p.name != "self" and (p.default is p.empty or p.name in SAMPLES)
    }
    return kind(**given)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@requirement("P-27")
def test_every_class_has_a_row_and_a_form_on_every_surface(kind: type[RetinueError]) -> None:
    error = make(kind)
    assert row_of(kind) in TABLE.values()

    code, message, data = execute_fault(error)
    assert code in RESERVED or -33100 < code <= -33001 or isinstance(error, e.RemoteFaultError)
    assert message.endswith(error.message)
    orjson.dumps(data)

    status, body, headers = rest_fault(error)
    assert 400 <= status < 600
    assert body["detail"] == error.message
    orjson.dumps(body)
    assert all(isinstance(value, str) for value in headers.values())

    mcp = mcp_fault(error)
    assert mcp.code is None or mcp.code in RESERVED or mcp.code <= -33001
    assert mcp.message

    a2a = a2a_fault(error)
    assert (a2a.code is None) != (a2a.state is None)

    told = performative_fault(error)
    assert told.performative in get_args(faults.Performative)
    assert told.reason_code

    assert 0 < exit_code(error) < 256


def test_no_row_stands_for_a_class_outside_the_tree() -> None:
    assert set(TABLE) <= set(CLASSES)


def test_a_class_without_a_row_takes_its_nearest_parents() -> None:
    class NewError(e.CallTimedOutError):
        pass

    assert row_of(NewError) is TABLE[e.CallTimedOutError]
    assert row_of(e.SkillNotOfferedError) is TABLE[e.UnknownSkillError]


def test_no_code_of_ours_is_taken_by_mcp_a2a_or_json_rpc() -> None:
    ours = {row.code for row in TABLE.values()} - RESERVED
    assert not any(-32768 <= code <= -32000 for code in ours)


@requirement("P-22")
def test_an_unknown_skill_answers_with_the_seeds_code_and_text() -> None:
    code, message, data = execute_fault(e.UnknownSkillError("unknown_skill_id"))
    assert (code, message) == (-32601, "Unknown skill: unknown_skill_id")
    assert data["type"] == "unknown_skill"


@requirement("P-23")
def test_bad_parameters_answer_with_the_seeds_code_and_text() -> None:
    error = e.InvalidParametersError([MISSING])
    code, message, data = execute_fault(error)
    assert (code, message) == (-32603, "Invalid parameters: missing required field 'requirements'")
    assert data["type"] == "validation_error"
    assert data["jsonrpc_code"] == -32602
    assert data["errors"] == [MISSING.as_json()]
    assert execute_fault(error, validation_code=-32602)[0] == -32602
    assert execute_fault(e.ExecutionFailedError("x"), validation_code=-32602)[0] == -32603
    assert execute_fault(e.UnknownSkillError("x"), validation_code=-32602)[0] == -32601


@requirement("P-24")
def test_a_failed_execution_answers_with_the_seeds_code_and_text() -> None:
    error = e.ExecutionFailedError.from_exception(TimeoutError("Claude API timeout"))
    code, message, data = execute_fault(error)
    assert (code, message) == (-32603, "Execution failed: Claude API timeout")
    assert data == {"type": "execution_error", "exception": "TimeoutError"}


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSES if issubclass(kind, e.ExecutionError) and kind is not e.RemoteFaultError],
    ids=lambda kind: kind.__name__,
)
def test_all_of_the_execution_side_is_minus_32603_with_its_type(kind: type[e.ExecutionError]) -> None:
    code, message, data = execute_fault(make(kind))
    assert code == -32603
    assert message.startswith("Execution failed: ")
    assert data["type"] == kind.type


@requirement("S-14")
def test_a_chain_too_deep_is_refused_with_the_same_code_everywhere() -> None:
    error = e.CallTooDeepError("t", 6, 5, "a:x → b:y", "a → b → a")
    code, message, data = execute_fault(error)
    assert code == -33007
    assert "a:x → b:y" in message
    assert {"trace_id": "t", "depth": 6, "max_depth": 5}.items() <= data.items()
    assert mcp_fault(error).code == -33007
    assert mcp_fault(error, guard_as_tool_error=True).code is None
    assert a2a_fault(error).code == -33007
    assert rest_fault(error).status == 508
    assert rest_fault(error).body["code"] == -33007
    assert performative_fault(error)[:2] == ("TASK_REJECT", "recursion_limit")


def test_the_forms_of_the_specifications_table() -> None:
    unknown = e.UnknownSkillError("x", near=["y"])
    assert rest_fault(unknown) == (404, {"detail": "Unknown skill: x"}, {})
    assert mcp_fault(unknown) == (-32602, "Unknown tool: x", None)
    assert a2a_fault(unknown)[:2] == (-32602, None)
    assert performative_fault(unknown)[:2] == ("TASK_REJECT", "incapable")

    bad = e.InvalidParametersError([MISSING])
    assert rest_fault(bad).status == 422
    assert mcp_fault(bad).code is None
    assert a2a_fault(bad).code == -32602
    assert performative_fault(bad)[:2] == ("NOT_UNDERSTOOD", "invalid_payload_structure")

    failed = e.ExecutionFailedError("boom")
    assert rest_fault(failed).status == 500
    assert mcp_fault(failed)[:2] == (None, "Execution failed: boom")
    assert a2a_fault(failed)[:3] == (None, "failed", "Execution failed: boom")
    assert performative_fault(failed) == ("FAILURE", "execution_error", "boom")

    plain = e.NotCallableError("mood")
    assert rest_fault(plain) == (400, {"detail": "Trait mood is not callable"}, {})
    assert mcp_fault(plain) == (-32602, "Unknown tool: mood", None)
    assert performative_fault(plain)[:2] == ("TASK_REJECT", "incapable")

    assert execute_fault(e.ParseError("x"))[0] == mcp_fault(e.ParseError("x")).code == -32700
    assert (
        execute_fault(e.InvalidRequestError("x"))[0] == a2a_fault(e.InvalidRequestError("x")).code == -32600
    )
    assert performative_fault(e.ParseError("x")).reason_code == "parsing_error"


def test_who_may_try_again_is_told_when_and_who_lacks_a_token_how() -> None:
    assert rest_fault(e.BusyError("x", 2.6)).headers == {"retry-after": "3"}
    assert rest_fault(e.CircuitOpenError("x", 0.2)).headers == {"retry-after": "1"}
    assert rest_fault(e.NotAuthenticatedError("x")).headers == {"www-authenticate": "Bearer"}


def test_an_agents_own_error_passes_with_code_message_and_data() -> None:
    data = {"type": "timeout", "left": [1]}
    error = e.RemoteFaultError("peer", -32050, "too late", data)
    assert execute_fault(error) == (-32050, "too late", data)
    assert rest_fault(error)[:2] == (502, {"detail": "too late", "code": -32050, "data": data})
    assert mcp_fault(error) == (None, "too late", {**data, "code": -32050})
    assert a2a_fault(error) == (None, "failed", "too late", data)
    assert performative_fault(error) == ("FAILURE", "timeout", "too late")


def test_another_agents_refusal_of_the_chain_stays_one() -> None:
    error = e.RemoteFaultError("peer", -33007, "too deep", {"depth": 6})
    assert mcp_fault(error).code == a2a_fault(error).code == -33007
