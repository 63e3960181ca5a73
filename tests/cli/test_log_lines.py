"""What a hub or an agent shows in a terminal of the calls that it serves."""

from __future__ import annotations

import re
from typing import Any

import pytest
import structlog

from retinue.cli.session import ReadableLines

CALL: dict[str, Any] = {
    "event": "call",
    "level": "info",
    "timestamp": "2026-11-22T06:25:53.256174Z",
    "id": "ffead575f5db7c9aa29834d9845827b2",
    "door": "execute",
    "caller": "local",
    "skill": "greet",
    "agent": "my-agent",
    "version": "0.1.0",
    "status": "done",
    "duration_ms": 17.502,
    "attempts": 1,
    "trace_id": "t",
    "depth": 0,
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "greet → my-agent  18 ms  done"),
        ({"duration_ms": 61_200.0}, "greet → my-agent  61.2 s  done"),
        ({"status": "failed", "error": "timeout"}, "greet → my-agent  18 ms  failed (timeout)"),
        (
            {"status": "failed", "error": "remote_error", "reason": "no\x1btea"},
            "greet → my-agent  18 ms  failed (remote_error): no tea",
        ),
        (
            {"agent": None, "status": "refused", "error": "unknown_skill"},
            "greet  18 ms  refused (unknown_skill)",
        ),
        ({"skill": "a\x1b[31m\nb"}, "a [31m b → my-agent  18 ms  done"),
    ],
)
def test_one_call_is_one_short_line(changes: dict[str, Any], line: str) -> None:
    shown = ReadableLines()(None, "info", {**CALL, **changes})
    time, _, rest = shown.partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:53", time)
    assert rest == line


def test_the_traceback_of_a_failed_skill_follows_its_line() -> None:
    shown = ReadableLines()(None, "info", {**CALL, "exception": "Traceback\n  KeyError"})
    assert shown.splitlines()[1:] == ["Traceback", "  KeyError"]


def test_an_agent_that_tells_the_hub_of_itself_is_no_line() -> None:
    with pytest.raises(structlog.DropEvent):
        ReadableLines()(None, "info", {**CALL, "skill": "refresh_agents", "agent": "retinue"})
    failed = {**CALL, "skill": "refresh_agents", "status": "failed"}
    assert "refresh_agents" in ReadableLines()(None, "info", failed)


def test_other_lines_stay_what_they_were() -> None:
    assert "hub not told" in ReadableLines()(None, "warning", {"event": "hub not told", "level": "warning"})
