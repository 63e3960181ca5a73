"""A hub learns from calls that were found by words, and examines its agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.core.record import AgentRecord, Example, Listing, Skill
from retinue.hub.examiner import Examiner, ExamLimits
from retinue.mesh.directory.directory import Directory
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.records import SkillKey
from retinue.mesh.history.search_history import SearchHistory
from retinue.runtime.parts.finding.exam import Exams
from retinue.web.issued_tokens import TokenFile
from tests.system import Hub, System, Wire


async def get(wire: Wire, hub: Hub, system: System, skill: str, params: Any = None) -> Any:
    reply = await wire.call(hub.url, skill, params, authorization=system.token)
    return reply.result


def make_agents() -> tuple[Agent, Agent]:
    first, second = Agent("first", version="1.0.0"), Agent("second", version="1.0.0")

    @first.skill(read_only=True, examples=[Example(arguments={"text": "a b"})])
    async def count_words(text: str) -> int:
        """Counts the words of a letter."""
        return len(text.split())

    @second.skill(read_only=True, examples=[Example(arguments={"text": "a b"})])
    async def measure_words(text: str) -> int:
        """Counts the words of a letter."""
        raise ValueError(text)

    return first, second


async def test_a_search_a_call_and_the_next_search(system: System, wire: Wire) -> None:
    first, second = make_agents()
    await system.start_agent(first)
    await system.start_agent(second)
    hub = await system.start_hub()
    hub.process.get(SearchHistory).explored = 0.0
    query = {"query": "words of a letter"}
    found = await get(wire, hub, system, "find_skills", query)
    last = found["skills"][-1]
    await get(wire, hub, system, "find_skills", query)
    call = {"skill": "count_words", "arguments": {"text": "x"}, "search": found["search"]}
    assert await get(wire, hub, system, "call_skill", call) == 1
    hub.mesh.events.flush()
    shown = await get(wire, hub, system, "show_history")
    assert [(row["skill"], row["verdicts"]) for row in shown["skills"]] == [("count_words", {"done": 1})]
    rated = await get(wire, hub, system, "rate_call", {"skill": "count_words", "verdict": "good"})
    assert rated["agent"] == "first"
    detailed = {**query, "why": "first", "detailed": True}
    again = await get(wire, hub, system, "find_skills", detailed)
    assert again["skills"][0]["skill"] == "count_words"
    assert again["learned"][0]["neighbours"] == 1.0
    assert any("earlier calls" in reason for reason in again["why"]["reasons"])
    directory, history = hub.process.get(Directory), hub.process.get(SearchHistory)
    (experience,) = history.list_records()
    history._put(replace(experience, id="other", key=SkillKey("teams", "word@news", "count_letters")))
    record = AgentRecord("word", skills=(Skill("count_letters", "Counts the words of a letter."),))
    words = [Listing(record, "teams", f"agents/{team}/word") for team in ("news", "words")]
    for listing in words:
        directory.upsert(listing)
    two_teams = await get(wire, hub, system, "find_skills", detailed | {"why": "word@news"})
    assert two_teams["why"]["agent"] == "word@news"
    learned = {row["agent"] for row in two_teams["learned"] if row["calls"]}
    assert "word@news" in learned
    assert "word@words" not in learned, "an agent of another team"
    for listing in words:
        directory.remove(listing.id)
    await hub.process.get(SearchHistory).flush()
    assert system.state.history.exists()
    await get(wire, hub, system, "find_skills", {"query": "a taxi"})
    assert (await get(wire, hub, system, "list_wishes"))["wishes"][0]["texts"] == []
    assert await get(wire, hub, system, "forget_history") == {"forgotten": 3}, "with a wish of just now"
    assert (await get(wire, hub, system, "find_skills", query))["skills"][-1] == last


async def test_an_agent_that_fails_or_changes_its_card_often_is_examined_after_growing_pauses(
    system: System,
) -> None:
    _, second = make_agents()
    await system.start_agent(second)
    hub = await system.start_hub()
    book, now = hub.process.get(ExamBook), 1_000_000.0
    book.policy = "warn"
    directory = hub.process.get(Directory)
    examiner = Examiner(hub.process.dispatcher.dispatch, ExamLimits(), clock=lambda: now)
    exams = Exams(directory, book, examiner, system.state, 86_400.0, lambda: now)
    counts = []
    for wait_s in (0.0, 599.0, 1.0, 1_199.0, 1.0):
        now += wait_s
        counts.append(await exams.examine_due())
    assert counts == [1, 0, 1, 0, 1]
    (entry,) = directory.list_named("second")
    counts = []
    for digest, wait_s in (("d-2", 10.0), ("d-3", 10.0), ("d-4", 580.0)):
        listing = await directory.open(entry)
        assert listing is not None
        directory.upsert(replace(listing, digest=digest))
        now += wait_s
        counts.append(await exams.examine_due())
    assert counts == [0, 0, 1]


async def test_the_exam_is_shown_and_decides_the_choice_if_it_is_required(system: System, wire: Wire) -> None:
    first, second = make_agents()

    @second.skill("count_words", read_only=True)
    async def count_again(text: str) -> int:
        """Counts words."""
        return -1

    await system.start_agent(first)
    await system.start_agent(second)
    hub = await system.start_hub(dashboard=True)
    book = hub.process.get(ExamBook)
    book.policy = "require"
    hub.process.dispatcher.select = book.select
    call = {"skill": "count_words", "arguments": {"text": "x"}}
    refused = await wire.call(hub.url, "call_skill", call, authorization=system.token)
    assert "passed its exam" in str(refused.error)
    examiner = Examiner(hub.process.dispatcher.dispatch, ExamLimits())
    directory = hub.process.get(Directory)
    exams = Exams(directory, book, examiner, system.state, 3_600.0)
    assert await exams.examine_due() == 2
    assert await exams.examine_due() == 0
    rows = (await get(wire, hub, system, "list_agents", {"detailed": True}))["agents"]
    results = {row["name"]: row["exam"] for row in rows}
    assert (results["first"]["result"], results["first"]["calls"]) == ("passed", 1)
    assert results["second"]["result"] == "failed"
    assert "measure_words" in results["second"]["problems"][0]
    for _ in range(3):
        assert await get(wire, hub, system, "call_skill", call) == 1
    assert await get(wire, hub, system, "call_skill", {**call, "agent": "second"}) == -1, "it was named"
    why = await get(wire, hub, system, "find_skills", {"query": "count words", "why": "second"})
    assert any("failed its exam: measure_words" in reason for reason in why["why"]["reasons"])
    shown = (await get(wire, hub, system, "show_agent", {"name": "second"}))["exam"]
    assert (shown["result"], shown["calls"], len(shown["at"])) == ("failed", 1, 25)
    page, narrow = (
        f"{hub.url}/ui/agents/second",
        TokenFile(system.state.keys).issue(("exposed",), name="bob")[1],
    )
    own = (await wire.get(page, authorization=system.token, accept="text/html")).body.decode()
    assert "Entrance exam" in own
    assert "measure_words: " in own
    passed = (
        await wire.get(f"{hub.url}/ui/agents/first", authorization=system.token, accept="text/html")
    ).body
    assert b"passed" in passed
    of_bob = await wire.get(page, authorization=f"Bearer {narrow}", accept="text/html")
    assert b"measure_words: " not in of_bob.body


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000,
        "count the words " * 700,
        "🦀 🎉",
        "сосчитай слова",
        "数一数字母",
        "عد الكلمات",
        "\x1b[31mcount\x1b[0m \u202ewords\u0000",
        "'\"; -- {{ words }} %s <b>",
    ],
)
async def test_the_place_of_an_agent_is_explained_for_odd_requests(
    system: System, wire: Wire, text: str
) -> None:
    first, _ = make_agents()
    await system.start_agent(first)
    hub = await system.start_hub()
    for _ in range(2):
        reply = await get(wire, hub, system, "find_skills", {"query": text, "why": "first", "detailed": True})
        assert reply["why"]["reasons"]
        assert 0.0 <= reply["fit"]["score"] <= 1.0
    wishes = (await get(wire, hub, system, "list_wishes"))["wishes"]
    assert all(row["texts"] == [] for row in wishes)


@pytest.mark.parametrize("asked", [{}, {"query": " "}, {"query": "words", "skill": "count_words"}])
async def test_a_place_without_a_search_by_words_is_refused(
    system: System, wire: Wire, asked: dict[str, str]
) -> None:
    hub = await system.start_hub()
    reply = await wire.call(hub.url, "find_skills", {**asked, "why": "first"}, authorization=system.token)
    assert "give query, no skill" in str(reply.error)
