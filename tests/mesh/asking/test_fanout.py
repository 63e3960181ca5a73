"""One question to many agents: who answers in time is ranked, who does not is named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from retinue.core.call import Outcome
from retinue.core.errors import AgentUnreachableError, InvalidSettingError, RetinueError
from retinue.core.record import Stats
from retinue.mesh.asking.fanout import MAX_ASKED, Answers, ask_agents, read_answer
from retinue.mesh.asking.query import Query, make_query
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.entry import Entry
from tests.mesh.scripted import make_listing
from tests.requirements import requirement

TWO = make_query(["python", "debugging"])


def said(*matched: str, query: Query = TWO, **more: Any) -> dict[str, Any]:
    missing = [one for one in query.capabilities if one not in matched]
    return {"status": "success", "match_result": not missing, "matched_capabilities": [*matched], **more}


class Crowd:
    """Agents that answer what a test tells them; those without an answer never return."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.at_once = 0
        self.most = 0

    async def __call__(self, agent: str) -> Outcome:
        self.asked.append(agent)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(0)
            answer = self.answers[agent]
            if answer is None:
                await asyncio.Event().wait()
            error = answer if isinstance(answer, RetinueError) else None
            status: Any = "done" if error is None else "failed"
            return Outcome("1", "query_capabilities", status, value=answer, error=error)
        except asyncio.CancelledError:
            self.cancelled.append(agent)
            raise
        finally:
            self.at_once -= 1


@requirement("W-18")
async def test_the_best_comes_first_and_the_dead_and_the_silent_are_named() -> None:
    crowd = Crowd(
        {
            "half": said("python"),
            "dead": AgentUnreachableError("dead", "http://dead", "connection refused"),
            "whole": said("python", "debugging"),
            "slow": None,
            "none": said(),
            "odd": "hello",
        }
    )
    found = await ask_agents(list(crowd.answers), TWO, crowd, timeout_s=0.05)
    assert [one.agent for one in found.answers] == ["whole", "half"]
    assert found.best is found.answers[0]
    assert {one.agent for one in found.silent} == {"dead", "slow", "odd"}
    assert [one.reason for one in found.silent if one.agent == "slow"] == ["no answer within 0.05 s"]
    assert (found.unable, crowd.cancelled) == (1, ["slow"])


async def test_all_are_asked_at_once() -> None:
    crowd = Crowd({f"a{n}": said("python") for n in range(300)})
    assert len((await ask_agents(list(crowd.answers), TWO, crowd)).answers) == 300
    assert crowd.most == 300


RANKED: list[tuple[dict[str, Any], Stats]] = [
    (said("python", "debugging", confidence=0.9), Stats()),
    (said("python", "debugging", confidence=0.6, price=1), Stats()),
    (said("python", "debugging", confidence=0.6, price=2, time_s=5), Stats()),
    (said("python", "debugging", confidence=0.6, price=2, time_s=9), Stats()),
    (said("python", "debugging", confidence=0.6), Stats()),
    (said("python", "debugging"), Stats(10, 0, 0.5)),
    (said("python", "debugging"), Stats(10, 0, 2.0)),
    (said("python", "debugging"), Stats(10, 5, 0.1)),
    (said("python", "debugging", confidence=0.2), Stats()),
    (said("python", "debugging", confidence=1.0, live=False), Stats()),
    (said("python", confidence=1.0, price=0), Stats()),
]


@requirement("W-18")
def test_match_then_live_yes_then_confidence_price_time_and_earlier_calls_decide() -> None:
    answers = [read_answer(f"{n:02}", TWO, *one) for n, one in enumerate(RANKED)]
    mixed = [one for one in answers if one is not None]
    random.Random(7).shuffle(mixed)
    assert [one.agent for one in sorted(mixed, key=lambda one: one.rank)] == [
        f"{n:02}" for n in range(len(RANKED))
    ]


def test_answers_below_capabilities_are_read_too() -> None:
    inner = {"match_result": True, "matched_capabilities": ["Python", "debugging"]}
    nested = {"status": "success", "capabilities": inner}
    found = read_answer("old", TWO, nested)
    assert found is not None
    assert (found.yes, found.matched) == (True, ("python", "debugging"))


@pytest.mark.parametrize("claim", [["python"], ["python", "debugging", 7], []])
def test_a_yes_without_the_capabilities_is_no_yes(claim: list[Any]) -> None:
    found = read_answer("liar", TWO, {"match_result": True, "matched_capabilities": claim})
    assert found is not None
    assert found.yes is (len(claim) == 3)


@pytest.mark.parametrize("bad", [None, [], "yes", {}, {"matched_capabilities": "python"}])
def test_what_is_no_answer_is_not_read(bad: Any) -> None:
    assert read_answer("odd", TWO, bad) is None


@pytest.mark.parametrize("price", ["cheap", -1, float("nan"), True, None])
def test_terms_of_others_that_are_no_numbers_count_as_not_stated(price: Any) -> None:
    found = read_answer("odd", TWO, said("python", price=price))
    assert found is not None
    assert found.price is None


def test_answers_survive_their_json() -> None:
    answers = [read_answer(f"{n:02}", TWO, *one) for n, one in enumerate(RANKED)]
    found = Answers(tuple(one for one in answers if one is not None), (), 3, 4)
    assert Answers.from_json(found.as_json()).as_json() == found.as_json()


def test_an_action_that_is_not_available_now_is_no_yes() -> None:
    query = make_query(action="fix")
    facts: list[dict[str, Any]] = [{"action": {}}, {"action": {}, "available": False}, {"status": "failure"}]
    found = [read_answer("a", query, one) for one in facts]
    assert [one is not None and one.yes for one in found] == [True, False, False]


async def test_a_directory_asks_its_enabled_agents_and_needs_a_way_to_them() -> None:
    directory = Directory(MemoryListings())
    for name in ("one", "two"):
        directory.upsert(make_listing(name))
    crowd = Crowd({"one": said("python"), "two": said("python", "debugging")})
    found = await directory.ask(["python", "debugging"], crowd)
    assert [one.agent for one in found.answers] == ["two", "one"]
    with pytest.raises(InvalidSettingError, match="dispatch"):
        await directory.ask(["python"])


async def test_of_too_many_agents_the_preferred_ones_are_asked_and_the_others_counted() -> None:
    directory = Directory(MemoryListings())
    for number in range(MAX_ASKED + 5):
        directory.upsert(make_listing(f"a{number:05}"))
    last = directory.list_entries()[-1]
    told: list[str] = []

    def prefer(words: str) -> list[Entry]:
        told.append(words)
        return [last]

    asked: list[str] = []

    async def dispatch(agent: str) -> Outcome:
        asked.append(agent)
        return Outcome("1", "query_capabilities", "done", value=said())

    found = await directory.ask(["python", "debugging"], dispatch, prefer=prefer)
    assert (found.unable, found.not_asked, told) == (MAX_ASKED, 5, ["python debugging"])
    assert asked[0] == last.name
