"""What one caller can do to the ranking of others, however it calls: attacks that must stay within bounds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from retinue.core.call import ANONYMOUS, Hop, Principal, TraceContext
from retinue.core.record import Skill
from retinue.mesh.history.records import Experience, Hashes, SkillKey
from retinue.mesh.history.search_history import LISTED_FOR_S, NAMED_FOR_S, is_search_id
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

MALLORY = Principal("token:mallory", "token", MESH)
KEYS = Hashes(b"k" * 64)
NOISE = [
    agent(f"noise-{number}", Skill(f"noise_{number}", "Other work", hints=READS)) for number in range(60)
]


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


def put(mesh: Mesh, number: int, skill: str, text: str, caller: int) -> None:
    """A record of a call without its search, which is slow for thousands."""
    name = next(one.name for one in mesh.held.values() if one.record.find_skill(skill))
    key = SkillKey("home", name, skill)
    stems = KEYS.of_request(text)
    mesh.history._put(Experience(f"{caller}-{number}", mesh.now, key, "d", stems, caller, "done"))


def neighbours(mesh: Mesh, skill: str, caller: Principal = ANNA, text: str = ASKED) -> float:
    """What came of similar requests, as a search of this caller counts it."""
    learn = mesh.history.learn_for(caller, text)
    assert learn is not None
    mesh.search.find_skills(text, caller.scopes, learn=learn)
    return next(parts.neighbours for (_, one), parts in learn.parts.items() if one == skill)


def test_a_flood_of_calls_with_one_stem_makes_it_common_for_nobody_else(mesh: Mesh) -> None:
    """A stem that many skills are asked for with tells little, so calling many skills with it devalues it."""
    mesh.hold(ROUTES, TRIPS, NOTES, *NOISE)
    for number in range(20):
        mesh.use(f"noise-{number}", f"noise_{number}", ANNA, text=f"other work {number}")
    mesh.use("routes", "plan_route", ANNA, text="a train to the coast")
    asked = "the train at noon"
    before = neighbours(mesh, "plan_route", ANNA, asked)
    assert before > 0.3
    flood = KEYS.of_caller(MALLORY.id, is_member=False)
    for number in range(60):
        put(mesh, number, f"noise_{number}", "train", flood)
    assert neighbours(mesh, "plan_route", ANNA, asked) > 0.75 * before
    # for itself it counts in full
    own = mesh.history.learn_for(MALLORY, asked)
    anna = mesh.history.learn_for(ANNA, asked)
    assert own is not None
    assert anna is not None
    (stem,) = KEYS.of_request("train")
    assert own._weigh([stem])[stem] < 0.3 * anna._weigh([stem])[stem]


def test_a_guest_weighs_stems_by_its_own_requests_only(mesh: Mesh) -> None:
    mesh.hold(ROUTES, TRIPS, NOTES, *NOISE)
    mesh.use("routes", "plan_route", GUEST, text="a train to the coast")
    before = neighbours(mesh, "plan_route", GUEST, "the train at noon")
    for number in range(60):
        put(mesh, number, f"noise_{number}", "train", KEYS.of_caller(BEN.id, is_member=False))
    assert neighbours(mesh, "plan_route", GUEST, "the train at noon") == before


def test_a_stem_in_hundreds_of_requests_of_one_caller_still_finds_what_it_served_for_others(
    mesh: Mesh,
) -> None:
    mesh.hold(ROUTES, TRIPS, NOTES, *NOISE)
    mesh.use("routes", "plan_route", ANNA, text=ASKED)
    mesh.use("routes", "plan_route", BEN, text=ASKED)
    carl = Principal("token:carl", "token", MESH)
    before = {caller: neighbours(mesh, "plan_route", caller) for caller in (ANNA, carl)}
    assert min(before.values()) > 0.9
    flood = KEYS.of_caller(MALLORY.id, is_member=False)
    for number in range(600):
        put(mesh, number, f"noise_{number % 60}", ASKED, flood)
    for caller, value in before.items():
        assert neighbours(mesh, "plan_route", caller) > 0.75 * value


def test_members_of_the_mesh_push_out_no_search_of_an_issued_caller(mesh: Mesh) -> None:
    mesh.find()
    for number in range(1_100):
        mesh.history.note_search(Principal(f"name-{number}", "mesh", MESH), ASKED, [])
    mesh.end("routes", "plan_route")
    assert mesh.verdicts() == [("plan_route", "done")]
    mesh.now += NAMED_FOR_S + 1
    mesh.history.note_search(Principal("late", "mesh", MESH), ASKED, [])
    assert len(mesh.history._searches_of_members) == 1, "older searches lead to no call"


def test_a_member_that_takes_the_name_of_a_caller_puts_no_words_into_its_mouth(mesh: Mesh) -> None:
    mesh.find()
    mesh.find("a fraud by train", Principal(ANNA.id, "mesh", MESH))
    mesh.end("routes", "plan_route")
    (record,) = mesh.history.list_records()
    assert record.stems == KEYS.of_request(ASKED)


def test_runs_that_a_member_starts_under_many_names_count_as_one_caller(mesh: Mesh) -> None:
    mesh.find()
    before = mesh.score("plan_route")

    def praise(name: str, number: int) -> None:
        caller, run = Principal(name, "mesh", MESH), f"run-{name}-{number}"
        mesh.history.note_run(caller, ASKED, run)
        mesh.end("routes", "plan_route", Principal(name, "run", MESH), run_step=f"{run}/0")

    for number in range(5):
        praise("token:x0", number)
    as_one = mesh.score("plan_route") - before
    for number in range(5):
        for name in ("token:x1", "token:x2", "jwt:x3"):
            praise(name, number)
    assert mesh.score("plan_route") - before == pytest.approx(as_one, rel=0.02)
    praise(ANNA.id, 1)
    mesh.history.note_run(ANNA, ASKED, "run-anna")
    mesh.history.note_run(MALLORY, "a fraud", "run-anna")
    mesh.end("routes", "plan_route", Principal(ANNA.id, "run", MESH), run_step="run-anna/0")
    anna = KEYS.of_caller(ANNA.id, is_member=False)
    (record,) = (one for one in mesh.history.list_records() if one.caller == anna)
    assert record.stems == KEYS.of_request(ASKED)


def test_an_agent_praises_itself_neither_directly_nor_through_others(mesh: Mesh) -> None:
    mesh.find()
    before = mesh.score("plan_route")
    path = (Hop("routes", "plan_route"), Hop("notes", "add_note"))
    for number in range(10):
        mesh.find(caller=Principal("notes", "agent", MESH))
        trace = TraceContext(f"p{number}", path=path)
        mesh.end("routes", "plan_route", Principal("notes", "agent", MESH), trace=trace)
    assert mesh.verdicts() == []
    assert mesh.score("plan_route") == before


def test_a_copied_description_takes_no_place_from_a_proven_skill(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route", ANNA, times=2)
    mesh.use("routes", "plan_route", BEN, times=2)
    (skill,) = ROUTES.record.skills
    copies = [agent(f"copy-{number}", skill) for number in range(5)]
    mesh.hold(ROUTES, TRIPS, NOTES, *copies)
    for caller in (ANNA, BEN, Principal("token:carl", "token", MESH)):
        hits = mesh.search.find_skills(ASKED, MESH, learn=mesh.history.learn_for(caller, ASKED)).hits
        assert hits[0].entry.name == "routes"
        assert max(hit.score for hit in hits[1:]) < hits[0].score


WORDS = [*ASKED.split(), "work", "note", "other", "gym", "money", "where", "noon"]


def draw_attacker(kind: str, draw: random.Random) -> Principal:
    """One token, a member of the mesh under many names, or whoever has no token."""
    if kind == "token":
        return MALLORY
    if kind == "anonymous":
        return ANONYMOUS
    name = draw.choice([f"name-{draw.randrange(50)}", f"token:x{draw.randrange(50)}", ANNA.id])
    return Principal(name, draw.choice(["mesh", "agent"]), MESH)


def attack(mesh: Mesh, caller: Principal, draw: random.Random) -> None:
    """One step of a caller that does whatever it can: search, call, fail, correct, rate, start runs."""
    text = " ".join(draw.sample(WORDS, draw.randint(1, 6))) if draw.random() < 0.5 else ASKED
    shown = [(mesh.entry(one), one.record.skills[0].id) for one in draw.sample([*mesh.held.values()], 6)]
    mesh.history.note_search(caller, text, [*shown, (mesh.entry(TRIPS), "book_trip")])
    for entry, skill in draw.sample(shown, 2):
        status = draw.choice(["done", "failed"])
        mesh.end(entry.name, skill, caller, status)
        if draw.random() < 0.5:
            mesh.history.rate(caller, skill, is_good=draw.random() < 0.5)
        if caller.kind == "mesh":
            run = f"run-{mesh.calls}"
            mesh.history.note_run(caller, text, run)
            mesh.end(entry.name, skill, Principal(caller.id, "run", MESH), status, run_step=f"{run}/0")
    mesh.now += draw.choice([1.0, LISTED_FOR_S])


@pytest.mark.parametrize(("kind", "seed"), [("token", 0), ("token", 1), ("members", 2), ("anonymous", 3)])
async def test_whatever_one_caller_does_it_moves_a_skill_by_a_bounded_share(
    mesh: Mesh, kind: str, seed: int
) -> None:
    draw = random.Random(seed)
    mesh.hold(ROUTES, TRIPS, NOTES, *NOISE[:20])
    empty = {skill: mesh.score(skill) for skill in ("plan_route", "book_trip")}
    best = max(empty.values())
    mesh.use("routes", "plan_route", ANNA, times=3)
    mesh.use("routes", "plan_route", BEN, times=2)
    # guests learn from their own calls only, so nothing moves for them
    callers = (ANNA, BEN, Principal("token:carl", "token", MESH))
    before = {(one, skill): mesh.score(skill, one) for one in callers for skill in empty}
    for_guest = mesh.find(caller=GUEST)
    for _ in range(6):
        for _ in range(40):
            attack(mesh, draw_attacker(kind, draw), draw)
        for (caller, skill), score in before.items():
            moved = (mesh.score(skill, caller) - score) / best
            assert -0.4 < moved < (0.01 if kind == "anonymous" else 0.75), (caller.id, skill)
        assert mesh.find(caller=ANNA)[0] == "plan_route"
        assert mesh.find(caller=GUEST) == for_guest
    await mesh.history.forget()
    assert {skill: mesh.score(skill) for skill in empty} == empty


@pytest.mark.parametrize("text", ["", "x" * 1_000_000, "0" * 9, "\u202e" * 11, "no such search"])
def test_a_text_that_is_no_id_of_a_search_is_not_kept(mesh: Mesh, text: str) -> None:
    mesh.history.expect("t1", "plan_route", text)
    assert not mesh.history._expected
    assert not is_search_id(text)


def test_only_the_whole_id_of_an_own_search_names_a_call_to_rate(mesh: Mesh) -> None:
    hits = [(mesh.entry(ROUTES), "plan_route")]
    search = mesh.history.note_search(ANNA, ASKED, hits)
    assert search is not None
    mesh.end("routes", "plan_route")
    for wrong in (search[:5], search + "0", "0" * 10, "x" * 100_000):
        assert mesh.history.rate(ANNA, "plan_route", is_good=False, search_id=wrong) is None
    assert mesh.history.rate(BEN, "plan_route", is_good=False, search_id=search) is None
    assert mesh.verdicts() == [("plan_route", "done")]
    for _ in range(2):
        assert mesh.history.rate(ANNA, "plan_route", is_good=True, search_id=search) is not None
    assert mesh.verdicts() == [("plan_route", "good")]


def test_a_call_that_names_the_search_of_another_caller_leaves_no_record(mesh: Mesh) -> None:
    search = mesh.history.note_search(ANNA, ASKED, [(mesh.entry(ROUTES), "plan_route")])
    assert search is not None
    mesh.history.expect("t1", "plan_route", search)
    mesh.end("routes", "plan_route", MALLORY)
    assert mesh.verdicts() == []
