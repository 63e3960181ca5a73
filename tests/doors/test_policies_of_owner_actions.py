"""Policies over what is done to a mesh: which imports it connects to, and which workflows a caller starts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import orjson

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.doors.test_policies import STEPS, open_bank, write_policies
from tests.mcp.upstream.library_server import Library, serve_library
from tests.system import WAIT_S, System, Wire

START = '@id("stored") @reason("stored ones only") forbid(principal, action == Retinue::Action::"start", '
IMPORT = '@id("no-lib") @reason("closed") forbid(principal, action == Retinue::Action::"import", '


async def test_a_workflow_that_policies_forbid_is_started_on_no_way(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, "// none yet", durable=True)
    done = await wire.call(bank.hub.url, "start_run", {"workflow": STEPS, "input": {}, "run": "first"})
    assert done.result["run"] == "first"
    write_policies(system, START + 'resource) when { resource.inline || resource.name == "w" };')
    bank.hub.process.get(LoadedPolicies).reload()
    asked = {"workflow": STEPS, "input": {}}
    ways = {
        "start_run": asked,
        "orchestrate_workflow": asked,
        "rerun_run": {"run": "first", "from_step": "a"},
    }
    for skill, arguments in ways.items():
        refused = await wire.call(bank.hub.url, skill, arguments)
        assert b"stored ones only (stored)" in refused.body, (skill, refused.body)


async def test_a_forbidden_workflow_is_not_started_as_a_step_of_another(system: System, wire: Wire) -> None:
    payout = orjson.dumps({**STEPS, "name": "payout"})
    await publish_workflow(LayoutRegistry(system.state.registry), "payout", payout, created=datetime.now(UTC))
    bank = await open_bank(system, wire, "// none yet", durable=True)
    steps = {"name": "v", "steps": [{"id": "n", "workflow": "payout", "with": {}}]}
    done = await wire.call(
        bank.hub.url, "orchestrate_workflow", {"workflow": steps, "input": {}, "run": "first"}
    )
    assert bank.refunds == [900], done.body
    write_policies(system, START + 'resource == Retinue::Workflow::"payout");')
    bank.hub.process.get(LoadedPolicies).reload()
    outer = {"name": "u", "steps": [{"id": "m", "workflow": "v", "with": {}}]}
    await publish_workflow(
        LayoutRegistry(system.state.registry), "v", orjson.dumps(steps), created=datetime.now(UTC)
    )
    ways: list[tuple[str, dict[str, object]]] = [
        ("start_run", {"workflow": "payout", "input": {}}),
        ("start_run", {"workflow": steps, "input": {}}),
        ("orchestrate_workflow", {"workflow": steps, "input": {}}),
        ("orchestrate_workflow", {"workflow": outer, "input": {}}),
        ("rerun_run", {"run": "first", "from_step": "n"}),
    ]
    for skill, arguments in ways:
        refused = await wire.call(bank.hub.url, skill, arguments)
        assert b"start of payout is denied: stored ones only (stored)" in refused.body, (skill, refused.body)
    assert bank.refunds == [900]


async def test_an_import_that_policies_forbid_is_disconnected_and_connected_again(
    system: System, wire: Wire
) -> None:
    write_policies(system, IMPORT + 'resource) when { resource.place like "http://*" };')
    url = await system.stack.enter_async_context(serve_library(Library(), "sessionless"))
    imports = ImportsTable.model_validate({"lib": ImportTable(url=url)})
    system.settings = Settings.model_validate({"imports": imports})
    hub = await system.start_hub()

    async def wait_until(*, connected: bool) -> str:
        async with asyncio.timeout(WAIT_S):
            while True:
                for row in (await wire.call(hub.url, "list_imports", {})).result["imports"]:
                    if row["connected"] == connected and "starting" not in row.get("reason", ""):
                        return str(row.get("reason", ""))
                await asyncio.sleep(0.02)

    assert await wait_until(connected=False) == "import of lib is denied: closed (no-lib)"
    write_policies(system, "// none")
    hub.process.get(LoadedPolicies).reload()
    await wait_until(connected=True)
    write_policies(system, IMPORT + 'resource == Retinue::Import::"lib");')
    hub.process.get(LoadedPolicies).reload()
    assert "no-lib" in await wait_until(connected=False)
