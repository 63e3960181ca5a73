"""What earlier calls say of the fit of the best hit, of wishes, of agents, and of explained places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.call import Principal
from retinue.core.record import Listing, Skill
from retinue.mesh.history.learned_ranking import ScoreParts
from retinue.mesh.search.agents import AgentSearch, Explanation, explain_place
from retinue.mesh.search.ranking import Found
from tests.mesh.history.small_mesh import (
    ANNA,
    ASKED,
    BEN,
    GUEST,
    MESH,
    NOTES,
    READS,
    ROUTES,
    TRIPS,
    Mesh,
    agent,
)

GYM = "gym session"
TRAIN = "a journey by train"
CARL = Principal("token:carl", "token", MESH)


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


def find(mesh: Mesh, text: str, caller: Principal = ANNA) -> Found:
    return mesh.search.find_skills(text, caller.scopes, learn=mesh.history.learn_for(caller, text))


def list_agents(mesh: Mesh, text: str, caller: Principal = ANNA) -> list[str]:
    learn = mesh.history.learn_for(caller, text)
    return [hit.entry.name for hit in AgentSearch(mesh.search).find_agents(text, caller.scopes, learn=learn)]


def explain(mesh: Mesh, text: str, listing: Listing) -> Explanation:
    return explain_place(text, listing, MESH, mesh.search, learn=mesh.history.learn_for(ANNA, text))


def serve(mesh: Mesh, text: str, caller: Principal = ANNA, *, status: str = "done", times: int = 1) -> None:
    """Calls of the planner of journeys came of this request."""
    for _ in range(times):
        mesh.history.note_search(caller, text, [(mesh.entry(ROUTES), "plan_route")])
        mesh.end("routes", "plan_route", caller, status)
        mesh.now += 700.0


def test_a_request_that_a_skill_has_served_fits_it_whatever_its_card_says(mesh: Mesh) -> None:
    before = find(mesh, GYM)
    assert (before.hits, before.is_wish, before.gap) == ((), True, "no skill here speaks of: gym, session")
    serve(mesh, GYM, times=5)
    found = find(mesh, GYM)
    assert [hit.skill.id for hit in found.hits] == ["plan_route"]
    assert (found.fit.is_likely, found.is_wish, found.gap) == (True, False, None)
    assert (found.is_by_card, found.hits[0].card) == (False, 0.0)


def test_calls_that_failed_make_no_hit_fit(mesh: Mesh) -> None:
    serve(mesh, GYM)
    serve(mesh, GYM, status="failed", times=3)
    serve(mesh, "a journey to the gym session", status="failed", times=3)
    found = find(mesh, GYM)
    assert [hit.skill.id for hit in found.hits] == ["plan_route"]
    assert (found.fit.is_likely, found.is_wish) == (False, True)
    assert found.gap == "no skill here speaks of: gym, session"


def test_the_praise_of_one_other_caller_makes_no_hit_fit_and_that_of_two_does(mesh: Mesh) -> None:
    serve(mesh, GYM, BEN, times=5)
    assert not find(mesh, GYM).fit.is_likely
    serve(mesh, GYM, CARL)
    assert find(mesh, GYM).fit.is_likely


def test_a_limited_caller_learns_of_a_fit_from_its_own_calls_alone(mesh: Mesh) -> None:
    serve(mesh, GYM, ANNA)
    serve(mesh, GYM, BEN)
    assert find(mesh, GYM, GUEST).is_wish
    serve(mesh, GYM, GUEST)
    assert find(mesh, GYM, GUEST).fit.is_likely


def test_a_skill_that_keeps_its_place_fits_as_its_card_does(mesh: Mesh) -> None:
    orders = agent("orders", Skill("cancel_order", "Ends the order of a parcel", hints=READS))
    mesh.hold(orders, agent("parcels", Skill("track_parcel", "Tells where a parcel is", hints=READS)))
    before = find(mesh, "where is my parcel")
    for _ in range(6):
        text = "my parcel is late, I want the money back"
        mesh.history.note_search(ANNA, text, [(mesh.entry(orders), "cancel_order")])
        mesh.end("orders", "cancel_order")
        mesh.now += 700.0
    learn = mesh.history.learn_for(ANNA, "where is my parcel")
    assert learn is not None
    found = mesh.search.find_skills("where is my parcel", MESH, learn=learn)
    parts = learn.parts[found.hits[0].entry.id, found.hits[0].skill.id]
    assert (found.hits[0].skill.id, parts.is_kept) == ("track_parcel", True)
    assert (found.fit, found.is_by_card, found.is_wish) == (before.fit, True, before.is_wish)
    assert [hit.card for hit in found.hits] == [hit.score for hit in before.hits]
    assert found.hits[1].score > 0.9 * found.hits[0].score, "it is put just behind"


def test_a_skill_that_is_tried_fits_as_its_card_does(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, explored=1.0)
    before = find(mesh, TRAIN)
    mesh.use("routes", "plan_route", times=5, text=TRAIN)
    found = find(mesh, TRAIN)
    assert found.hits[0].skill.id == "book_trip"
    assert (found.fit.score, found.is_by_card) == (before.fit.score, True)


def test_calls_for_other_requests_leave_the_fit_of_a_card(mesh: Mesh) -> None:
    before = find(mesh, "adds a note")
    for _ in range(20):
        mesh.history.note_search(ANNA, "milk and bread", [(mesh.entry(NOTES), "add_note")])
        mesh.end("notes", "add_note")
    after = find(mesh, "adds a note")
    assert after.hits[0].score < before.hits[0].score
    assert (after.fit, after.is_by_card) == (before.fit, True)


def test_agents_are_found_in_the_order_of_what_their_skills_served(mesh: Mesh) -> None:
    assert list_agents(mesh, ASKED) == ["routes", "trips"]
    mesh.use("trips", "book_trip", times=6)
    assert mesh.find(ASKED)[0] == "book_trip"
    assert list_agents(mesh, ASKED) == ["trips", "routes"]
    assert list_agents(mesh, GYM) == []
    serve(mesh, GYM, times=5)
    assert list_agents(mesh, GYM) == ["routes"], "no word of its card is in the request"
    assert list_agents(mesh, GYM, GUEST) == []


def test_an_agent_has_the_place_that_its_skill_keeps_or_is_tried_for(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, explored=1.0)
    mesh.use("routes", "plan_route", times=5, text=TRAIN)
    assert mesh.find(TRAIN)[0] == "book_trip"
    assert list_agents(mesh, TRAIN)[0] == "trips"


WORDS = st.lists(
    st.sampled_from(("plan", "journey", "train", "note", "add", "book", "trip", "route")), min_size=1
)


@settings(max_examples=40)
@given(offered=st.lists(st.lists(WORDS, max_size=4), max_size=6), asked=WORDS)
def test_without_history_agents_have_the_order_and_the_scores_of_their_cards(
    tmp_path_factory: pytest.TempPathFactory, offered: list[list[list[str]]], asked: list[str]
) -> None:
    listings = [
        agent(
            f"agent{number}",
            *(Skill(f"{words[0]}_{place}", " ".join(words)) for place, words in enumerate(skills)),
        )
        for number, skills in enumerate(offered)
    ]
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), listings)
    search, text = AgentSearch(mesh.search), " ".join(asked)
    mesh.history.blame = lambda _entry: 0.0
    learn = mesh.history.learn_for(ANNA, text)
    assert learn is not None
    assert search.find_agents(text, MESH, learn=learn) == search.find_agents(text, MESH)
    assert mesh.search.find_skills(text, MESH, learn=learn) == mesh.search.find_skills(text, MESH)


def test_the_skill_that_earlier_calls_found_is_explained(mesh: Mesh) -> None:
    serve(mesh, GYM, times=5)
    explained = explain(mesh, GYM, ROUTES)
    assert (explained.place, explained.skill, explained.coverage) == (1, "plan_route", 0.0)
    assert explained.score == find(mesh, GYM).hits[0].score
    assert "it is number 1 by earlier calls; plan_route does not speak of: gym, session" in explained.reasons


def test_of_two_skills_of_an_agent_the_one_is_explained_that_gives_the_place(mesh: Mesh) -> None:
    both = agent("both", *ROUTES.record.skills, Skill("add_note", "Adds a note of a train", hints=READS))
    mesh.hold(both)
    text = "note of a train"
    assert explain(mesh, text, both).skill == "add_note"
    for _ in range(6):
        mesh.history.note_search(ANNA, text, [(mesh.entry(both), "plan_route")])
        mesh.end("both", "plan_route")
        mesh.now += 700.0
    found = find(mesh, text)
    assert found.hits[0].skill.id == "plan_route"
    explained = explain(mesh, text, both)
    assert (explained.skill, explained.score) == ("plan_route", found.hits[0].score)
    assert explained.shared == ("train",)


def test_without_history_the_score_is_that_of_the_card(mesh: Mesh) -> None:
    explained = explain(mesh, ASKED, TRIPS)
    assert explained.score == find(mesh, ASKED).hits[1].score > 0.0
    parts = ScoreParts(explained.score, 0.0, 0.0, 0.0)
    assert parts.describe("book_trip").endswith("for its card; no call of it counts yet")


def test_a_prompt_of_a_run_is_a_wish_until_a_call_of_the_run_is_done(mesh: Mesh) -> None:
    wish = mesh.history.note_wish(ANNA, "a taxi to the moon")
    assert wish is not None
    mesh.history.note_run(ANNA, "a taxi to the moon", "run1", wish=wish)
    assert [one.texts for one in mesh.history.wishes.list_clusters()] == [("a taxi to the moon",)]
    mesh.end("routes", "plan_route", run_step="run1/step1", status="failed")
    assert len(mesh.history.wishes) == 1
    mesh.end("routes", "plan_route", run_step="run1/step1")
    assert len(mesh.history.wishes) == 0
    assert mesh.history.note_wish(ANNA, "?") is None
