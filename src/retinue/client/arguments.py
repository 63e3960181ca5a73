"""The arguments of a call as a program writes them, and its result as the type that the program wants."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from retinue.core.errors import InvalidParametersError, InvalidSettingError, OutputInvalidError, Problem

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from retinue.mesh.artifacts import ArtifactStore

OPTIONS = ("agent", "version", "key", "timeout_s", "budget", "into")
"""The keywords of a call that are options, and not parameters of the skill."""


def merge_arguments(arguments: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments, given as a mapping or as keywords. Raises InvalidParametersError for both."""
    if arguments is None:
        return keywords
    if not isinstance(arguments, Mapping):
        shape = type(arguments).__name__
        raise InvalidParametersError([Problem("", f"the arguments are a {shape}, and not a mapping")])
    if keywords:
        names = ", ".join(sorted(keywords))
        error = InvalidParametersError([Problem("", f"arguments are given as a mapping and as {names}=")])
        error.remedy = "give all of them in the mapping"
        raise error
    return arguments


def check_texts(named: Mapping[str, Any]) -> None:
    """Raise InvalidParametersError for a value that is no text."""
    for name, value in named.items():
        if not isinstance(value, str):
            problem = f"{name} is a {type(value).__name__}, and not a text"
            raise InvalidParametersError([Problem(name, problem)])


def as_links(value: Any) -> Any:
    """A value with links in place of the artifacts in it."""
    # a program without the module has no artifact
    artifacts = sys.modules.get("retinue.mesh.artifacts")
    return value if artifacts is None else artifacts.with_links(value)


def check_options(skill: str, used: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise InvalidParametersError where a used option is a parameter of the skill, too.

    ``rows`` are those of ``find_skills`` with schemas.
    """
    for row in rows:
        schema = row.get("input_schema")
        fields = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(fields, Mapping):
            continue
        for name in used:
            if name in fields:
                problem = f"{name} is an option of the call and a parameter of {skill}"
                error = InvalidParametersError([Problem(name, problem)])
                error.remedy = f'write the parameters as a mapping: ("{skill}", {{"{name}": …}})'
                raise error


def convert(value: Any, into: Any, what: str, artifacts: ArtifactStore | None = None) -> Any:
    """The value as ``into``: a pydantic model, a dataclass, or any other type that pydantic reads.

    An `Artifact` in it is read from ``artifacts``. Raises OutputInvalidError for a value of
    another form, InvalidSettingError for another type.
    """
    # imported here, because a call without ``into`` does not need it
    from pydantic import PydanticUserError, ValidationError

    from retinue.mesh.artifacts import STORE_KEY

    try:
        return _adapter_of(into).validate_python(value, context={STORE_KEY: artifacts})
    except ValidationError as failure:
        problems = [
            Problem(".".join(map(str, row["loc"])), _describe(row))
            for row in failure.errors(include_input=False, include_url=False)
        ]
        error = OutputInvalidError(what, problems)
        error.message = (
            f"the result of {what} does not fit {_name_of(into)}: {error.message.partition(': ')[2]}"
        )
        error.args = (error.message,)
        error.remedy = "give another type as into, or leave it out"
        raise error from None
    except (PydanticUserError, TypeError) as failure:
        raise InvalidSettingError(
            "into",
            f"{_name_of(into)} is no type of a result: {str(failure).partition(chr(10))[0]}",
            remedy="give a pydantic model, a dataclass, or a type of JSON values",
        ) from failure


def _describe(row: Mapping[str, Any]) -> str:
    place = ".".join(map(str, row["loc"]))
    return f"field '{place}': {row['msg']}" if place else str(row["msg"])


def _name_of(into: Any) -> str:
    return str(getattr(into, "__qualname__", into))


@lru_cache(maxsize=256)
def _adapter_of(into: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(into)
