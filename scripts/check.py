"""Runs format, lint, types, layers and the comparison of generated files, also after a failure.

Prints the seconds of each.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PACKAGES = (
    "retinue",
    "koi_mcp",
    "retinue_demo",
    "retinue_koi",
    "retinue_testwriter",
    "retinue_toy",
    "tests",
    "koi",
    "testwriter",
    "scripts",
    "benchmarks",
)
CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy", *(word for name in PACKAGES for word in ("-p", name))],
    "layers": ["lint-imports", "--no-logo"],
    "workflow schema": ["python", "-m", "scripts.workflow_schema", "--check"],
    "error tables": ["python", "-m", "scripts.error_tables", "--check"],
    "python reference": ["python", "-m", "scripts.python_reference", "--check"],
}


def main() -> int:
    """1 when any check failed."""
    failed = []
    for name, (program, *arguments) in CHECKS.items():
        started = time.monotonic()
        print(f"── {name}: {program} {' '.join(arguments)}", flush=True)
        done = subprocess.run([BIN / program, *arguments], cwd=ROOT, check=False)
        print(f"   {time.monotonic() - started:.1f} s", flush=True)
        if done.returncode != 0:
            failed.append(name)
    print(f"check failed: {', '.join(failed)}" if failed else "check: all good")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
