"""Pure: the errors of A2A and their JSON-RPC form in both versions.

The errors are those of section 5.4 of the A2A specification. A 1.x error has a list of typed details (section
9.5): an ``ErrorInfo`` and, for errors of calls, the facts of the error table. A 0.3 error has the facts
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import RetinueError
from retinue.web.codec.error_info import render_details
from retinue.web.error_table import INVALID_PARAMETERS, INVALID_REQUEST, UNKNOWN_METHOD, a2a_fault

_NOT_IN_V03 = frozenset({-32008, -32009})
"""Codes that 0.3 does not have."""

_INTERNAL_ERROR = -32603


class A2aError(Exception):
    """The answer to one request is a JSON-RPC error.

    ``reason`` is that of its ``ErrorInfo``; ``facts`` are those of the error table, None for the errors that
    A2A defines.
    """

    def __init__(self, code: int, reason: str, message: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.facts = facts

    @classmethod
    def of(cls, error: RetinueError) -> A2aError:
        """The error of a call, by the error table."""
        code, _, message, facts = a2a_fault(error)
        facts = facts if isinstance(facts, Mapping) else {"data": facts}
        kind = str(facts.get("type") or error.type)
        return cls(_INTERNAL_ERROR if code is None else code, kind.upper(), message, facts)


def task_not_found(task_id: str) -> A2aError:
    """No task of this caller has the id."""
    return A2aError(-32001, "TASK_NOT_FOUND", f"Task not found: {task_id}")


def task_not_cancelable(task_id: str, state: str) -> A2aError:
    """The task has ended."""
    return A2aError(-32002, "TASK_NOT_CANCELABLE", f"Task {task_id} cannot be canceled: it is {state}")


def push_config_not_found(task_id: str, config_id: str) -> A2aError:
    """The task has no push notification configuration of this id."""
    message = f"Task {task_id} has no push notification configuration {config_id}"
    return A2aError(-32001, "TASK_NOT_FOUND", message)


def unsupported_operation(message: str) -> A2aError:
    """The task is in a state in which this cannot be done."""
    return A2aError(-32004, "UNSUPPORTED_OPERATION", message)


def content_type_not_supported(message: str) -> A2aError:
    """A part, or the request itself, has a media type that is not read."""
    return A2aError(-32005, "CONTENT_TYPE_NOT_SUPPORTED", message)


def version_not_supported(version: str) -> A2aError:
    """The request asks for a version of A2A that is not spoken here."""
    message = f"A2A version {version[:20]} is not supported; this agent speaks 1.0 and 0.3"
    return A2aError(-32009, "VERSION_NOT_SUPPORTED", message)


def unknown_method(method: str) -> A2aError:
    """The request names a method that A2A does not have."""
    return A2aError(UNKNOWN_METHOD, "METHOD_NOT_FOUND", f"Unknown method: {method[:200]}")


def invalid_request(message: str) -> A2aError:
    """The body is no JSON-RPC request."""
    return A2aError(INVALID_REQUEST, "INVALID_REQUEST", f"Invalid request: {message}")


def invalid_parameters(message: str) -> A2aError:
    """A parameter is missing or malformed."""
    return A2aError(INVALID_PARAMETERS, "INVALID_PARAMS", f"Invalid parameters: {message}")


def render_fault(request_id: Any, error: A2aError, *, legacy: bool) -> dict[str, Any]:
    """The JSON-RPC error; ``legacy``: for a client of 0.3."""
    code = _INTERNAL_ERROR if legacy and error.code in _NOT_IN_V03 else error.code
    rendered: dict[str, Any] = {"code": code, "message": error.message}
    if legacy:
        if error.facts is not None:
            rendered["data"] = dict(error.facts)
    else:
        rendered["data"] = render_details(error.reason, error.facts)
    return {"jsonrpc": "2.0", "id": request_id, "error": rendered}
