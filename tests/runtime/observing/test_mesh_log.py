"""The log of a mesh, read from files that are appended to, renamed and damaged."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.core.errors import StateError
from retinue.runtime.observing.log_files import log_name, rotate
from retinue.runtime.observing.mesh_log import LogFilter, MeshLog, Row
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.state import State


def row(line: str, second: int = 0) -> bytes:
    return (
        orjson.dumps({"timestamp": f"2026-11-22T06:25:{second:02}Z", "event": "output", "line": line}) + b"\n"
    )


def lines(rows: list[Row]) -> list[str]:
    return [found["line"] for found in rows]


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "state")
    made.prepare()
    made.agent_logs.mkdir()
    return made


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_nothing_is_read_from_a_state_that_does_not_exist(tmp_path: Path) -> None:
    log = MeshLog(State(tmp_path / "nowhere"), LogFilter())
    assert log.read_last(10) == []
    assert log.read_new() == []
    assert not (tmp_path / "nowhere").exists()


def test_the_lines_of_all_files_come_in_the_order_of_their_times(state: State) -> None:
    append(state.hub_log, b"hub at http://127.0.0.1:9000\n" + row("hub", 2))
    append(state.agent_logs / log_name("a-agent"), row("a", 1) + row("a again", 3))
    read = MeshLog(state, LogFilter()).read_last(10)
    assert lines(read) == ["hub at http://127.0.0.1:9000", "a", "hub", "a again"]
    assert [found["source"] for found in read] == ["hub", "a-agent", "hub", "a-agent"]
    assert lines(MeshLog(state, LogFilter()).read_last(1)) == ["a again"]


def test_following_goes_on_across_a_renamed_file_and_half_a_line(state: State) -> None:
    append(state.hub_log, row("old"))
    log = MeshLog(state, LogFilter())
    assert lines(log.read_last(10)) == ["old"]
    whole = row("written in two pieces")
    append(state.hub_log, whole[:20])
    assert log.read_new() == []
    append(state.hub_log, whole[20:] + row("last of the old file", 1))
    rotate(state.hub_log, files=3)
    append(state.hub_log, row("first of the new file", 2))
    assert lines(log.read_new()) == ["written in two pieces", "last of the old file", "first of the new file"]
    assert log.read_new() == []


def test_a_line_that_is_no_json_is_shown_without_tokens(state: State) -> None:
    append(state.hub_log, b"Authorization: Bearer rtn_local_0123456789abcdefghij\xff\n")
    (found,) = MeshLog(state, LogFilter()).read_last(1)
    assert "0123456789" not in found["line"]
    assert "[token]" in found["line"]


def test_rotation_keeps_as_many_files_as_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for number in range(5):
        path.write_text(str(number))
        rotate(path, files=3)
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"x.log.1": "4", "x.log.2": "3"}
    path.write_text("5")
    rotate(path, files=1)
    assert not path.exists()


def test_a_file_name_holds_any_name_of_an_agent(state: State) -> None:
    name = "../weird/näme:1"
    append(state.agent_logs / log_name(name), row("here"))
    assert [file.parent for file in state.agent_logs.iterdir()] == [state.agent_logs]
    (found,) = MeshLog(state, LogFilter()).read_last(1)
    assert found["source"] == name
    assert lines(MeshLog(state, LogFilter(agent=name)).read_last(5)) == ["here"]


def test_the_calls_of_a_busy_hub_are_read_once_each(state: State) -> None:
    audit = SqliteAudit(state.database)
    log = MeshLog(state, LogFilter())
    call = {
        "type": "CALL:ENDED",
        "skill": "s",
        "agent": "a",
        "status": "done",
        "trace_id": "t",
        "timestamp": "2026-11-22T06:25:00+00:00",
    }
    audit.append({**call, "id": "1"})
    audit.append({"type": "EXEC:TOOL_CALL", "id": "2", "trace_id": "t"})
    assert [found["id"] for found in log.read_new()] == ["1"]
    audit.append({**call, "id": "2", "agent": "b"})
    assert [found["id"] for found in log.read_new()] == ["2"]
    assert log.read_new() == []
    assert [found["id"] for found in MeshLog(state, LogFilter(agent="b")).read_last(10)] == ["2"]
    assert MeshLog(state, LogFilter(trace="other")).read_last(10) == []
    audit.close()


def test_a_database_that_is_none_is_an_error_with_a_remedy(state: State) -> None:
    state.database.write_text("no database, but longer than the header of one " * 10)
    with pytest.raises(StateError, match="cannot be read"):
        MeshLog(state, LogFilter())
