"""``retinue doctor`` and the checks behind it."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from retinue.processes.bounds import BOUNDS
from retinue.runtime.checks.machine import check_programs
from retinue.storage.state import State
from tests.cli.conftest import Retinue

DEAD = "http://127.0.0.1:1"


def _examine(retinue: Retinue) -> dict[str, dict[str, Any]]:
    result = retinue("doctor", "--json")
    reply = orjson.loads(result.stdout)
    failed = [check for check in reply["checks"] if check["status"] == "fail"]
    assert reply["ok"] == (not failed) == (result.exit_code == 0)
    assert all(check["remedy"] for check in failed)
    return {check["check"]: check for check in reply["checks"]}


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_on_a_fresh_machine_nothing_fails_and_nothing_is_made(retinue: Retinue, retinue_home: Path) -> None:
    checks = _examine(retinue)
    assert {check["status"] for check in checks.values()} <= {"ok", "warn"}
    assert {"python", "libraries", "state", "disk", "hub", "registry", "skopeo"} <= set(checks)
    assert f"SQLite {sqlite3.sqlite_version}" in checks["libraries"]["found"]
    assert not retinue_home.exists()


def test_the_table_says_it_to_a_person(retinue: Retinue) -> None:
    shown = retinue("doctor")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0].split() == ["STATUS", "CHECK", "FOUND"]
    assert "no check failed" in shown.stderr


def test_a_remedy_is_below_what_was_found_so_that_a_piped_table_is_narrow(
    retinue: Retinue, retinue_home: Path
) -> None:
    State(retinue_home).local_token()
    (retinue_home / "keys" / "local.token").chmod(0o644)
    lines = retinue("doctor").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:3] == ["fail", "local", "token"])
    assert lines[at + 1].strip() == f"→ chmod 600 {retinue_home / 'keys' / 'local.token'}"
    assert lines[at + 1].split("\t").index(f"→ chmod 600 {retinue_home / 'keys' / 'local.token'}") == 2
    assert all(line == line.rstrip() for line in lines)


def test_a_sound_state_is_verified(retinue: Retinue, plan_card: bytes, retinue_home: Path) -> None:
    sqlite3.connect(State(retinue_home).database).close()
    State(retinue_home).local_token()
    checks = _examine(retinue)
    assert "1 tags, verified" in checks["registry"]["found"]
    assert checks["database"]["status"] == checks["local token"]["status"] == "ok"


def test_a_damaged_registry_is_named(retinue: Retinue, plan_card: bytes, retinue_home: Path) -> None:
    for blob in (retinue_home / "registry" / "agents" / "plan" / "blobs" / "sha256").iterdir():
        blob.write_bytes(b"x")
    check = _examine(retinue)["registry"]
    assert check["status"] == "fail"
    assert "damaged" in check["found"]


def test_a_damaged_database_is_named_with_the_way_out(retinue: Retinue, retinue_home: Path) -> None:
    retinue_home.mkdir()
    (retinue_home / "retinue.db").write_bytes(b"no database" * 500)
    check = _examine(retinue)["database"]
    assert check["status"] == "fail"
    assert "move retinue.db away" in check["remedy"]


def test_a_token_that_others_can_read_is_named(retinue: Retinue, retinue_home: Path) -> None:
    State(retinue_home).local_token()
    path = retinue_home / "keys" / "local.token"
    path.chmod(0o644)
    check = _examine(retinue)["local token"]
    assert (check["status"], check["remedy"]) == ("fail", f"chmod 600 {path}")


def test_a_damaged_token_is_named(retinue: Retinue, retinue_home: Path) -> None:
    State(retinue_home).local_token()
    (retinue_home / "keys" / "local.token").write_text("short")
    assert _examine(retinue)["local token"]["status"] == "fail"


def test_a_mesh_key_that_others_can_read_or_that_is_damaged_is_named(
    retinue: Retinue, retinue_home: Path
) -> None:
    State(retinue_home).mesh_key()
    path = retinue_home / "keys" / "mesh.key"
    assert _examine(retinue)["mesh key"]["status"] == "ok"
    path.chmod(0o644)
    check = _examine(retinue)["mesh key"]
    assert (check["status"], check["remedy"]) == ("fail", f"chmod 600 {path}")
    path.chmod(0o600)
    path.write_text("short")
    check = _examine(retinue)["mesh key"]
    assert check["status"] == "fail"
    assert "remove the file" in check["remedy"]


def test_a_state_folder_that_is_a_file_is_named(retinue: Retinue, retinue_home: Path) -> None:
    retinue_home.write_text("no folder")
    checks = _examine(retinue)
    assert checks["state"]["found"] == f"{retinue_home} is not a folder"
    for name in ("local token", "mesh key", "database", "registry", "hub"):
        assert (checks[name]["status"], checks[name]["found"]) == ("warn", "not checked")


def test_a_file_in_the_way_of_the_state_folder_is_named(
    retinue: Retinue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "file" / "a" / "b"))
    check = _examine(retinue)["state"]
    assert check["status"] == "fail"
    assert check["found"].endswith(f"cannot be created: {tmp_path / 'file'} is not a folder")


def test_a_state_folder_that_cannot_be_made_is_named(
    retinue: Retinue, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    check = _examine(retinue)["state"]
    assert check["status"] == "fail"
    assert check["found"].startswith(f"{retinue_home} cannot be created")


def test_a_damaged_hub_file_is_named(retinue: Retinue, retinue_home: Path) -> None:
    retinue_home.mkdir()
    (retinue_home / "hub.json").write_text("{")
    assert _examine(retinue)["hub"]["status"] == "fail"


def test_a_hub_that_does_not_answer_is_named(retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HUB", DEAD)
    check = _examine(retinue)["hub"]
    assert check["status"] == "fail"
    assert "unset RETINUE_HUB" in check["remedy"]


@pytest.mark.parametrize("url", [DEAD, "ftp://no-registry"])
def test_a_registry_that_does_not_answer_is_named(
    url: str, retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_REGISTRIES", f'["{url}"]')
    assert _examine(retinue)[url]["status"] == "fail"


def test_wrong_settings_are_named_and_do_not_end_the_other_checks(
    retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("retinue.toml").write_text("[hub]\nport = 'many'\n")
    checks = _examine(retinue)
    assert "hub.port" in checks["settings"]["found"]
    assert "registry" in checks


def test_a_wrong_variable_does_not_end_the_other_checks(
    retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HUB__PORT", "many")
    checks = _examine(retinue)
    assert "RETINUE_HUB__PORT" in checks["settings"]["found"]
    assert checks["registry"]["status"] == "ok"


def test_a_taken_port_is_a_warning(retinue: Retinue, monkeypatch: pytest.MonkeyPatch, busy_port: int) -> None:
    monkeypatch.setenv("RETINUE_HUB__PORT", str(busy_port))
    check = _examine(retinue)[f"port {busy_port}"]
    assert (check["status"], "--port" in check["remedy"]) == ("warn", True)


@pytest.mark.parametrize(("free_bytes", "status"), [(2**31, "ok"), (2**30 - 1, "warn"), (1024, "fail")])
def test_little_space_is_said_in_time(
    free_bytes: int, status: str, retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=free_bytes, used=0, free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert _examine(retinue)["disk"]["status"] == status


@pytest.mark.parametrize(
    ("bounds", "allowed", "found"),
    [
        (BOUNDS, "", "limit"),
        ((), "", "review_code is refused" if os.getuid() == 0 else "nothing limits their processes on this"),
        ((), "1", "nothing limits their processes, and RETINUE_UNBOUNDED_PROGRAMS allows that"),
    ],
    ids=["bound", "unbound", "allowed"],
)
async def test_what_limits_programs_is_named(
    monkeypatch: pytest.MonkeyPatch, bounds: tuple[str, ...], allowed: str, found: str
) -> None:
    monkeypatch.setenv("RETINUE_UNBOUNDED_PROGRAMS", allowed)
    check = await check_programs(bounds)
    assert check.status == ("ok" if bounds else "warn")
    assert found in check.found
    assert bool(check.remedy) == (not bounds)


def test_a_part_that_is_switched_off_and_not_installed_is_named(
    retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_PARTS__OFF", '["koy", "koi"]')
    checks = _examine(retinue)
    assert (checks["part koy"]["status"], checks["part koy"]["remedy"]) == ("warn", "correct parts.off")
    assert "part koi" not in checks


def test_missing_programs_that_start_imports_are_named(
    retinue: Retinue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {check["check"]: check for check in orjson.loads(retinue("doctor", "--json").stdout)["checks"]}
    assert checks["uvx"]["found"] == "not installed; imported servers that start with uvx need it"
    assert checks["npx"]["remedy"] == "install Node.js"
