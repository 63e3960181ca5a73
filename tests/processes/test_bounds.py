"""Nothing that a limited program starts fills the process table, whoever runs it.

No program of this file forks without an end: each fork needs one of 64 tickets, and all run in a control
group whose limit of tasks is read back first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.processes import bounds

TICKETS = 64
MOST_TASKS = 200
"""Of the control group around all that a test starts."""

FORKING = f"""
import os, time

def take_ticket():
    for number in range({TICKETS}):
        try:
            os.close(os.open(f"ticket-{{number}}", os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            continue
    return False

while take_ticket():
    try:
        if os.fork() == 0:
            os.close(os.open(f"started-{{os.getpid()}}", os.O_CREAT))
    except BlockingIOError:
        os.close(os.open("refused", os.O_CREAT))
time.sleep(600)
"""

STARTER = """
import asyncio, json, os, sys
from pathlib import Path
from retinue.processes.limited import ProgramLimits, run_command
from retinue.core.errors import ExecutionFailedError

request = json.loads(sys.argv[1])
if request["group"]:
    Path(request["group"], "cgroup.procs").write_text("0")
own = Path("/proc/self/cgroup").read_text()
assert request["name"] in own, own
assert int(Path(request["limit"]).read_text()) == request["most"]
limits = ProgramLimits(wall_s=60, **request["limits"])
command = [sys.executable, "-I", *request["command"]]
try:
    result = asyncio.run(run_command(command, folder=Path.cwd(), limits=limits, bounds=request["bounds"]))
except ExecutionFailedError as error:
    print(json.dumps({"refused": error.message, "remedy": error.remedy}))
else:
    sys.stderr.write(result.stderr.decode())
    print(json.dumps({"bound": result.bound, "limit": result.limit, "stdout": result.stdout.decode()}))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of at most ``MOST_TASKS`` tasks; without one the test is skipped, with a warning."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = parent / f"retinue-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(MOST_TASKS))
            yield group
            return
        except FileNotFoundError:
            continue
        finally:
            group.rmdir()
    reason = "NOT TESTED: fork bombs, because this user can make no control group that limits tasks"
    warnings.warn(reason, stacklevel=1)
    pytest.skip(reason)


def run_inside(group: Path, folder: Path, command: list[str], **request: Any) -> dict[str, Any]:
    """Run a command under limits, within the group."""
    request |= {"command": command, "group": str(group)}
    starter = [sys.executable, "-c", STARTER, json.dumps(request | describe(group))]
    done = subprocess.run(starter, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def describe(group: Path) -> dict[str, Any]:
    return {"name": group.name, "limit": str(group / "pids.max"), "most": MOST_TASKS}


def list_started(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("started-*")]


def assert_held(folder: Path, result: dict[str, Any], most: int) -> None:
    """The bomb was ended by its limit, never had more than ``most`` tasks, and nothing of it is left."""
    assert result["limit"] == "processes"
    started = list_started(folder)
    assert len(started) < most
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("bound", ["group", "uid"])
def test_a_fork_bomb_of_root_is_held(group: Path, tmp_path: Path, bound: str) -> None:
    limits = {"processes": 8, "tasks": 16, "must_bind": True}
    result = run_inside(group, tmp_path, ["-c", FORKING], limits=limits, bounds=[bound])
    assert result["bound"] == bound
    assert_held(tmp_path, result, most=16)


def test_a_fork_bomb_of_a_user_is_held(group: Path, tmp_path: Path) -> None:
    """A program with a user id of its own stands for the user, because this test runs as root."""
    inner = {"limits": {"processes": 8, "tasks": 16}, "bounds": ["user"], "command": ["-c", FORKING]}
    inner |= {"group": "", **describe(group)}
    command = ["-c", STARTER, json.dumps(inner)]
    limits = {"processes": 100, "tasks": 100, "must_bind": True}
    outer = run_inside(group, tmp_path, command, limits=limits, bounds=["uid"])
    assert outer["bound"] == "uid"
    result = json.loads(outer["stdout"])
    assert result["bound"] == "user"
    assert_held(tmp_path, result, most=TICKETS + 1)


def test_the_kernel_refuses_tasks_beyond_the_bound_while_no_limit_is_reached(
    group: Path, tmp_path: Path
) -> None:
    code = FORKING.replace("time.sleep(600)", "").replace(
        "os.fork() == 0:", "os.fork() == 0:\n            time.sleep(0.5)"
    )
    limits = {"processes": 100, "tasks": 8, "must_bind": True}
    for bound in ("group", "uid"):
        folder = tmp_path / bound
        folder.mkdir()
        result = run_inside(group, folder, ["-c", code], limits=limits, bounds=[bound])
        assert (result["bound"], result["limit"]) == (bound, None)
        assert (folder / "refused").exists()


def test_root_without_a_bound_is_refused_where_one_is_needed(group: Path, tmp_path: Path) -> None:
    for names in ([], ["user"]):
        arguments = {"limits": {"must_bind": True}, "bounds": names}
        refused = run_inside(group, tmp_path, ["-c", "open('ran', 'w')"], **arguments)
        assert refused["refused"].startswith(
            "as root, nothing on this machine limits the number of processes"
        )
        assert "RETINUE_UNBOUNDED_PROGRAMS=1" in refused["remedy"]
    assert not (tmp_path / "ran").exists()
    arguments = {"limits": {}, "bounds": []}
    assert run_inside(group, tmp_path, ["-c", "open('ran', 'w')"], **arguments)["bound"] == ""
    assert (tmp_path / "ran").exists()


def test_the_owner_may_allow_programs_of_root_without_a_bound(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_UNBOUNDED_PROGRAMS", "1")
    allowed = run_inside(group, tmp_path, ["-c", "print(1)"], limits={"must_bind": True}, bounds=[])
    assert (allowed["bound"], allowed["stdout"]) == ("", "1\n")


def test_a_program_under_a_user_id_of_its_own_reads_and_writes_as_root_and_gets_no_other_right(
    group: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    code = (
        "import os; open('secret', 'a').write('y'); print(open('secret').read(), os.getuid() != 0)\n"
        "try:\n  os.setuid(0)\nexcept PermissionError:\n  print('stays')"
    )
    result = run_inside(group, tmp_path, ["-c", code], limits={"must_bind": True}, bounds=["uid"])
    assert result["stdout"].split() == ["xy", "True", "stays"]


def test_no_group_is_left(group: Path, tmp_path: Path) -> None:
    result = run_inside(
        group, tmp_path, ["-c", "print(open('/proc/self/cgroup').read())"], limits={}, bounds=["group"]
    )
    assert f"{group.name}/retinue-" in result["stdout"]
    assert [path for path in group.iterdir() if path.is_dir()] == []


def test_a_group_that_a_killed_keeper_left_is_removed(tmp_path: Path) -> None:
    own, parent = "8:pids:/\n", tmp_path / "pids"
    for name in ("retinue-4194399", f"retinue-{os.getpid()}", "retinue-x", "other-4194399"):
        (parent / name).mkdir(parents=True)
    bounds.make_group(4194398, 8, root=str(tmp_path), own=own)
    assert sorted(path.name for path in parent.iterdir()) == [
        "other-4194399",
        f"retinue-{os.getpid()}",
        "retinue-x",
    ]


def make_tree(root: Path, groups: dict[str, str]) -> str:
    """A tree like that of control groups, version 2: each folder with the controllers of its subtree."""
    (root / "cgroup.controllers").write_text("cpu pids\n")
    for path, controllers in groups.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "cgroup.subtree_control").write_text(controllers)
    return str(root)


def test_groups_are_made_in_the_root_of_version_2(tmp_path: Path) -> None:
    root = make_tree(tmp_path, {"": "cpu pids"})
    assert bounds.list_parents(root, "0::/\n") == [root]


def test_groups_are_made_beside_this_process_only_where_that_was_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_tree(tmp_path, {"": "pids", "a.service": "", "a.service/main": ""})
    own = "0::/a.service/main\n"
    assert bounds.list_parents(root, own) == []
    delegated = f"{root}/a.service"

    def getxattr(path: str, name: str) -> bytes:
        if (path, name) != (delegated, "user.delegate"):
            raise OSError
        return b"1"

    monkeypatch.setattr(os, "getxattr", getxattr)
    assert bounds.list_parents(root, own) == [delegated]
    assert Path(delegated, "cgroup.subtree_control").read_text() == "+pids"


def test_groups_of_version_1_are_made_below_this_process(tmp_path: Path) -> None:
    own = "9:name=systemd:/\n8:pids:/jobs/7\n0::/\n"
    assert bounds.list_parents(str(tmp_path), own) == [f"{tmp_path}/pids/jobs/7"]
    assert bounds.make_group(1, 8, root=str(tmp_path), own=own) is None


@pytest.mark.parametrize(
    ("uid_map", "uid"),
    [
        ("         0          0 4294967295\n", 524287 - 5),
        ("0 100000 65536\n", 65533 - 5),
        ("0 1000 1\n1 100000 65536\n", 65534 - 5),
        ("0 1000 1\n", None),
        ("", None),
    ],
    ids=["machine", "container", "rootless", "one", "unknown"],
)
def test_the_user_id_is_one_that_nobody_has(uid_map: str, uid: int | None) -> None:
    assert bounds.choose_uid(uid_map, 4096 + 5) == uid
