"""Actions of pages over a running hub: whose page may act, with which rights, and what is recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.core.call import Answer
from retinue.dashboard import run_pages
from retinue.dashboard.figures import measure
from retinue.mesh.directory.directory import Directory
from retinue.oci.registry import publish_card
from retinue.storage.state import State
from tests.dashboard.site import OWN, Site
from tests.system import NOON, open_system, open_wire

VOTES = {"a": "Rome", "b": "rome.", "c": "Paris"}
VOTE = {
    "name": "ask-three",
    "steps": [{"id": "ask", "parallel": {"mode": "vote", "role": "execute", "prompt": "Capital of Italy?"}}],
}


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        called: list[str] = []
        agent = Agent("shop-agent", version="1.0.0")

        @agent.skill(expose=True)
        async def order() -> str:
            """Orders tea."""
            called.append("order")
            return "tea is ordered"

        @agent.skill(expose=True)
        async def refund(password: str) -> str:
            """Gives the money back."""
            raise ValueError(f"the till of <b>tea</b> does not open with {password}")

        @agent.skill
        async def restock() -> str:
            """Fills the shelves."""
            called.append("restock")
            return "the shelves are full"

        for one in (agent, *(make_voter(name, text) for name, text in VOTES.items())):
            await system.start_agent(one)
        yield Site(system, await system.start_hub(dashboard=True), wire, called)


ORDER, RESTOCK = (f"/ui/agents/shop-agent/skills/{skill}" for skill in ("order", "restock"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
    ],
)
async def test_a_form_of_another_page_is_refused_and_changes_nothing(
    site: Site, headers: dict[str, str]
) -> None:
    """The token alone is no proof: a browser adds the session's cookie to whatever sends a form."""
    reply = await site.submit(ORDER, {}, site.system.token, **headers)
    assert reply.status == 403
    assert site.called == []
    assert site.list_audit() == []


@pytest.mark.parametrize("by", ["origin", "sec-fetch-site"])
async def test_an_action_leaves_an_audit_row_with_its_caller(site: Site, by: str) -> None:
    token = site.token("mesh", name="ada")
    assert (await site.read(ORDER, token)).status == 200
    assert site.list_audit() == [], "reading a page leaves no row"
    headers = OWN if by == "sec-fetch-site" else {"origin": site.hub.url}
    reply = await site.submit(ORDER, {}, token, **headers)
    assert reply.status == 200
    assert b"tea is ordered" in reply.body
    assert site.called == ["order"]
    assert site.list_audit() == [("token:ada", "order", "done")]


async def test_a_person_rates_a_call_that_a_search_led_to(site: Site) -> None:
    token = site.token("mesh", name="ada")
    assert b"Wrong" not in (await site.read(ORDER, token)).body
    await site.read("/ui/agents?q=orders+tea", token)
    assert b"Wrong" in (await site.submit(ORDER, {}, token, **OWN)).body
    site.hub.mesh.events.flush()
    rated = await site.submit(ORDER, {"action": "bad"}, token, **OWN)
    assert b"Rated the call of shop-agent." in rated.body
    assert site.called == ["order"]
    page = (await site.read("/ui/agents?q=orders+tea", token)).body
    assert b"earlier calls" in page
    assert b"no call of restock" in (await site.submit(RESTOCK, {"action": "good"}, token, **OWN)).body


async def test_a_thumb_on_the_page_of_an_agent_rates_this_agent(site: Site) -> None:
    other = Agent("tea-house", version="1.0.0")

    @other.skill(expose=True)
    async def order() -> str:
        """Orders tea."""
        return "the house has tea"

    await site.system.start_agent(other)
    await site.hub.process.get(Directory).refresh()
    token = site.token("mesh", name="ada")
    house = ORDER.replace("shop-agent", "tea-house")
    for page in (ORDER, house):
        await site.read("/ui/agents?q=orders+tea", token)
        assert b"Wrong" in (await site.submit(page, {}, token, **OWN)).body
    site.hub.mesh.events.flush()
    rated = await site.submit(ORDER, {"action": "bad"}, token, **OWN)
    reply = await site.wire.call(site.hub.url, "show_history", {}, authorization=site.system.token)
    verdicts = {row["agent"]: row["verdicts"] for row in reply.result["skills"]}
    assert verdicts == {"shop-agent": {"bad": 1}, "tea-house": {"done": 1}}
    assert b"Rated the call of shop-agent." in rated.body


@pytest.mark.parametrize("kind", ["exposed", "of other agents"])
async def test_a_narrow_token_sees_less_and_its_action_is_refused(site: Site, kind: str) -> None:
    wide = site.token("mesh", name="ada")
    if kind == "exposed":
        narrow = site.token("exposed", name="bob")
    else:
        narrow = site.token("mesh", name="bob", agents=("a", "retinue"))
        listed = (await site.read("/ui/agents", narrow)).body
        assert b"/ui/agents/a" in listed
        assert b"shop-agent" not in listed
    assert (await site.submit(RESTOCK, {}, wide, **OWN)).status == 200
    assert site.called == ["restock"]
    assert b"restock" in (await site.read("/ui/agents/shop-agent", wide)).body
    for path in ("/", "/ui/calls", "/ui/agents/shop-agent", RESTOCK):
        body = (await site.read(path, narrow)).body
        assert b"Fills the shelves" not in body
        assert b"token:ada" not in body
    for path in (ORDER, RESTOCK):
        await site.submit(path, {}, narrow, **OWN)
    assert site.called == ["restock"]
    assert [row for row in site.list_audit() if row[0] == "token:bob" and row[2] == "done"] == []
    if kind != "exposed":
        reply = await site.submit("/ui/agents/a/skills/answer", {"/prompt": "?"}, narrow, **OWN)
        assert b"Rome" in reply.body
        assert site.list_audit()[-1] == ("token:bob", "answer", "done")


@pytest.mark.parametrize("path", ["/ui/agents/shop-agent", ORDER, "/ui/calls", "/ui/runs", "/ui/runs/x"])
async def test_a_page_for_users_of_the_mesh_names_the_scope_that_a_token_lacks(site: Site, path: str) -> None:
    if path == "/ui/runs":
        site.system.state.runs.touch()
    reply = await site.read(path, site.token("exposed", name="bob"))
    assert reply.status == 403
    assert b"the scope mesh" in reply.body
    assert b"token:bob has exposed" in reply.body
    assert b"retinue token new --scope mesh" in reply.body


async def test_a_run_that_votes_shows_each_answer_the_winner_and_the_cost(site: Site) -> None:
    asked = {"workflow": VOTE, "input": {}, "run": "vote-1"}
    token = site.system.token
    reply = await site.wire.call(site.hub.url, "orchestrate_workflow", asked, authorization=token)
    assert reply.result["output"] == "Rome"
    site.system.state.runs.touch()
    page = (await site.read("/ui/runs/vote-1", token)).body.decode()
    assert read_element(page, "p", 'id="cost"') == "Cost: input_tokens 30, output_tokens 9, cost_usd 0.75"
    assert "<h2>Output</h2><pre>Rome</pre>" in page
    for name, text in VOTES.items():
        branch = (await site.read(f"/ui/runs/vote-1?step=ask.{name}", token)).body.decode()
        assert f"<h3>output</h3><pre>{text}</pre>" in branch, branch


async def test_runs_come_in_pages_and_a_filter_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pages, "PAGE", 2)
    token = site.system.token
    for number in range(5):
        asked = {"workflow": VOTE, "input": {}, "run": f"vote-{number}"}
        await site.wire.call(site.hub.url, "orchestrate_workflow", asked, authorization=token)
    site.system.state.runs.touch()
    path, shown = "/ui/runs?workflow=ask-three", []
    for _ in range(3):
        page = (await site.read(path, token)).body.decode()
        shown.append(re.findall(r'data-key="(vote-\d)"', page))
        older = re.search(r'<a rel="next" href="([^"]*)">Older runs', page)
        path = f"/ui/runs{older[1].replace('&amp;', '&')}" if older else ""
    assert (shown, path) == ([["vote-4", "vote-3"], ["vote-2", "vote-1"], ["vote-0"]], "")
    assert 'href="?workflow=ask-three&amp;from=2">Newer runs' in page


def make_voter(name: str, text: str) -> Agent:
    agent = Agent(name, version="1.0.0")

    @agent.skill("answer", roles=["execute"], expose=True)
    async def answer(prompt: str) -> Answer:
        """Answers a prompt."""
        return Answer(text, usage={"model": "m", "input_tokens": 10, "output_tokens": 3, "cost_usd": 0.25})

    return agent


def read_element(page: str, tag: str, attributes: str) -> str:
    """The text of an element without elements in it."""
    found = re.search(f"<{tag} {attributes}>([^<]*)</{tag}>", page)
    assert found is not None, page
    return " ".join(found[1].split())


async def test_a_trace_shows_its_depth_and_the_bounds_of_a_chain(site: Site) -> None:
    await site.submit(ORDER, {}, site.system.token, **OWN)
    trace = next(row["trace_id"] for row in site.hub.audit.recent(100) if row["type"] == "CALL:ENDED")
    page = (await site.read(f"/ui/traces/{trace}", site.system.token)).body.decode()
    guard = site.hub.mesh.dispatcher.admission.guard
    assert f"Depth 0 of at most {guard.max_depth};" in page
    assert f"may cause {guard.new_trace_calls:,} further ones" in page
    assert "Arguments and results of calls are not recorded" in page


async def test_an_unknown_page_is_a_page(site: Site) -> None:
    for path in ("/ui/nosuch", "/ui/runs/a/b", "/ui/"):
        reply = await site.read(path, site.system.token)
        assert reply.status == 404, path
        page = reply.body.decode()
        assert f"There is no page {path}" in page
        assert ">Overview</a>" in page
    assert (await site.read("/ui/nosuch", "")).status in (401, 404)


async def test_a_browser_whose_session_has_ended_is_told_and_can_sign_in(site: Site) -> None:
    reply = await site.wire.get(
        f"{site.hub.url}/ui/agents", cookie="retinue_session=gone", accept="text/html"
    )
    page = reply.body.decode()
    assert "Sign out" not in page
    assert "Sign in</a>" in page


def test_a_call_that_its_caller_ended_is_no_failure() -> None:
    call = {"status": "failed", "duration_ms": 1.0, "ended_at": 100.0, "agent": "a"}
    figures = measure([{**call, "error": "cancelled"}, {**call, "error": "timeout"}], 100.0)
    assert (figures["failed"], figures["count"], figures["period_ms"]) == (1, 2, 300_000.0)


async def test_calls_and_traces_show_why_a_call_failed_without_its_secrets(site: Site) -> None:
    await site.submit(
        "/ui/agents/shop-agent/skills/refund", {"/password": "swordfish"}, site.system.token, **OWN
    )
    trace = next(row["trace_id"] for row in site.hub.audit.recent(100) if row["type"] == "CALL:ENDED")
    for path in ("/", "/ui/calls", "/ui/calls?failed=1", "/ui/agents/shop-agent", f"/ui/traces/{trace}"):
        page = (await site.read(path, site.system.token)).body.decode()
        assert "the till of &lt;b&gt;tea&lt;/b&gt; does not open with ***" in page, path
        assert "swordfish" not in page, path


async def test_a_refused_card_of_20000_skills_is_on_no_page_and_breaks_none(retinue_home: Path) -> None:
    skills = [{"id": f"skill_{n}", "description": "d"} for n in range(20_000)]
    card = {"name": "huge-agent", "version": "1.0.0", "description": "d", "skills": skills}
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        await publish_card(
            system.home, "huge-agent", orjson.dumps(card), version="1.0.0", skills=[], created=NOON
        )
        await system.start_agent(make_voter("small-agent", "yes"))
        hub = await system.start_hub(dashboard=True)
        site = Site(system, hub, wire, [])
        for path in ("/", "/ui/agents", "/ui/agents?q=skill", "/ui/mesh", "/ui/workflows"):
            reply = await site.read(path, system.token)
            assert reply.status == 200, path
            assert len(reply.body) < 50_000, path
            assert b"skill_19999" not in reply.body
        assert b"small-agent" in (await site.read("/ui/agents", system.token)).body
        assert b'href="/ui/agents/huge-agent' not in (await site.read("/ui/agents", system.token)).body
        assert hub.mesh.directory.find("small-agent") is not None
        assert hub.mesh.directory.find("huge-agent") is None


async def test_the_mesh_page_shows_who_calls_whom_as_a_drawing_and_as_a_table(site: Site) -> None:
    await site.submit(ORDER, {}, site.token("mesh", name="ada"), **OWN)
    async with asyncio.timeout(30):
        # the row of the call is written a moment after its answer
        while "token:ada to shop-agent: 1 call," not in (
            page := (await site.read("/ui/mesh", site.system.token)).body.decode()
        ):
            await asyncio.sleep(0.01)
    assert '<td data-label="Caller">token:ada</td><td data-label="Agent">shop-agent</td>' in page
    narrow = (await site.read("/ui/mesh", site.token("exposed", name="bob"))).body.decode()
    assert "Who calls whom" not in narrow
