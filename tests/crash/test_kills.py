"""SIGKILL before and after every durable call and in the middle of every effect, for every kind of step.

Each run is killed at one point of its own; one later process takes all of them up and ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.crash.code_flows import CODE_SHAPES, OWN, CodeShape
from tests.crash.conftest import Start
from tests.crash.databases import forget_nodes
from tests.crash.node import FURTHER, GIVEN, Plan
from tests.crash.processes import Node, check_log, read_log
from tests.crash.test_nodes import looking_at
from tests.workflows.shapes import LONG_SHAPES, SHAPES, Shape

LEASE_S = 120.0
"""Long enough that none of those that are killed lives to take up the run of another."""

HEIR_LEASE_S = 1.5
"""Whoever takes them up looks for runs of the dead after two thirds of it."""

ENDS_WITHIN_S = 600.0
"""How long the heir may take: it takes up some ninety runs at once, on a machine that may be loaded."""

AT_ONCE = 2


ALL_SHAPES: dict[str, Shape | CodeShape] = {**SHAPES, **LONG_SHAPES, **CODE_SHAPES}


def list_calls(entries: list[tuple[str, str, int]]) -> list[str]:
    """The keys of the calls that began; effects of own functions are none."""
    begun = [key for what, key, _ in entries if what == "begin"]
    return [key for key in begun if not key.rpartition("/")[2].startswith(OWN)]


async def list_recorded(database: str, folder: Path, names: Iterable[str]) -> set[str]:
    """The keys of all effects whose outcomes the database has."""
    async with looking_at(database, folder) as runs:
        steps = [step for name in names for step in await runs.list_steps(name)]
    return {f"{step.run_id.partition('/')[0]}/{step.step}" for step in steps}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "shape",
    [*SHAPES, *CODE_SHAPES, *(pytest.param(name, marks=pytest.mark.crash) for name in LONG_SHAPES)],
)
def test_a_run_killed_at_any_point_ends_as_an_undisturbed_one(
    shape: str, database: str, start: Start, tmp_path: Path
) -> None:
    form = ALL_SHAPES[shape]

    def plan(name: str, **more: object) -> Plan:
        return Plan(
            database=database,
            nodes=str(tmp_path / f"nodes-{name}"),
            log=str(tmp_path / f"{name}.log"),
            **{"start": {name: form}, "lease_s": LEASE_S} | more,  # type: ignore[arg-type]
        )

    undisturbed = start(plan("undisturbed")).get_report()
    assert undisturbed.passed > 10
    begun = list_calls(read_log(tmp_path / "undisturbed.log"))
    spent = len(begun) * (1 + FURTHER)
    used = undisturbed.calls["undisturbed"]
    assert used == spent or (form.cuts_off and used is not None and spent < used <= GIVEN)
    killed = {f"killed-{point}": point for point in range(1, undisturbed.passed + 1)}
    dying: list[Node] = []
    for name, point in killed.items():
        # One thread for all: a Process that two of them look at loses its exit code.
        if len(dying) == AT_ONCE:
            dying.pop(0).await_death()
        dying.append(start(plan(name, die_at=point)))
    for node in dying:
        node.await_death()
    forget_nodes(database)
    recorded = asyncio.run(list_recorded(database, tmp_path, killed))
    log = tmp_path / "last.log"
    heir = plan("last", start={}, wait_for=dict.fromkeys(killed, form), lease_s=HEIR_LEASE_S)
    last = start(heir).get_report(ENDS_WITHIN_S)
    again = {key for what, key, _ in read_log(log) if what == "begin"}
    assert not again & recorded, "a recorded step ran again"
    wanted = undisturbed.values["undisturbed"]
    steps = sorted(undisturbed.finished_steps["undisturbed"])
    for name in killed:
        assert last.values[name] == wanted, name
        assert sorted(last.finished_steps[name]) == steps, name
        own = [entry for entry in read_log(log) if entry[1].startswith(f"{name}/")]
        log_of_both = read_log(tmp_path / f"{name}.log") + own
        check_log(log_of_both, kills=1)
        used, begun = last.calls[name], list_calls(log_of_both)
        assert used is not None, name
        assert len(begun) * (1 + FURTHER) <= used <= GIVEN, name
