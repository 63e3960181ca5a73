"""Other users of the machine read nothing of a state, whatever writes into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.commands import retinue
from tests.processes.fuzzing import attacked_processes
from tests.processes.running import execute, program, write_agent
from tests.processes.test_mesh_key_stays import list_answers

STEPS = {"name": "w", "steps": [{"id": "a", "skill": "who"}]}


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def list_readable(home: Path) -> list[str]:
    found = [home, *home.rglob("*")]
    return [str(path.relative_to(home)) for path in found if path.lstat().st_mode & 0o077]


def test_what_hub_agents_runs_and_commands_write_is_private(tmp_path: Path, retinue_home: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    token = State(retinue_home).local_token()
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
    ):
        served.wait_for("published")
        run = {"workflow": STEPS, "input": {}}
        reply = execute(hub.url_in("hub at"), "orchestrate_workflow", run, token=token)
        assert "result" in reply, reply
        retinue("token", "new", "--scope", "mesh", cwd=tmp_path)
        assert {"retinue.db-wal", "runs.db-wal", "registry", "nodes"} <= {
            p.name for p in retinue_home.iterdir()
        }
        assert list_readable(retinue_home) == []


@pytest.mark.timeout(600)
def test_what_requests_to_every_endpoint_leave_is_private(tmp_path: Path, retinue_home: Path) -> None:
    """Tasks, uploads, sessions, journals, caches and whatever else only some endpoint writes."""
    with attacked_processes(tmp_path, retinue_home) as processes:
        for one in processes.values():
            assert sum(answer.startswith(b"HTTP/1.1 200") for _, answer in list_answers(one)) > 20
        assert {"tasks", "koi"} <= {path.name for path in retinue_home.iterdir()}
        assert list_readable(retinue_home) == []


def test_a_state_of_an_earlier_version_is_named_by_doctor_and_repaired_by_the_next_hub(
    tmp_path: Path, retinue_home: Path
) -> None:
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP clients")
    for path in (retinue_home, *retinue_home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("local.token", "mesh.key"):
        (retinue_home / "keys" / name).chmod(0o600)
    checks = {one["check"]: one for one in orjson.loads(retinue("doctor", "--json", cwd=tmp_path))["checks"]}
    assert checks["state"]["status"] == "warn"
    assert "accessible to other users (755)" in checks["state"]["found"]
    assert "chmod -R go=" in checks["state"]["remedy"]
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP clients")
        assert "from the other users of this machine" in hub.output
        assert list_readable(retinue_home) == []
