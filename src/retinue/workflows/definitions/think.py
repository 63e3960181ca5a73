"""The grammar of a step ``think``: a language model that answers with the skills of the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError

from retinue.core.errors import InvalidParametersError, LimitedError, Problem
from retinue.thinking.condensing import COMPACT_AT
from retinue.thinking.large_results import KEEP_RESULTS_BYTES
from retinue.thinking.toolbox import SEARCH
from retinue.workflows.definitions.values import Duration, Name, StrictModel, parse_duration

DEFAULT_PARALLEL = 8

MAX_PARALLEL = 100

MAX_TURNS = 200

MAX_CALLS = 1_000

MAX_PATTERNS = 200


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[
    tuple[Name, ...], BeforeValidator(_as_list), Field(strict=False, max_length=MAX_PATTERNS)
]
"""Skills by id, by ``agent/skill``, or by a glob; one may stand without a list."""

Prompt = Annotated[str, StringConstraints(max_length=200_000)]


class ThinkLimits(StrictModel):
    """The limits of a step ``think``, after which its model has to answer."""

    turns: int = Field(default=20, ge=1, le=MAX_TURNS)
    calls: int = Field(default=60, ge=1, le=MAX_CALLS)
    tokens: int = Field(default=200_000, ge=1, le=1_000_000_000)
    dollars: float | None = Field(default=None, gt=0, le=1_000_000)
    time: Duration = "10m"

    @property
    def time_s(self) -> float:
        return parse_duration(self.time)


class ThinkContext(StrictModel):
    """How the conversation stays within the window of the model.

    A result with more than ``keep_results`` bytes of text is kept as an artifact, of which the model reads
    parts. Older turns are condensed before the prompt takes more than ``compact_at`` of the window.
    """

    keep_results: int = Field(default=KEEP_RESULTS_BYTES, ge=1_000, le=1_000_000)
    compact_at: float = Field(default=COMPACT_AT, ge=0.1, le=0.9)


def read_extension(limited: LimitedError, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Other limits for a step that ended with this error, by the fields of `thinking.limits.Limits`.

    ``given`` has the keys of `ThinkLimits`. Each must be more than what is spent. Raises
    InvalidParametersError.
    """
    try:
        limits = ThinkLimits.model_validate(changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "limits"
        known = ", ".join(ThinkLimits.model_fields)
        problem = f"known are {known}" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidParametersError([Problem(f"limits.{name}", f"limits.{name}: {problem}")]) from error
    if limited.limit not in changes:
        problem = f"the run ended at the limit of {limited.limit}: give limits.{limited.limit}"
        raise InvalidParametersError([Problem("limits", problem)])
    values = limits.model_dump(include=set(changes)) | (
        {"time_s": limits.time_s} if "time" in changes else {}
    )
    values.pop("time", None)
    low = [name for name, value in values.items() if value <= limited.spent.get(name, 0)]
    if low:
        problem = f"limits.{low[0]} must be more than {limited.spent[low[0]]:,}, which is spent"
        raise InvalidParametersError([Problem(f"limits.{low[0]}", problem)])
    return values


class Think(StrictModel):
    """Let a language model work on a prompt, with skills of the mesh as its tools.

    ``model`` is a model agent or a role; absent, the best available model that takes tools. ``tools`` and
    ``deny`` name skills; ``search`` lets the model find further ones. ``output`` is the JSON Schema of the
    answer; without it the answer is text. ``session`` is the id of the session that the step goes on with.
    """

    prompt: Annotated[Prompt, StringConstraints(min_length=1)]
    instructions: Prompt = ""
    model: Name | None = None
    tools: Patterns = (SEARCH,)
    deny: Patterns = ()
    approve: Patterns = ()
    output: dict[str, Any] | None = None
    limits: ThinkLimits = ThinkLimits()
    parallel: int = Field(default=DEFAULT_PARALLEL, ge=1, le=MAX_PARALLEL)
    context: ThinkContext = ThinkContext()
    session: Name | None = None
