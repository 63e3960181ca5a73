"""The pages of approvals and policies: what waits, who answers, and what each policy has decided."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue import Agent
from retinue.approvals.records import ApprovalRequest
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.storage.state import State
from tests.dashboard.site import OWN, Site
from tests.system import WAIT_S, open_system, open_wire

POLICIES = """
@id("ask-first") @reason("a person pays") @effect("approve")
forbid(principal, action == Retinue::Action::"call", resource == Retinue::Skill::"bank/refund");
@id("closed") @reason("closed") forbid(principal, action, resource == Retinue::Skill::"bank/close");
"""


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    (retinue_home / "policies").mkdir(parents=True)
    (retinue_home / "policies" / "own.cedar").write_text(POLICIES, "utf-8")
    bank, called = Agent("bank", version="1.0.0"), list[str]()

    @bank.skill(expose=True)
    async def refund(amount: int, api_key: str = "") -> str:
        """Pays money back."""
        called.append(str(amount))
        return "refunded"

    @bank.skill(expose=True)
    async def close() -> str:
        """Closes."""
        called.append("close")
        return "closed"

    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        await system.start_agent(bank)
        yield Site(system, await system.start_hub(dashboard=True, durable=True), wire, called)


async def test_a_call_outside_of_runs_is_shown_whole_with_its_secrets_marked_and_answered_on_its_page(
    site: Site,
) -> None:
    owner = f"Bearer {site.system.state.owner_token()}"
    arguments = {"amount": 900, "api_key": "hunter2"}
    refused = await site.wire.call(site.hub.url, "refund", arguments)
    page = f"/ui/approvals/{refused.error['data']['approval']}"
    assert page in (await site.read("/", owner)).body.decode()
    assert page in (await site.read("/ui/approvals", owner)).body.decode()
    shown = (await site.read(page, owner)).body.decode()
    assert "May bank/refund be called?" in shown
    assert "hunter2" in shown
    assert "Secrets or personal data: api_key" in shown
    member = site.token("mesh", name="eve")
    assert (await site.read(page, member)).status == 404  # neither the caller nor an approver
    answer = {"verdict": "yes", "comment": ""}
    assert (await site.submit(page, answer, member, **OWN)).status == 403
    answered = (await site.submit(page, answer, owner, **OWN)).body.decode()
    assert "It is approved by owner." in answered
    assert (await site.wire.call(site.hub.url, "refund", arguments)).result == "refunded"
    assert site.called == ["900"]
    async with asyncio.timeout(WAIT_S):  # rows of the audit come soon after their calls
        while "ask-first: yes of owner" not in (await site.read("/ui/calls", owner)).body.decode():
            await asyncio.sleep(0.02)


async def test_the_form_of_a_skill_calls_it_as_its_policies_permit(site: Site) -> None:
    """The form is one of the ways of `tests.doors.test_policy_matrix`, from a hub that has a dashboard."""
    person = site.token("mesh", name="ada")
    hidden = await site.submit("/ui/agents/bank/skills/close", {}, person, **OWN)
    assert b"Agent bank has no skill close" in hidden.body  # its policy hides it from lists, too
    form, values = "/ui/agents/bank/skills/refund", {"/amount": "900"}
    waiting = html.unescape((await site.submit(form, values, person, **OWN)).body.decode())
    assert "a person pays" in waiting
    assert site.called == []
    owner = f"Bearer {site.system.state.owner_token()}"
    (page,) = set(
        re.findall(r"/ui/approvals/[\w-]+", (await site.read("/ui/approvals", owner)).body.decode())
    )
    await site.submit(page, {"verdict": "yes", "comment": ""}, owner, **OWN)
    assert "refunded" in (await site.submit(form, values, person, **OWN)).body.decode()
    assert site.called == ["900"]


async def test_a_yes_for_similar_calls_is_read_as_cedar_before_it_is_stored(site: Site) -> None:
    owner = f"Bearer {site.system.state.owner_token()}"
    refused = await site.wire.call(site.hub.url, "refund", {"amount": 900, "api_key": "<b>"})
    approval = refused.error["data"]["approval"]
    page = f"/ui/approvals/{approval}"
    entries = {"action": "similar", "free.amount": "1"}
    shown = (await site.submit(page, entries, owner, **OWN)).body.decode()
    stored = site.system.state.root / "policies" / f"yes-{approval}.cedar"
    assert "permit(principal == Retinue::Caller::" in html.unescape(shown)
    assert "<b>" not in shown
    assert not stored.exists()
    fields = dict(re.findall(r'type="hidden" name="(until|rule)" value="([^"]*)"', shown))
    confirmed = {name: html.unescape(value).replace("\n", "\r\n") for name, value in fields.items()}
    reply = await site.submit(page, {**entries, **confirmed}, owner, **OWN)
    assert "It is approved by owner." in reply.body.decode()
    assert stored.read_text("utf-8") == html.unescape(fields["rule"])


async def test_the_owner_sees_what_each_policy_has_decided_and_others_see_no_files(site: Site) -> None:
    owner, member = f"Bearer {site.system.state.owner_token()}", site.token("mesh", name="eve")
    for skill in ("refund", "close", "close"):
        await site.wire.call(site.hub.url, skill, {"amount": 1} if skill == "refund" else {})
    page = (await site.read("/ui/policies", owner)).body.decode()
    assert "1 asked" in page
    assert "2 denied" in page
    assert "own.cedar" in page
    assert (await site.read("/ui/policies", member)).status == 403
    asked = {"skill": "refund", "arguments": {"amount": 1}}
    for token, has_file in ((owner, True), (member, False)):
        reply = await site.wire.call(site.hub.url, "explain_policies", asked, authorization=token)
        assert (reply.result["policies"], b"own.cedar" in reply.body) == (["ask-first"], has_file)


async def test_a_draft_is_replayed_over_the_calls_that_were_made_and_only_for_the_owner(site: Site) -> None:
    owner, member = f"Bearer {site.system.state.owner_token()}", site.token("mesh", name="eve")
    await site.wire.call(site.hub.url, "list_agents", {})
    draft = '@id("shut") @reason("<b>") forbid(principal, action == Retinue::Action::"call", resource);'
    entries = {"text": draft, "since": "1h", "current": "1", "action": "check"}
    page = "/ui/policies/draft"
    assert (await site.read(page, member)).status == 403
    assert (await site.submit(page, entries, member, **OWN)).status == 403
    async with asyncio.timeout(WAIT_S):  # rows of the audit come soon after their calls
        while "1 denied" not in (shown := (await site.submit(page, entries, owner, **OWN)).body.decode()):
            await asyncio.sleep(0.02)
    assert "3 policies" in shown
    assert "retinue/list_agents" in shown
    assert "<b>" not in shown
    alone = (await site.submit(page, {"text": draft, "action": "check"}, owner, **OWN)).body.decode()
    assert "1 policy," in alone
    broken = (await site.submit(page, {**entries, "text": "forbid("}, owner, **OWN)).body.decode()
    assert "draft.cedar: not Cedar" in html.unescape(broken)
    assert "forbid(" in broken
    assert page in (await site.read("/ui/policies", owner)).body.decode()


async def test_many_approvals_come_in_pages_and_the_first_to_expire_stands_first(site: Site) -> None:
    store = await site.hub.process.get(LazyRuns).open_approvals()
    for number in range(300):
        request = ApprovalRequest(
            f"token:caller-{number // 90}", "bank", "1.0.0", "refund", {"note": "x" * 5_000, "n": number}
        )
        await store.ask(request, expires_s=10_000 - number)
    owner = f"Bearer {site.system.state.owner_token()}"
    first = (await site.read("/ui/approvals", owner)).body.decode()
    assert "300 calls wait for a person" in " ".join(first.split())
    assert first.count('data-label="Arguments"') == 50
    assert len(first) < 60_000
    assert "?from=50" in first
    last = (await site.read("/ui/approvals?from=250", owner)).body.decode()
    assert 'rel="next"' not in last
    assert "token:caller-3" in first
    assert "token:caller-0" in last


async def test_a_file_that_is_not_loaded_is_told_on_the_page_with_its_place(site: Site) -> None:
    owner = f"Bearer {site.system.state.owner_token()}"
    broken = site.system.state.root / "policies" / "broken.cedar"
    broken.write_text('@id("fine") permit(principal, action, resource);\n\n// why\nforbid(principal', "utf-8")
    site.hub.process.get(LoadedPolicies).reload()
    page = (await site.read("/ui/policies", owner)).body.decode()
    place = "in the policy that begins at line 4"
    assert f"policies/broken.cedar: not Cedar: unexpected end of input, {place}" in page
    assert "ask-first" in page  # the previous ones stay
    broken.unlink()
    site.hub.process.get(LoadedPolicies).reload()
    assert "not Cedar" not in (await site.read("/ui/policies", owner)).body.decode()
