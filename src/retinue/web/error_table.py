"""The only table from error class to code, status and body, for every protocol (specification 6.1).

A class without its own row uses the row of its nearest parent. Each endpoint calls the function of its
protocol and defines no codes of its own. ``/execute`` follows seed 001 exactly (P-22 … P-24). Codes from
−33001 down are Retinue's, outside the ranges of JSON-RPC, MCP and A2A. An agent's own error
(RemoteFaultError) keeps its code, message and data where the protocol allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from retinue.core import errors as e
from retinue.core.errors import RetinueError
from retinue.core.remote_faults import describe_fault, describe_for_model
from retinue.web.codec.jsonrpc import BUDGET_SPENT, CIRCUIT_OPEN, RECURSION_LIMIT
from retinue.web.codec.peer_requests import CLOCK_HEADER, MESH_HEADER, OTHER_MESH

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
UNKNOWN_METHOD = -32601
INVALID_PARAMETERS = -32602
INTERNAL_ERROR = -32603
CONTENT_TYPE_NOT_SUPPORTED = -32005
"""A2A's code for a media type that is not read."""

NOT_AUTHENTICATED = -33001
NOT_ALLOWED = -33003
RUN_CONFLICT = -33010
BUSY = -33029

McpForm = Literal["error", "tool_error"]
A2aForm = Literal["error", "failed", "canceled"]
Performative = Literal["NOT_UNDERSTOOD", "TASK_REJECT", "FAILURE"]


@dataclass(frozen=True, slots=True)
class Row:
    """The form of one error class in each protocol.

    ``code`` and ``prefix``: JSON-RPC at ``/execute``. ``rest``: HTTP status; with ``facts`` the body holds
    ``code`` and ``data`` in addition to ``detail``. ``mcp``: a JSON-RPC error with ``standard_code``, or an
    ``isError`` result, which a model can read. ``a2a``: a JSON-RPC error or a task state. ``performative``
    and ``reason_code`` ("" = the type of the error): seed 000. ``exit_code``: the command line.
    """

    code: int
    prefix: str
    rest: int
    mcp: McpForm
    a2a: A2aForm
    performative: Performative
    reason_code: str
    exit_code: int
    standard_code: int
    facts: bool = True


class RestFault(NamedTuple):
    """Status, JSON body and headers of a REST answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


class McpFault(NamedTuple):
    """An MCP error; ``code`` None means an ``isError`` result with ``message`` as its text."""

    code: int | None
    message: str
    data: Any


class McpError(NamedTuple):
    """A JSON-RPC error of MCP."""

    code: int
    message: str
    data: Any


class A2aFault(NamedTuple):
    """An A2A error; ``code`` None means a task in ``state`` with ``message`` as its status text."""

    code: int | None
    state: str | None
    message: str
    data: Any


class PerformativeFault(NamedTuple):
    """An error as a performative with its reason."""

    performative: Performative
    reason_code: str
    reason_text: str


def _row(
    code: int,
    prefix: str,
    rest: int,
    forms: tuple[McpForm, A2aForm],
    answer: tuple[Performative, str],
    exit_code: int,
    *,
    standard_code: int | None = None,
    facts: bool = True,
) -> Row:
    mcp, a2a = forms
    performative, reason_code = answer
    standard = code if standard_code is None else standard_code
    return Row(code, prefix, rest, mcp, a2a, performative, reason_code, exit_code, standard, facts)


_PARAMETERS = (INTERNAL_ERROR, "Invalid parameters: ")
_FAILED = (INTERNAL_ERROR, e.EXECUTION_FAILED)
_ERROR: tuple[McpForm, A2aForm] = ("error", "error")
_RESULT: tuple[McpForm, A2aForm] = ("tool_error", "error")
_TASK: tuple[McpForm, A2aForm] = ("tool_error", "failed")
_BAD_PAYLOAD: tuple[Performative, str] = ("NOT_UNDERSTOOD", "invalid_payload_structure")
_INCAPABLE: tuple[Performative, str] = ("TASK_REJECT", "incapable")
_REJECT: tuple[Performative, str] = ("TASK_REJECT", "")
_FAILURE: tuple[Performative, str] = ("FAILURE", "")

TABLE: dict[type[RetinueError], Row] = {
    # class: code, prefix · REST · (MCP, A2A) · performative · exit code
    e.RetinueError: _row(*_FAILED, 500, _TASK, _FAILURE, 1),
    e.RequestError: _row(INVALID_REQUEST, "Invalid request: ", 400, _ERROR, _BAD_PAYLOAD, 2),
    e.ParseError: _row(PARSE_ERROR, "Parse error: ", 400, _ERROR, ("NOT_UNDERSTOOD", "parsing_error"), 2),
    e.TooLargeError: _row(INVALID_REQUEST, "Invalid request: ", 413, _ERROR, _BAD_PAYLOAD, 2),
    e.UnsupportedMediaTypeError: _row(INVALID_REQUEST, "Invalid request: ", 415, _ERROR, _BAD_PAYLOAD, 2),
    e.InvalidParametersError: _row(
        *_PARAMETERS, 422, _RESULT, _BAD_PAYLOAD, 2, standard_code=INVALID_PARAMETERS
    ),
    e.InvalidSettingError: _row(
        *_PARAMETERS, 422, _RESULT, _BAD_PAYLOAD, 2, standard_code=INVALID_PARAMETERS
    ),
    e.SchemaRefusedError: _row(*_PARAMETERS, 422, _RESULT, _BAD_PAYLOAD, 2, standard_code=INVALID_PARAMETERS),
    e.DefinitionError: _row(*_PARAMETERS, 422, _RESULT, _BAD_PAYLOAD, 2, standard_code=INVALID_PARAMETERS),
    e.NotCallableError: _row(
        UNKNOWN_METHOD, "", 400, _ERROR, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.LookupFailedError: _row(
        UNKNOWN_METHOD, "", 404, _RESULT, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.UnknownSkillError: _row(
        UNKNOWN_METHOD, "", 404, _ERROR, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.UnknownResourceError: _row(
        UNKNOWN_METHOD, "", 404, _ERROR, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.UnknownPromptError: _row(
        UNKNOWN_METHOD, "", 404, _ERROR, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.UnknownRunError: _row(
        *_PARAMETERS, 404, _RESULT, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS, facts=False
    ),
    e.AmbiguousNameError: _row(
        UNKNOWN_METHOD, "", 409, _RESULT, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS
    ),
    e.VersionConflictError: _row(
        UNKNOWN_METHOD, "", 409, _RESULT, _INCAPABLE, 3, standard_code=INVALID_PARAMETERS
    ),
    e.AccessError: _row(NOT_ALLOWED, "", 403, _RESULT, ("TASK_REJECT", "unauthorized"), 4),
    e.NotAuthenticatedError: _row(NOT_AUTHENTICATED, "", 401, _RESULT, ("TASK_REJECT", "unauthorized"), 4),
    e.PolicyDeniedError: _row(NOT_ALLOWED, "", 403, _RESULT, _REJECT, 4),
    e.ApprovalNeededError: _row(NOT_ALLOWED, "", 403, _RESULT, _REJECT, 4),
    e.GuardError: _row(CIRCUIT_OPEN, "", 503, _ERROR, _REJECT, 5),
    e.CallTooDeepError: _row(RECURSION_LIMIT, "", 508, _ERROR, _REJECT, 5),
    e.BudgetSpentError: _row(BUDGET_SPENT, "", 508, _ERROR, _REJECT, 5),
    e.BusyError: _row(BUSY, "", 429, _RESULT, ("TASK_REJECT", "busy"), 5),
    e.StoppingError: _row(BUSY, "", 503, _RESULT, _REJECT, 5),
    e.OutOfMemoryError: _row(BUSY, "", 503, _RESULT, _REJECT, 5),
    e.ExecutionError: _row(*_FAILED, 500, _TASK, _FAILURE, 1),
    e.IncapableError: _row(*_FAILED, 501, _TASK, _INCAPABLE, 3),
    e.CallTimedOutError: _row(*_FAILED, 504, _TASK, _FAILURE, 6),
    e.CallCancelledError: _row(*_FAILED, 499, ("tool_error", "canceled"), _FAILURE, 130),
    e.AgentUnreachableError: _row(*_FAILED, 502, _TASK, _FAILURE, 7),
    e.RemoteFaultError: _row(*_FAILED, 502, _TASK, _FAILURE, 1),
    e.InputRequiredError: _row(*_FAILED, 409, ("tool_error", "failed"), _REJECT, 1),
    e.RunConflictError: _row(RUN_CONFLICT, "", 409, _RESULT, _REJECT, 2),
    e.RepeatedEventError: _row(RUN_CONFLICT, "", 409, _RESULT, _REJECT, 2),
    e.KeyConflictError: _row(RUN_CONFLICT, "", 409, _RESULT, _REJECT, 2),
    e.RegistryError: _row(*_FAILED, 502, _TASK, _FAILURE, 7),
    e.RegistryLoginError: _row(*_FAILED, 502, _TASK, _FAILURE, 4),
    e.RolloutFailedError: _row(*_FAILED, 502, _TASK, _FAILURE, 1),
    e.ReferenceNotFoundError: _row(*_FAILED, 404, _TASK, _FAILURE, 3),
    e.InvalidReferenceError: _row(
        *_PARAMETERS, 422, _RESULT, _BAD_PAYLOAD, 2, standard_code=INVALID_PARAMETERS
    ),
    e.RepositoryTakenError: _row(*_FAILED, 409, _TASK, _FAILURE, 7),
    e.TagTakenError: _row(*_FAILED, 409, _TASK, _FAILURE, 7),
    e.StateError: _row(*_FAILED, 500, _TASK, _FAILURE, 8),
    e.StorageFullError: _row(*_FAILED, 507, _TASK, _FAILURE, 8),
}

_RELAYED_CODES = frozenset({RECURSION_LIMIT, BUDGET_SPENT, CIRCUIT_OPEN})
"""Codes of guard errors that are relayed unchanged, so that every caller in a chain sees why it was cut."""


def row_of(kind: type[RetinueError]) -> Row:
    """The row of an error class, or of its nearest parent with a row."""
    return next(TABLE[ancestor] for ancestor in kind.__mro__ if ancestor in TABLE)


def facts_of(error: RetinueError) -> Any:
    """The ``data`` member: ``type``, the error's own data, and its remedy if any.

    A relayed guard error keeps the data it arrived with.
    """
    if isinstance(error, e.GuardError) and error.relayed:
        return error.wire_data
    facts = {"type": error.type, **error.data}
    if error.remedy:
        facts["remedy"] = error.remedy
    return facts


def execute_fault(error: RetinueError, *, validation_code: int = INTERNAL_ERROR) -> tuple[int, str, Any]:
    """Code, message and data of an error at ``/execute``.

    ``validation_code`` is the code of invalid parameters; JSON-RPC's own is −32602 (specification 2, doubt
    1).
    """
    if isinstance(error, e.RemoteFaultError):
        return error.code, error.message, error.fault_data
    row = row_of(type(error))
    bad_parameters = (row.code, row.standard_code) == (INTERNAL_ERROR, INVALID_PARAMETERS)
    code = validation_code if bad_parameters else row.code
    return code, row.prefix + error.message, facts_of(error)


def rest_fault(error: RetinueError) -> RestFault:
    """Status, ``{"detail": …}`` and headers of an error at a REST endpoint (specification 7.4)."""
    row = row_of(type(error))
    body: dict[str, Any] = {"detail": _with_hints(error, error.message)}
    if row.facts:
        code, _, data = execute_fault(error)
        body |= {"code": code, "data": data}
    headers = {}
    if isinstance(error, e.NotAuthenticatedError):
        headers["www-authenticate"] = "Bearer"
        if isinstance(error, e.ClocksDifferError):
            headers[CLOCK_HEADER] = f"{error.now_s:.3f}"
        elif isinstance(error, e.OtherMeshError):
            headers[MESH_HEADER] = OTHER_MESH
    elif isinstance(error, e.BusyError | e.CircuitOpenError):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return RestFault(row.rest, body, headers)


def mcp_fault(error: RetinueError, *, tool: str | None = None, guard_as_tool_error: bool = False) -> McpFault:
    """A JSON-RPC error or an ``isError`` result of MCP ``tools/call``.

    The text of a result has the hints and the remedy, because a model reads nothing else of it. Unknown and
    hidden tools yield the same error, without data (specification 5, doubt 9); a ``tool`` that does not find
    another skill has failed. With ``guard_as_tool_error`` guard errors become results, from which models
    recover better.
    """
    if isinstance(error, e.UnknownSkillError) and tool in (None, error.skill):
        return McpFault(INVALID_PARAMETERS, f"Unknown tool: {error.skill}", None)
    if isinstance(error, e.NotCallableError):
        return McpFault(INVALID_PARAMETERS, f"Unknown tool: {error.name}", None)
    if isinstance(error, e.RemoteFaultError):
        if error.code in _RELAYED_CODES and not guard_as_tool_error:
            return McpFault(error.code, error.message, error.fault_data)
        return _failed_result(error)
    row = row_of(type(error))
    is_result = row.mcp == "tool_error" or isinstance(error, e.UnknownSkillError)
    if is_result or (guard_as_tool_error and isinstance(error, e.GuardError)):
        return _failed_result(error)
    return McpFault(row.standard_code, row.prefix + error.message, facts_of(error))


def _failed_result(error: RetinueError) -> McpFault:
    """The text for a model; the facts have the code and message of ``/execute`` where those differ."""
    code, message, facts = execute_fault(error)
    text = describe_for_model(message, facts)
    if isinstance(facts, dict):
        facts = {
            **facts,
            **({"code": code} if code != INTERNAL_ERROR else {}),
            **({"message": message} if text != message else {}),
        }
    return McpFault(None, text, facts)


def mcp_read_fault(error: RetinueError) -> McpError:
    """A JSON-RPC error of MCP requests that have no ``isError`` (resources, prompts).

    Hidden and missing items yield the same error (specification 5, doubts 9 and 10).
    """
    if isinstance(error, e.UnknownResourceError):
        return McpError(INVALID_PARAMETERS, "Resource not found", {"uri": error.uri})
    if isinstance(error, e.UnknownPromptError):
        return McpError(INVALID_PARAMETERS, error.message, None)
    if isinstance(error, e.RemoteFaultError):
        return McpError(error.code, error.message, error.fault_data)
    row = row_of(type(error))
    return McpError(row.standard_code, row.prefix + error.message, facts_of(error))


def _with_hints(error: RetinueError, message: str) -> str:
    """The message with the nearest name after each unknown one: a model reads it, and no data."""
    return describe_fault(message, error.data) if isinstance(error, e.InvalidParametersError) else message


def a2a_fault(error: RetinueError) -> A2aFault:
    """A JSON-RPC error or the final task state at an A2A endpoint."""
    if isinstance(error, e.RemoteFaultError):
        if error.code in _RELAYED_CODES:
            return A2aFault(error.code, None, error.message, error.fault_data)
        return A2aFault(None, "failed", error.message, error.fault_data)
    row = row_of(type(error))
    message = _with_hints(error, row.prefix + error.message)
    if isinstance(error, e.UnsupportedMediaTypeError):
        return A2aFault(CONTENT_TYPE_NOT_SUPPORTED, None, message, facts_of(error))
    if row.a2a == "error":
        return A2aFault(row.standard_code, None, message, facts_of(error))
    return A2aFault(None, row.a2a, message, facts_of(error))


def performative_fault(error: RetinueError) -> PerformativeFault:
    """The performative of an error (seed 000), with reason code and text."""
    row = row_of(type(error))
    return PerformativeFault(row.performative, row.reason_code or error.type, error.message)


def exit_code(error: RetinueError) -> int:
    """The exit code of the command line.

    1 failed · 2 request · 3 not found · 4 access · 5 refused · 6 timed out · 7 unreachable · 8 this machine
    · 130 cancelled
    """
    return row_of(type(error)).exit_code


def list_error_classes() -> tuple[type[RetinueError], ...]:
    """List every error class, the root first."""
    return tuple(_walk(RetinueError))


def _walk(kind: type[RetinueError]) -> Iterator[type[RetinueError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _walk(child)
