"""What a skill says of its calls, held against one call: who may, what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.call import Call
from retinue.core.errors import InvalidParametersError, NotAuthenticatedError, OutputInvalidError
from retinue.core.record import Skill
from retinue.mesh.schema import SchemaCheck, compile_schema


def check_access(skill: Skill, call: Call) -> None:
    """Raises NotAuthenticatedError where the skill wants a right that the caller has not."""
    if skill.hints.runs_code and "runs_code" not in call.principal.scopes:
        raise NotAuthenticatedError(
            f"{skill.id} runs code and wants a token",
            remedy="call it with the retinue command line, or send keys/local.token as a bearer token",
        )


def check_input(skill: Skill, call: Call) -> None:
    """Raises InvalidParametersError."""
    check = _compiled(skill.input_schema, f"input of {skill.id}")
    if check is not None and (problems := check.problems(call.arguments)):
        raise InvalidParametersError(problems)


def check_output(skill: Skill, value: Any) -> None:
    """Raises OutputInvalidError."""
    check = _compiled(skill.output_schema, f"output of {skill.id}")
    if check is not None and (problems := check.problems(value)):
        raise OutputInvalidError(skill.id, problems)


def _compiled(schema: Mapping[str, Any] | None, where: str) -> SchemaCheck | None:
    return None if schema is None else compile_schema(schema, where)
