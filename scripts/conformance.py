"""Installs the public MCP conformance suites under ``.tools``, and runs one against a url.

python -m scripts.conformance URL      every suite that `make test-all` runs, against any MCP endpoint

The packages come from npm by the committed lock file (`scripts.npm_packages`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.npm_packages import NODE, install, node_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK_FOLDER = ROOT / "tests" / "conformance"
FOLDER = ROOT / ".tools" / "conformance"
RUN_WITHIN_S = 300

RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "0.1.16": ("conformance-stable", ()),
    "0.2.0-alpha.12 for 2025-11-25": ("conformance-next", ("--spec-version", "2025-11-25")),
    "0.2.0-alpha.12 for 2026-07-28": ("conformance-next", ("--spec-version", "2026-07-28")),
    "0.2.0-alpha.12, all that 2026-07-28 requires": ("conformance-next", ("--requirements", "2026-07-28")),
}
"""Name of a run → the package of ``tests/conformance/package.json`` and its arguments."""


@dataclass(frozen=True)
class Verdict:
    """What one run came to."""

    status: int
    passed: int
    failed: int
    output: str


def run(name: str, url: str) -> Verdict:
    """One run against the MCP endpoint at ``url``."""
    package, arguments = RUNS[name]
    program = FOLDER / "node_modules" / package / "dist" / "index.js"
    done = subprocess.run(
        [str(NODE / "node"), str(program), "server", "--url", url, *arguments],
        cwd=FOLDER,
        env=node_environment(),
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


def main(arguments: list[str]) -> int:
    """1 when a run failed."""
    if len(arguments) != 1:
        print("usage: python -m scripts.conformance URL", file=sys.stderr)
        return 2
    install(LOCK_FOLDER, FOLDER)
    status = 0
    for name in RUNS:
        verdict = run(name, arguments[0])
        status = max(status, min(verdict.status, 1))
        print(f"{name}: {verdict.passed} passed, {verdict.failed} failed, status {verdict.status}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
