"""Files of what the processes show today, compared byte by byte.

``GOLDEN_WRITE=1`` writes them anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden"
WRITE = "GOLDEN_WRITE"


def check_golden(name: str, text: str) -> None:
    """Compare ``text`` with the file of this name, line by line."""
    file = FOLDER / name
    if os.environ.get(WRITE):
        file.write_text(text, encoding="utf-8")
    difference = unified_diff(
        file.read_text("utf-8").splitlines(), text.splitlines(), name, "now", lineterm=""
    )
    assert not (lines := list(difference)), "\n".join(lines)
