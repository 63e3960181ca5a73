"""The agents of a process for one caller: an agent's own, and those of a hub's directory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.authoring.agent import Agent
from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.errors import UnknownAgentError
from retinue.core.record import AgentRecord, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access, AccessRule
from retinue.parts.shown_agents import MeshAgents, OwnAgent, ShownAgents

URL = "http://127.0.0.1:9000"
CLOSED = Access({"home": AccessRule(receive=("friend",)), "echo-one": AccessRule(receive=("friend",))})
FRIEND = Principal("friend", "token", frozenset({"expose", "mesh"}))
STRANGER = replace(FRIEND, id="stranger")


def make_agent() -> Agent:
    agent = Agent("home", version="1.0.0")

    @agent.skill(expose=True)
    async def greet() -> str:
        """Greets."""
        return "hello"

    return agent


def make_directory(*names: str) -> Directory:
    directory = Directory(MemoryListings(), [])
    for name in names:
        directory.upsert(Listing(AgentRecord(name, version="1.0.0"), "test", name))
    return directory


@pytest.fixture(params=["agent", "hub"])
def shown(request: pytest.FixtureRequest) -> ShownAgents:
    agent = make_agent()
    if request.param == "agent":
        return OwnAgent(agent, CLOSED, URL)
    return MeshAgents(agent, CLOSED, URL, make_directory("echo-one", "echo-two"))


async def test_the_own_agent_is_found_by_who_sees_it_and_by_nobody_else(shown: ShownAgents) -> None:
    for caller in (FRIEND, LOCAL):
        agent = await shown.find("home", caller)
        assert (agent.name, agent.record.url, agent.scopes) == ("home", URL, caller.scopes)
        assert shown.own(caller) == agent
    for name in ("home", "hom", "missing"):
        with pytest.raises(UnknownAgentError) as caught:
            await shown.find(name, STRANGER)
        assert str(caught.value) == str(UnknownAgentError(name))
    hidden = shown.own(STRANGER)
    assert (hidden.record.name, hidden.scopes) == ("home", frozenset())


async def test_the_revision_counts_changes_of_the_own_agent_and_of_cards(shown: ShownAgents) -> None:
    before = await shown.read_revision()
    assert await shown.read_revision() == before
    shown.agent.amend(description="Knows more.")
    after = await shown.read_revision()
    assert after != before
    if isinstance(shown, MeshAgents):
        directory = shown._directory
        directory.upsert(Listing(AgentRecord("echo-three", version="1.0.0"), "test", "echo-three"))
        assert await shown.read_revision() not in (before, after)


async def test_the_record_of_the_own_agent_follows_its_changes(shown: ShownAgents) -> None:
    changes: list[str] = []
    end = shown.subscribe("home", lambda: changes.append("changed"))
    before = shown.own(FRIEND).record
    assert shown.own(FRIEND).record is before
    shown.agent.amend(description="Knows more.")
    assert shown.own(FRIEND).record.description == "Knows more."
    assert changes == ["changed"]
    end()
    shown.agent.amend(description="Knows all.")
    assert changes == ["changed"]


async def test_a_hub_finds_the_agents_of_its_directory_that_a_caller_sees() -> None:
    shown = MeshAgents(make_agent(), CLOSED, URL, make_directory("echo-one", "echo-two"))
    assert (await shown.find("echo-one", FRIEND)).record.name == "echo-one"
    assert (await shown.find("echo-two", STRANGER)).scopes == STRANGER.scopes
    with pytest.raises(UnknownAgentError) as caught:
        await shown.find("echo-one", STRANGER)
    assert str(caught.value) == str(UnknownAgentError("echo-one"))


async def test_a_hub_lists_the_agents_that_a_caller_sees_and_an_agent_none() -> None:
    shown = MeshAgents(make_agent(), CLOSED, URL, make_directory("echo-one", "echo-two"))
    assert [agent.name async for agent in shown.iterate_others(FRIEND)] == ["echo-one", "echo-two"]
    assert [agent.name async for agent in shown.iterate_others(STRANGER)] == ["echo-two"]
    own = OwnAgent(make_agent(), CLOSED, URL)
    assert [agent.name async for agent in own.iterate_others(FRIEND)] == []


async def test_a_hub_finds_the_only_other_spelling_of_a_seen_name() -> None:
    shown = MeshAgents(make_agent(), CLOSED, URL, make_directory("echo-one", "two_a", "two-a"))
    assert await shown.find_spelling("Echo_One", FRIEND) == "echo-one"
    assert await shown.find_spelling("Echo_One", STRANGER) is None
    assert await shown.find_spelling("Two-A", FRIEND) is None
    assert await OwnAgent(make_agent(), CLOSED, URL).find_spelling("Home", FRIEND) is None


async def test_a_hub_tells_of_changes_of_the_agent_that_was_asked_for() -> None:
    directory = make_directory("echo-one", "echo-two")
    shown = MeshAgents(make_agent(), Access(), URL, directory)
    changes: list[str] = []
    end = shown.subscribe("echo-one", lambda: changes.append("changed"))
    for name in ("echo-one", "echo-two"):
        directory.upsert(Listing(AgentRecord(name, version="1.0.0", description="new"), "test", name))
    assert changes == ["changed"]
    end()
    directory.upsert(Listing(AgentRecord("echo-one", version="1.0.0"), "test", "echo-one"))
    assert changes == ["changed"]
    assert (await shown.find("echo-two", ANONYMOUS)).record.description == "new"
