"""How many files of Retinue a warm call runs through in the hub: the figures of docs/performance.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "call_path.py"

MOST_FILES = {"execute": 34, "mcp": 41, "relay": 38, "workflow": 71}


@pytest.mark.timeout(600)
def test_a_call_runs_through_no_more_files_than_the_page_says() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--list", *MOST_FILES], capture_output=True, text=True, check=True
    )
    files = {name: int(number) for name, number in re.findall(r"^(\w+) +(\d+) files", ended.stdout, re.M)}
    assert files.keys() == MOST_FILES.keys(), ended.stderr
    assert all(files[path] <= most for path, most in MOST_FILES.items()), ended.stdout
