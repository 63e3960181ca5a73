"""The registry program for tests: only the pinned one is installed, and a missing network is no failure."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from scripts import get_registry
from scripts.get_registry import install_registry


def _archive(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("registry")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_the_pinned_program_is_installed_once_and_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    content, file = _archive(b"program"), tmp_path / "registry.tar.gz"
    program = tmp_path / "tools" / "registry"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="not the pinned one"):
        install_registry(program, file.as_uri())
    assert not program.exists()
    monkeypatch.setitem(get_registry.SHA256, "amd64", hashlib.sha256(content).hexdigest())
    install_registry(program, file.as_uri())
    assert (program.read_bytes(), program.stat().st_mode & 0o777) == (b"program", 0o755)
    file.unlink()
    install_registry(program, file.as_uri())
    assert [*program.parent.iterdir()] == [program]


def test_a_network_that_is_not_there_is_told_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        install_registry(tmp_path / "registry", "http://127.0.0.1:1/{version}")

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(get_registry, "install_registry", fail)
    assert get_registry.main() == 0
    assert "its tests are skipped" in capsys.readouterr().err
