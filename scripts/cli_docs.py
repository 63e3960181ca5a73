"""Writes the help of every command into ``docs/cli.md``, between its marks.

``python -m scripts.cli_docs`` rewrites the page; ``tests/cli/test_docs.py`` fails when it is behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from retinue.cli.program import program

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100
_BLOCK = re.compile(r"(<!-- help: retinue ?(?P<name>[\w -]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def render_help(name: str) -> str:
    """What ``retinue NAME --help`` prints on a terminal of ``WIDTH``; the program's own for ""."""
    root = click.Context(program, info_name="retinue", terminal_width=WIDTH, **program.context_settings)
    if not name:
        return program.get_help(root)
    group: click.Command | None = program
    for word in name.split():
        group = group.get_command(root, word) if isinstance(group, click.Group) else None
        if group is None:
            raise LookupError(f"docs/cli.md has a block for {name!r}, which is no command")
        root = click.Context(group, info_name=word, parent=root)
    return root.command.get_help(root)


def render_page(page: str) -> str:
    """The page with all its help blocks as they are now."""

    def fill(found: re.Match[str]) -> str:
        lines = "\n".join(line.rstrip() for line in render_help(found["name"]).splitlines())
        return f"{found[1]}```text\n{lines}\n```\n{found[3]}"

    return _BLOCK.sub(fill, page)


def list_documented(page: str) -> list[str]:
    """The commands that the page has a block for, "" being the program."""
    return [found["name"] for found in _BLOCK.finditer(page)]


def list_commands() -> list[str]:
    """Every command that there is, those of groups included, "" being the program."""
    root = click.Context(program)
    found = [""]
    for name in program.list_commands(root):
        command = program.get_command(root, name)
        found.append(name)
        if isinstance(command, click.Group):
            found += [f"{name} {below}" for below, one in command.commands.items() if not one.hidden]
    return found


def main() -> int:
    """Bring the page up to date."""
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
