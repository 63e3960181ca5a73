"""The script of a `ScriptedModel`: turns in Python, or in a YAML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from retinue.core.errors import (
    BusyError,
    CallTimedOutError,
    InvalidSettingError,
    ModelError,
    RetinueError,
)
from retinue.mesh.schema.checks import compile_schema
from retinue.thinking.completion import CompletionRequest
from retinue.workflows.definitions.documents import read_text

ErrorKind = Literal[
    "busy", "unavailable", "timeout", "too_long", "empty", "malformed", "login", "quota", "rejected"
]
"""How a turn fails: ``busy`` as after a 429, ``unavailable`` as after a 500 or a lost connection."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One reply of the model.

    ``calls`` are (tool, arguments); text as arguments is malformed JSON. ``output`` is the value for the
    output schema; its JSON is the text if there is none. ``finish`` "length" is a reply cut at the limit of
    tokens, "refused" a refusal. ``error`` fails the request ``times`` times, always where that is None.
    ``stops`` loses the connection after the text. The reply waits ``wait_s`` seconds, and for the file
    ``waits_for``. ``tokens`` = input and output, and those of the input that came from the cache.
    """

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    output: Any = None
    finish: Literal["length", "refused"] | None = None
    error: RetinueError | ErrorKind | None = None
    times: int | None = None
    retry_after_s: float | None = None
    stops: bool = False
    wait_s: float = 0.0
    waits_for: Path | None = None
    tokens: tuple[int, ...] | None = None


Scripted = ModelTurn | str | RetinueError
"""A turn, the text of one, or the error that it always raises."""

Turn = Scripted | Callable[[CompletionRequest], Scripted]
"""A turn, or a function that makes it from the request."""


def error_of(turn: ModelTurn, agent: str) -> RetinueError | None:
    """The error of a turn as a model agent of this name raises it; None without one."""
    if turn.error is None or isinstance(turn.error, RetinueError):
        return turn.error
    if turn.error == "busy":
        return BusyError(f"the rate limit of {agent}", turn.retry_after_s or 0.01)
    if turn.error == "timeout":
        return CallTimedOutError(
            f"the model of {agent}", 1.0, layer="model", setting=f"llm.{agent}.timeout_s"
        )
    problem = f"{turn.error}, as its script says"
    return ModelError(agent, turn.error, problem, retry_after_s=turn.retry_after_s)


@dataclass(frozen=True, slots=True)
class ModelScript:
    """The turns of one conversation.

    The script is for conversations with ``when`` in their instructions or their first message. ``last`` is
    the reply to a request that forbids calls. With ``repeats`` the last turn comes again and again.
    """

    turns: Sequence[Turn]
    when: str = ""
    last: Turn = "This is what was found so far."
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A file of scripts: the options of `ScriptedModel`, and its scripts."""

    scripts: tuple[ModelScript, ...]
    options: dict[str, Any] = field(default_factory=dict)


_TEXT, _NUMBER, _COUNT = (
    {"type": "string"},
    {"type": "number", "minimum": 0},
    {"type": "integer", "minimum": 0},
)
_CALL = {
    "type": "object",
    "properties": {"name": {**_TEXT, "minLength": 1}, "arguments": {"type": ["object", "string"]}},
    "required": ["name"],
    "additionalProperties": False,
}
_TURN = {
    "type": ["object", "string"],
    "properties": {
        "text": _TEXT,
        "calls": {"type": "array", "items": _CALL},
        "output": {},
        "finish": {"enum": ["length", "refused"]},
        "error": {"enum": [*get_args(ErrorKind)]},
        "times": _COUNT,
        "retry_after_s": _NUMBER,
        "stops": {"type": "boolean"},
        "wait_s": _NUMBER,
        "waits_for": _TEXT,
        "tokens": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 3},
    },
    "additionalProperties": False,
}
_SCRIPT: dict[str, Any] = {
    "turns": {"type": "array", "items": _TURN},
    "when": _TEXT,
    "last": _TURN,
    "repeats": {"type": "boolean"},
}
_PRICE = {"input": _NUMBER, "output": _NUMBER, "cached": _NUMBER, "cache_write": _NUMBER}
_OPTIONS: dict[str, Any] = {
    "name": _TEXT,
    "model": _TEXT,
    "context_window": _COUNT,
    "prices": {
        "type": "object",
        "properties": _PRICE,
        "required": ["input", "output"],
        "additionalProperties": False,
    },
    "scores": {"type": "object", "additionalProperties": _NUMBER},
    "max_tokens": _COUNT,
    "timeout_s": _NUMBER,
    "retries": _COUNT,
    "log": _TEXT,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **_OPTIONS,
        **_SCRIPT,
        "scripts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _SCRIPT,
                "required": ["turns"],
                "additionalProperties": False,
            },
            "minItems": 1,
        },
    },
    "additionalProperties": False,
}
"""The JSON Schema of a file of scripts."""


def read_script(path: Path) -> ScriptFile:
    """The scripts of a YAML file: ``turns``, or several ``scripts``, and the options of the model.

    Paths in the file are relative to its folder. Raises InvalidSettingError with the field, and
    DefinitionError for a file that is no YAML.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name a YAML file in UTF-8"
        raise InvalidSettingError(str(path), f"it cannot be read: {error}", remedy=remedy) from None
    document = read_text(text, str(path)).value
    for problem in compile_schema(SCHEMA, "the script").explain(document, SCHEMA):
        remedy = problem.hint or "write what the page Testing shows"
        raise InvalidSettingError(f"{path}: {problem.path or 'the file'}", problem.message, remedy=remedy)
    if ("turns" in document) == ("scripts" in document):
        raise InvalidSettingError(
            f"{path}: turns", "expected either turns or scripts", remedy="write one of them"
        )
    options = {key: document[key] for key in _OPTIONS if key in document}
    if "log" in options:
        options["log"] = path.parent / options["log"]
    rows = document.get("scripts") or [{key: document[key] for key in _SCRIPT if key in document}]
    return ScriptFile(tuple(_read_script(row, path.parent) for row in rows), options)


def _read_script(row: Mapping[str, Any], folder: Path) -> ModelScript:
    fields = dict(row)
    if "last" in fields:
        fields["last"] = _read_turn(fields["last"], folder)
    return ModelScript(**{**fields, "turns": [_read_turn(turn, folder) for turn in fields["turns"]]})


def _read_turn(value: Mapping[str, Any] | str, folder: Path) -> Turn:
    if isinstance(value, str):
        return value
    fields = dict(value)
    fields["calls"] = [(call["name"], call.get("arguments", {})) for call in fields.get("calls", [])]
    if "waits_for" in fields:
        fields["waits_for"] = folder / fields["waits_for"]
    if "tokens" in fields:
        fields["tokens"] = tuple(fields["tokens"])
    return ModelTurn(**fields)
