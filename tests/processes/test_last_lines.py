"""What a hub was asked just before it ends stands in its log and in its audit log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from retinue.storage.audit_store import SqliteAudit
from retinue.storage.state import State
from tests.processes.running import execute, program

CALLS = 20
NO_BATCH_ENDS = "from retinue.mesh.observing import events\n\nevents.BATCH_S = 3600.0\n"
"""With batches of an hour, nothing is written but what the end of the process writes."""


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_calls_just_before_the_end_of_a_hub_are_logged_and_recorded(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_BATCH_ENDS)
    environment = {"PYTHONPATH": str(tmp_path)}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        for _ in range(CALLS):
            assert "result" in execute(url, "find_skills", {"query": "anything"})
        assert hub.end(ended_by) == 0
    logged = [line for line in hub.lines if "find_skills" in line and "duration_ms" in line]
    assert len(logged) == CALLS, hub.output
    audit = SqliteAudit(State(Path(os.environ["RETINUE_HOME"])).database)
    try:
        rows = audit.list_calls({"skill": "find_skills"}, failed=False, before=None, limit=2 * CALLS)
    finally:
        audit.close()
    assert [row["status"] for row in rows] == ["done"] * CALLS
