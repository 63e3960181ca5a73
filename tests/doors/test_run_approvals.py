"""Steps of runs whose calls need a person by policy wait, go on after a yes, and are denied after a no."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.runtime.parts.policies import LoadedPolicies
from tests.doors.test_policies import ASK, Bank, answer, list_loaded, open_bank, write_policies
from tests.system import WAIT_S, System, Wire

PAY: dict[str, Any] = {"name": "pay", "steps": [{"id": "pay", "skill": "refund", "with": {"amount": 900}}]}


async def get(bank: Bank, skill: str, /, **arguments: Any) -> Any:
    reply = await bank.wire.call(bank.hub.url, skill, arguments)
    assert "result" in reply.json, reply.body
    return reply.result


async def wait_for_question(bank: Bank, count: int = 1) -> list[dict[str, Any]]:
    async with asyncio.timeout(WAIT_S):
        while True:
            listing = (await get(bank, "list_approvals", state="open"))["approvals"]
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
