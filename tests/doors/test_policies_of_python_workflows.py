"""Workflows in Python compute what they call and run, and policies decide about it as about named steps."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings_tables import WorkflowTable
from retinue.web.issued_tokens import TokenFile
from tests.doors.test_policies import DENY, STEPS, Bank, open_bank, write_policies
from tests.system import System, Wire

CODE = '''
from retinue import Run, workflow
from retinue.core.errors import PolicyDeniedError


@workflow
async def choose(run: Run, skill: str, agent: str) -> str:
    """Calls what its input names."""
    return await run.call(skill, {"amount": 900}, agent=agent)


@workflow
async def launch(run: Run, name: str) -> str:
    """Runs the workflow that its input names."""
    try:
        await run.workflow("-".join(name.split()))
    except PolicyDeniedError as error:
        return error.message
    return "done"
'''


async def open_bank_with_code(system: System, wire: Wire, policies: str, folder: Path) -> Bank:
    (folder / "flows.py").write_text(CODE, "utf-8")
    table = WorkflowTable(modules=(str(folder / "flows.py"),))
    system.settings = system.settings.model_copy(update={"workflows": table})
    return await open_bank(system, wire, policies, durable=True)


async def run(bank: Bank, workflow: str, token: str, **given: Any) -> bytes:
    arguments = {"workflow": workflow, "input": given}
    reply = await bank.wire.call(
        bank.hub.url, "orchestrate_workflow", arguments, authorization=f"Bearer {token}"
    )
    return reply.body


@pytest.mark.parametrize(
    "condition",
    ['principal == Retinue::Caller::"token:ann"', 'context.origin == Retinue::Caller::"token:ann"'],
)
async def test_a_call_that_a_workflow_in_python_computes_is_made_by_who_started_it(
    system: System, wire: Wire, tmp_path: Path, condition: str
) -> None:
    rule = DENY.replace(");", f") when {{ {condition} }};")
    bank = await open_bank_with_code(system, wire, rule, tmp_path)
    ann, bob = (TokenFile(system.state.keys).issue(("mesh",), name=name)[1] for name in ("ann", "bob"))
    assert b"(no-refunds)" in await run(bank, "choose", ann, skill="refund", agent="bank")
    assert bank.refunds == []
    assert b"refunded 900" in await run(bank, "choose", bob, skill="refund", agent="bank")
    through_clerk = await run(bank, "choose", ann, skill="help_customer", agent="clerk")
    # the clerk makes this call, and ann began its chain
    assert (b"(no-refunds)" in through_clerk) is ("origin" in condition)


async def test_a_workflow_that_policies_forbid_is_not_run_by_one_in_python(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    registry = LayoutRegistry(system.state.registry)
    outer = {"name": "outer", "steps": [{"id": "n", "workflow": "pay-out", "with": {}}]}
    for definition in ({**STEPS, "name": "pay-out"}, outer):
        text = orjson.dumps(definition)
        await publish_workflow(registry, str(definition["name"]), text, created=datetime.now(UTC))
    rule = (
        '@id("closed") @reason("no payouts") '
        'forbid(principal == Retinue::Caller::"token:ann", action == Retinue::Action::"start", '
        'resource == Retinue::Workflow::"pay-out");'
    )
    bank = await open_bank_with_code(system, wire, rule, tmp_path)
    ann, bob = (TokenFile(system.state.keys).issue(("mesh",), name=name)[1] for name in ("ann", "bob"))
    for name in ("pay out", "outer"):
        refused = await run(bank, "launch", ann, name=name)
        assert b"start of pay-out is denied: no payouts (closed)" in refused, (name, refused)
        assert bank.refunds == []
    assert b"done" in await run(bank, "launch", bob, name="pay out")
    assert bank.refunds == [900]
    write_policies(system, "// none")
    bank.hub.process.get(LoadedPolicies).reload()
    assert b"done" in await run(bank, "launch", ann, name="pay out")
    assert bank.refunds == [900, 900]
