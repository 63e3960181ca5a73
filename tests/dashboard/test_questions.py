"""Questions to a person: the form of a schema, two buttons for a decision, and the answer from a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.dashboard.questions import make_question, read_answer
from retinue.storage.state import State
from tests.dashboard.site import OWN, Site
from tests.system import WAIT_S, open_system, open_wire

BOOLEAN = {"type": "boolean"}
OK = {"type": "object", "properties": {"ok": BOOLEAN}, "required": ["ok"]}
COMMENTED = {
    "type": "object",
    "properties": {"comment": {"type": "string"}, "approved": BOOLEAN, "count": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "decision", "fields", "labels"),
    [
        (OK, "/ok", [], ("Approve", "Refuse")),
        ({"properties": {"ok": BOOLEAN}}, "/ok", [], ("Approve", "Refuse")),
        (BOOLEAN, "", [], ("Approve", "Refuse")),
        (COMMENTED, "/approved", ["/comment", "/count"], ("Approve", "Refuse")),
        ({"properties": {"urgent": BOOLEAN}}, "/urgent", [], ("urgent: yes", "urgent: no")),
        ({"properties": {"urgent": BOOLEAN, "text": {"type": "string"}}}, None, ["/urgent", "/text"], None),
        ({"properties": {"a": BOOLEAN, "ok": BOOLEAN}}, None, ["/a", "/ok"], None),
        ({"type": "string"}, None, [""], None),
        ({"enum": ["a", "b"]}, None, [""], None),
        ({"type": "array", "items": {"type": "object"}}, None, [""], None),
    ],
)
def test_one_boolean_that_decides_is_two_buttons_and_the_rest_are_fields(
    schema: Mapping[str, Any], decision: str | None, fields: list[str], labels: tuple[str, str] | None
) -> None:
    question = make_question(schema)
    assert (question.decision.name if question.decision else None) == decision
    assert [field.name for field in question.fields] == fields
    assert labels is None or question.labels == labels


@pytest.mark.parametrize(
    ("schema", "entries", "answer"),
    [
        (OK, {"/ok": "true"}, {"ok": True}),
        (OK, {"/ok": "false"}, {"ok": False}),
        (
            COMMENTED,
            {"/approved": "false", "/comment": "too dear", "/count": ""},
            {"approved": False, "comment": "too dear"},
        ),
        (BOOLEAN, {"json": "false"}, False),
        ({"type": "string"}, {"json": "tea"}, "tea"),
        ({"type": "integer"}, {"json": "3"}, 3),
        ({"enum": ["a", "b"]}, {"json": '"b"'}, "b"),
        (None, {"value": "true"}, True),
        (None, {"value": "yes, please"}, "yes, please"),
    ],
)
def test_an_answer_is_read_by_its_schema(
    schema: Mapping[str, Any] | None, entries: dict[str, str], answer: Any
) -> None:
    value, question = read_answer(make_question(schema), entries)
    assert question.is_complete
    assert value == answer
    assert type(value) is type(answer)


def test_an_answer_that_is_missing_or_cannot_be_read_is_named() -> None:
    _, question = read_answer(make_question({"type": "string"}), {})
    assert question.problem == "enter an answer"
    _, question = read_answer(make_question(COMMENTED), {"/count": "many", "/approved": "true"})
    assert not question.is_complete
    assert [field.problem for field in question.fields] == ["", "'many' is no whole number"]


APPROVAL: dict[str, Any] = {
    "name": "approval",
    "steps": [
        {
            "id": "ask",
            "wait_for": {"topic": "go", "message": "May <it> go on?", "schema": {**OK, **COMMENTED}},
        }
    ],
}


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        system.state.runs.touch()
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def start_waiting(site: Site, workflow: Any, run: str) -> str:
    """Start a run; returns its page when it shows a question."""
    asked = {"workflow": workflow, "input": {}, "run": run}
    token = site.system.token
    await site.wire.call(site.hub.url, "start_run", asked, authorization=token)
    async with asyncio.timeout(WAIT_S):
        while 'class="question"' not in (page := (await site.read(f"/ui/runs/{run}", token)).body.decode()):
            await asyncio.sleep(0.01)
    return page


async def test_a_person_in_the_browser_answers_a_question_with_a_boolean(site: Site) -> None:
    workflow = {**APPROVAL, "steps": [{"id": "ask", "wait_for": {"topic": "go", "schema": OK}}]}
    page = await start_waiting(site, workflow, "r-1")
    assert '<button name="/ok" value="true">Approve</button>' in page
    assert '<button class="danger" name="/ok" value="false">Refuse</button>' in page
    entries = {"action": "signal_run", "topic": "go", "step": "ask", "/ok": "true"}
    reply = await site.submit("/ui/runs/r-1", entries, site.system.token, **OWN)
    assert reply.status == 200
    shown = await finish(site, "r-1")
    assert shown["output"] == {"ok": True}
    assert site.list_audit()[-1][1:] == ("signal_run", "done")


async def finish(site: Site, run: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await site.wire.call(
                site.hub.url, "show_run", {"run": run}, authorization=site.system.token
            )
            if reply.result["status"] != "running":
                return reply.result
            await asyncio.sleep(0.01)


async def test_a_run_that_waits_for_an_answer_says_so(site: Site) -> None:
    page = await start_waiting(site, APPROVAL, "r-3")
    assert '<h1>approval <span class="status s-waiting">waiting</span></h1>' in page
    for path in ("/ui/runs", "/"):
        listed = (await site.read(path, site.system.token)).body.decode()
        assert '<span class="status s-waiting">waiting</span> <span class="muted">go</span>' in listed, path


async def test_a_page_gives_its_data_as_json_with_the_same_rights(site: Site) -> None:
    after = {"id": "after", "wait_for": "later"}
    page = await start_waiting(site, {**APPROVAL, "steps": [*APPROVAL["steps"], after]}, "r-4")
    assert "s-to-come" in page
    assert "Time line" in page
    token, url = site.system.token, site.hub.url
    reply = await site.wire.get(f"{url}/ui/runs/r-4?format=json", authorization=token, accept="text/html")
    run = orjson.loads(reply.body)
    assert (run["run"], run["steps"][0]["status"]) == ("r-4", "waiting")
    assert [planned["id"] for planned in run["plan"]] == ["ask", "after"]
    for path in (
        "/",
        "/ui/agents",
        "/ui/calls",
        "/ui/runs",
        "/ui/workflows",
        "/ui/mesh",
        "/ui/agents/retinue",
    ):
        reply = await site.wire.get(f"{url}{path}", authorization=token, accept="application/json")
        assert reply.headers["content-type"] == "application/json", path
        assert isinstance(orjson.loads(reply.body), dict)
    narrow = site.token("exposed", name="bob")
    for path in ("/ui/runs/r-4", "/ui/calls", "/ui/runs"):
        reply = await site.wire.get(f"{url}{path}?format=json", authorization=narrow)
        assert reply.status == 403, path
        assert "the scope mesh" in orjson.loads(reply.body)["error"]


async def test_an_answer_that_does_not_fit_is_shown_again_with_its_entries(site: Site) -> None:
    page = await start_waiting(site, APPROVAL, "r-2")
    assert "May &lt;it&gt; go on?" in page
    assert 'name="/comment"' in page
    entries = {"action": "signal_run", "topic": "go", "step": "ask", "/comment": "a <b>", "/approved": "true"}
    reply = await site.submit("/ui/runs/r-2", {**entries, "/count": "many"}, site.system.token, **OWN)
    shown = reply.body.decode()
    assert reply.status == 200
    assert "is no whole number" in shown
    assert 'value="a &lt;b&gt;"' in shown
    assert "data-live" not in shown, "a page that reads itself again would lose the entries"
    reply = await site.submit("/ui/runs/r-2", entries, site.system.token, **OWN)
    assert "missing required field" in reply.body.decode()
    assert 'value="a &lt;b&gt;"' in reply.body.decode()
