"""What a skill says of its calls, held against one call: who may, what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from retinue.core.call import Call
from retinue.core.errors import InvalidParametersError, NotAuthenticatedError, OutputInvalidError, Problem
from retinue.core.record import Skill
from retinue.mesh.schema import compile_schema, find_compiled


def check_access(skill: Skill, call: Call) -> None:
    """Raises NotAuthenticatedError where the skill wants a right that the caller has not."""
    if skill.hints.runs_code and "runs_code" not in call.principal.scopes:
        raise NotAuthenticatedError(
            f"{skill.id} runs code and wants a token",
            remedy="call it with the retinue command line, or send keys/local.token as a bearer token",
        )


def check_input(skill: Skill, call: Call) -> None:
    """Raises InvalidParametersError."""
    problems = _find_problems(skill.input_schema, "input", skill, call.arguments)
    if problems:
        raise InvalidParametersError(problems)


def check_output(skill: Skill, value: Any) -> None:
    """Raises OutputInvalidError."""
    problems = _find_problems(skill.output_schema, "output", skill, value)
    if problems:
        raise OutputInvalidError(skill.id, problems)


def _find_problems(
    schema: Mapping[str, Any] | None, side: Literal["input", "output"], skill: Skill, value: Any
) -> list[Problem]:
    if schema is None:
        return []
    check = find_compiled(schema) or compile_schema(schema, f"{side} of {skill.id}")
    return [] if check.is_valid(value) else check.problems(value)
