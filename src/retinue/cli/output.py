"""What commands print: JSON and tables on standard output, notes on standard error.

Names and descriptions come from other people's cards: nothing of them reaches the terminal that could
steer it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from retinue.cli.failures import paint

STATUS_STYLES = {
    "available": "green",
    "done": "green",
    "ok": "green",
    "unknown": "dim",
    "disabled": "dim",
    "warn": "yellow",
    "unavailable": "red",
    "failed": "red",
    "fail": "red",
}


def clean(value: Any) -> str:
    """A value as one line of text without control characters; "" for None."""
    if value is None:
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print a JSON value, indented unless ``compact``."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | (0 if compact else orjson.OPT_INDENT_2)
    click.echo(orjson.dumps(value, option=options))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, err: bool = False) -> None:
    """Print rows below headings; as wide as they need where the output is no terminal.

    What stands below STATUS is coloured by what it says.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if err else sys.stdout
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not stream.isatty():
        console.width = 10_000
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=position == 0)
    for row in rows:
        cells = zip(columns, map(clean, row), strict=True)
        table.add_row(*(Text(cell, style=_style_of(column, cell)) for column, cell in cells))
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    click.echo("\n".join(lines), err=err, color=console.is_terminal or None)


def _style_of(column: str, cell: str) -> str:
    return STATUS_STYLES.get(cell.partition(" ")[0], "") if column == "STATUS" else ""


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    click.echo(clean(text), err=True)


def warn(text: str) -> None:
    """Say on standard error that something is not as it should be, though the command goes on."""
    click.echo(f"{paint('warning:', fg='yellow')} {clean(text)}", err=True)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Say lines on standard error while something goes on; on a terminal a moving line stands below."""

    def say(line: str) -> None:
        click.echo("".join(c if c.isprintable() else " " for c in line), err=True)

    if not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console

    with Console(file=sys.stderr, highlight=False, markup=False).status(what):
        yield say


def warn_missing(reply: Mapping[str, Any]) -> None:
    """Say what a list could not tell, because a source of it did not answer."""
    for problem in reply.get("missing", ()):
        place = "/".join(clean(problem[key]) for key in ("source", "key") if problem.get(key))
        warn(f"{place}: {problem.get('error')}")
