"""A thinking run on the dashboard reads as a conversation, within the size of a page."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent
from retinue.dashboard.drawings.conversation import (
    LEAST_CHARACTERS,
    MOST_CHARACTERS,
    PAGE_CHARACTERS,
    TURNS,
    find_loop,
    join_texts,
    read_conversation,
)
from retinue.storage.state import State
from retinue.testing import ModelTurn, ScriptedModel
from tests.dashboard.site import Site
from tests.dashboard.writer import make_writer
from tests.support.thinking import think
from tests.system import WAIT_S, open_system, open_wire

EVIL = "<img src=x onerror=alert(1)>\u202e"


def make_turn(number: int, text: str = "", calls: Sequence[Any] = (), **steps: Any) -> Any:
    """A recorded turn as ``show_run`` gives it; ``steps`` are further facts by ``call_1`` and so on."""
    path = f"research/turn-{number}"
    reply = {"text": text, "calls": list(calls), "finish": "calls" if calls else "stop"}
    usage = {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.001}
    model = {"step": f"{path}/model", "kind": "model", "status": "done", "agent": "claude", "output": reply}
    below = [{"step": f"{path}/{name.replace('_', '-')}", **facts} for name, facts in steps.items()]
    return {"step": path, "status": "done", "steps": [model | {"usage": usage}, *below]}


def make_loop(*turns: Any, **facts: Any) -> Any:
    plan = {"agent": "claude", "prompt": "Do it", "instructions": "Be brief", "tools": ["files/write"]}
    return {"step": "research", "kind": "think", "status": "done", "loop": plan, "steps": turns, **facts}


def call(name: str = "files__write", **arguments: Any) -> Any:
    return {"id": "c", "name": name, "arguments": arguments}


FAULT = {"type": "x", "message": "full"}
DONE = {"status": "done", "agent": "files", "skill": "write"}


def test_a_turn_has_its_calls_with_what_became_of_them() -> None:
    answer = {
        "kind": "wait",
        "call": "research/turn-1/call-2",
        "output": {"verdict": "no", "comment": "not now"},
    }
    loop = make_loop(
        make_turn(
            1,
            "Looking.",
            [call(text="a"), call(text="b"), call("nothing"), call("find_skills", what="clocks")],
            call_1={**DONE, "output": {"size": 3}, "duration_ms": 9.0},
            answer_1=answer,
            found={"status": "done", "output": ["clock/tell_time"]},
        ),
        make_turn(2, "", [call(text="c")], call_1={**DONE, "status": "failed", "error": FAULT}),
        make_turn(3, "Done."),
    )
    talk = read_conversation(loop)
    first, second, third = talk.turns
    made, refused, unknown, search = first.calls
    assert (made.tool, made.status, made.hint) == ("files/write", "done", '{"text":"a"}')
    assert made.result is not None
    assert made.result.text == '{\n  "size": 3\n}'
    assert refused.question is not None
    assert (refused.status, refused.question.comment) == ("refused", "not now")
    assert (unknown.tool, unknown.status) == ("nothing", "not made")
    assert search.result is not None
    assert search.result.text == "clock/tell_time"
    assert second.calls[0].error is not None
    assert second.calls[0].error.text == "x: full"
    assert third.text is not None
    assert third.text.text == "Done."
    assert (talk.total, talk.calls) == (3, 5)
    assert talk.usage == {"input_tokens": 300, "output_tokens": 30, "cost_usd": pytest.approx(0.003)}


def test_three_hundred_turns_come_in_pages() -> None:
    loop = make_loop(*(make_turn(n, f"turn {n}") for n in range(1, 301)))
    newest = read_conversation(loop)
    assert [turn.number for turn in newest.turns] == list(range(276, 301))
    assert (newest.before, newest.after, newest.total) == (251, None, 300)
    first = read_conversation(loop, 1)
    assert [turn.number for turn in first.turns] == list(range(1, TURNS + 1))
    assert (first.before, first.after) == (None, TURNS + 1)
    assert read_conversation(loop, 10_000).turns[0].number == 300


def test_a_page_of_large_values_is_bounded() -> None:
    big = "<&>" * 70_000
    calls = [call(text=big) for _ in range(8)]
    made = {f"call_{n}": {**DONE, "output": big} for n in range(1, 9)}
    loop = make_loop(*(make_turn(n, big, calls, **made) for n in range(1, 301)))
    talk = read_conversation(loop)
    shown = [text for turn in talk.turns for one in turn.calls for text in (one.arguments, one.result)]
    assert sum(turn.more_calls for turn in talk.turns) == 25 * 8 - 60
    sizes = [len(text.text) for text in shown if text is not None]
    assert talk.turns[-1].text is not None
    assert len(talk.turns[-1].text.text) == MOST_CHARACTERS + 1
    assert sum(sizes) < PAGE_CHARACTERS + len(sizes) * (LEAST_CHARACTERS + 1)


def test_texts_that_are_being_written_are_joined_and_gaps_are_marked() -> None:
    def piece(text: str, at: int) -> Any:
        return {"text": text, "at": at, "agent": "claude", "step": "r/turn-1/model"}

    assert join_texts([piece("ab", 0), piece("cd", 2)]) == {"r/turn-1/model": "abcd"}
    assert join_texts([piece("cd", 2), piece("gh", 6)]) == {"r/turn-1/model": "…cd…gh"}
    assert join_texts([piece("ab", 0), piece("new", 0)]) == {"r/turn-1/model": "new"}
    assert join_texts([{"step": "r", "message": "x", "fraction": None}]) == {}


def test_a_run_with_two_loops_shows_each_on_the_page_of_its_step() -> None:
    loop: dict[str, Any] = make_loop(make_turn(1, "x"))
    other = {**loop, "step": "other"}
    assert find_loop([loop], None) == loop
    assert find_loop([loop, other], None) is None
    assert find_loop([], loop) == loop
    assert find_loop([loop], {"step": "other", "kind": "skill"}) is None


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def read_until(site: Site, mark: str) -> str:
    async with asyncio.timeout(WAIT_S):
        while True:
            page = (await site.read("/ui/runs/r", site.system.token)).body.decode()
            if mark in page:
                return page
            await asyncio.sleep(0.02)


async def test_a_run_is_read_while_its_model_writes_and_after_it(site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    notes = Agent("notes", version="1.0.0")

    @notes.skill
    async def note(text: str) -> str:
        """Notes a text."""
        return f"noted {EVIL} {'x' * 4_000}"

    model = ScriptedModel(
        ModelTurn(f"Noting {EVIL}", calls=[("notes__note", {"text": EVIL}), ("notes__not", {})]),
        ModelTurn("All of it is noted.", waits_for=gate),
        prices={"input": 1.0, "output": 2.0},
        context_window=1_000,
    )
    for agent in (model, notes):
        await site.system.start_agent(agent)
    token = site.system.token
    await site.wire.call(site.hub.url, "refresh_agents", {}, authorization=token)
    workflow = think(f"Note {EVIL}", tools=["notes/*"], instructions=f"Heed {EVIL}", session="s")
    started = {"workflow": workflow, "input": {}, "run": "r"}
    await site.wire.call(site.hub.url, "start_run", started, authorization=token)
    page = await read_until(site, "The model is writing.")
    assert " data-live" in page
    gate.touch()
    page = await read_until(site, "All of it is noted.")
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert "Condensed: 2 messages" in page
    assert re.findall(r"<h3>Turn (\d)", page) == ["1", "2"]
    assert html.escape("Noting <img") in page
    assert "<b>notes/note</b>" in page
    assert '<span class="status s-not-made">not made</span> <b>notes__not</b>' in page
    assert re.search(r"2 turns, 2 calls · [\d,]+ tokens in, \d+ out, \$0\.\d+", page)
    assert "at most turns 20" in page


def test_condensed_turns_and_parts_of_large_results_are_shown_where_they_were_made() -> None:
    usage = {"input_tokens": 50, "output_tokens": 5}
    notes = {
        "step": "research/condense-1",
        "kind": "model",
        "status": "done",
        "input": {"condenses": "10 messages"},
        "output": {"text": EVIL},
        "usage": usage,
    }
    asked = [call("read_result", link="x"), call("read_result", link="y") | {"id": "d"}]
    parts = [{"call": "c", "place": "bytes 0 to 3 of 9", "text": "abc"}, {"call": "d", "problem": "unknown"}]
    read = {"status": "done", "output": {"parts": parts}}
    loop = make_loop(make_turn(1, "", asked, read=read), notes, make_turn(2, "Done."))
    talk = read_conversation(loop)
    first, second = talk.turns
    part, problem = first.calls
    assert part.result is not None
    assert problem.error is not None
    assert (part.status, part.result.text, part.result.note) == ("done", "abc", "bytes 0 to 3 of 9")
    assert (problem.status, problem.error.text) == ("failed", "unknown")
    assert not first.condensed
    (condensed,) = second.condensed
    assert condensed.notes is not None
    assert (condensed.what, condensed.notes.text) == ("10 messages", EVIL)
    assert talk.usage["input_tokens"] == 250


async def test_the_text_of_the_model_is_on_the_page_while_it_is_written(site: Site) -> None:
    go_on = asyncio.Event()
    await site.system.start_agent(make_writer(go_on))
    token, ticks = site.system.token, asyncio.Event()
    await site.wire.call(site.hub.url, "refresh_agents", {}, authorization=token)
    site.hub.mesh.hub.starter.progress.subscribe(ticks.set)
    started = {"workflow": think(tools=["read"]), "input": {}, "run": "r", "progress": True}
    await site.wire.call(site.hub.url, "start_run", started, authorization=token)
    page = await read_until(site, "The model is writing.")
    assert re.search(r'<p class="text" aria-busy="true">Half of </p>', await read_until(site, "Half of"))
    assert ticks.is_set()
    go_on.set()
    page = await read_until(site, "Half of it is all.")
    assert "The model is writing." not in page


async def test_a_limit_that_ended_a_run_is_told_with_the_way_on(site: Site) -> None:
    count = [ModelTurn(calls=[("notes__count", {"n": n})], tokens=(100, 10)) for n in range(3)]
    notes = Agent("notes", version="1.0.0")

    @notes.skill
    async def count_to(n: int) -> int:
        """Counts."""
        return n

    for agent in (ScriptedModel(*count, "The end."), notes):
        await site.system.start_agent(agent)
    token = site.system.token
    await site.wire.call(site.hub.url, "refresh_agents", {}, authorization=token)
    started = {"workflow": think(tools=["count_to"], limits={"turns": 2}), "input": {}, "run": "r"}
    await site.wire.call(site.hub.url, "start_run", started, authorization=token)
    page = await read_until(site, "the limit of turns is reached (2)")
    assert "retinue resume r --limit turns=N" in page
    assert '<span class="status s-limited">limited</span>' in page
    more = {"run": "r", "limits": {"turns": 9}}
    await site.wire.call(site.hub.url, "extend_run", more, authorization=token)
    page = await read_until(site, "The end.")
    assert "The limits were raised: turns 9" in page
    assert "the limit of turns is reached" not in page
