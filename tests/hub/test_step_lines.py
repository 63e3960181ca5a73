"""The lines of progress of a run with a step think."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.hub.orchestration.step_lines import describe_turn
from retinue.workflows.runs.records import RunEvent

CALL = {"kind": "call", "agent": "files", "skill": "write"}
FAULT = {"error": {"message": "disk full"}, "duration_ms": 20.0}
APPROVAL = {"kind": "wait", "approval": "a1", "message": "files/write with {}?"}


@pytest.mark.parametrize(
    ("kind", "path", "facts", "line"),
    [
        ("step_started", "model", {"kind": "model", "agent": "claude"}, "claude is asked"),
        ("step_finished", "model", {"kind": "model", "agent": "claude", "duration_ms": 9.0}, None),
        ("step_finished", "model", {"kind": "model", "agent": "claude", **FAULT}, "claude failed: disk full"),
        ("step_started", "call-1", CALL | {"input": {"n": 1}}, 'files/write is called with {"n":1}'),
        (
            "step_started",
            "call-1",
            CALL | {"input": "x" * 900},
            f'files/write is called with "{"x" * 199}…',
        ),
        ("step_finished", "call-1", CALL | {"duration_ms": 1500.0}, "files/write answered in 1.5 s"),
        ("step_finished", "call-1", CALL | FAULT, "files/write failed: disk full"),
        (
            "step_started",
            "answer-1",
            APPROVAL,
            "waits for approval of files/write with {}? Answer: retinue approvals approve a1",
        ),
        ("step_finished", "answer-1", APPROVAL, "answered"),
        ("step_started", "found", {"kind": "find", "message": "clocks"}, "skills are searched for clocks"),
        ("step_started", "call-1/choose", {"kind": "choose"}, None),
        ("log", "call-1", CALL, None),
    ],
)
def test_a_line_names_the_step_of_the_turn(kind: Any, path: str, facts: Any, line: str | None) -> None:
    step = f"research/turn-2/{path}"
    wanted = None if line is None else f"{step}: {line}"
    assert describe_turn(RunEvent(1, kind, "r", step, 0.0, facts)) == wanted
