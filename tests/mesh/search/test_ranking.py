"""The ranking of skills and agents for a request, over both text indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.record import AgentRecord, Example, Listing, ListingKey, Skill
from retinue.mesh.search.agents import AgentSearch, Explanation, explain_place
from retinue.mesh.search.ranking import BATCH, WITHIN, Found, SkillSearch, rank_skills
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex
from retinue.storage.skill_index import SqliteTextIndex
from tests.requirements import requirement
from tests.strategies import skills

MESH = frozenset({"mesh", "exposed"})
EXPOSED = frozenset({"exposed"})


def agent(name: str, *offered: Skill, **facts: Any) -> Listing:
    return Listing(AgentRecord(name, skills=offered, **facts), "home", f"agents/{name}")


PLAN = agent("plan", Skill("create_plan", "Creates structured implementation plans from requirements"))
BUILD = agent("build", Skill("generateCode", "Writes source code after a plan"))
TEST = agent("test", Skill("review_code", "Runs tests and reviews the code", tags=("quality",)))
WORLD = agent(
    "world",
    Skill("weather", "Forecasts rain and sun for a place"),
    Skill("translate_text", "Translates text between languages", similes=("interpreter",)),
    Skill("book-flight", "Reserves seats", input_schema={"properties": {"airline": {}, "departure": {}}}),
)
ALL = (PLAN, BUILD, TEST, WORLD)


class Mesh:
    """Listings with a search over them."""

    def __init__(self, listings: Sequence[Listing], index: TextIndex | None = None) -> None:
        self.held = {listing.id: listing for listing in listings}
        self.index = index if index is not None else MemoryTextIndex()
        self.search = SkillSearch(self.index, lambda listing_id: self.held.get(listing_id))
        self.search.put(listings)

    async def hold(self, *listings: Listing) -> int:
        """Replace the listings; returns the number of changes in the index."""
        self.held = {one.id: one for one in listings}
        return await self.search.synchronize(self.held)

    def find(self, text: str, scopes: frozenset[str] = MESH, **narrowed: Any) -> Found:
        return self.search.find_skills(text, scopes, **narrowed)

    def agents(self, text: str) -> list[str]:
        found = AgentSearch(self.search).find_agents(text, MESH)
        return [hit.entry.name for hit in found]

    def explain(self, text: str, listing: Listing, **narrowed: Any) -> Explanation:
        return explain_place(text, listing, MESH, self.search, **narrowed)


Open = Callable[[Sequence[Listing]], Mesh]


@pytest.fixture(params=["memory", "sqlite"])
def mesh_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a search over listings, on an index of its own."""
    with ExitStack() as stack:

        def open_mesh(listings: Sequence[Listing]) -> Mesh:
            if request.param == "memory":
                return Mesh(listings)
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "retinue.db"
            return Mesh(listings, stack.enter_context(closing(SqliteTextIndex(path))))

        yield open_mesh


def ids(found: Found) -> list[str]:
    return [hit.skill.id for hit in found.hits]


def digests(mesh: Mesh) -> dict[ListingKey, str]:
    return dict(mesh.index.iterate_digests())


@pytest.mark.parametrize(
    ("text", "skill_id"),
    [
        ("create a plan", "create_plan"),
        ("Can you help me with planning my implementation?", "create_plan"),
        ("generate code", "generateCode"),
        ("GENERATECODE", "generateCode"),
        ("reviewing", "review_code"),
        ("quality", "review_code"),
        ("an interpreter", "translate_text"),
        ("which airline", "book-flight"),
        ("will it rain", "weather"),
        ("raining", "weather"),
        ("translatable", "translate_text"),
        ("transl", "translate_text"),
        ("wéather", "weather"),
    ],
)
def test_the_skill_that_was_meant_is_first(mesh_of: Open, text: str, skill_id: str) -> None:
    assert ids(mesh_of(ALL).find(text))[0] == skill_id


def test_a_name_says_more_than_a_description(mesh_of: Open) -> None:
    named = agent("a", Skill("resize_image", "Makes it smaller"))
    told = agent("b", Skill("shrink", "Can resize an image, too"))
    assert ids(mesh_of([told, named]).find("resize image")) == ["resize_image", "shrink"]


def test_an_example_lets_a_skill_be_found_by_what_people_say(mesh_of: Open) -> None:
    asked = "my invoices are a mess"
    plain = Skill("ledger", "Bookkeeping")
    taught = replace(plain, examples=(Example(text="sort this mess of invoices"),))
    assert ids(mesh_of([agent("a", plain), WORLD]).find(asked)) == []
    assert ids(mesh_of([agent("a", taught), WORLD]).find(asked)) == ["ledger"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("wether", "weather"), ("tranlsate", "translate"), ("reviwe code", "review code"), ("lpan", "plan")],
)
def test_a_slip_of_the_finger_is_found_and_said(mesh_of: Open, typed: str, meant: str) -> None:
    found = mesh_of(ALL).find(typed)
    assert found.did_you_mean == meant
    assert found.hits


def test_a_word_that_is_only_in_hidden_skills_is_never_suggested(mesh_of: Open) -> None:
    secret = agent("a", Skill("detonate", "Secret", visibility="private"))
    found = mesh_of([*ALL, secret]).find("detonat3 detonaet")
    assert found.did_you_mean is None
    assert found.hits == ()


def test_a_known_word_is_no_slip(mesh_of: Open) -> None:
    assert mesh_of(ALL).find("plan code").did_you_mean is None


@pytest.mark.parametrize("scopes", [EXPOSED, frozenset[str]()])
def test_hidden_skills_are_not_found(mesh_of: Open, scopes: frozenset[str]) -> None:
    assert mesh_of(ALL).find("create a plan", scopes).hits == ()


def test_an_index_that_lags_behind_shows_no_skill_that_was_hidden_or_taken_away_since(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    mesh.held[PLAN.id] = agent("plan", replace(PLAN.record.skills[0], visibility="private"))
    mesh.held[BUILD.id] = agent("build")
    del mesh.held[TEST.id]
    assert ids(mesh.find("plan code review")) == []


def test_equal_skills_come_with_the_agents_first_that_answer(mesh_of: Open) -> None:
    offered = Skill("echo", "Says it again")
    dead = replace(agent("a", offered), reachable=False)
    mesh = mesh_of([dead, agent("c", offered), agent("b", offered)])
    assert [hit.entry.name for hit in mesh.find("echo").hits] == ["b", "c", "a"]


def test_hits_beyond_the_limit_are_counted(mesh_of: Open) -> None:
    many = [agent(f"a{number}", Skill("echo", "Says it again")) for number in range(7)]
    found = mesh_of(many).find("echo", limit=3)
    assert (len(found.hits), found.more) == (3, 4)


def test_a_search_may_be_narrowed(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    assert ids(mesh.find("code plan", within=[BUILD.id])) == ["generateCode"]
    assert ids(mesh.find("code plan", within=[ListingKey("home", "gone")])) == []
    assert ids(mesh.find("code", accept=lambda one: one.id == TEST.id)) == ["review_code"]


def test_a_similar_word_alone_is_no_hit_within_some_listings_either(mesh_of: Open) -> None:
    """Otherwise a caller could tell from the hits whether its search was narrowed for it."""
    mesh = mesh_of([agent("a", Skill("ask_around", "Calls somebody else")), TEST])
    assert ids(mesh.find("nobody")) == ids(mesh.find("nobody", within=list(mesh.held))) == []
    assert mesh.explain("nobody", mesh.held[TEST.id]).place is None


def test_a_search_may_be_narrowed_to_many(mesh_of: Open) -> None:
    many = [agent(f"a{number}", Skill("echo")) for number in range(2 * WITHIN)]
    some = {one.id for one in many[WITHIN // 2 :]}
    found = mesh_of(many).find("echo", within=some, limit=1000)
    assert {hit.entry.id for hit in found.hits} == some


@pytest.mark.parametrize("text", ["", "   ", "?!", "\x00", "'\";--", "zzzzqqqq"])
def test_a_text_that_says_nothing_finds_nothing_and_fits_nobody(mesh_of: Open, text: str) -> None:
    found = mesh_of(ALL).find(text)
    assert found.hits == ()
    assert not found.fit.is_likely


def test_words_of_asking_alone_find_what_is_called_so(mesh_of: Open) -> None:
    mesh = mesh_of([*ALL, agent("desk", Skill("help", "Answers questions"))])
    assert ids(mesh.find("help")) == ["help"]


@pytest.mark.parametrize("text", ["hello", "Hi, hello!", "say hello"])
def test_a_greeting_alone_finds_the_skill_whose_example_has_it(mesh_of: Open, text: str) -> None:
    greet = Skill("greet", "Greets a person by name", examples=(Example("say hello to Ada"),))
    mesh = mesh_of([*ALL, agent("greeter", greet)])
    assert [hit.skill.id for hit in mesh.find(text).hits] == ["greet"]
    assert mesh.find("hello, please write a plan for me").hits[0].skill.id != "greet"


def test_whether_anybody_fits_is_said_beside_the_hits(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    able = mesh.find("translate this text between two languages").fit
    unable = mesh.find("is there a place that repairs a broken dishwasher, oven and heating on a holiday").fit
    assert able.is_likely
    assert able.score > 0.5
    assert not unable.is_likely
    assert 0.0 < unable.score < 0.4


@requirement("P-30")
@pytest.mark.parametrize("text", ["write tests", "say hello to somebody"])
def test_among_few_skills_one_that_has_the_words_is_likely(mesh_of: Open, text: str) -> None:
    """All words are frequent among four skills, so that every score is low."""
    few = [
        agent("plan", Skill("create_plan", "Creates structured plans: the tests to write for a module")),
        agent("build", Skill("generate_code", "Writes tests for the functions of a module from a plan")),
        agent("test", Skill("review_code", "Runs the tests of a module and says what to write anew")),
        agent("my", Skill("greet", "Greets a person by name", examples=(Example("say hello to Ada"),))),
    ]
    found = mesh_of(few).find(text)
    assert found.hits
    assert found.fit.is_likely


def test_among_few_skills_the_verb_and_rare_words_decide(mesh_of: Open) -> None:
    """The skills of the demo: every one of them speaks of tests."""
    told = ("plan tests for src/shapes.py", "write tests for the json module")
    plan = Skill(
        "create_plan",
        "Creates structured implementation plans from requirements: tests for the Python module they name.",
        tags=("planning", "python", "testing"),
        examples=tuple(map(Example, told)),
    )
    build = Skill("generate_code", "Writes tests from a plan", tags=("python", "testing"))
    review = Skill("review_code", "Runs tests and reviews the code", tags=("review", "python", "testing"))
    mesh = mesh_of([agent("p", plan), agent("b", build), agent("t", review)])
    assert ids(mesh.find("plan tests"))[0] == "create_plan"
    assert ids(mesh.find("run tests"))[0] == "review_code"
    files = [
        Skill(f"{verb}_file", "For one file of the disk") for verb in ("create", "delete", "read", "send")
    ]
    asked = {
        "show me the file": "read_file",
        "get rid of this file": "delete_file",
        "drop that file": "delete_file",
    }
    mesh = mesh_of([agent("disk", *files)])
    assert {text: ids(mesh.find(text))[0] for text in asked} == asked


async def test_an_index_is_brought_up_to_date_with_what_is_listed(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    assert await mesh.hold(*ALL) == 0
    changed = replace(PLAN, record=replace(PLAN.record, description="architect"))
    assert await mesh.hold(changed, TEST) == 3
    assert ids(mesh.find("architect")) == ["create_plan"]
    assert ids(mesh.find("weather")) == []


async def test_a_digest_marks_the_text(mesh_of: Open) -> None:
    mesh = mesh_of([])
    assert await mesh.hold(replace(PLAN, digest="sha256:1")) == 1
    assert await mesh.hold(replace(PLAN, digest="sha256:1", reachable=False)) == 0
    assert await mesh.hold(replace(PLAN, digest="sha256:2")) == 1
    shown = agent("plan", replace(PLAN.record.skills[0], visibility="exposed"))
    assert await mesh.hold(replace(shown, digest="sha256:2")) == 1
    assert await mesh.hold() == 1
    assert digests(mesh) == {}


async def test_many_listings_are_taken_in_and_others_run_meanwhile(mesh_of: Open) -> None:
    mesh = mesh_of([])
    many = [agent(f"a{number}", Skill("echo")) for number in range(2 * BATCH + 1)]
    seen: list[int] = []

    async def watch() -> None:
        while len(seen) < 2:
            seen.append(mesh.index.corpus().skills)
            await asyncio.sleep(0)

    counted, _ = await asyncio.gather(mesh.hold(*many), watch())
    assert counted == len(many)
    assert seen[0] < mesh.index.corpus().skills == len(many)


def test_what_was_noted_is_found_by_the_next_search(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    new = agent("new", Skill("juggle"))
    mesh.held[new.id] = new
    mesh.held[TEST.id] = replace(TEST, reachable=False)
    del mesh.held[PLAN.id]
    for noted in (new, TEST, PLAN, agent("never")):
        mesh.search.note(noted.id)
    assert ids(mesh.find("juggle review")) == ["juggle", "review_code"]
    assert PLAN.id not in digests(mesh)
    mesh.search.note(TEST.id)
    assert mesh.search.catch_up() == 0


@pytest.mark.parametrize(("eager", "taken_in"), [(True, 2 * BATCH), (False, 0)])
def test_many_notes_are_taken_in_before_any_search_where_that_is_wanted(
    mesh_of: Open, eager: bool, taken_in: int
) -> None:
    mesh = mesh_of([])
    search = SkillSearch(mesh.index, mesh.held.get, eager=eager)
    for number in range(2 * BATCH + 1):
        one = agent(f"a{number}", Skill("echo"))
        mesh.held[one.id] = one
        search.note(one.id)
    assert len(digests(mesh)) == taken_in
    assert search.find_skills("echo", MESH, limit=1000).more == 0
    assert len(digests(mesh)) == 2 * BATCH + 1


def test_ranking_a_list_gives_all_of_it_for_an_empty_text() -> None:
    hidden = agent("z", Skill("hidden", visibility="private"))
    assert [skill.id for _, skill in rank_skills("", [*ALL, hidden], MESH)] == [
        "create_plan", "generateCode", "review_code", "weather", "translate_text", "book-flight",
    ]  # fmt: skip
    assert [skill.id for _, skill in rank_skills("rain", ALL, MESH)] == ["weather"]


def test_an_agent_is_chosen_by_all_that_it_offers(mesh_of: Open) -> None:
    many = agent(
        "travel",
        Skill("flights", "Finds flights"),
        Skill("hotels", "Finds hotels near a flight"),
        Skill("trains", "Finds trains"),
        description="Everything about journeys",
    )
    one = agent("kite", Skill("flights", "Flights of a kite"))
    mesh = mesh_of([one, many, *ALL])
    assert mesh.agents("flights and hotels for my journey")[0] == "travel"
    assert mesh.agents("zzzz") == []
    assert mesh.agents("") == []


def test_a_place_is_explained(mesh_of: Open) -> None:
    mesh = mesh_of(ALL)
    found = mesh.explain("review code dishwasher", TEST)
    assert (found.place, found.skill) == (1, "review_code")
    assert (found.shared, found.missing) == (("review", "code"), ("dishwasher",))
    assert 0.2 < found.coverage < 1.0


@pytest.mark.parametrize(
    ("text", "listing", "narrowed", "reason"),
    [
        ("dishwasher", TEST, {}, "none of its skills speaks of: dishwasher"),
        ("?", TEST, {}, "the text has no words"),
        ("code", agent("empty"), {}, "it offers no skill that you may see"),
        ("code", TEST, {"within": [BUILD.id]}, "a filter leaves it out"),
        ("code", replace(TEST, enabled=False), {}, "it is disabled"),
        ("code", replace(TEST, reachable=False, last_error="refused"), {}, "it does not answer: refused"),
    ],
)
def test_a_miss_is_explained(mesh_of: Open, text: str, listing: Listing, narrowed: Any, reason: str) -> None:
    mesh = mesh_of([*(one for one in ALL if one.id != listing.id), listing])
    assert reason in mesh.explain(text, listing, **narrowed).reasons


def test_a_skill_out_of_sight_is_never_mentioned(mesh_of: Open) -> None:
    hidden = agent("z", Skill("detonate", visibility="private"))
    found = mesh_of([hidden]).explain("detonate", hidden)
    assert (found.skill, found.shared, found.place) == (None, (), None)


@settings(max_examples=15)
@given(st.lists(skills("any"), max_size=2), st.text())
def test_whatever_is_offered_and_asked_scores_are_sane(offered: list[Skill], text: str) -> None:
    listings = [agent(str(number), skill) for number, skill in enumerate(offered)]
    found = Mesh(listings).find(text)
    scores = [hit.score for hit in found.hits]
    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)
    assert 0.0 <= found.fit.score <= 1.0
    assert all(hit.skill.visibility != "private" for hit in found.hits)
