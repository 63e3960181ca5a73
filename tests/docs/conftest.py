"""A person who has just read the README: an empty folder, a new home, nothing set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.shell import Shell


@pytest.fixture
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of such a person; the hub takes any free port."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    for name in ("RETINUE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RETINUE_HUB__PORT", "0")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shell(fresh_folder: Path) -> Iterator[Shell]:
    """Where the commands of a page are typed; what runs in the background ends with it."""
    with ExitStack() as running:
        yield Shell(running)
