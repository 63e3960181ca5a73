"""The pages of a workflow in Python, which a running hub hosts from a file."""

from __future__ import annotations

from pathlib import Path

from retinue.storage.state import State
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
