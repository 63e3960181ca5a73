"""Distributions of third parties, as files in a folder that a test puts on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from retinue.parts.installed import load_part
from retinue.plugins import list_plugins
from retinue.workflows.definitions.loading import list_installed_sources, load_builtin, read_builtin

WORDS = {
    "__init__.py": "",
    "words.py": '''
from retinue import Agent

agent = Agent("word-agent", version="1.0.0", description="Counts words.")


@agent.skill(read_only=True)
async def count_words(text: str) -> int:
    """Counts the words of a text."""
    return len(text.split())
''',
    "commands.py": '''
import click


@click.command()
@click.argument("text")
def count(text: str) -> None:
    """Count words."""
    click.echo(f"{len(text.split())} words")
''',
    "workflows/word-count.yaml": """
name: word-count
steps:
  - {id: count, skill: count_words}
""",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder at the head of the path, for distributions; their modules are forgotten at the end."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget_installed()
    before = set(sys.modules)
    yield folder
    forget_installed()
    for name in set(sys.modules) - before:
        if name.startswith(("toy_", "word_")):
            del sys.modules[name]


def forget_installed() -> None:
    for read in (list_plugins, load_part, list_installed_sources, load_builtin, read_builtin):
        read.cache_clear()


def install(
    place: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str] | None = None,
) -> None:
    """Write a distribution as an installer would: its package, its metadata, its entry points."""
    package = name.replace("-", "_")
    for file, text in (files or {}).items():
        path = place / package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = place / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nSummary: Words of {name}.\n"
    )
    groups = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
        for group, entries in entry_points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


def install_words(place: Path, name: str = "word-tools") -> None:
    """A distribution with an agent, a workflow and a command."""
    package = name.replace("-", "_")
    declared = {
        "retinue.agents": {"word-agent": f"{package}.words:agent"},
        "retinue.workflows": {package: f"{package}.workflows"},
        "retinue.commands": {"count.the-mesh": f"{package}.commands:count"},
    }
    install(place, name, declared, WORDS)


def hide_test_writer(place: Path) -> None:
    """Let the distribution of the test writer look as if it declared nothing."""
    install(place, "retinue-testwriter", {})
