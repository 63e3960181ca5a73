"""What the agents pass on beside the text that people read: a JSON block in a plan, a comment in the tests.

By default only what the next skill declares travels in a workflow, so that plan and code must stand alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BLOCK = re.compile(r"```json\s*\n(.*?)\n```", re.DOTALL)
_MARK = "# retinue:"


def render_plan_notes(notes: Mapping[str, Any]) -> str:
    """A fenced JSON block for the end of a plan."""
    return f"```json\n{json.dumps(notes, indent=1)}\n```"


def parse_plan_notes(plan: str) -> dict[str, Any] | None:
    """The last JSON block of a plan that names a module; None when there is none."""
    for match in reversed(list(_BLOCK.finditer(plan))):
        try:
            notes = json.loads(match.group(1))
        except ValueError:
            continue
        if isinstance(notes, dict) and isinstance(notes.get("module"), str):
            return notes
    return None


def render_code_notes(notes: Mapping[str, Any]) -> str:
    """One comment line for the head of a test file."""
    return f"{_MARK} {json.dumps(notes)}"


def parse_code_notes(code: str) -> dict[str, Any]:
    """What the comment of a test file says; empty when it has none."""
    for line in code.splitlines():
        if line.startswith(_MARK):
            try:
                notes = json.loads(line[len(_MARK) :])
            except ValueError:
                return {}
            return notes if isinstance(notes, dict) else {}
    return {}
