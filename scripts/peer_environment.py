"""Installs programs of others in environments of their own below ``.tools``, by pinned requirements.

Tests and benchmarks run these programs beside Retinue; their packages never meet those of ``.venv``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from scripts.environment import find_uv
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import make_uv_environment, read_settings

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
INSTALL_WITHIN_S = 300


class PeerNotInstalledError(Exception):
    """The environment could not be made, for instance because PyPI is not reachable; the text says why."""


def install_peer(name: str, requirements: Path, mend: Callable[[Path], None] | None = None) -> Path:
    """The Python of the environment ``name``; it is made if it is missing or the requirements have changed.

    ``requirements`` names every package with its version. ``mend`` gets the folder of a new environment.
    Raises PeerNotInstalledError.
    """
    folder = TOOLS / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    key = hashlib.sha256(requirements.read_bytes() + str(ROOT).encode()).hexdigest()
    TOOLS.mkdir(exist_ok=True)
    with FileLock(TOOLS / f"{name}.lock"):
        if stamp.is_file() and stamp.read_text() == key and python.exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        settings = read_settings()
        try:
            uv = find_uv(settings)
        except UvNotFoundError as error:
            raise PeerNotInstalledError(str(error)) from error
        environment = make_uv_environment(settings, os.environ)
        environment.pop("VIRTUAL_ENV", None)
        _run([str(uv), "venv", "--quiet", "--python", sys.executable, str(folder)], environment)
        install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
        _run([*install, "-r", str(requirements)], environment)
        if mend is not None:
            mend(folder)
        stamp.write_text(key)
    return python


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerNotInstalledError(f"{' '.join(command[:3])}: no end after {error.timeout:.0f} s") from error
    if done.returncode:
        raise PeerNotInstalledError(f"{' '.join(command[:3])}: {done.stderr.strip()[-500:]}")
