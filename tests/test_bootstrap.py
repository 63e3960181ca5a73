"""From a bare machine to an environment: where uv comes from, and what is asked of it."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import os
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import environment, get_uv
from scripts.environment import list_extras
from scripts.get_uv import PINS, PIP_SHA256, PIP_WHEEL, UvNotFoundError, install_uv, pinned_version
from scripts.package_settings import Settings

ROOT = Path(__file__).parent.parent
PIP = """
import pathlib, sys
if "install" in sys.argv:
    program = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin", "uv")
    program.parent.mkdir(parents=True)
    program.write_text({uv!r})
    program.chmod(0o755)
"""


def _pip_wheel(uv: str) -> bytes:
    """The wheel of a pip that installs ``uv`` for any requirement."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("pip/__main__.py", PIP.format(uv=uv))
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's wheel on an index, pinned as the real one is; this Python has no other pip."""
    path = tmp_path / "index" / "pip" / PIP_WHEEL
    path.parent.mkdir(parents=True)
    path.write_bytes(_pip_wheel('#!/bin/sh\necho "$@"\n'))
    run = get_uv._run

    def run_bare(command: list[str], environment: Any = None) -> subprocess.CompletedProcess[str]:
        if command[1:2] == ["-m"]:
            return subprocess.CompletedProcess(command, 1, "", "No module named pip")
        return run(command, environment)

    monkeypatch.setattr(get_uv, "_run", run_bare)
    monkeypatch.setattr(get_uv, "PIP_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


@pytest.fixture
def index(wheel: Path) -> Iterator[str]:
    """The wheel's folder as a package index on a socket."""
    (wheel.parent / "index.html").write_text(f'<a href="../pip/{wheel.name}#sha256=0">{wheel.name}</a>')
    handler = functools.partial(_QuietHandler, directory=str(wheel.parent.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        """Keep the test's output clean."""


def test_the_pins_name_one_version_and_a_digest_for_each_platform() -> None:
    assert pinned_version().count(".") == 2
    assert PINS.read_text("utf-8").count("--hash=sha256:") >= 4


def test_without_pip_its_wheel_is_taken_from_the_index(index: str, tmp_path: Path) -> None:
    uv = install_uv(tmp_path / "tools" / "uv", {"index-url": index})
    assert subprocess.run([uv, "sync"], check=True, capture_output=True, text=True).stdout == "sync\n"
    assert [path.name for path in (tmp_path / "tools").iterdir()] == ["uv"]


def test_without_an_index_the_wheel_is_taken_from_a_folder(wheel: Path, tmp_path: Path) -> None:
    settings = {"no-index": "true", "find-links": f"/nonexistent {wheel.parent}"}
    assert install_uv(tmp_path / "uv", settings).is_file()
    assert install_uv(tmp_path / "uv2", {**settings, "find-links": wheel.parent.as_uri()}).is_file()


def test_a_wheel_that_is_not_the_pinned_one_is_refused(index: str, wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(_pip_wheel("#!/bin/sh\necho evil\n"))
    with pytest.raises(UvNotFoundError, match="is not the pinned one"):
        install_uv(tmp_path / "uv", {"index-url": index})
    assert not (tmp_path / "uv").exists()


def test_a_password_in_an_index_address_is_sent_and_never_shown(
    index: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str | None] = []

    def answer(handler: _QuietHandler) -> None:
        sent.append(handler.headers["Authorization"])
        handler.send_error(403)

    monkeypatch.setattr(_QuietHandler, "do_GET", answer)
    with pytest.raises(UvNotFoundError) as caught:
        install_uv(tmp_path / "uv", {"index-url": index.replace("//", "//bob:s%40cret@")})
    assert sent == [f"Basic {base64.b64encode(b'bob:s@cret').decode()}"]
    assert "127.0.0.1" in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_second_run_does_nothing_and_groups_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def sync(uv: Path, groups: list[str], settings: Settings) -> None:
        asked.append(groups)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "python").unlink(missing_ok=True)
        (tmp_path / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(environment, "find_uv", lambda settings: Path("uv"))
    monkeypatch.setattr(environment, "make_environment", sync)
    for groups in ([], [], ["test"], [], ["lint"], ["test", "lint"]):
        assert environment.main(groups) == 0
    assert asked == [[], ["test"], ["lint", "test"]]
    (tmp_path / "stamp.json").write_text("half a stam")
    assert environment.main([]) == 0
    assert len(asked) == 4


def test_without_a_python_the_message_says_what_to_install() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "bootstrap"],
        env={"PATH": os.environ["PATH"], "PYTHON": "/nonexistent/python"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python as Debian ships it: with neither pip nor ensurepip nor a working venv."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    blocked = "; ".join(f"sys.modules['{name}'] = None" for name in ("ensurepip", "venv"))
    (site / "bare.pth").write_text(f"import sys; {blocked}\n")
    return folder / "bin" / "python"


@pytest.fixture
def path_without_uv(tmp_path: Path) -> str:
    """A folder of programs that holds what the scripts need, and surely no uv."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "env", "dirname", "mkdir", "grep", "touch"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the bootstrap reads of this project, with a uv pinned that only tells what it is asked."""
    folder = tmp_path / "copy"
    (folder / "scripts").mkdir(parents=True)
    scripts = ("bootstrap", "environment.py", "get_uv.py", "package_settings.py", "uv.txt")
    packages = [path.relative_to(ROOT) for path in ROOT.glob("packages/*/pyproject.toml")]
    for package in packages:
        (folder / package).parent.mkdir(parents=True)
    own = [Path("pyproject.toml"), Path("uv.lock"), *(Path("scripts", script) for script in scripts)]
    for path in (*own, *packages):
        shutil.copy(ROOT / path, folder / path)
    program = f'#!/bin/sh\nenv | grep ^UV_ >&2\nmkdir -p {folder}/.venv/bin\necho uv "$@" >&2\n'
    wheel = tmp_path / "wheels" / PIP_WHEEL
    wheel.parent.mkdir()
    wheel.write_bytes(_pip_wheel(program))
    script = folder / "scripts" / "get_uv.py"
    script.write_text(script.read_text().replace(PIP_SHA256, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    return folder


def _bootstrap(copy: Path, python: Path, path: str, **settings: str) -> str:
    settings |= {"UV_FIND_LINKS": str(copy.parent / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [copy / "scripts" / "bootstrap", "test"],
        env={"PATH": path, "HOME": str(copy.parent), "PYTHON": str(python), **settings},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_bare_python_gets_uv_and_the_locked_environment(
    copy: Path, bare_python: Path, path_without_uv: str
) -> None:
    told = _bootstrap(copy, bare_python, path_without_uv)
    extras = " ".join(f"--extra {extra}" for extra in list_extras())
    chosen = f"--no-default-groups {extras} --group test"
    assert f"uv sync --locked --compile-bytecode {chosen}" in told
    assert "UV_PYTHON_DOWNLOADS=never" in told
    assert f"UV_PYTHON={bare_python}" in told


def test_behind_a_mirror_the_locked_files_are_taken_by_name_and_hash(
    copy: Path, bare_python: Path, path_without_uv: str
) -> None:
    told = _bootstrap(copy, bare_python, path_without_uv, PIP_INDEX_URL="https://bob:secret@mirror/simple")
    commands = [line for line in told.splitlines() if line.startswith("uv ")]
    assert [command.split()[1] for command in commands] == ["export", "venv", "pip", "pip"]
    assert "--require-hashes" in commands[2]
    assert "UV_DEFAULT_INDEX=https://bob:secret@mirror/simple" in told
    assert "secret" not in "".join(commands)
