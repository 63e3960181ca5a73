"""What the hub's skills tell a caller who sees a part of the agents."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Principal
from retinue.core.errors import StateError, UnknownAgentError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.hub.orchestration.agent_list import add_capability_skills
from retinue.hub.orchestration.roster import Roster
from retinue.hub.search import add_search_skills
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.exams import ExamBook
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.call_figures import CallFigures, TrackRecord
from retinue.mesh.permissions import Access, AccessRule
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex
from tests.mesh.scripted import make_call
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

MESH = frozenset({"exposed", "mesh"})
PART = Principal("token:ci", "token", MESH, ("open-*", "hub"))
WHOLE = Principal("token:all", "token", MESH)


class Hub:
    """A hub's lists and searches over agents that plan; ``open-…`` are those that ``PART`` sees."""

    def __init__(self, *names: str, access: Access | None = None, candidates: int = 50) -> None:
        self.directory = Directory(MemoryListings())
        self.index = MemoryTextIndex()
        self.search = search = SkillSearch(self.index, self.directory.find_listing, candidates=candidates)
        for name in names:
            about = "plans a secret journey" if name.startswith("secret") else "plans a journey by rail"
            record = AgentRecord(name, skills=(Skill(f"{name}-plan", f"It {about}"), Skill("plan")))
            search.put([listing := Listing(record, "home", f"agents/{name}")])
            self.directory.upsert(listing)
        agent = Agent("hub")
        access = access or Access()
        roster = Roster(self.directory, TrackRecord(CallFigures(), AgentStatsTable()), access)
        history = SearchHistory(self.directory.find_skill, lambda name: None)
        agents = AgentSearch(search, candidates=candidates)
        add_capability_skills(agent, self.directory, agents, roster, access, history)
        add_search_skills(agent, self.directory, search, access, history, ExamBook())
        self._dispatcher = local_dispatcher(agent)

    async def ask(self, skill_id: str, /, principal: Principal = PART, **arguments: Any) -> dict[str, Any]:
        outcome = await self._dispatcher.dispatch(make_call(skill_id, arguments, principal=principal))
        reply: dict[str, Any] = outcome.get()
        return reply

    async def agents(self, principal: Principal = PART, **arguments: Any) -> list[str]:
        rows = (await self.ask("list_agents", principal, **arguments))["agents"]
        return [row["name"] for row in rows]

    async def found(self, principal: Principal = PART, **arguments: Any) -> set[str]:
        rows = (await self.ask("find_skills", principal, **arguments))["skills"]
        return {row["agent"] for row in rows}


@requirement("S-17")
async def test_pages_are_counted_within_what_the_caller_sees() -> None:
    hub = Hub("open-a", "open-c", "open-e", "secret-b", "open-b-late", "secret-z")
    first = await hub.ask("list_agents", limit=2)
    assert [row["name"] for row in first["agents"]] == ["open-a", "open-b-late"]
    last = await hub.ask("list_agents", limit=2, after=first["next"])
    assert [row["name"] for row in last["agents"]] == ["open-c", "open-e"]
    assert "next" not in last
    assert len(await hub.agents(WHOLE)) == 6


async def test_an_agent_s_own_list_narrows_the_pages_as_a_token_does() -> None:
    hub = Hub("open-a", "open-b", access=Access({"open-a": AccessRule(receive=("token:all",))}))
    assert await hub.agents() == ["open-b"]
    assert await hub.agents(WHOLE) == ["open-a", "open-b"]


async def test_whom_the_caller_does_not_see_takes_nobody_s_place_in_a_search() -> None:
    hub = Hub("open-a", "secret-a", "secret-b", candidates=1)
    assert await hub.agents(query="secret journey plans") == ["open-a"]
    assert await hub.found(query="secret journey plans", limit=1) == {"open-a"}


async def test_a_search_by_skill_by_nothing_and_by_words_stays_within_the_view() -> None:
    hub = Hub("open-a", "secret-a")
    searches: list[dict[str, Any]] = [{"skill": "plan"}, {}, {"query": "plans a journey"}]
    for asked in searches:
        assert await hub.found(**asked) == {"open-a"}
        assert await hub.found(WHOLE, **asked) == {"open-a", "secret-a"}


async def test_a_slip_of_typing_is_not_mended_with_a_word_of_an_unseen_agent() -> None:
    hub = Hub("open-a", "secret-a")
    assert (await hub.ask("find_skills", WHOLE, query="sceret"))["did_you_mean"] == "secret"
    assert "did_you_mean" not in await hub.ask("find_skills", query="sceret")


async def test_the_place_of_an_unseen_agent_is_not_explained() -> None:
    hub = Hub("open-a", "secret-a")
    assert (await hub.ask("find_skills", query="journey", why="open-a"))["why"]["place"] == 1
    with pytest.raises(UnknownAgentError) as unknown:
        await hub.ask("find_skills", query="journey", why="secret-a")
    assert unknown.value.near == ()


async def test_without_its_index_a_search_stays_within_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub("open-a", "secret-a")

    def fail(*_: Any) -> None:
        raise StateError("the disk is full")

    monkeypatch.setattr(hub.index, "corpus", fail)
    reply = await hub.ask("find_skills", query="journey")
    assert {row["agent"] for row in reply["skills"]} == {"open-a"}
    assert reply["warning"] == "the disk is full"


async def test_the_reasons_of_a_place_name_the_trust_and_who_gets_a_call_without_a_name() -> None:
    hub = Hub("open-a", "open-b")
    foreign = MemorySource("imports")
    record = AgentRecord("open-z", skills=(Skill("plan", "It plans a journey by rail"),))
    foreign.put(Listing(record, "imports", "open-z"))
    hub.directory.add_sources([foreign])
    hub.search.put([Listing(record, "imports", "open-z")])
    await hub.directory.refresh()
    reply = await hub.ask("find_skills", query="plan rail", why="open-z")
    (_, trust, takers, score) = reply["why"]["reasons"]
    assert trust == "for calls that name no agent it is imported by the owner"
    assert takers == "a call of plan that names no agent goes to open-a, open-b"
    assert score.endswith("for its card; no call of it counts yet")
    rows = (await hub.ask("find_skills", query="plan rail"))["skills"]
    assert {row["agent"]: row.get("trust") for row in rows} == {
        "open-a": None,
        "open-b": None,
        "open-z": "imported",
    }


async def test_a_gap_speaks_of_the_agents_that_the_caller_sees() -> None:
    query = "secret taxi"
    hidden = Hub("open-a", "secret-b")
    alone = await Hub("open-a").ask("find_skills", query=query)
    told = await hidden.ask("find_skills", query=query)
    assert told["gap"] == alone["gap"] == "no skill here speaks of: secret, taxi"
    assert "gap" not in await hidden.ask("find_skills", WHOLE, query=query), "an agent plans a secret journey"
