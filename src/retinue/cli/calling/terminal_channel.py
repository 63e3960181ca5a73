"""The channel to the person at the terminal while a call runs: progress, log lines and questions.

Everything is written to standard error, so that standard output holds the result only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.output import clean
from retinue.core.errors import CannotAskError, InputRefusedError

if TYPE_CHECKING:
    from retinue.mesh.channel import Capability, LogLevel, Root

_ANSWER = "answer"
_YES = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class TerminalChannel:
    """Prints progress and log lines; asks questions if ``asks``, field by field of their form."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks
        self._lines = _Lines()
        self._asking = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({"progress", "log", "elicitation"} if self._asks else {"progress", "log"})

    @property
    def is_sessionless(self) -> bool:
        return False

    async def progress(self, fraction: float | None, message: str = "") -> None:
        done = "   …" if fraction is None else f"{fraction:4.0%}"
        _say(f"  {done}  {clean(message)}".rstrip())

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        facts = "".join(f" {key}={value}" for key, value in (data or {}).items())
        _say(f"  {level}: {clean(message + facts)}")

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Ask for each field; raises InputRefusedError when the input ends (Ctrl-D)."""
        if not self._asks:
            raise CannotAskError("elicitation")
        is_form = schema.get("type") == "object"
        fields = schema.get("properties", {}) if is_form else {_ANSWER: schema}
        required = schema.get("required", ()) if is_form else (_ANSWER,)
        answers: dict[str, Any] = {}
        async with self._asking:
            _say(f"{clean(message)}  (Ctrl-D: decline)")
            for name, field in fields.items():
                answer = await self._ask_field(name, field, is_required=name in required, question=message)
                if answer is not None:
                    answers[name] = answer
        return answers if is_form else answers[_ANSWER]

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        raise CannotAskError("sampling")

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        raise CannotAskError("roots")

    async def _ask_field(
        self, name: str, field: Mapping[str, Any], *, is_required: bool, question: str
    ) -> Any:
        """The value of one field, asked again until it fits; None for an optional one that is left out."""
        # imported here, because few calls ask a question
        from retinue.mesh.schema.checks import compile_schema

        check = compile_schema(dict(field), f"field {name}")
        while True:
            click.echo(f"  {_describe_field(name, field, is_required)}: ", err=True, nl=False)
            text = await self._lines.read()
            if text is None:
                _say("")
                raise InputRefusedError(f"the question was answered with decline: {question}")
            if not text.strip():
                if "default" in field:
                    return field["default"]
                if not is_required:
                    return None
                _say("  a value is needed")
                continue
            value = _read_value(text.strip(), field)
            problems = check.problems(value)
            if not problems:
                return value
            _say(f"  {problems[0].message.replace('the value', name, 1)}")


def _describe_field(name: str, field: Mapping[str, Any], is_required: bool) -> str:
    """``city (Where to; one of: Rome, Paris) [Rome]``."""
    about = [clean(field["description"])] if field.get("description") else []
    if choices := _choices_of(field):
        about.append("one of: " + ", ".join(clean(choice) for choice in choices))
    elif field.get("type") == "boolean":
        about.append("y or n")
    elif field.get("type") in ("integer", "number"):
        about.append(str(field["type"]))
    if not is_required and "default" not in field:
        about.append("optional")
    shown = clean(field.get("title") or name) + (f" ({'; '.join(about)})" if about else "")
    return f"{shown} [{clean(field['default'])}]" if "default" in field else shown


def _choices_of(field: Mapping[str, Any]) -> list[Any]:
    named = [
        choice["const"]
        for choice in field.get("oneOf", ())
        if isinstance(choice, Mapping) and "const" in choice
    ]
    return named or list(field.get("enum", ()))


def _read_value(text: str, field: Mapping[str, Any]) -> Any:
    """The text as a value of the field's type; text that is none stays text, which the check refuses."""
    kind = field.get("type")
    if kind == "boolean":
        return _YES.get(text.lower(), text)
    if kind == "array":
        return [_read_value(part.strip(), field.get("items") or {}) for part in text.split(",")]
    if kind in ("integer", "number"):
        for read in (int, float) if kind == "number" else (int,):
            try:
                return read(text)
            except ValueError:
                continue
    return text


def _say(text: str) -> None:
    click.echo(text, err=True)


class _Lines:
    """The lines of standard input, read without a thread, which Ctrl-C could not end."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_over = False

    async def read(self) -> str | None:
        """The next line without its end; None at the end of the input."""
        while b"\n" not in self._rest and not self._is_over:
            more = await self._read_some()
            self._rest += more
            self._is_over = not more
        line, newline, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace") if line or newline else None

    async def _read_some(self) -> bytes:
        loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
        ready = loop.create_future()
        loop.add_reader(number, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_reader(number)
        return os.read(number, 4096)
