"""The limits of a server leave files and memory to the calls that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.runtime.machine.limits import (
    count_free_memory,
    count_open_files,
    count_processors,
    fit_to_memory,
    fit_to_open_files,
)
from retinue.web.connection_gate import HttpLimits

MIB = 1024 * 1024


@pytest.mark.parametrize(("free", "connections"), [(41, 20), (1, 1), (-3, 1), (1_000_000, 4096)])
def test_half_of_the_files_that_may_still_be_opened_are_for_clients(free: int, connections: int) -> None:
    assert fit_to_open_files(HttpLimits(), free).connections == connections


def test_the_open_files_of_this_process_are_counted() -> None:
    assert count_open_files() >= 3


@pytest.mark.parametrize(
    ("free_bytes", "held_bytes"),
    [(None, 256 * MIB), (4096 * MIB, 256 * MIB), (400 * MIB, 100 * MIB), (-1, 0)],
)
def test_a_quarter_of_the_memory_that_may_still_be_taken_holds_bodies(
    free_bytes: int | None, held_bytes: int
) -> None:
    assert fit_to_memory(HttpLimits(), free_bytes).held_bytes == held_bytes


def test_the_processes_of_a_hub_share_the_memory_that_holds_bodies() -> None:
    assert fit_to_memory(HttpLimits(), 400 * MIB, 4).held_bytes == 25 * MIB
    assert fit_to_memory(HttpLimits(), None, 4).held_bytes == HttpLimits().held_bytes


@pytest.mark.parametrize(
    ("limits", "processors"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"a/b/cpu.max": "250000 100000"}, 2),
        ({"a/cpu.max": "100000 50000", "a/b/cpu.max": "max 100000"}, 2),
        ({"a/b/cpu.max": "50000 100000"}, 1),
        ({"a/b/cpu.max": "6400000 100000"}, 8),
        ({"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu,cpuacct/x/cpu.cfs_quota_us": "-1", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_hub_has_no_more_processes_than_the_quota_of_its_container_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], processors: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8), raising=False)
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    assert count_processors(tmp_path, "4:cpu,cpuacct:/x\n1:pids:/x\n0::/a/b\n") == processors


@pytest.mark.parametrize(
    ("limits", "free_bytes"),
    [
        ({"": "max"}, None),
        ({"a/b": "1000"}, 900),
        ({"a": "500", "a/b": "max"}, 400),
        ({"a": "500", "a/b": "300"}, 200),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], free_bytes: int | None
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (-1, -1))
    (tmp_path / "a" / "b").mkdir(parents=True)
    for group, limit in limits.items():
        (tmp_path / group / "memory.max").write_text(f"{limit}\n")
        (tmp_path / group / "memory.current").write_text("100\n")
    assert count_free_memory(tmp_path, "1:pids:/x\n0::/a/b\n") == free_bytes
