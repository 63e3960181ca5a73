"""Writes the JSON Schema of workflows for editors, ``docs/workflow.schema.json``, from the grammar.

``--check`` writes nothing and fails if the file is another.
"""

from __future__ import annotations

import sys
from pathlib import Path

from retinue.workflows.definitions.editor_schema import FILE_NAME, render_schema

PLACE = Path(__file__).resolve().parent.parent / "docs" / FILE_NAME


def main() -> int:
    """1 with ``--check`` if the file is not that of the grammar."""
    if "--check" not in sys.argv[1:]:
        PLACE.write_bytes(render_schema())
        return 0
    if PLACE.is_file() and PLACE.read_bytes() == render_schema():
        return 0
    print(f"{PLACE} is not that of the grammar: python -m scripts.workflow_schema writes it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
