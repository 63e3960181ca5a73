"""The channel to the person at the terminal while a call runs: progress, text, log lines and questions.

Everything is written to standard error, so that standard output holds the result only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.output import clean
from retinue.core.errors import CannotAskError, InputRefusedError

if TYPE_CHECKING:
    from retinue.core.call import TextPiece
    from retinue.mesh.channel import Capability, LogLevel, Root

ReadLine = Callable[[], Awaitable[str | None]]
"""The next line of the person; None at the end of the input (Ctrl-D)."""

_ANSWER = "answer"
_YES = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class TerminalChannel:
    """Prints progress and log lines; asks questions if ``asks``, field by field of their form.

    If ``shows_text``, texts are printed in place while skills write them.
    """

    def __init__(self, *, asks: bool, shows_text: bool = False, read_line: ReadLine | None = None) -> None:
        """``read_line`` reads the answers in place of standard input."""
        self._asks = asks
        self._text = ShownText() if shows_text else None
        self._read_line = read_line or InputLines().read
        self._asking = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({"progress", "log", "elicitation"} if self._asks else {"progress", "log"})

    @property
    def is_sessionless(self) -> bool:
        return False

    async def progress(self, fraction: float | None, message: str = "") -> None:
        done = "   …" if fraction is None else f"{fraction:4.0%}"
        self._say(f"  {done}  {clean(message)}".rstrip())

    async def stream_text(self, piece: TextPiece) -> None:
        if self._text is not None:
            self._text.show(piece)

    def has_shown(self, value: Any) -> bool:
        """Whether the text that was printed last ends with this value; ends its line."""
        if self._text is None:
            return False
        self._text.end_line()
        return self._text.ends_with(value)

    def _say(self, text: str) -> None:
        if self._text is not None:
            self._text.end_line()
        _say(text)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        facts = "".join(f" {key}={value}" for key, value in (data or {}).items())
        self._say(f"  {level}: {clean(message + facts)}")

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Ask for each field; raises InputRefusedError when the input ends (Ctrl-D)."""
        if not self._asks:
            raise CannotAskError("elicitation")
        is_form = schema.get("type") == "object"
        fields = schema.get("properties", {}) if is_form else {_ANSWER: schema}
        required = schema.get("required", ()) if is_form else (_ANSWER,)
        answers: dict[str, Any] = {}
        async with self._asking:
            self._say(f"{clean(message)}  (Ctrl-D: decline)")
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
            text = await self._read_line()
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


class ShownText:
    """Texts on standard error, each piece behind the last one; those of steps may begin with the step."""

    def __init__(self, *, names_steps: bool = True) -> None:
        self._names_steps = names_steps
        self._last: TextPiece | None = None
        self._text: str | None = ""
        """The text of the last piece so far; None where a piece of it is missing."""
        self._is_line_open = False

    def show(self, piece: TextPiece) -> None:
        last = self._last
        if last is None or not piece.continues(last):
            self.end_line()
            is_same = last is not None and (last.step, last.agent) == (piece.step, piece.agent)
            self._text = "" if piece.at == 0 else None
            if self._names_steps and piece.step and not (is_same and piece.at):
                click.echo(f"  {clean(piece.step)}: ", err=True, nl=False)
                self._is_line_open = True
        self._last = piece
        if self._text is not None:
            self._text += piece.text
        shown = "".join(c for c in piece.text if c.isprintable() or c in "\n\t")
        if shown:
            click.echo(shown, err=True, nl=False)
            self._is_line_open = not shown.endswith("\n")

    def end_line(self) -> None:
        if self._is_line_open:
            self._is_line_open = False
            click.echo("", err=True)

    def ends_with(self, value: Any) -> bool:
        text = value.strip() if isinstance(value, str) else ""
        return bool(text) and self._text is not None and self._text.strip().endswith(text)


def _say(text: str) -> None:
    click.echo(text, err=True)


class InputLines:
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
