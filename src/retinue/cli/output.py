"""Output of commands: JSON and tables on standard output, notes and warnings on standard error.

Names and descriptions come from cards of other people, so control characters are removed from all texts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from retinue.cli.failures import paint

STATUS_STYLES = {
    "available": "green",
    "done": "green",
    "ok": "green",
    "unknown": "dim",
    "disabled": "dim",
    "limited": "yellow",
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


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: str | None = None, err: bool = False
) -> None:
    """Print a table; if the output is not a terminal, whole values separated by tabs.

    At a terminal the cells of the column ``cut`` are cut so that a row fits into a line. Cells of the column
    STATUS are coloured by their text.
    """
    stream = sys.stderr if err else sys.stdout
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if not stream.isatty():
        click.echo("\n".join("\t".join(row) for row in (columns, *cleaned)), err=err)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=position == 0)
    room = None if cut is None else _find_room(columns, cleaned, cut, console.width)
    for row in cleaned:
        cells = [Text(cell, style=_style_of(column, cell)) for column, cell in zip(columns, row, strict=True)]
        if cut is not None and room is not None:
            cells[columns.index(cut)].truncate(room, overflow="ellipsis")
        table.add_row(*cells)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    click.echo("\n".join(lines), err=err, color=console.is_terminal or None)


_MIN_CUT = 20
_GAP = 2


def _find_room(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: str, width: int) -> int:
    """The width that the other columns leave to the column ``cut``, at least `_MIN_CUT`."""
    from rich.cells import cell_len

    taken = sum(
        max(cell_len(cell) for cell in (column, *(row[place] for row in rows))) + _GAP
        for place, column in enumerate(columns)
        if column != cut
    )
    return max(_MIN_CUT, width - taken - _GAP)


def _style_of(column: str, cell: str) -> str:
    return STATUS_STYLES.get(cell.partition(" ")[0], "") if column == "STATUS" else ""


def note(text: str) -> None:
    """Print a note on standard error."""
    click.echo(clean(text), err=True)


def warn(text: str) -> None:
    """Print a warning on standard error; the command continues."""
    click.echo(f"{paint('warning:', fg='yellow')} {clean(text)}", err=True)


class Working:
    """Prints lines on standard error while a command works; in a terminal ``now`` is the last line."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show

    @property
    def is_live(self) -> bool:
        """Whether `now` is shown."""
        return self._show is not None

    def __call__(self, line: str) -> None:
        click.echo("".join(c if c.isprintable() else " " for c in line), err=True)

    def now(self, text: str) -> None:
        """Show the present activity until the next one; nothing is printed without a terminal."""
        if self._show is not None:
            self._show(clean(text))


@contextmanager
def working(what: str) -> Iterator[Working]:
    """Yield what prints lines on standard error; a terminal also shows ``what`` with a spinner."""
    if not sys.stderr.isatty():
        yield Working()
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=sys.stderr, highlight=False, markup=False).status(what) as status:
        yield Working(lambda text: status.update(Text(text)))


def warn_missing(reply: Mapping[str, Any]) -> None:
    """Warn about each source and card that is missing in a list."""
    for problem in reply.get("missing", ()):
        place = "/".join(clean(problem[key]) for key in ("source", "key") if problem.get(key))
        warn(f"{place}: {problem.get('error')}")


def command_line() -> str:
    """The command that started this program, to be typed again in this folder."""
    called = Path(sys.argv[0])
    program = shutil.which("retinue")
    if program is not None and Path(program).resolve() == called.resolve():
        return "retinue"
    if called.name == "retinue":
        return _shortest_path(called)
    return f"{_interpreter()} -m retinue"


def module_command(module: str) -> str:
    """The command that runs a module with the interpreter of this program, to be typed in this folder."""
    return f"{_interpreter()} -m {module}"


def _interpreter() -> str:
    program = shutil.which("python")
    if program is not None and os.path.realpath(Path(program).parent) == os.path.realpath(
        Path(sys.executable).parent
    ):
        return "python"
    return _shortest_path(Path(sys.executable))


def _shortest_path(program: Path) -> str:
    """A path that leads to a program from this folder."""
    return min(os.path.relpath(program), str(program.absolute()), key=len)


def render_usage_line(usage: Mapping[str, Any]) -> str:
    """What models used, for people: the name of the model where there is one, tokens and cost."""
    cost = usage.get("cost_usd")
    parts = [
        *([clean(usage["model"])] if "model" in usage else []),
        f"{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out",
        *([] if cost is None else [f"${cost:.4f}"]),
    ]
    return " · ".join(parts) + (" (estimated)" if usage.get("estimated") else "")
