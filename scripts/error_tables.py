"""Writes the tables of docs/errors.md from the error tree and the error table.

python -m scripts.error_tables          writes the page again
python -m scripts.error_tables --check  status 1 when the page is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from retinue.core import errors as e
from retinue.web.error_table import list_error_classes, row_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
BEGIN = "<!-- The tables below are written by `python -m scripts.error_tables`. -->"
END = "<!-- End of the written tables. -->"

Errors = type[e.RetinueError]

GROUPS: tuple[tuple[str, Errors], ...] = (
    ("The request", e.RequestError),
    ("Looking something up", e.LookupFailedError),
    ("Access", e.AccessError),
    ("The guard of a chain", e.GuardError),
    ("Too much at once", e.BusyError),
    ("The skill", e.ExecutionError),
    ("Runs", e.RunConflictError),
    ("Registries", e.RegistryError),
    ("This machine", e.StateError),
    ("Anything else", e.RetinueError),
)
"""Heading → the branch of the tree below it; the last takes what stands on no branch."""


def render_tables() -> str:
    """Both tables of every group, as Markdown."""
    parts = []
    for heading, kinds in list_groups():
        parts += [f"## {heading}", _render_meanings(kinds), _render_forms(kinds)]
    return "\n\n".join(parts)


def list_groups() -> list[tuple[str, list[Errors]]]:
    """The headings, each with its error classes; the first class of a ``type`` stands for all of them."""
    left: dict[str, Errors] = {}
    for kind in list_error_classes():
        left.setdefault(kind.type, kind)
    groups = []
    for heading, branch in GROUPS:
        kinds = [kind for kind in left.values() if issubclass(kind, branch)]
        for kind in kinds:
            del left[kind.type]
        groups.append((heading, kinds))
    return groups


def render_page(page: str) -> str:
    """``page`` with the tables of today between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_tables()}\n\n{END}{after}"


def _render_meanings(kinds: Sequence[Errors]) -> str:
    rows = (
        (
            f"`{kind.type}`",
            _say(kind),
            "yes" if kind.kind.retryable else "no",
            f"`{kind.kind.on_error}`",
            str(row_of(kind).exit_code),
        )
        for kind in kinds
    )
    return _render_table(("type", "means", "worth a retry", "class", "exit"), rows)


def _render_forms(kinds: Sequence[Errors]) -> str:
    return _render_table(
        ("type", "`/execute`", "REST", "MCP", "A2A", "message"), (_render_form(kind) for kind in kinds)
    )


def _render_form(kind: Errors) -> Sequence[str]:
    row = row_of(kind)
    code = f"{row.code} `{row.prefix}…`" if row.prefix else str(row.code)
    mcp = str(row.standard_code) if row.mcp == "error" else "`isError`"
    a2a = str(row.standard_code) if row.a2a == "error" else f"task `{row.a2a}`"
    message = f"`{row.performative}` `{row.reason_code or kind.type}`"
    return (f"`{kind.type}`", code, str(row.rest), mcp, a2a, message)


def _render_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _say(kind: Errors) -> str:
    """The first sentence of what the class says of itself, without ids of the specification."""
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    text = re.sub(r" \((?:[A-Z]-\d\d|specification|decision|S: )[^)]*\)", "", text)
    return text.replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write the page, or only compare it."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = render_page(page)
    if "--check" in arguments:
        if page != wanted:
            print("docs/errors.md is out of date: python -m scripts.error_tables", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
