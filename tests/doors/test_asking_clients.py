"""Clients of a call that needs a person by policy: who is asked in the client, and what a repetition gets."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Literal

import pytest
from mcp_types import ElicitRequestParams, ElicitResult

from retinue.hub.approvals.notices import ApprovalNotices
from retinue.hub.scheduling.signatures import new_secret
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings_tables import ApprovalsTable
from retinue.web.issued_tokens import TokenFile
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming, parts_of, state_of
from tests.doors.test_a2a_push import Receiver
from tests.doors.test_policies import (
    ASK,
    DENY,
    WAYS,
    Bank,
    answer,
    list_loaded,
    open_bank,
    read_approval,
    write_policies,
)
from tests.mcp.clients import MODES, connect, texts
from tests.serving import serve_app
from tests.system import WAIT_S, System, Wire

ASK_CALLER = ASK.replace('@effect("approve")', '@effect("approve") @approvers("caller token:boss")')


def issue(system: System, *scopes: str) -> str:
    return f"Bearer {TokenFile(system.state.keys).issue(scopes, name='ann')[1]}"


class Person:
    """Whoever answers the questions of a client."""

    def __init__(self, action: Literal["accept", "cancel"] = "accept", *, approves: bool = True) -> None:
        self.action = action
        self.approves = approves
        self.messages: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.messages.append(params.message)
        content = {"approve": self.approves, "comment": "as agreed"} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)


async def refund(bank: Bank, mode: str, person: Person, token: str, tool: str = "bank__refund") -> str:
    url = f"{bank.hub.url}/mcp"
    async with connect(url, mode, authorization=token, elicitation_callback=person) as client:
        return "\n".join(texts(await client.call_tool(tool, {"amount": 900})))


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_is_asked_where_its_person_may_approve_the_own_calls(
    system: System, wire: Wire, mode: str
) -> None:
    bank = await open_bank(system, wire, ASK_CALLER, durable=True)
    approver, member = issue(system, "mesh", "approves"), issue(system, "mesh")
    person = Person()
    assert await refund(bank, mode, person, approver) == "refunded 900"
    assert person.messages == ['bank/refund with {"amount":900}? a person pays (ask-first).']
    rows = [row for row in bank.hub.audit.recent(20) if row["type"] == "CALL:ENDED"]
    note = next(row for row in rows if row["skill"] == "refund")["policy"]
    assert note["by"] == "token:ann"

    refuser = Person(approves=False)
    assert "is denied by a person: as agreed" in await refund(bank, mode, refuser, approver)
    assert len(refuser.messages) == 1

    # the scope is missing, or an agent calls for its caller
    for token, tool in ((member, "bank__refund"), (approver, "clerk__help_customer")):
        silent = Person()
        text = await refund(bank, mode, silent, token, tool)
        assert "needs the approval of a person: a person pays (ask-first) (approval " in text
        assert ("retinue approvals approve " in text) is (tool == "bank__refund")
        assert silent.messages == []
    assert bank.refunds == [900]


@pytest.mark.parametrize("mode", MODES)
async def test_policies_read_whether_the_client_can_ask_its_person(
    system: System, wire: Wire, mode: str
) -> None:
    rule = DENY.replace(");", ") unless { context.can_ask };")
    bank = await open_bank(system, wire, rule)
    token, person = issue(system, "mesh"), Person()
    assert await refund(bank, mode, person, token) == "refunded 900"
    # the clerk calls the bank, and its caller can still be asked
    assert await refund(bank, mode, person, token, "clerk__help_customer") == "refunded 900"
    async with connect(f"{bank.hub.url}/mcp", mode, authorization=token) as client:
        assert "(no-refunds)" in texts(await client.call_tool("bank__refund", {"amount": 900}))[0]
    assert (bank.refunds, person.messages) == ([900, 900], [])


async def test_a_dismissed_question_stays_open_and_policies_without_caller_ask_nobody_in_a_client(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, ASK_CALLER, durable=True)
    approver, person = issue(system, "mesh", "approves"), Person("cancel")
    assert "needs the approval" in await refund(bank, "auto", person, approver)
    assert len(person.messages) == 1
    others = await open_bank(system, wire, ASK, durable=True)
    assert "needs the approval" in await refund(others, "auto", person, approver)
    assert (len(person.messages), bank.refunds, others.refunds) == (1, [], [])


async def test_a_task_waits_for_a_yes_from_anywhere_and_goes_on_by_itself(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)
    urls = (bank.hub.url, f"{bank.hub.url}/agents/bank")
    for amount, (url, verdict) in enumerate(itertools.product(urls, ("yes", "no")), 900):
        bank.refunds.clear()
        sent = {"message": message(naming("refund", amount=amount))}
        task = (await ask_a2a(wire, url, "SendMessage", sent)).result["task"]
        assert state_of(task) == "TASK_STATE_INPUT_REQUIRED"
        asked = task["status"]["message"]
        question = f'bank/refund with {{"amount":{amount}}}? a person pays (ask-first).'
        assert question in asked["parts"][0]["text"]
        assert bank.refunds == []
        await answer(bank, asked["metadata"]["approval"], verdict, "for once")
        async with asyncio.timeout(WAIT_S):
            while state_of(task) not in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_REJECTED"):
                await asyncio.sleep(0.02)
                task = (await ask_a2a(wire, url, "GetTask", {"id": task["id"]})).result
        if verdict == "yes":
            assert parts_of(task)[0]["text"] == f"refunded {amount}"
        else:
            assert "is denied by a person: for once" in task["status"]["message"]["parts"][0]["text"]
        assert bank.refunds == ([amount] if verdict == "yes" else []), url


async def test_a_task_that_has_waited_fails_where_the_policies_have_changed(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)
    sent = {"message": message(naming("refund", amount=900))}
    task = (await ask_a2a(wire, bank.hub.url, "SendMessage", sent)).result["task"]
    approval = task["status"]["message"]["metadata"]["approval"]
    write_policies(
        system, '@id("more") forbid(principal == Retinue::Agent::"x", action, resource);', "b.cedar"
    )
    bank.hub.process.get(LoadedPolicies).reload()
    await answer(bank, approval, "yes")
    async with asyncio.timeout(WAIT_S):
        while state_of(task) not in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_REJECTED"):
            await asyncio.sleep(0.02)
            task = (await ask_a2a(wire, bank.hub.url, "GetTask", {"id": task["id"]})).result
    assert "the policies have changed meanwhile" in task["status"]["message"]["parts"][0]["text"]
    assert bank.refunds == []


async def test_a_repetition_under_its_key_gets_the_outcome_of_the_used_yes(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)

    async def call(key: str, amount: int = 900, *, token: str = "") -> Any:
        headers = {"authorization": token} if token else {}
        return await wire.call(bank.hub.url, "refund", {"amount": amount}, idempotency_key=key, **headers)

    first = read_approval(await call("k1"))
    await answer(bank, first, "yes")
    assert (await call("k1")).result == "refunded 900"
    assert (await call("k1")).result == "refunded 900"
    assert bank.refunds == [900]
    rows = [row for row in bank.hub.audit.recent(5) if row["type"] == "CALL:ENDED"]
    assert rows[0]["policy"]["repeated"] is True
    # another key, other arguments, another caller and a call without a key ask anew
    others = [await call("k2"), await call("k1", 901), await call("k1", token=issue(system, "mesh"))]
    others.append(await WAYS["/execute of the hub"](bank))
    assert [reply.error["data"]["type"] for reply in others] == ["approval_needed"] * 4
    assert first not in {read_approval(reply) for reply in others}
    assert bank.refunds == [900]


async def test_the_hub_tells_a_chat_system_of_a_call_that_waits(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_APPROVALS_SECRET", new_secret())
    monkeypatch.setattr(ApprovalNotices.run, "__defaults__", (0.01,))
    receiver = Receiver()
    async with serve_app(receiver) as url:
        system.settings = system.settings.model_copy(update={"approvals": ApprovalsTable(webhook=url)})
        bank = await open_bank(system, wire, ASK, durable=True)
        approval = read_approval(await WAYS["/execute of the hub"](bank))
        (asked,) = await receiver.wait_for(1)
        await answer(bank, approval, "no", "closed")
        told = (await receiver.wait_for(2))[1]
    assert (asked["type"], asked["data"]["arguments"]) == ("approval.asked", {"amount": 900})
    assert (told["type"], told["data"]["comment"]) == ("approval.answered", "closed")


async def test_a_yes_for_similar_calls_is_a_policy_that_the_approver_reads_first(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedPolicies.watch, "__defaults__", (0.01,))
    bank = await open_bank(system, wire, ASK, durable=True)
    ann, owner = issue(system, "mesh"), f"Bearer {system.state.owner_token()}"

    async def refund(amount: int) -> Any:
        return await wire.call(bank.hub.url, "refund", {"amount": amount}, authorization=ann)

    async def approve(token: str, **more: Any) -> Any:
        asked = {"approval": approval, "free": ["amount"], **more}
        return await wire.call(bank.hub.url, "approve_similar", asked, authorization=token)

    approval = read_approval(await refund(900))
    assert (await approve(ann)).error["data"]["type"] == "insufficient_scope"
    draft = (await approve(owner)).result
    assert 'principal == Retinue::Caller::"token:ann"' in draft["rule"]
    assert 'resource == Retinue::Skill::"bank/refund"' in draft["rule"]
    assert read_approval(await refund(900)) == approval  # nothing is stored yet
    wider = draft["rule"].replace("token:ann", "token:eve")
    for changed in ({"rule": wider}, {"rule": draft["rule"], "free": []}):
        refused = await approve(owner, until=draft["until"], **changed)
        assert refused.error["data"]["type"] == "invalid_request"
    late = await approve(owner, until="2999-01-01T00:00:00Z")
    assert late.error["data"]["type"] == "validation_error"
    stored = (await approve(owner, until=draft["until"], rule=draft["rule"])).result
    assert stored["state"] == "approved"
    async with asyncio.timeout(WAIT_S):
        while len(list_loaded(bank)) == 1:
            await asyncio.sleep(0.02)
    for amount in (900, 901, 902):
        assert (await refund(amount)).result == f"refunded {amount}"
    assert bank.refunds == [900, 901, 902]
    rows = [row for row in bank.hub.audit.recent(9) if row["type"] == "CALL:ENDED"]
    assert (rows[0]["policy"]["ids"], rows[0]["policy"]["by"]) == ([f"yes-{approval}"], "owner")
    assert read_approval(await WAYS["/execute of the hub"](bank)) != approval  # another caller
