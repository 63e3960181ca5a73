"""Environments of teams: a virtual environment for each lock of Python, a folder for each lock of npm.

Each is made once for its lock, Python and platform, and shared by all digests with the same lock. An
environment that is not complete has another name, so a killed installation leaves nothing that is used. Who
installs holds a lock of its folder, as do the installers that it has started, so that the next installation
can remove what none of them writes any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import orjson

from retinue.core.errors import InvalidSettingError, StateError, StorageFullError
from retinue.processes.environment import select_inherited
from retinue.storage.files import is_full, make_folder, storage_errors, sync_folder
from retinue.team.vendored import ARCHIVES, WHEELS, use_archives

INSTALL_WITHIN_S = 600.0
_TEMPORARY = ".making-"
_MAX_LICENCE_CHARACTERS = 80

_SETTINGS = ("UV_", "PIP_", "npm_config_", "NPM_CONFIG_")
"""The variables that tell uv, pip and npm where their indexes and caches are."""

_WITHOUT_INDEX = {
    "UV_NO_CONFIG": "1",
    "UV_OFFLINE": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


class Environments:
    """The environments below the folder ``root``, installed with variables of ``environ``.

    ``vendored`` is the folder of the files of a digest that has its packages; then no index is asked.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], *, vendored: Path | None = None) -> None:
        self._root = root
        self.vendored = vendored
        self._locks: dict[Path, int] = {}
        if vendored is None:
            self._environ = select_installer_variables(environ)
        else:
            self._environ = select_inherited(environ) | _WITHOUT_INDEX
            if cache := environ.get("UV_CACHE_DIR"):
                self._environ["UV_CACHE_DIR"] = cache

    def python_of(self, lock: bytes, *, is_agent: bool) -> Path:
        """Where the Python of a lock is, or would be."""
        return self._python_folder(lock, is_agent) / "bin" / "python"

    def make_python(self, lock: bytes, *, is_agent: bool) -> Path:
        """The Python with exactly the packages of a PEP 751 lock; that of an agent has Retinue behind them.

        Only wheels are installed, each by its hash. Raises InvalidSettingError and StateError.
        """
        folder = self._python_folder(lock, is_agent)
        if not folder.is_dir():
            self._install(folder, lambda place: self._install_python(place, lock, is_agent))
        return folder / "bin" / "python"

    def npm_folder(self, lock: bytes) -> Path:
        """Where the packages of a ``package-lock.json`` are, or would be."""
        return self._root / "npm" / _hash_of(lock, _npm_platform())

    def make_npm(self, manifest: bytes, lock: bytes) -> Path:
        """The folder with exactly the packages of a ``package-lock.json``; no script of them is run."""
        folder = self.npm_folder(lock)
        if not folder.is_dir():
            self._install(folder, lambda place: self._install_npm(place, manifest, lock))
        return folder

    def _python_folder(self, lock: bytes, is_agent: bool) -> Path:
        parts = (
            "agent" if is_agent else "import",
            sys.implementation.cache_tag or "",
            sysconfig.get_platform(),
            str(Path(sys.executable)),
        )
        return self._root / "venvs" / _hash_of(lock, *parts)

    def _install(self, folder: Path, install: Any) -> None:
        with storage_errors(folder):
            make_folder(folder.parent)
            place, lock = _make_locked(folder.parent)
            self._locks[place] = lock
            try:
                install(place)
                os.sync()  # a power failure after the rename leaves no empty file; installers do not fsync
                try:
                    place.rename(folder)
                except OSError:
                    if not folder.is_dir():  # another process was faster
                        raise
                sync_folder(folder.parent)
            finally:
                del self._locks[place]
                os.close(lock)
                shutil.rmtree(place, ignore_errors=True)

    def _install_python(self, place: Path, lock: bytes, is_agent: bool) -> None:
        lock_file = place / "pylock.toml"
        lock_file.write_bytes(lock)
        requirements = place / "requirements.txt"
        environment = place / "made"
        python = environment / "bin" / "python"
        local: tuple[str, ...] = ()
        if self.vendored is not None:
            local = ("--no-index", "--find-links", str(self.vendored / WHEELS))
        if uv := shutil.which("uv", path=self._environ.get("PATH")):
            self._run((uv, "venv", "--quiet", "--python", sys.executable, str(environment)), place)
            options = ("--require-hashes", "--no-build", "--quiet", "--python", str(python))
            sources: tuple[str, ...] = ("sync", str(lock_file))
            if local:
                requirements.write_text(render_requirements(lock), "utf-8")
                sources = ("install", "--no-deps", *local, "-r", str(requirements))
            self._run((uv, "pip", *sources, *options), place)
        else:
            self._run((sys.executable, "-m", "venv", str(environment)), place)
            requirements.write_text(render_requirements(lock), "utf-8")
            checks = ("--require-hashes", "--no-deps", "--only-binary", ":all:", "--quiet", *local)
            self._run((str(python), "-m", "pip", "install", *checks, "-r", str(requirements)), place)
        if is_agent:
            _add_own_packages(environment)
        for entry in list(environment.iterdir()):
            entry.rename(place / entry.name)
        environment.rmdir()

    def _install_npm(self, place: Path, manifest: bytes, lock: bytes) -> None:
        offline: tuple[str, ...] = ()
        if self.vendored is not None:
            lock = use_archives(lock, str(self.vendored / ARCHIVES))
            offline = ("--offline", "--userconfig", os.devnull)
        (place / "package.json").write_bytes(manifest)
        (place / "package-lock.json").write_bytes(lock)
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", *offline)
        self._run(("npm", "ci", *options), place)

    def _run(self, arguments: Sequence[str], folder: Path) -> None:
        kept = (self._locks[folder],)
        complaint = run_installer(arguments, folder, self._environ, INSTALL_WITHIN_S, kept=kept)
        if complaint is not None:
            if is_full(folder):
                raise StorageFullError(str(folder))
            program = Path(arguments[0]).name
            remedy = "check the network and the index; a digest of retinue pack --vendor needs neither"
            if self.vendored is not None:
                remedy = "use a digest that was packed for this platform"
            raise StateError(f"{program} cannot install what the team locked: {complaint}", remedy=remedy)


def select_installer_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that uv, pip and npm get."""
    own = {name: value for name, value in environ.items() if name.startswith(_SETTINGS)}
    return select_inherited(environ) | own


def run_installer(
    arguments: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    within_s: float,
    text: str = "",
    *,
    kept: Sequence[int] = (),
) -> str | None:
    """Run uv, pip or npm with ``text`` as its input; the end of what it printed where it failed, else None.

    It has the open files ``kept``, whose locks it thereby holds.
    Raises StateError for a program that does not end within ``within_s`` seconds.
    """
    try:
        done = subprocess.run(  # noqa: S603 - with options of ours
            list(arguments),
            cwd=folder,
            env=environ,
            input=text.encode(),
            pass_fds=kept,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StateError(f"{Path(arguments[0]).name} did not end within {within_s:.0f} s") from None
    if not done.returncode:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return " · ".join(line.strip() for line in lines[-4:])[:600]


def find_npm_program(folder: Path, package: str, name: str | None) -> Path:
    """The JavaScript file of a package's program, by the ``bin`` of its ``package.json``.

    Raises InvalidSettingError for a package without that program, and for one outside its folder.
    """
    home = folder / "node_modules" / package
    try:
        programs = orjson.loads((home / "package.json").read_bytes()).get("bin")
    except (OSError, ValueError, AttributeError):
        programs = None
    if isinstance(programs, str):
        programs = {package.rpartition("/")[2]: programs}
    if not isinstance(programs, dict) or not programs:
        raise InvalidSettingError(
            "npm", f"{package} has no program", remedy="name a package with an MCP server"
        )
    chosen = name or (package.rpartition("/")[2] if package.rpartition("/")[2] in programs else min(programs))
    path = (home / str(programs.get(chosen, ""))).resolve()
    if chosen not in programs or not path.is_relative_to(home.resolve()) or not path.is_file():
        known = ", ".join(sorted(programs))
        raise InvalidSettingError(
            "bin", f"{package} has no program {chosen}; it has {known}", remedy="name one"
        )
    return path


def read_licences(python: Path, names: Iterable[str]) -> dict[str, str]:
    """The licences that packages of these names beside ``python`` declare, by name as it is given."""
    names_by_id = {_canonical(name): name for name in names}
    licences = {}
    for distribution in _discover(python):
        if (name := names_by_id.get(_canonical(distribution.name))) and (text := _licence_of(distribution)):
            licences[name] = text
    return licences


def _licence_of(distribution: Distribution) -> str:
    """The licence expression, else that of the classifiers, else a short text; "" for none."""
    fields = distribution.metadata
    expressions = fields.get_all("License-Expression", [])
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier", [])
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    texts = [text for text in fields.get_all("License", []) if "\n" not in text]
    return (", ".join(expressions or classifiers or texts))[:_MAX_LICENCE_CHARACTERS]


def _discover(python: Path) -> Iterable[Distribution]:
    folder = next(iter(sorted(python.parent.parent.glob("lib/python*/site-packages"))), None)
    return () if folder is None else Distribution.discover(path=[str(folder)])


def find_python_program(python: Path, package: str, name: str | None) -> Path:
    """The program ``name`` that a package has installed beside ``python``; without one, that of its own name.

    Raises InvalidSettingError for a program that is not of this package, such as Python itself.
    """
    wanted = _canonical(package)
    files = next((d.files or () for d in _discover(python) if _canonical(d.name) == wanted), ())
    # as RECORD has them: ../../../bin/NAME
    programs = {file.name for file in files if file.parts[-3:-1] == ("..", python.parent.name)}
    chosen = name or (package if package in programs or len(programs) != 1 else min(programs))
    if chosen not in programs:
        known = ", ".join(sorted(programs)) or "none"
        raise InvalidSettingError(
            "bin", f"{package} has no program {chosen}; it has {known}", remedy="name one"
        )
    return python.parent / chosen


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def render_requirements(lock: bytes) -> str:
    """The wheels of a PEP 751 lock as requirements with hashes, for pip. Raises InvalidSettingError."""
    lines = []
    try:
        for package in tomllib.loads(lock.decode())["packages"]:
            hashes = [f"--hash=sha256:{wheel['hashes']['sha256']}" for wheel in package["wheels"]]
            marker = f" ; {package['marker']}" if "marker" in package else ""
            lines.append(" ".join([f"{package['name']}=={package['version']}{marker}", *hashes]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSettingError("pylock.toml", "it cannot be read", remedy="lock it again") from error
    return "\n".join(lines) + "\n"


def _add_own_packages(environment: Path) -> None:
    """Let the environment find Retinue and what it needs after its own packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    site = environment / "lib" / version / "site-packages"
    (site / "zz-retinue-of-the-hub.pth").write_text("\n".join(lines) + "\n", "utf-8")


def _npm_platform() -> str:
    return f"{platform.system()}-{platform.machine()}"


def _hash_of(lock: bytes, *parts: str) -> str:
    return hashlib.sha256("\0".join([hashlib.sha256(lock).hexdigest(), *parts]).encode()).hexdigest()[:32]


def sweep(root: Path) -> None:
    """Remove what killed installations left behind; a folder that somebody still writes stays."""
    for folder in (root / "venvs", root / "npm"):
        if not any(folder.glob(f"{_TEMPORARY}*")):
            continue
        with _locked_folder(folder):
            for place in folder.glob(f"{_TEMPORARY}*"):
                with suppress(OSError), _locked_folder(place, waits=False):
                    shutil.rmtree(place, ignore_errors=True)


def _make_locked(folder: Path) -> tuple[Path, int]:
    """A new folder for an installation, and the open file that holds its lock."""
    place = folder / f"{_TEMPORARY}{secrets.token_hex(6)}"
    with _locked_folder(folder):  # `sweep` never sees it without its lock
        place.mkdir(mode=0o700)
        lock = os.open(place, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return place, lock


@contextmanager
def _locked_folder(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a folder; raises OSError for one that another process holds, unless it ``waits``."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
