"""Reports failures of commands: one line with the message and its remedy, and an exit status.

The exit status of Retinue's own errors is in ``web/error_table.py``.
"""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from retinue.core.errors import LookupFailedError, RemoteFaultError, RetinueError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEBUG_VARIABLE = "RETINUE_DEBUG"
INTERRUPTED = 130

_CHOSEN = re.compile(r"'(.*?)' is not one of ")


@dataclass(frozen=True, slots=True)
class ShownFailure:
    """An error as it is shown; with an empty message (after Ctrl-C) nothing is printed."""

    type: str
    message: str
    remedy: str
    exit_code: int
    data: Mapping[str, Any] = field(default_factory=dict)
    trace: str = ""

    def as_json(self) -> dict[str, Any]:
        facts = {"type": self.type, "message": self.message, "remedy": self.remedy, "data": dict(self.data)}
        return {"error": {key: value for key, value in facts.items() if value}}


def describe(error: Exception) -> ShownFailure:
    """Convert any exception to a failure."""
    trace = "".join(traceback.format_exception(error)) if os.environ.get(DEBUG_VARIABLE) else ""
    if isinstance(error, RetinueError):
        return _describe_own(error, trace)
    if isinstance(error, click.Abort):
        return ShownFailure("cancelled", "", "", INTERRUPTED)
    if isinstance(error, click.ClickException):
        return ShownFailure("usage", *_read_usage(error), error.exit_code)
    first = (str(error).strip() or "no message").splitlines()[0]
    notes = [note.strip() for note in getattr(error, "__notes__", ())]
    place = f" in {notes[0].splitlines()[0]}" if notes and notes[0] else ""
    return ShownFailure(
        "internal_error",
        f"unexpected {type(error).__name__}{place}: {first}",
        f"set {DEBUG_VARIABLE}=1 for the traceback" if not trace else "please report it",
        1,
        trace=trace,
    )


def show(failure: ShownFailure, *, as_json: bool = False) -> None:
    """Print a failure on standard error; with ``as_json`` as one line of JSON."""
    if failure.trace:
        click.echo(failure.trace, err=True, nl=False)
    if not failure.message:
        return
    if as_json:
        import orjson

        click.echo(orjson.dumps(failure.as_json(), default=str).decode(), err=True)
        return
    from retinue.core.remote_faults import describe_fault

    remedy = f" — {_one_line(failure.remedy)}" if failure.remedy else ""
    label = paint("error:", fg="red", bold=True)
    facts = dict(failure.data)
    detail = facts.pop("detail", "")
    click.echo(f"{label} {_one_line(describe_fault(failure.message, facts))}{remedy}", err=True)
    for line in detail.splitlines() if isinstance(detail, str) else ():  # further lines of an exception
        click.echo("  " + "".join(c for c in line if c.isprintable()), err=True)


def paint(text: str, **style: Any) -> str:
    """Style a text; click removes the style without a terminal. With ``NO_COLOR`` the text stays plain."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def _describe_own(error: RetinueError, trace: str) -> ShownFailure:
    from retinue.core.remote_faults import plain_message
    from retinue.web.error_table import exit_code, list_error_classes, row_of

    if not isinstance(error, RemoteFaultError):
        return ShownFailure(error.type, error.message, error.remedy, exit_code(error), error.data, trace)
    # a remote fault was one of our errors at the hub or agent; show it as that error
    facts = error.fault_data if isinstance(error.fault_data, dict) else {}
    kinds = [kind for kind in list_error_classes() if kind.type == error.remote_type]
    status = row_of(kinds[0]).exit_code if kinds else exit_code(error)
    remedy = facts.get("remedy")
    data = {key: value for key, value in facts.items() if key not in ("type", "remedy")}
    is_lookup = bool(kinds) and issubclass(kinds[0], LookupFailedError)
    return ShownFailure(
        error.remote_type,
        # of a name that was not found the message alone says all
        plain_message(error.message) if is_lookup else error.message,
        remedy if isinstance(remedy, str) else error.remedy,
        status,
        {"code": error.code, **data},
        trace,
    )


def _read_usage(error: click.ClickException) -> tuple[str, str]:
    """Message and remedy of a usage error."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    remedy = f"see {ctx.command_path} --help" if ctx is not None else ""
    if ctx is None and isinstance(error, click.BadOptionUsage):
        # click does not report the command of the option
        remedy = "see retinue COMMAND --help"
    if isinstance(error, click.NoSuchOption | click.NoSuchCommand):
        if isinstance(error, click.NoSuchOption):
            message = f"no such option {error.option_name}"
        else:
            message = f"no such command {error.command_name}"
        near = error.possibilities or []
        arguments = [] if ctx is None else [p for p in ctx.command.params if isinstance(p, click.Argument)]
        dashes = "write -- before an argument that begins with -"
        if near:
            # a command that takes any number of words may start a program with options of its own
            takes_words = any(argument.nargs == -1 for argument in arguments)
            return message, f"did you mean {' or '.join(near)}?" + (f" Or {dashes}" if takes_words else "")
        return message, f"{remedy}; {dashes}" if arguments else remedy
    if isinstance(error, click.MissingParameter) and ctx is not None and error.param is not None:
        name = _name_parameter(error.param)
        if isinstance(error.param, click.Option):
            return f"{name} is missing", f"give it: {ctx.command_path} {name} {error.param.make_metavar(ctx)}"
        usage = " ".join(ctx.get_usage().split()).removeprefix("Usage: ")
        return f"{name} is missing", f"usage: {usage}"
    if isinstance(error, click.BadParameter) and (problem := _read_choice(error)):
        return problem
    message = error.format_message().rstrip(".")
    return message[:1].lower() + message[1:], remedy


def _read_choice(error: click.BadParameter) -> tuple[str, str] | None:
    """Message and remedy for a value that is none of a few; None for another wrong value."""
    match = _CHOSEN.match(error.message)
    if error.param is None or not isinstance(error.param.type, click.Choice) or match is None:
        return None
    # loaded at the first wrong value: --help imports nothing but click
    from retinue.core.text import suggest

    choices = [str(choice) for choice in error.param.type.choices]
    near = suggest(match[1], choices, limit=1)
    message = f"{_name_parameter(error.param)}: {match[1]!r} is not one of {', '.join(choices)}"
    return message, f"did you mean {near[0]}?" if near else "write one of them"


def _name_parameter(parameter: click.Parameter) -> str:
    """An option as it is typed, an argument as the usage shows it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if parameter.metavar else str(parameter.name).upper()


def _one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
