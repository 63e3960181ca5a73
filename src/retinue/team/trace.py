"""A recorded trace of a team: calls with their answers, and the replies of models in them.

A team packs the traces of its folder ``traces`` as a layer. A trace has no times and no names of callers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retinue.core.call import Outcome
from retinue.core.errors import InvalidSettingError
from retinue.core.parts import decode, list_beside, value_of_parts
from retinue.team.files import MAX_FILE_BYTES

FOLDER = "traces"
"""The folder of the traces below that of ``team.toml``."""

MAX_CALLS = 500

Kind = Literal["skill", "workflow"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedAnswer(_Table):
    """The result of a call, or the type of its error.

    ``parts`` are the parts beside the value, with the SHA-256 of their bytes.
    """

    value: Any = None
    parts: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


class RecordedCall(_Table):
    """One call as it entered the mesh; ``masked`` are the paths of arguments that are not kept.

    Of the kind ``workflow`` it is a run: ``skill`` is the name of the workflow, ``arguments`` has its
    ``input`` and ``overrides``, and ``agent`` is "".
    """

    kind: Kind = "skill"
    agent: str
    skill: str
    arguments: Mapping[str, Any] = {}
    masked: tuple[str, ...] = ()
    answer: RecordedAnswer

    @property
    def name(self) -> str:
        """The name that people see."""
        return f"workflow {self.skill}" if self.kind == "workflow" else f"{self.agent}/{self.skill}"


class RecordedCompletion(_Table):
    """One reply of the model agent ``model``, as `retinue.testing.RecordedModel` plays it back.

    ``request`` has digests of the request, by which the reply is found.
    """

    model: str
    asks: str = ""
    request: Mapping[str, Any]
    reply: Mapping[str, Any]
    usage: Mapping[str, int] = {}


class TeamTrace(_Table):
    """All of a trace; ``omitted`` are the calls and replies that were too large or held secrets."""

    schema_version: int = Field(1, alias="schema", ge=1, le=1)
    team: str
    version: str
    digest: str
    calls: tuple[RecordedCall, ...] = ()
    completions: tuple[RecordedCompletion, ...] = ()
    omitted: int = 0


def parse_trace(content: bytes, *, where: str) -> TeamTrace:
    """The trace in the bytes of a file. Raises InvalidSettingError."""
    remedy = "record it again: retinue record-team"
    if len(content) > MAX_FILE_BYTES:
        raise InvalidSettingError(where, f"it is over {MAX_FILE_BYTES:,} bytes", remedy=remedy)
    try:
        return TeamTrace.model_validate(orjson.loads(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except ValueError:
        raise InvalidSettingError(where, "it is not JSON", remedy=remedy) from None
    place = ".".join(map(str, first["loc"]))
    raise InvalidSettingError(f"{where}: {place}" if place else where, first["msg"], remedy=remedy)


def render_trace(trace: TeamTrace) -> bytes:
    """The bytes of a trace."""
    document = trace.model_dump(mode="json", by_alias=True)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def answer_of(outcome: Outcome) -> RecordedAnswer:
    """The answer of a call, as a trace has it."""
    if outcome.error is not None:
        return RecordedAnswer(error=outcome.error.type)
    value = value_of_parts(outcome.value, outcome.parts)
    return RecordedAnswer(value=value, parts=tuple(map(_digest_part, list_beside(value, outcome.parts))))


def answer_of_run(row: Mapping[str, Any]) -> RecordedAnswer | None:
    """The answer of a run as ``show_run`` tells it; None for one that goes on or is cancelled."""
    if row["status"] == "done":
        return RecordedAnswer(value=row.get("output"))
    error = row.get("error")
    return RecordedAnswer(error=str(error["type"])) if isinstance(error, Mapping) else None


def _digest_part(part: Mapping[str, Any]) -> dict[str, Any]:
    content = decode(part["data"]) if isinstance(part.get("data"), str) else None
    kept = {key: value for key, value in part.items() if key != "data"}
    return kept if content is None else {**kept, "sha256": hashlib.sha256(content).hexdigest()}
