"""Steps of runs whose calls need a person by policy wait, go on after a yes, and are denied after a no."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings_tables import WorkflowTable
from tests.doors.test_policies import ASK, Bank, answer, list_loaded, open_bank, write_policies
from tests.support.thinking import ScriptedModel, say, think, use
from tests.system import WAIT_S, System, Wire

PAY: dict[str, Any] = {"name": "pay", "steps": [{"id": "pay", "skill": "refund", "with": {"amount": 900}}]}


async def get(bank: Bank, skill: str, /, **arguments: Any) -> Any:
    reply = await bank.wire.call(bank.hub.url, skill, arguments)
    assert "result" in reply.json, reply.body
    return reply.result


async def wait_for_question(bank: Bank, count: int = 1) -> list[dict[str, Any]]:
    """The open questions, whoever has made the calls."""
    owner = {"authorization": f"Bearer {bank.system.state.owner_token()}"}
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await bank.wire.call(bank.hub.url, "list_approvals", {"state": "open"}, **owner)
            listing: list[dict[str, Any]] = reply.result["approvals"]
            if len(listing) >= count:
                return list(reversed(listing))
            await asyncio.sleep(0.02)


async def wait_for_end(bank: Bank, run: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while (shown := await get(bank, "show_run", run=run))["status"] == "running":
            await asyncio.sleep(0.02)
        return shown


async def test_a_step_that_policies_ask_about_waits_and_goes_on_after_a_yes(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)
    await get(bank, "start_run", workflow=PAY, input={}, run="r1")
    (question,) = await wait_for_question(bank)
    assert (question["run"].partition("~")[0], question["step"]) == ("r1", "pay")
    assert question["arguments"] == {"amount": 900}
    async with asyncio.timeout(WAIT_S):
        while "steps" not in (step := (await get(bank, "show_run", run="r1"))["steps"][0]):
            await asyncio.sleep(0.02)
    assert (step["step"], step["status"]) == ("pay", "waiting")
    assert "error" not in step
    (wait,) = step["steps"]
    assert (wait["step"], wait["status"], wait["approval"]) == (
        "pay/answer-1",
        "waiting",
        question["approval"],
    )
    assert bank.refunds == []
    assert (await answer(bank, question["approval"], "yes")).result["state"] == "approved"
    shown = await wait_for_end(bank, "r1")
    assert (shown["status"], shown["output"]) == ("done", "refunded 900")
    assert bank.refunds == [900]
    assert (await get(bank, "show_approval", approval=question["approval"]))["state"] == "used"


async def test_a_no_denies_the_step_with_its_comment(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)
    handled = {"name": "pay", "steps": [{**PAY["steps"][0], "on_error": "continue"}]}
    for run, workflow in (("failed", PAY), ("handled", handled)):
        await get(bank, "start_run", workflow=workflow, input={}, run=run)
        (question,) = await wait_for_question(bank)
        await answer(bank, question["approval"], "no", comment="not on a Sunday")
        shown = await wait_for_end(bank, run)
        error = shown["steps"][0]["error"]
        assert (error["type"], "not on a Sunday" in error["message"]) == ("policy_denied", True)
        assert shown["status"] == ("done" if run == "handled" else "failed")
    assert bank.refunds == []


async def test_changed_policies_ask_anew_although_a_person_said_yes(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedPolicies.watch, "__defaults__", (0.01,))
    bank = await open_bank(system, wire, ASK, durable=True)
    await get(bank, "start_run", workflow=PAY, input={}, run="r1")
    (first,) = await wait_for_question(bank)
    write_policies(system, ASK + '@id("more") forbid(principal == Retinue::Agent::"x", action, resource);')
    async with asyncio.timeout(WAIT_S):
        while len(list_loaded(bank)) == 1:
            await asyncio.sleep(0.05)
    await answer(bank, first["approval"], "yes")
    (second,) = await wait_for_question(bank)
    assert second["approval"] != first["approval"]
    assert bank.refunds == []
    await answer(bank, second["approval"], "yes")
    assert (await wait_for_end(bank, "r1"))["output"] == "refunded 900"
    assert bank.refunds == [900]


async def test_calls_of_one_turn_of_a_model_that_policies_ask_about_wait_together(
    system: System, wire: Wire
) -> None:
    refund = ("bank__refund", {"amount": 900})
    balance: tuple[str, dict[str, Any]] = ("bank__balance", {})
    model = ScriptedModel(use(refund, balance, ("bank__refund", {"amount": 901})), say("done"))
    await system.start_agent(model.agent)
    bank = await open_bank(system, wire, ASK, durable=True)
    await get(bank, "start_run", workflow=think(tools=["bank/*"]), input={}, run="r1")
    questions = await wait_for_question(bank, 2)
    assert {question["arguments"]["amount"] for question in questions} == {900, 901}
    for question in questions:
        verdict = "yes" if question["arguments"]["amount"] == 900 else "no"
        await answer(bank, question["approval"], verdict, "once is enough")
    shown = await wait_for_end(bank, "r1")
    assert (shown["output"], bank.refunds) == ("done", [900])
    results = model.list_results()
    assert "refunded 900" in results[0]
    assert "7" in results[1]
    assert "once is enough" in results[2]


CODE = '''
from retinue import Run, workflow
from retinue.core.errors import PolicyDeniedError


@workflow
async def pay(run: Run) -> list[str]:
    """Pays."""
    first = await run.call("refund", amount=900)
    both = await run.gather(run.call("refund", amount=901), run.call("refund", amount=5))
    try:
        await run.call("refund", amount=902)
    except PolicyDeniedError as error:
        return [first, *both, str(error.message)]
    return []
'''


async def test_calls_of_a_workflow_in_python_wait_alone_and_together(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    (tmp_path / "flows.py").write_text(CODE, "utf-8")
    table = WorkflowTable(modules=(str(tmp_path / "flows.py"),))
    system.settings = system.settings.model_copy(update={"workflows": table})
    bank = await open_bank(system, wire, ASK, durable=True)
    await get(bank, "start_run", workflow="pay", input={}, run="r1")
    for amount in (900, 901, 902):
        (question,) = await wait_for_question(bank)
        assert question["arguments"] == {"amount": amount}
        await answer(bank, question["approval"], "no" if amount == 902 else "yes", "enough")
    shown = await wait_for_end(bank, "r1")
    assert shown["output"][:3] == ["refunded 900", "refunded 901", "refunded 5"]
    assert "denied by a person: enough" in shown["output"][3]
    assert sorted(bank.refunds) == [5, 900, 901]
