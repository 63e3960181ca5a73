"""Policies over what is done to a mesh: which imports it connects to, and which workflows a caller starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from retinue.core.errors import InvalidSettingError, StateError
from retinue.mesh.directory.sources import MemberId
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.runtime.imports import connections, files
from retinue.runtime.imports.files import write_import
from retinue.runtime.parts import policies
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.storage.state import State
from tests.doors.test_policies import STEPS, open_bank, write_policies
from tests.mcp.upstream.library_server import Library, serve_library
from tests.system import WAIT_S, Reply, System, Wire

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


async def test_a_workflow_that_may_not_be_published_is_not_stored_by_a_skill(
    system: System, wire: Wire
) -> None:
    write_policies(
        system,
        '@id("mine") @reason("by hand") forbid(principal, action == Retinue::Action::"publish", resource) '
        'when { resource.name == "workflows/nightly" };',
    )
    hub = await system.start_hub()

    async def store(name: str) -> Reply:
        text = orjson.dumps({**STEPS, "name": name}).decode()
        return await wire.call(hub.url, "store_workflow", {"text": text}, authorization=system.token)

    assert (await store("weekly")).result["reference"] == "workflows/weekly:v1"
    refused = await store("nightly")
    assert refused.error["data"]["type"] == "policy_denied"
    assert "publish of workflows/nightly is denied: by hand (mine)" in refused.error["message"]


async def test_a_change_of_imports_that_could_not_be_read_is_read_again(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await system.start_hub()
    failures = [StateError("the disk does not answer")]
    read = files.read_members

    def read_late(settings: Settings, state: State) -> Mapping[MemberId, ImportTable]:
        if failures:
            raise failures.pop()
        return read(settings, state)

    monkeypatch.setattr(connections, "read_members", read_late)
    write_import(system.state, "lib", ImportTable(command="/nowhere/program"))
    async with asyncio.timeout(WAIT_S):
        while not (await wire.call(hub.url, "list_imports", {})).result["imports"]:
            await asyncio.sleep(0.05)
    assert not failures


async def test_files_of_now_are_in_force_when_policies_have_caught_up(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policies(system, "// none")
    loaded = (await system.start_hub()).process.get(LoadedPolicies)
    readings = [0]
    read = policies._read

    def read_while_another_begins(*arguments: Any) -> Any:
        readings[0] += 1
        if readings[0] == 1:
            loaded._begin(None)  # as the watch does; this reading then does not count
        return read(*arguments)

    monkeypatch.setattr(policies, "_read", read_while_another_begins)
    write_policies(system, '@id("closed") forbid(principal, action, resource);')
    await loaded.catch_up()
    assert loaded.gate is not None
    assert [policy.id for policy in loaded.gate.engine.policies.policies] == ["closed"]
    write_policies(system, "forbid(")
    with pytest.raises(InvalidSettingError, match=r"own\.cedar"):
        await loaded.catch_up()
    assert loaded.gate.engine.policies.policies
