"""Calls that wait for a person in the browser: who sees what, and who answers."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent
from retinue.storage.state import State
from tests.dashboard.site import OWN, Site
from tests.support.thinking import ScriptedModel, say, think, use
from tests.system import WAIT_S, open_system, open_wire

ANSWER = "answer_approval"
BUTTONS = ('<button name="verdict" value="yes">Approve', '<button class="danger" name="verdict" value="no">')


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        yield Site(system, await system.start_hub(dashboard=True, durable=True), wire, [])


def owner_of(site: Site) -> str:
    return f"Bearer {site.system.state.owner_token()}"


async def start_asking(site: Site, text: str) -> tuple[ScriptedModel, str, str]:
    """Start the run ``r``, which asks before it writes: the model, the approval and the owner's page."""
    files = Agent("files", version="1.0.0")

    @files.skill
    async def write_file(text: str) -> str:
        """Writes a file."""
        site.called.append(text)
        return "written"

    model = ScriptedModel(use(("files__write_file", {"text": text})), say("done"))
    for agent in (model.agent, files):
        await site.system.start_agent(agent)
    token = site.system.token
    await site.wire.call(site.hub.url, "refresh_agents", {}, authorization=token)
    workflow = think(tools=["files/*"], approve=["files/*"])
    asked = {"workflow": workflow, "input": {}, "run": "r"}
    await site.wire.call(site.hub.url, "start_run", asked, authorization=token)
    async with asyncio.timeout(WAIT_S):
        page = ""
        while 'class="question"' not in page:
            page = (await site.read("/ui/runs/r", owner_of(site))).body.decode()
            await asyncio.sleep(0.01)
    listing = await site.wire.call(site.hub.url, "list_approvals", {}, authorization=owner_of(site))
    (row,) = listing.result["approvals"]
    return model, row["approval"], page


async def finish(site: Site) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await site.wire.call(
                site.hub.url, "show_run", {"run": "r"}, authorization=site.system.token
            )
            if reply.result["status"] != "running":
                return reply.result
            await asyncio.sleep(0.01)


async def test_the_owner_approves_a_call_that_the_page_shows(site: Site) -> None:
    _, approval, page = await start_asking(site, "tea")
    assert "<h2>May files/write_file be called?</h2>" in page
    assert "because the step asks a person before files/write_file" in page
    assert html.escape('"text": "tea"', quote=True).replace("&quot;", "&#34;") in page
    assert all(button in page for button in BUTTONS)
    overview = (await site.read("/", owner_of(site))).body.decode()
    assert "Needs a person (1)" in overview
    assert "waits for approval" in overview
    entries = {"action": ANSWER, "approval": approval, "verdict": "yes", "comment": ""}
    reply = await site.submit("/ui/runs/r", entries, owner_of(site), **OWN)
    assert reply.status == 200
    assert (await finish(site))["output"] == "done"
    assert site.called == ["tea"]
    assert site.list_audit() == [("local", ANSWER, "done")]
    assert "Needs a person" not in (await site.read("/", owner_of(site))).body.decode()
    again = await site.submit("/ui/runs/r", entries, owner_of(site), **OWN)
    assert f"approval {approval} is used already" in again.body.decode()


async def test_the_question_of_a_cancelled_run_is_over_until_the_run_is_resumed(site: Site) -> None:
    _, approval, _ = await start_asking(site, "tea")
    call, url, owner = site.wire.call, site.hub.url, owner_of(site)
    await call(url, "cancel_run", {"run": "r"}, authorization=owner)
    listing = await call(url, "list_approvals", {"state": "open"}, authorization=owner)
    assert listing.result["approvals"] == []
    shown = await call(url, "show_approval", {"approval": approval}, authorization=owner)
    assert shown.result["state"] == "expired"
    assert approval not in (await site.read("/ui/approvals", owner)).body.decode()
    assert "Needs a person" not in (await site.read("/", owner)).body.decode()
    assert 'name="verdict"' not in (await site.read("/ui/runs/r", owner)).body.decode()
    answer = {"approval": approval, "verdict": "yes"}
    refused = await call(url, ANSWER, answer, authorization=owner)
    assert refused.error is not None
    assert "because its run r has ended" in refused.error["message"]
    await call(url, "resume_run", {"run": "r"}, authorization=owner)
    assert (await call(url, ANSWER, answer, authorization=owner)).result["state"] == "approved"
    assert (await finish(site))["output"] == "done"
    assert site.called == ["tea"]


async def test_the_model_reads_the_reason_that_a_person_enters(site: Site) -> None:
    model, approval, _ = await start_asking(site, "tea")
    entries = {"action": ANSWER, "approval": approval, "verdict": "no", "comment": "not on a Sunday"}
    await site.submit("/ui/runs/r", entries, owner_of(site), **OWN)
    await finish(site)
    assert site.called == []
    assert "not on a Sunday" in model.list_results()[0]


async def test_a_session_without_the_scope_sees_the_call_and_no_buttons(site: Site) -> None:
    _, approval, _ = await start_asking(site, "tea")
    token = site.system.token
    page = (await site.read("/ui/runs/r", token)).body.decode()
    assert "<h2>May files/write_file be called?</h2>" in page
    assert 'name="verdict"' not in page
    assert "Only a session with the scope approves answers" in page
    entries = {"approval": approval, "verdict": "yes", "topic": f"approval/{approval}", "value": "true"}
    for action, status in ((ANSWER, 403), ("signal_run", 400)):
        reply = await site.submit("/ui/runs/r", {**entries, "action": action}, token, **OWN)
        assert reply.status == status, action
    narrow = (await site.read("/ui/runs/r", site.token("exposed", "mesh", name="bob"))).body.decode()
    assert 'name="verdict"' not in narrow
    assert site.called == []


async def test_hostile_arguments_are_shown_whole_as_text_and_folded(site: Site) -> None:
    text = "<script>alert(1)</script>\u202e" + "x" * 100_000 + "the end"
    _, _, page = await start_asking(site, text)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
    assert "the end" in page
    assert "\u202e" not in page
    (opening,) = [line for line in page.splitlines() if "<summary>Arguments" in line]
    assert opening.startswith('<details data-key="arguments-')
