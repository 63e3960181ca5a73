"""SIGKILL before and after every durable call and in the middle of every effect, for every kind of step.

Each run is killed at one point of its own; one later process takes all of them up and ends them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Start
from tests.crash.node import FURTHER, GIVEN, Plan
from tests.crash.processes import check_log, read_log
from tests.workflows.test_resuming import SHAPES

LEASE_S = 4.0
"""Long enough that none of those that are killed lives to take up the run of another."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_killed_at_any_point_ends_as_an_undisturbed_one(
    shape: str, database: str, start: Start, tmp_path: Path
) -> None:
    definition = "name: w\nsteps:\n" + SHAPES[shape]

    def plan(name: str, **more: object) -> Plan:
        return Plan(
            database=database,
            nodes=str(tmp_path / f"nodes-{name}"),
            log=str(tmp_path / f"{name}.log"),
            **{"start": {name: definition}, "lease_s": LEASE_S} | more,  # type: ignore[arg-type]
        )

    undisturbed = start(plan("undisturbed")).get_report()
    assert undisturbed.passed > 10
    begun = [key for what, key, _ in read_log(tmp_path / "undisturbed.log") if what == "begin"]
    assert undisturbed.calls["undisturbed"] == len(begun) * (1 + FURTHER)
    killed = [f"killed-{point}" for point in range(1, undisturbed.passed + 1)]
    for point, name in enumerate(killed, 1):
        start(plan(name, die_at=point)).await_death()
    log = tmp_path / "last.log"
    last = start(plan("last", start={}, wait_for=killed)).get_report()
    wanted = undisturbed.values["undisturbed"]
    steps = sorted(undisturbed.finished_steps["undisturbed"])
    for name in killed:
        assert last.values[name] == wanted, name
        assert sorted(last.finished_steps[name]) == steps, name
        own = [entry for entry in read_log(log) if entry[1].startswith(f"{name}/")]
        log_of_both = read_log(tmp_path / f"{name}.log") + own
        check_log(log_of_both, kills=1)
        used, begun = last.calls[name], [key for what, key, _ in log_of_both if what == "begin"]
        assert used is not None, name
        assert len(begun) * (1 + FURTHER) <= used <= GIVEN, name
