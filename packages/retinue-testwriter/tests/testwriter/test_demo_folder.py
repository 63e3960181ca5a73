"""The demo removes its own folder, and the folders of killed demos."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from filelock import FileLock

from retinue.core.errors import StateError
from retinue.runtime.serving import check_loopback
from retinue_demo.demo import own_folder


def _leave(place: Path, name: str, *, age_s: float, lock: bool = True) -> Path:
    folder = place / name
    (folder / "registry").mkdir(parents=True)
    if lock:
        (folder / "demo.lock").touch()
    then = folder.stat().st_mtime - age_s
    os.utime(folder, (then, then))
    return folder


def test_the_folder_is_gone_afterwards(tmp_path: Path) -> None:
    with own_folder(tmp_path) as home:
        assert home.parent == tmp_path
        (home / "retinue.db").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_demos_left_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    dead = _leave(tmp_path, "retinue-demo-dead", age_s=3600)
    spared = [
        _leave(tmp_path, "retinue-demo-young", age_s=5),
        _leave(tmp_path, "retinue-demo-of-somebody", age_s=3600, lock=False),
        _leave(tmp_path, "something-else", age_s=3600),
        living := _leave(tmp_path, "retinue-demo-living", age_s=3600),
    ]
    link = tmp_path / "retinue-demo-link"
    link.symlink_to(spared[2])
    with FileLock(living / "demo.lock"), own_folder(tmp_path):
        assert not dead.exists()
    assert all(folder.is_dir() for folder in spared)
    assert link.is_symlink()


def test_a_machine_without_loopback_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loopback()

    def unreachable(*_: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(StateError, match=r"cannot connect to itself at 127.0.0.1: Network is unreachable"):
        check_loopback()
