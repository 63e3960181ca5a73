"""The pages of a workflow in Python, which a running hub hosts from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.core.call import Principal
from retinue.dashboard.attention import find_attention
from retinue.storage.state import State
from retinue.testing.memory_runs import MemoryRuns
from tests.dashboard.site import Site
from tests.system import open_system, open_wire

FLOWS = '''
from retinue import Run, workflow

@workflow(name="in-python")
async def greets(run: Run, who: str) -> str:
    """Greets by an agent."""
    return await run.call("greet", who=who)
'''


async def test_a_workflow_in_python_has_a_page_with_its_form_and_its_file_instead_of_steps(
    tmp_path: Path, retinue_home: Path
) -> None:
    file = tmp_path / "flows_with_a_page.py"
    file.write_text(FLOWS)
    async with (
        open_system(State(retinue_home), workflows={"modules": [str(file)]}) as system,
        open_wire() as wire,
    ):
        site = Site(system, await system.start_hub(dashboard=True), wire, [])
        listing = (await site.read("/ui/workflows", system.token)).body.decode()
        assert "in-python" in listing
        page = (await site.read("/ui/workflows/in-python", system.token)).body.decode()
    assert "A workflow in Python: greets of flows_with_a_page.py." in page
    assert "Greets by an agent." in page
    assert "who" in page.partition("Run it")[2].partition("<details>")[0]
    assert "Change a copy" not in page


WAITS = '''
from retinue import Run, workflow

@workflow
async def waits(run: Run) -> bool:
    """Waits for an answer."""
    return await run.elicit("Go on?", bool)
'''


async def test_a_run_whose_code_no_worker_has_is_shown_with_the_remedy(
    tmp_path: Path, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "flows_of_a_worker.py"
    file.write_text(WAITS)
    async with (
        open_system(State(retinue_home), workflows={"modules": [str(file)]}) as system,
        open_wire() as wire,
    ):
        hub = await system.start_hub(dashboard=True)
        site = Site(system, hub, wire, [])

        async def ask(skill: str, **arguments: Any) -> Any:
            return (await wire.call(hub.url, skill, arguments, authorization=system.token)).result

        await ask("start_run", workflow="waits", input={}, run="mine")
        (row,) = (await ask("list_runs"))["runs"]
        assert "missing_code" not in row

        async def list_none(runs: MemoryRuns) -> tuple[()]:
            return ()

        monkeypatch.setattr(MemoryRuns, "list_hosted", list_none)
        (row,) = (await ask("list_runs"))["runs"]
        assert row["missing_code"].startswith("flows_of_a_worker.py:waits (sha256:")
        remedy = "start one with the file: retinue worker flows_of_a_worker.py"
        assert row["missing_code"].endswith(f"no running worker has this code; {remedy}")
        page = (await site.read("/ui/runs/mine", system.token)).body.decode()
        assert "Waits for its code, flows_of_a_worker.py:waits" in page
        assert remedy in page


async def test_a_run_whose_code_no_worker_has_needs_a_person() -> None:
    class Hub:
        async def read(self, principal: Principal, skill: str, arguments: Any = None) -> Any:
            return {"steps": [], "approvals": [], "imports": [], "missing": []}

    row = {"run": "mine", "workflow": "waits", "missing_code": "flows.py:waits (sha256:1…)"}
    hub: Any = Hub()
    member = Principal("ada", "token", frozenset({"mesh"}))
    attention = await find_attention(hub, member, {"agents": [], "sources": {}}, [row, {"run": "other"}])
    assert attention.without_code == [row]
    assert attention
