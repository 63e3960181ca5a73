"""What a hub offers over MCP: counted in entries, opened where it is listed or called, by who asks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from retinue.core.call import ANONYMOUS, Principal
from retinue.core.record import AgentRecord, Candidate, Endpoint, Listing, ListingKey, Skill
from retinue.mcp.server.hub_offer import MANY, TOO_MANY, HubOffer
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access, AccessRule
from retinue.mesh.reading import Change, Changes

EXPOSED = frozenset({"exposed"})
CLIENT = Principal("anonymous", "anonymous", EXPOSED)
HUB = AgentRecord("retinue", skills=(Skill("find_skills", "Finds.", visibility="exposed"),))


class Store(MemoryListings):
    """Counts the cards that are read."""

    opened = 0

    def find(self, listing_id: ListingKey) -> Listing | None:
        self.opened += 1
        return super().find(listing_id)

    def find_all(self, listing_ids: Collection[ListingKey]) -> Sequence[Listing]:
        self.opened += len(listing_ids)
        return super().find_all(listing_ids)


def listing(name: str, *skills: str, source: str = "home", port: int = 1) -> Listing:
    endpoint = Endpoint("execute", f"http://127.0.0.1:{port}")
    offered = tuple(Skill(one, one, visibility="exposed") for one in skills)
    return Listing(AgentRecord(name, endpoints=(endpoint,), skills=offered), source, f"agents/{name}-{port}")


class World:
    def __init__(self, *listings: Listing, rules: dict[str, AccessRule] | None = None) -> None:
        self.directory = Directory(MemoryListings())
        for one in listings:
            self.directory.upsert(one)
        self.told: list[Change] = []
        changes = Changes()
        self.offer = HubOffer(lambda: HUB, changes.subscribe, self.directory, Access(rules))
        self.offer.subscribe(self.told.append)

    def names(self, principal: Principal = CLIENT, session: str | None = None) -> list[str]:
        return [tool["name"] for tool in self.offer.tools(principal, session).tools]


def test_callers_that_see_the_same_share_one_list() -> None:
    """And those that do not have each their own."""
    world = World(listing("a", "x"), listing("b", "x", port=2), rules={"b": AccessRule(receive=("friend",))})
    friend, other = Principal("friend", "token", EXPOSED), Principal("other", "token", EXPOSED)
    few = Principal("few", "token", EXPOSED, agents=("a",))
    assert world.names(friend) == ["find_skills", "a__x", "b__x"]
    assert world.names(other) == world.names() == ["find_skills", "a__x"]
    assert world.names(few) == ["a__x"], "not even the hub's own"
    assert world.offer.tools(other) is world.offer.tools(CLIENT)
    assert (
        world.offer.visibility_key_of(other)
        == world.offer.visibility_key_of(CLIENT)
        != world.offer.visibility_key_of(friend)
    )
    assert [one.uri for one in world.offer.resources(other)] == ["agent:a"]
    assert world.offer.resources(few) == ()


@pytest.mark.parametrize("spelling", ["big__fs:0", "big__fs_0", "big.fs:0", "my_agent__say", "my.agent__say"])
def test_an_unlisted_tool_is_found_by_every_spelling(spelling: str) -> None:
    world = World(listing("big", *(f"fs:{n}" for n in range(MANY + 1))), listing("my.agent", "say", port=2))
    catalog = world.offer.tools(CLIENT)
    assert [tool["name"] for tool in catalog.tools] == ["find_skills"]
    assert "42 more tools of 2 agents" in catalog.tools[0]["description"]
    found = catalog.find(spelling)
    assert found is not None
    assert (found.agent, found.skill.id) in {("big", "fs:0"), ("my.agent", "say")}
    assert catalog.find("big__fs:99") is catalog.find("nobody__say") is None


def test_for_an_unknown_tool_only_agents_are_looked_at_that_the_caller_sees() -> None:
    class Counted(Directory):
        named = 0

        def name_of(self, entry: Candidate) -> str:
            self.named += 1
            return super().name_of(entry)

    directory, caller = Counted(MemoryListings()), Principal("few", "token", EXPOSED, agents=("retinue", "a"))
    directory.upsert(listing("a", *(f"fs:{n}" for n in range(MANY + 1))))
    for number in range(50):
        directory.upsert(listing(f"other-{number}", "x", port=number + 2))
    catalog = HubOffer(lambda: HUB, Changes().subscribe, directory, Access()).tools(caller)
    assert catalog.find("a__fs_0") is not None
    directory.named = 0
    assert catalog.find("nobody__say") is None
    assert directory.named == 1


def test_two_agents_of_one_name_are_called_with_their_sources() -> None:
    world = World(listing("a", "x"), listing("a", "x", source="far", port=2))
    assert sorted(world.names()) == ["a_far__x", "a_home__x", "find_skills"]
    found = world.offer.tools(CLIENT).find("a@far__x")
    assert found is not None
    assert found.agent == "a@far"


def test_what_was_only_measured_is_no_change_and_what_nobody_looked_at_is_told_once() -> None:
    world = World(listing("a", "x"))
    catalog = world.offer.tools(CLIENT)
    (entry,) = world.directory.list_entries()
    world.directory.mark_unreachable(entry, "gone")
    assert world.told == []
    assert world.offer.tools(CLIENT) is catalog
    world.directory.upsert(listing("b", "x", port=2))
    world.directory.upsert(listing("c", "x", port=3))
    assert world.told == [Change("tools"), Change("resources")]
    assert world.names() == ["find_skills", "a__x", "b__x", "c__x"]
    world.directory.set_enabled(entry, False)
    assert len(world.told) == 4
    assert world.names() == ["find_skills", "b__x", "c__x"]


def test_of_many_agents_no_card_is_opened_but_the_one_that_is_called() -> None:
    listings = [listing(f"agent-{n}", "x", port=n + 1) for n in range(3_000)]
    store = Store()
    directory = Directory(store)
    for one in listings:
        directory.upsert(one)
    offer = HubOffer(lambda: HUB, Changes().subscribe, directory, Access())
    catalog = offer.tools(ANONYMOUS)
    assert "3000 more tools of 3000 agents" in catalog.tools[0]["description"]
    assert len(offer.resources(ANONYMOUS)) == MANY
    assert store.opened == 0
    assert catalog.find("agent-2999__x") is not None
    assert store.opened == 0, "one skill is read, not the card"


def test_a_session_keeps_the_form_of_its_list_until_that_would_be_too_long() -> None:
    world = World(listing("a", "x"))
    assert len(world.names(session="s")) == 2
    world.directory.upsert(listing("b", *(f"x{n}" for n in range(MANY)), port=2))
    assert len(world.names(session="s")) == MANY + 2
    world.directory.upsert(listing("c", *(f"y{n}" for n in range(TOO_MANY)), port=3))
    assert len(world.names(session="s")) == 1
    assert len(world.names()) == 1
