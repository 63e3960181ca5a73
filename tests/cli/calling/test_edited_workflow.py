"""A workflow file that was edited while its run was stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from retinue.storage.state import State
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.durable.runs import DurableOptions, DurableRuns
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from tests.cli.conftest import Retinue

WAITS = {"name": "w", "steps": [{"id": "go", "wait_for": {"topic": "go"}}], "output": "${{ 'as started' }}"}


async def start_and_stop(home: Path) -> None:
    """A run that waits, and whose process has ended."""
    runs = DurableRuns(
        Interpreter(MemoryCaller()).run,
        url=f"sqlite:///{home}/runs.db",
        nodes=home / "nodes",
        options=DurableOptions(),
    )
    await Orchestrator(runs).start(load_definition(WAITS), {}, run_id="r")
    await runs.aclose()


def test_a_run_keeps_its_own_definition_and_the_edited_one_is_another_run(
    retinue: Retinue, retinue_home: Path
) -> None:
    State(retinue_home).prepare()
    asyncio.run(start_and_stop(retinue_home))
    Path("w.yaml").write_bytes(orjson.dumps({**WAITS, "output": "${{ 'as edited' }}"}))
    refused = retinue("run", "w.yaml", "--id", "r")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "Run r exists with another workflow or input" in refused.stderr
    assert retinue("signal", "r", "go", "1").exit_code == 0
    resumed = retinue("resume", "r")
    assert (resumed.exit_code, resumed.stdout) == (0, '"as started"\n')
    again = retinue("resume", "r")
    assert (again.exit_code, again.stdout) == (0, '"as started"\n')
    unknown = retinue("rerun", "r", "--from", "nope")
    assert unknown.exit_code != 0
    assert "go" in unknown.stderr
