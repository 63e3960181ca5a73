"""The units of systemd: valid, confined, and their commands started here as processes."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.services import DEPLOY, Service, check_options, list_unknown_variables
from tests.ports import reserve_port
from tests.processes.running import program, wait_until

UNITS = ("retinue-hub.service", "retinue-worker@1.service")
PROGRAM = "/opt/retinue/bin/retinue"
MOST_EXPOSED = 20
"""In tenths, as systemd counts: 0 is closed, 100 open; "OK" begins at 50."""

PR_SET_MDWE, PR_GET_MDWE, REFUSE_EXEC_GAIN = 65, 66, 1
WAITING = """
name: waiting
steps:
  - {id: go, wait_for: {topic: go}}
output: {told: "${{ steps.go.output }}"}
"""


def read_unit(name: str) -> str:
    """The text of a unit, with its instance filled in."""
    file, at, instance = name.removesuffix(".service").partition("@")
    text = (DEPLOY / "systemd" / f"{file}{at}.service").read_text("utf-8")
    return text.replace("%i", instance)


def list_values(name: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", read_unit(name), re.MULTILINE)


def make_service(name: str) -> Service:
    (command,) = list_values(name, "ExecStart")
    given = [word for line in list_values(name, "Environment") for word in shlex.split(line)]
    program, *arguments = shlex.split(command.replace("$WORKER_OPTIONS", ""))
    assert program == PROGRAM
    # both units have one state folder
    return Service("state", tuple(arguments), dict(word.split("=", 1) for word in given))


def copy_units(folder: Path, change: tuple[str, str] = ("", "")) -> list[str]:
    """The units in a folder, with a program that is there; their names."""
    for name in UNITS:
        text = read_unit(name).replace(PROGRAM, sys.executable)
        (folder / name).write_text(text.replace(*change) if change[0] else text, "utf-8")
    return [str(folder / name) for name in UNITS]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT CHECKED: systemd-analyze is not installed here, which comes with Debian's systemd")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_programs_of_npm_and_uv_have_a_home_below_the_state(tmp_path: Path) -> None:
    image = (DEPLOY / "container" / "Containerfile").read_text("utf-8")
    image_home, image_state = re.search(r" HOME=(\S+)", image), re.search(r"RETINUE_HOME=(\S+)", image)
    assert image_home is not None
    assert image_state is not None
    places = [(image_home[1], image_state[1])]
    for name in UNITS:
        environment = make_service(name).environment
        places.append((environment["HOME"], environment["RETINUE_HOME"]))
    assert [Path(home).relative_to(state).name for home, state in places] == ["home"] * 3


def test_systemd_finds_nothing_to_complain_of_and_would_find_a_misspelt_key(tmp_path: Path) -> None:
    done = analyze("verify", *copy_units(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    # such a key changes the output and not the status
    broken = analyze("verify", *copy_units(tmp_path, ("ProtectSystem=", "ProtectSytem=")))
    assert "ProtectSytem" in broken.stderr


def test_systemd_counts_the_units_as_little_exposed(tmp_path: Path) -> None:
    score = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager")
    for unit in copy_units(tmp_path):
        assert (done := analyze(*score, unit)).returncode == 0, done.stdout
    assert analyze(*score, copy_units(tmp_path, ("ProtectSystem=strict", ""))[0]).returncode == 0
    opened = copy_units(tmp_path, ("CapabilityBoundingSet=", "CapabilityBoundingSet=~CAP_SYSLOG"))[0]
    assert analyze(*score, opened).returncode != 0, "it would have found an open one"


@pytest.mark.parametrize("name", UNITS)
def test_every_option_and_variable_of_a_unit_exists(name: str) -> None:
    service = make_service(name)
    check_options(service.arguments)
    assert list_unknown_variables(service.environment) == []


def list_allowed(name: str) -> set[str]:
    """The system calls of a set, with those of the sets within."""
    found: set[str] = set()
    for word in re.findall(
        r"^ +([@\w]+)$", analyze("syscall-filter", "--no-pager", name).stdout, re.MULTILINE
    ):
        found |= list_allowed(word) if word.startswith("@") else {word}
    return found


@pytest.mark.parametrize("name", UNITS)
def test_programs_under_limits_can_be_started_from_a_unit(name: str) -> None:
    assert list_values(name, "SystemCallFilter") == ["@system-service"]
    needed = {"clone3", "execve", "kill", "prctl", "prlimit64", "setpriority", "setrlimit", "setsid", "wait4"}
    assert needed <= list_allowed("@system-service")


@contextmanager
def started_without_writable_code(service: Service, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process; the kernel refuses it memory that becomes executable, as the unit asks systemd to."""
    confine = (
        "import ctypes, os, sys\n"
        f"assert ctypes.CDLL(None).prctl({PR_SET_MDWE}, {REFUSE_EXEC_GAIN}, 0, 0, 0) == 0\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'retinue', *sys.argv[1:]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", confine, *service.arguments],
        cwd=folder,
        env={**os.environ, **service.given(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.timeout(600)
def test_a_worker_takes_over_from_the_hub_of_its_machine_and_needs_no_writable_code(
    tmp_path: Path,
) -> None:
    if ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel is older than 6.3 and cannot refuse executable memory to a process")
    assert list_values(UNITS[1], "MemoryDenyWriteExecute") == ["yes"]
    (tmp_path / "waiting.yaml").write_text(WAITING)
    port, probes = str(reserve_port()), str(reserve_port())
    hub, worker = map(make_service, UNITS)
    hub = replace(
        hub, environment={**hub.environment, "RETINUE_HUB__PORT": port, "RETINUE_RUNS__LEASE_S": "2"}
    )
    assert "9101" in worker.arguments
    words = tuple(probes if word == "9101" else word for word in worker.arguments)
    environment = {**worker.environment, "RETINUE_RUNS__LEASE_S": "2"}
    worker = Service(worker.name, words, environment, f"http://127.0.0.1:{probes}/ready")
    with hub.started(tmp_path) as started:
        started.wait_for("exposed to MCP clients")
        with started_without_writable_code(worker, tmp_path) as confined:
            wait_until(worker.is_ready, "the worker is ready", limit_s=180)
            with program(
                "run", "waiting.yaml", "{}", "--id", "first", cwd=tmp_path, environment=hub.given(tmp_path)
            ):
                wait_until(lambda: "first" in hub.type(tmp_path, "runs"), "the run is there")
                started.send(signal.SIGKILL)
                started.wait()
            hub.type(tmp_path, "signal", "first", "go", '"on"')
            wait_until(
                lambda: "done" in hub.type(tmp_path, "runs", "first"), "the worker ends it", limit_s=180
            )
            confined.send_signal(signal.SIGTERM)
            assert confined.wait(60) == 0
