"""Errors of requests: invalid input, unsupported requests, missing rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.core.error_kinds.base import REQUEST, Problem, RetinueError, join_problems, read_problems


class RequestError(RetinueError):
    """The caller sent something unusable."""

    type = "invalid_request"
    kind = REQUEST


class ParseError(RequestError):
    """Bytes that are not JSON, or JSON that is nested too deeply."""

    type = "parse_error"


class InvalidRequestError(RequestError):
    """JSON that is not a request of this endpoint."""


class TooLargeError(RequestError):
    """A limit on size or count was exceeded."""

    type = "too_large"

    def __init__(self, what: str, limit: int, unit: str = "bytes", *, remedy: str = "") -> None:
        super().__init__(
            f"{what} is over the limit of {limit:,} {unit}", remedy=remedy or f"send at most {limit:,} {unit}"
        )
        self.limit = limit
        self.unit = unit

    @property
    def data(self) -> dict[str, Any]:
        return {"limit": self.limit, "unit": self.unit}


class QuotaExceededError(TooLargeError):
    """The artifacts of a caller, or all of them together, would take more than their quota.

    ``whose`` names them, ``used`` is what they take without the refused one.
    """

    type = "quota_exceeded"

    def __init__(self, whose: str, used: int, size: int, quota: int, *, setting: str = "") -> None:
        super().__init__(whose, quota)
        self.message = (
            f"{whose} take {used:,} bytes; {size:,} more are over the quota of {quota:,} bytes, "
            "and nothing was stored"
        )
        self.args = (self.message,)
        raised = f", or raise {setting}" if setting else ""
        self.remedy = f"delete some: retinue artifacts delete DIGEST{raised}"
        self.used = used

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, "used": self.used}


class UnsupportedMediaTypeError(RequestError):
    """A body of a media type that this endpoint does not read."""

    type = "unsupported_media_type"


class InvalidParametersError(RequestError):
    """Arguments do not fit the skill's input schema; the message names every problem (a text is one too)."""

    # P-12, P-23

    type = "validation_error"

    def __init__(self, problems: Sequence[Problem | str]) -> None:
        problems = read_problems(problems)
        # a hint says more than the general remedy
        remedy = (
            "" if any(problem.hint for problem in problems) else "send what the skill's input schema asks for"
        )
        super().__init__(join_problems(problems), remedy=remedy)
        self.problems = tuple(problems)

    @property
    def data(self) -> dict[str, Any]:
        return {"jsonrpc_code": -32602, "errors": [p.as_json() for p in self.problems]}


class InvalidSettingError(RequestError):
    """A setting, flag or hand-written file is wrong; names the field, the problem and the remedy."""

    type = "invalid_setting"

    def __init__(self, field: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"{field}: {problem}", remedy=remedy)
        self.field = field

    @property
    def data(self) -> dict[str, Any]:
        return {"field": self.field}


class SchemaRefusedError(RequestError):
    """A skill's schema is not a JSON Schema, refers outside itself, or would take exponential time."""

    type = "schema_refused"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"schema of {where} refused: {problem}", remedy="simplify the schema")
        self.where = where


class DefinitionError(RequestError):
    """A workflow definition is wrong.

    ``line`` and ``column`` count from 1 and are 0 when unknown; ``path`` leads to the place in the
    definition, as keys and positions.
    """

    type = "invalid_definition"

    def __init__(
        self,
        problem: str,
        *,
        source: str = "definition",
        line: int = 0,
        column: int = 0,
        path: tuple[str | int, ...] = (),
        remedy: str,
    ) -> None:
        at = f"{source}:{line}" if line else source
        super().__init__(f"{at}: {problem}", remedy=remedy)
        self.problem = problem
        self.source = source
        self.line = line
        self.column = column
        self.path = path

    @property
    def data(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "line": self.line,
            "column": self.column,
            "path": list(self.path),
            "problem": self.problem,
        }


class KeyConflictError(RequestError):
    """An idempotency key was used again with other arguments."""

    type = "key_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"Idempotency key {key} was used with other arguments", remedy="choose a new key, or none"
        )
        self.key = key


class NotCallableError(RequestError):
    """A plain trait was called as if it were a skill."""

    type = "not_callable"

    def __init__(self, name: str) -> None:
        super().__init__(f"Trait {name} is not callable")
        self.name = name
