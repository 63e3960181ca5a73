"""Files of other programs: changed whole, with a backup, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from retinue.core.errors import InvalidSettingError, StateError
from retinue.mcp.client_configs import config_files as client_files
from retinue.mcp.client_configs.config_files import (
    change_text,
    drop_backups,
    find_file,
    read_backups,
    read_text,
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _add(text: str | None) -> str:
    return (text or "") + "more\n"


def test_a_change_keeps_the_mode_and_a_private_backup(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b"\xef\xbb\xbfa\r\n")
    file.chmod(0o640)
    changed = change_text(file, _add, secret=False)
    assert file.read_bytes() == b"\xef\xbb\xbfa\r\nmore\n"
    assert _mode(file) == 0o640
    assert changed.backup is not None
    assert changed.backup.name.startswith("settings.json.2")
    assert changed.backup.read_bytes() == b"\xef\xbb\xbfa\r\n"
    assert _mode(changed.backup) == 0o600
    assert read_backups(file) == ["\ufeffa\r\n"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_gets_a_token_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text("a\n")
    file.chmod(0o644)
    change_text(file, _add, secret=True)
    assert _mode(file) == 0o600
    file.chmod(0o644)
    assert not change_text(file, lambda text: text, secret=True).changed
    assert _mode(file) == 0o600


def test_a_new_file_gets_its_folders_and_needs_no_backup(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "mcp.json"
    assert read_text(file) is None
    changed = change_text(file, _add, secret=True)
    assert (changed.changed, changed.backup) == (True, None)
    assert file.read_text() == "more\n"
    assert _mode(file) == 0o600
    assert change_text(file, lambda _: None, secret=False, backup=False).changed
    assert not file.exists()


def test_nothing_is_written_when_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("a\n")
    before = file.stat()
    assert change_text(file, lambda text: text, secret=False) == client_files.Changed(file, changed=False)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [file]


def test_the_same_content_is_backed_up_once(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for _ in range(3):
        file.write_text("a\n")
        change_text(file, _add, secret=False)
    assert len(list(tmp_path.glob("*.bak"))) == 1


def test_a_backup_replaces_the_former_one_and_no_file_of_somebody_else(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    others = [tmp_path / name for name in ("mcp.json.bak", "mcp.json.old.bak", "mcp.json.2026.bak")]
    for other in others:
        other.write_text("mine")
    for text in ("a\n", "b\n"):
        file.write_text(text)
        change_text(file, _add, secret=False)
    assert read_backups(file) == ["b\n"]
    drop_backups(file)
    assert sorted(tmp_path.glob("*.bak")) == sorted(others)


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "mcp.json"
    real.write_text("a\n")
    link = tmp_path / "mcp.json"
    link.symlink_to(real)
    change_text(link, _add, secret=False)
    assert link.is_symlink()
    assert real.read_text() == "a\nmore\n"
    assert read_backups(link) == ["a\n"]


def test_links_and_folders_that_are_no_file_are_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    with pytest.raises(StateError, match=r"loop.json"):
        change_text(loop, _add, secret=False)
    with pytest.raises(StateError, match="cannot read"):
        change_text(tmp_path, _add, secret=False)


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("a\n")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StateError, match="is read-only"):
        change_text(file, _add, secret=False)
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"{\n\n\xff}")
    with pytest.raises(InvalidSettingError, match="no UTF-8 in line 3"):
        change_text(file, _add, secret=False)
    file.write_text("a")
    with pytest.raises(InvalidSettingError, match="a path in the entry is no text"):
        change_text(file, lambda _: "\udc80", secret=False)
    assert file.read_text() == "a"


def test_what_somebody_else_writes_meanwhile_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("a\n")
    written: list[str] = []

    def edit(text: str | None) -> str:
        if not written:
            written.append("theirs\n")
            file.write_text("theirs\n")
        return _add(text)

    change_text(file, edit, secret=False)
    assert file.read_text() == "theirs\nmore\n"


def test_a_file_that_never_stands_still_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("a\n")

    def edit(text: str | None) -> str:
        file.write_text(f"{text}b\n")
        return _add(text)

    with pytest.raises(StateError, match="keeps changing"):
        change_text(file, edit, secret=False)
    assert "more" not in file.read_text()


def test_of_several_places_the_one_that_is_there_counts(tmp_path: Path) -> None:
    usual = tmp_path / "Roaming" / "Claude" / "c.json"
    packaged = tmp_path / "Packages" / "Claude_*" / "Claude" / "c.json"
    assert find_file((packaged, usual)) == usual
    for name in ("Claude_a", "Claude_b"):
        (tmp_path / "Packages" / name / "Claude").mkdir(parents=True)
    assert find_file((packaged, usual)) == tmp_path / "Packages" / "Claude_a" / "Claude" / "c.json"
    (tmp_path / "Packages" / "Claude_b" / "Claude" / "c.json").write_text("{}")
    assert find_file((packaged, usual)) == tmp_path / "Packages" / "Claude_b" / "Claude" / "c.json"


def test_a_pipe_in_the_place_of_a_configuration_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "claude.json")
    with pytest.raises(InvalidSettingError, match="is not a file"):
        read_text(tmp_path / "claude.json")
