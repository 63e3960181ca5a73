"""From a bare machine to an environment: where uv comes from, and what is asked of it."""

from __future__ import annotations

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

import pytest

from scripts import environment, get_uv
from scripts.get_uv import PINS, UvNotFoundError, fits_this_machine, install_uv, list_links, read_pins
from scripts.package_settings import PackageSettings

ROOT = Path(__file__).parent.parent
VERSION = read_pins(PINS.read_text("utf-8"))[0]


def _wheel_name() -> str:
    machine = os.uname().machine
    names = [f"uv-{VERSION}-py3-none-{tag}_{machine}.whl" for tag in ("manylinux_2_17", "musllinux_1_1")]
    return next(name for name in [*names, f"uv-{VERSION}-py3-none-macosx_11_0_{machine}.whl"] if _fits(name))


def _fits(name: str) -> bool:
    return fits_this_machine(name, VERSION)


def _wheel(program: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"uv-{VERSION}.data/scripts/uv", program)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of a uv that only tells how it was called, pinned as the real one is."""
    path = tmp_path / "index" / "uv" / _wheel_name()
    path.parent.mkdir(parents=True)
    path.write_bytes(_wheel('#!/bin/sh\necho "$@"\n'))
    pins = tmp_path / "uv.txt"
    pins.write_text(f"uv=={VERSION} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    monkeypatch.setattr(get_uv, "PINS", pins)
    monkeypatch.setattr(get_uv, "_python_with_pip", _no_pip)
    return path


def _no_pip(scratch: Path) -> str:
    raise UvNotFoundError("this Python has neither pip nor ensurepip")


@pytest.fixture
def index(wheel: Path) -> Iterator[str]:
    """The wheel's folder as a package index on a socket, its page in HTML without digests."""
    (wheel.parent / "index.html").write_text(f'<a href="../uv/{wheel.name}">{wheel.name}</a>')
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
    version, digests = read_pins(PINS.read_text("utf-8"))
    assert version.count(".") == 2
    assert len(digests) >= 4


def test_without_pip_the_wheel_is_taken_from_the_index(index: str, tmp_path: Path) -> None:
    uv = install_uv(tmp_path / "tools" / "uv", PackageSettings(index_url=index))
    assert subprocess.run([uv, "sync"], check=True, capture_output=True, text=True).stdout == "sync\n"
    assert [path.name for path in (tmp_path / "tools").iterdir()] == ["uv"]


def test_without_an_index_the_wheel_is_taken_from_a_folder(wheel: Path, tmp_path: Path) -> None:
    settings = PackageSettings(no_index=True, find_links=(str(wheel.parent),))
    assert install_uv(tmp_path / "uv", settings).is_file()


def test_a_wheel_that_is_not_the_pinned_one_is_refused(index: str, wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(_wheel("#!/bin/sh\necho evil\n"))
    with pytest.raises(UvNotFoundError, match="is not one that is pinned"):
        install_uv(tmp_path / "uv", PackageSettings(index_url=index))
    assert not (tmp_path / "uv").exists()


def test_a_password_in_an_index_address_is_sent_and_never_shown(tmp_path: Path, wheel: Path) -> None:
    settings = PackageSettings(index_url="http://bob:secret@127.0.0.1:9/simple", timeout_s=2)
    with pytest.raises(UvNotFoundError) as caught:
        install_uv(tmp_path / "uv", settings)
    assert "127.0.0.1:9" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert get_uv._split_login("https://bob:p%40ss@host/x") == ("https://host/x", "bob:p@ss")


def test_an_index_may_answer_in_json(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text('{"files": [{"url": "../x/uv.whl", "hashes": {"sha256": "ab"}}]}')
    links = list_links(page.as_uri(), PackageSettings())
    assert links == [(tmp_path.parent / "x" / "uv.whl").as_uri() + "#sha256=ab"]


@pytest.mark.parametrize(
    "name",
    [
        f"uv-{VERSION}-py3-none-win_amd64.whl",
        f"uv-{VERSION}-py3-none-manylinux_9_99_{os.uname().machine}.whl",
        f"uv-{VERSION}-py3-none-manylinux_2_17_s390x.whl",
        f"uv-0.0.1-py3-none-manylinux_2_17_{os.uname().machine}.whl",
        f"uv-{VERSION}.tar.gz",
    ],
)
def test_a_wheel_for_another_machine_or_version_does_not_fit(name: str) -> None:
    assert not _fits(name)


def test_a_second_run_does_nothing_and_groups_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def sync(uv: Path, groups: list[str], settings: PackageSettings) -> None:
        asked.append(groups)
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "python").unlink(missing_ok=True)
        (tmp_path / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(environment, "_find_uv", lambda settings: Path("uv"))
    monkeypatch.setattr(environment, "_sync", sync)
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
    blocked = "; ".join(f"sys.modules['{name}'] = None" for name in ("pip", "ensurepip", "venv"))
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
    scripts = ("bootstrap", "environment.py", "get_uv.py", "package_settings.py")
    for name in ("pyproject.toml", "uv.lock", *(f"scripts/{script}" for script in scripts)):
        shutil.copy(ROOT / name, folder / name)
    program = f'#!/bin/sh\nenv | grep ^UV_ >&2\nmkdir -p {folder}/.venv/bin\necho uv "$@" >&2\n'
    wheel = tmp_path / "wheels" / _wheel_name()
    wheel.parent.mkdir()
    wheel.write_bytes(_wheel(program))
    pin = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "scripts" / "uv.txt").write_text(f"uv=={VERSION} --hash=sha256:{pin}\n")
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
    assert "uv sync --locked --compile-bytecode --no-default-groups --group test" in told
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
