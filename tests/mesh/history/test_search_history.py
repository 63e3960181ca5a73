"""What came of calls that were found by words changes the ranking, within bounds for each caller."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.core.call import ANONYMOUS, Principal
from retinue.core.record import AgentRecord, Hints, Listing, Skill
from retinue.core.trust import Trust
from retinue.mesh.history.experience_book import (
    HALF_LIFE_S,
    MAX_PER_CALLER,
    MAX_PER_SKILL,
    ExperienceBook,
)
from retinue.mesh.history.learned_ranking import EXPLORED, LearnedRanking
from retinue.mesh.history.records import Experience, Hashes, SkillKey, Wish
from retinue.mesh.history.search_history import CORRECTED_WITHIN_S, LISTED_FOR_S, SearchHistory
from retinue.mesh.history.wishes import MAX_PER_CALLER as MAX_WISHES_PER_CALLER
from retinue.mesh.history.wishes import WishBook, cluster_wishes
from retinue.mesh.search.ranking import RankedSkill
from retinue.mesh.search.scoring import SearchQuery
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


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


async def test_a_used_skill_rises_and_without_its_history_the_ranking_is_the_one_before(mesh: Mesh) -> None:
    before = {skill: mesh.score(skill) for skill in mesh.find()}
    last = [*before][1]
    name = next(one.name for one in mesh.held.values() if one.record.find_skill(last))
    mesh.use(name, last, times=3)
    assert mesh.find()[0] == last
    assert mesh.find("a train journey")[0] == last
    await mesh.history.flush()
    mesh.open()
    assert mesh.find()[0] == last, "the history outlives its process"
    assert await mesh.history.forget() == 3
    assert {skill: mesh.score(skill) for skill in mesh.find()} == before
    assert mesh.store.read() == []


async def test_no_text_of_a_request_is_stored(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route")
    await mesh.history.flush()
    content = b"".join(path.read_bytes() for path in mesh.folder.iterdir())
    assert b"plan_route" in content
    assert b"journey" not in content
    assert b"anna" not in content


def test_a_call_that_no_search_led_to_leaves_nothing(mesh: Mesh) -> None:
    mesh.end("routes", "plan_route")
    mesh.find()
    mesh.now += LISTED_FOR_S + 1
    mesh.end("routes", "plan_route")
    mesh.find("add a note")
    mesh.end("routes", "plan_route")
    mesh.end("notes", "add_note", BEN)
    assert mesh.verdicts() == []


def test_a_named_search_wins_over_a_newer_one(mesh: Mesh) -> None:
    hits = [(mesh.entry(ROUTES), "plan_route")]
    older = mesh.history.note_search(ANNA, "a train", hits)
    mesh.history.note_search(ANNA, "a journey", hits)
    assert older is not None
    mesh.history.expect("t1", "plan_route", older)
    mesh.end("routes", "plan_route")
    (record,) = mesh.history.list_records()
    assert record.stems == Hashes(b"k" * 64).of_request("a train")


def test_another_skill_of_the_same_search_within_a_minute_corrects_the_first(mesh: Mesh) -> None:
    mesh.find()
    mesh.end("routes", "plan_route")
    mesh.now += CORRECTED_WITHIN_S - 1
    mesh.end("trips", "book_trip")
    assert mesh.verdicts() == [("book_trip", "done"), ("plan_route", "corrected")] or mesh.verdicts() == [
        ("plan_route", "corrected"),
        ("book_trip", "done"),
    ]
    assert mesh.find()[0] == "book_trip"


def test_a_failure_and_a_thumb_count_and_a_refusal_does_not(mesh: Mesh) -> None:
    before = mesh.score("plan_route")
    mesh.find()
    mesh.end("routes", "plan_route", status="refused")
    assert mesh.score("plan_route") == before
    mesh.now += LISTED_FOR_S
    mesh.find()
    mesh.end("routes", "plan_route", status="failed")
    assert mesh.score("plan_route") < before
    assert mesh.history.rate(ANNA, "plan_route", is_good=True) is not None
    assert mesh.score("plan_route") > before
    assert mesh.history.rate(BEN, "plan_route", is_good=False) is None, "the call of somebody else"


def test_one_caller_moves_a_skill_by_a_bounded_share_however_often_it_calls(mesh: Mesh) -> None:
    before = mesh.score("plan_route", BEN)
    mesh.use("routes", "plan_route", ANNA, times=10)
    after_ten = mesh.score("plan_route", BEN) - before
    mesh.use("routes", "plan_route", ANNA, times=40)
    flooded = mesh.score("plan_route", BEN) - before
    assert flooded == pytest.approx(after_ten, rel=0.02)
    own = mesh.score("plan_route", ANNA) - before
    assert flooded < own, "one stranger counts for half"
    mesh.use("routes", "plan_route", Principal("token:carl", "token", MESH), times=3)
    assert mesh.score("plan_route", BEN) - before > flooded


def test_the_same_search_and_skill_is_one_record_however_often_it_is_called(mesh: Mesh) -> None:
    mesh.find()
    for _ in range(20):
        mesh.end("routes", "plan_route")
    assert mesh.verdicts() == [("plan_route", "done")]


def test_an_agent_does_not_praise_itself(mesh: Mesh) -> None:
    itself = Principal("routes", "agent", MESH)
    mesh.find(caller=itself)
    mesh.end("routes", "plan_route", itself)
    assert mesh.verdicts() == []


def test_an_agent_that_fails_later_falls_behind_its_twin(mesh: Mesh) -> None:
    asked = "a journey by train"
    mesh.use("routes", "plan_route", times=3, text=asked)
    assert mesh.find(asked)[0] == "plan_route"
    for _ in range(8):
        mesh.now += LISTED_FOR_S
        mesh.find(asked)
        mesh.end("routes", "plan_route", status="failed")
    mesh.use("trips", "book_trip", times=1, text=asked)
    assert mesh.find(asked)[0] == "book_trip"


async def test_a_skill_that_shares_no_word_with_a_request_is_found_by_what_served_it_before(
    mesh: Mesh,
) -> None:
    asked = "gym session on monday"
    assert mesh.find(asked) == []
    mesh.use("routes", "plan_route", text=f"a journey to the {asked}")
    assert mesh.find(asked) == ["plan_route"]
    assert mesh.find("note of the gym session") == ["add_note", "plan_route"], "its card has a word"
    learn = mesh.history.learn_for(ANNA, asked)
    seen = mesh.search.find_skills(asked, MESH, learn=learn, accept=lambda entry: entry.name != "routes")
    assert seen.hits == ()
    assert mesh.search.find_skills(asked, MESH, learn=learn, within=[NOTES.id]).hits == ()
    assert mesh.find(asked, GUEST) == [], "it learns from its own calls only"
    mesh.use("routes", "plan_route", text=f"a journey to the {asked}")
    mesh.history.rate(ANNA, "plan_route", is_good=False)
    assert mesh.find(asked) == [], "as much was bad as was good"
    await mesh.history.forget()
    assert mesh.find(asked) == []


def test_one_other_caller_puts_no_skill_before_those_whose_cards_have_the_words(mesh: Mesh) -> None:
    for number in range(20):
        mesh.use("notes", "add_note", BEN, text=f"add a note {ASKED} {number}")
    assert mesh.find()[-1] == "add_note"
    mesh.hold(mesh.listings[0])
    assert mesh.find() == ["plan_route"], "an agent that has gone is not proposed"


def test_a_copy_inherits_no_history_and_one_of_the_same_name_makes_no_record(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route", times=5)
    copied = replace(ROUTES.record, name="copy")
    impostor = Listing(
        ROUTES.record, "net", "agents/routes", digest="d-net", source_trust=Trust.NETWORK_MEMBER
    )
    mesh.hold(ROUTES, Listing(copied, "net", "agents/copy", digest="d-copy"), impostor)
    learn = mesh.history.learn_for(ANNA, ASKED)
    hits = mesh.search.find_skills(ASKED, MESH, learn=learn).hits
    assert (hits[0].entry.source, hits[0].entry.name) == ("home", "routes")
    assert hits[0].score > hits[1].score == hits[2].score
    mesh.find()
    mesh.end("routes", "plan_route")
    assert len(mesh.verdicts()) == 5, "the name means two agents"


def test_a_new_digest_inherits_at_half_weight(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route", times=2)
    learn = mesh.history.learn_for(ANNA, ASKED)
    assert learn is not None
    mesh.search.find_skills(ASKED, MESH, learn=learn)
    (before,) = learn.parts.values()
    skill = replace(ROUTES.record.skills[0], output_schema={"type": "object"})
    changed = replace(ROUTES, record=replace(ROUTES.record, skills=(skill,)), digest="d-new")
    mesh.hold(changed, TRIPS, NOTES)
    mesh.search.find_skills(ASKED, MESH, learn=learn)
    (after,) = learn.parts.values()
    assert after.calls == pytest.approx(before.calls / 2)
    assert after.neighbours == pytest.approx(before.neighbours / 2)


def test_a_call_counts_half_after_ninety_days_and_a_skill_keeps_a_bounded_number(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route", times=2)

    def count() -> float:
        learn = mesh.history.learn_for(ANNA, ASKED)
        assert learn is not None
        mesh.search.find_skills(ASKED, MESH, learn=learn)
        return next(parts.calls for parts in learn.parts.values())

    before = count()
    mesh.now += HALF_LIFE_S
    assert count() == pytest.approx(before / 2)
    mesh.use("routes", "plan_route", times=MAX_PER_CALLER + 5)
    for number in range(8):
        mesh.use("routes", "plan_route", Principal(f"token:c{number}", "token", MESH), times=20)
    assert len(mesh.verdicts()) == MAX_PER_SKILL


def test_a_guest_learns_from_its_own_calls_only(mesh: Mesh) -> None:
    before = mesh.score("plan_route", GUEST)
    mesh.use("routes", "plan_route", ANNA, times=5)
    assert mesh.score("plan_route", GUEST) == before
    mesh.use("routes", "plan_route", GUEST)
    assert mesh.score("plan_route", GUEST) > before


def test_a_share_of_requests_tries_an_equal_skill_that_is_not_proven(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, explored=EXPLORED)
    asked = "a journey by train"
    mesh.use("routes", "plan_route", times=5, text=asked)

    def count_tried(hours: int = 400) -> int:
        tried = 0
        for _ in range(hours):
            mesh.now += 3_600
            learn = mesh.history.learn_for(ANNA, asked)
            tried += mesh.search.find_skills(asked, MESH, learn=learn).hits[0].skill.id == "book_trip"
        return tried

    assert 20 <= count_tried() <= 60
    writes = replace(agent("trips", replace(TRIPS.record.skills[0], hints=Hints())), digest="d-writes")
    mesh.hold(ROUTES, writes, NOTES)
    assert count_tried(100) == 0, "a call that may not be made twice is no experiment"
    mesh.hold(ROUTES, replace(TRIPS, source_trust=Trust.NETWORK_MEMBER), NOTES)
    assert count_tried(100) == 0, "an agent of another trust"


def test_a_step_of_a_run_counts_for_the_prompt_of_the_run(mesh: Mesh) -> None:
    mesh.history.note_run(ANNA, ASKED, "run-1")
    mesh.end("routes", "plan_route", Principal(ANNA.id, "run", MESH), run_step="run-1/0")
    assert mesh.verdicts() == [("plan_route", "done")]


async def test_off_nothing_is_stored(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.history = SearchHistory(mesh._find_skill, mesh._find_named)
    assert mesh.history.note_search(ANNA, ASKED, [(mesh.entry(ROUTES), "plan_route")], is_wish=True) is None
    mesh.end("routes", "plan_route")
    await mesh.history.flush()
    assert mesh.store.read() == []
    assert not (tmp_path / "history.db").exists()
    assert mesh.history.learn_for(ANNA, ASKED) is None


async def test_wishes_are_clustered_and_end_when_a_call_is_done(mesh: Mesh) -> None:
    for caller, text in (
        (ANNA, "transcribe an audio file"),
        (BEN, "transcribe audio files"),
        (ANNA, "a taxi"),
    ):
        mesh.find(text, caller, is_wish=True)
    await mesh.history.flush()
    mesh.open()
    first, second = mesh.history.wishes.list_clusters()
    assert (first.count, first.callers) == (2, 2)
    assert set(first.texts) == {"transcribe an audio file", "transcribe audio files"}
    assert second.texts == ("a taxi",)
    mesh.wishes = "count"
    mesh.open()
    await mesh.history.flush()
    assert [cluster.texts for cluster in mesh.history.wishes.list_clusters()] == [(), ()]
    assert b"taxi" not in b"".join(path.read_bytes() for path in mesh.folder.iterdir())
    mesh.find("a note for the journey", is_wish=True)
    assert len(mesh.history.wishes) == 4
    mesh.end("notes", "add_note")
    assert len(mesh.history.wishes) == 3


def correct(mesh: Mesh, caller: Principal, times: int = 5) -> None:
    for _ in range(times):
        mesh.find(caller=caller)
        mesh.end("routes", "plan_route", caller)
        mesh.end("trips", "book_trip", caller)
        mesh.now += LISTED_FOR_S


def test_callers_without_a_token_change_nothing_for_others(mesh: Mesh) -> None:
    before = {skill: mesh.score(skill) for skill in mesh.find()}
    correct(mesh, ANONYMOUS)
    assert {skill: mesh.score(skill) for skill in mesh.find()} == before
    assert mesh.score("plan_route", ANONYMOUS) < before["plan_route"]


def test_one_other_caller_cannot_bury_a_skill_and_a_second_one_that_agrees_can(mesh: Mesh) -> None:
    before = mesh.score("plan_route", ANNA)
    correct(mesh, BEN)
    assert mesh.score("plan_route", ANNA) > 0.7 * before, "a correction by one counts nothing"
    mesh.history.rate(BEN, "plan_route", is_good=False)
    assert mesh.score("plan_route", ANNA) > 0.5 * before, "a thumb of one is bounded"
    assert mesh.score("plan_route", BEN) < 0.1 * before, "for itself it counts in full"
    correct(mesh, Principal("token:carl", "token", MESH))
    assert mesh.score("plan_route", ANNA) < 0.1 * before


def test_a_member_of_the_mesh_counts_once_under_whatever_names(mesh: Mesh) -> None:
    before = mesh.score("plan_route", ANNA)
    mesh.use("routes", "plan_route", Principal("agent-0", "mesh", MESH), times=5)
    as_itself = mesh.score("plan_route", ANNA) - before
    for name in ("agent-1", "token:ben", "jwt:carl"):
        mesh.use("routes", "plan_route", Principal(name, "mesh", MESH), times=5)
    assert mesh.score("plan_route", ANNA) - before == pytest.approx(as_itself, rel=0.02)


def test_one_caller_does_not_evict_the_history_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.mesh.history.experience_book.MAX_RECORDS", 20)
    hashes, book = Hashes(b"k" * 64), ExperienceBook()

    def put(number: int, caller: str, skill: str, *, is_member: bool = False) -> None:
        key = SkillKey("home", "routes", skill)
        hashed = hashes.of_caller(caller, is_member=is_member)
        book.put(Experience(f"{caller}-{number}", 1.0 + number, key, "d", (1,), hashed, "done"))

    put(0, "token:anna", "plan_route")
    for number in range(200):
        put(number, f"name-{number % 50}", f"skill-{number}", is_member=True)
    assert len(book) == 20
    assert book.find("token:anna-0") is not None
    for number in range(200):
        put(number, f"other-{number}", "plan_route", is_member=True)
    assert book.find("token:anna-0") is not None


def test_a_full_history_of_one_caller_keeps_its_rare_skills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.mesh.history.experience_book.MAX_PER_VOICE", 30)
    book = ExperienceBook()
    for number, skill in enumerate(["rare", *("daily", "weekly") * 40]):
        key = SkillKey("home", "routes", skill)
        book.put(Experience(f"{number}", float(number), key, "d", (1,), 8, "done"))
    counts = Counter(record.key.skill for record in book.list_all())
    assert counts["rare"] == 1
    assert abs(counts["daily"] - counts["weekly"]) <= 1
    assert len(book) == 30


def test_many_records_of_one_caller_hide_those_of_no_other(mesh: Mesh) -> None:
    others = [
        agent(f"noise-{number}", Skill(f"noise_{number}", "Other work", hints=READS)) for number in range(40)
    ]
    mesh.hold(ROUTES, TRIPS, NOTES, *others)
    mesh.use("trips", "book_trip", ANNA, times=2)
    mesh.use("trips", "book_trip", BEN, times=2)
    carl, asked = Principal("token:carl", "token", MESH), f"{ASKED} tomorrow"
    guest_first = mesh.find(asked, GUEST)
    before = {caller: mesh.score("book_trip", caller, asked) for caller in (ANNA, BEN, carl)}
    hashes = Hashes(b"k" * 64)
    flood = hashes.of_caller("token:mallory", is_member=False)
    for number in range(900):
        key = SkillKey("home", f"noise-{number % 40}", f"noise_{number % 40}")
        stems = hashes.of_request(f"{asked} {number}")
        mesh.history._book.put(Experience(f"m{number}", mesh.now, key, "d", stems, flood, "done"))
    for caller, score in before.items():
        assert mesh.score("book_trip", caller, asked) > 0.8 * score
    assert mesh.find(asked, GUEST) == guest_first


def test_a_member_of_the_mesh_fills_the_wishes_under_no_other_names() -> None:
    wishes, hashes = WishBook(), Hashes(b"k" * 64)
    wishes.policy = "count"
    anna = hashes.of_caller("token:anna", is_member=False)
    wishes.note("anna", 1.0, (1, 2), anna, "a taxi")
    for number in range(2_000):
        member = hashes.of_caller(f"name-{number}", is_member=True)
        wishes.note(f"w{number}", 2.0 + number, (number, number + 1), member, "")
    assert wishes.list_all()[0].id == "anna"
    assert len(wishes) == 1 + MAX_WISHES_PER_CALLER
    wishes.note("same", 9_000.0, (1_999, 2_000), hashes.of_caller("other", is_member=True), "")
    assert {cluster.callers for cluster in wishes.list_clusters()} == {1}


def test_a_skill_without_calls_keeps_the_place_of_its_card_unless_similar_requests_say_more(
    mesh: Mesh,
) -> None:
    parcels = agent("parcels", Skill("track_parcel", "Tells where a parcel is", hints=READS))
    orders = agent("orders", Skill("cancel_order", "Ends the order of a parcel and refunds it", hints=READS))
    mesh.hold(parcels, orders, NOTES)
    mesh.use("orders", "cancel_order", times=6, text="my parcel is late, I want the money back")
    assert mesh.find("where is my parcel")[0] == "track_parcel", (
        "its card has the word that the requests share"
    )
    learn = mesh.history.learn_for(ANNA, "where is my parcel")
    assert learn is not None
    mesh.search.find_skills("where is my parcel", MESH, learn=learn)
    assert [skill for (_, skill), parts in learn.parts.items() if parts.is_kept] == ["track_parcel"]
    for text in ("my parcel is late, I want the money back", "where is the money for my late parcel"):
        assert mesh.find(text)[0] == "cancel_order", text
    copy = agent("copy", Skill("cancel_orders", "Ends the order of a parcel and refunds it", hints=READS))
    mesh.hold(parcels, orders, NOTES, copy)
    for text in ("where is my parcel refund", "the order of the parcel"):
        assert mesh.find(text).index("cancel_order") < mesh.find(text).index("cancel_orders"), text


def test_a_card_of_a_name_keeps_its_place_for_words_that_no_served_request_had(mesh: Mesh) -> None:
    mesh.hold(
        agent("rates", Skill("exchange_rate", "", hints=READS)),
        agent("cards", Skill("card_limit", "", hints=READS)),
    )
    text = "the limit of my card for dollars abroad"
    for served in ("the exchange of dollars abroad", "which rate have dollars abroad"):
        mesh.use("rates", "exchange_rate", times=3, text=served)
    assert mesh.find(text)[0] == "card_limit"
    mesh.use("rates", "exchange_rate", times=3, text="rate of the limit of my card for dollars abroad")
    assert mesh.find(text)[0] == "exchange_rate", "its requests have the words of the other card too"


def test_a_card_keeps_its_place_though_a_few_of_many_served_requests_have_its_words(mesh: Mesh) -> None:
    mesh.hold(
        agent("accounts", Skill("open_account", "", hints=READS)),
        agent("payments", Skill("automatic_payment", "", hints=READS)),
    )
    served = [
        "payment of the rent",
        "payment from my account to my sister",
        "automatic payment of open invoices",
    ]
    for text in 2 * [*served, "the next payment", "automatic transfers", "automatic payment of my phone"]:
        mesh.use("payments", "automatic_payment", text=text)
    assert mesh.find("open an account for my sister")[0] == "open_account"
    assert mesh.find("payment to my sister every month")[0] == "automatic_payment"


def test_a_card_keeps_its_place_beside_one_whose_score_differs_in_its_last_digits_alone(mesh: Mesh) -> None:
    orders = agent("orders", Skill("cancel_order", "Ends the order of a parcel", hints=READS))
    mesh.hold(
        orders, agent("left", Skill("seek_a", "parcel box")), agent("right", Skill("seek_b", "parcel box"))
    )
    mesh.use("orders", "cancel_order", times=2, text="where are parcel box")
    learn = mesh.history.learn_for(ANNA, "where are parcel box")
    assert learn is not None
    learned: LearnedRanking = learn

    class Summed:
        """The sums of equal terms in another order differ so."""

        propose = learned.propose
        card_of = learned.card_of
        is_by_card = learned.is_by_card
        share_served = learned.share_served

        def __call__(self, query: SearchQuery, ranked: Sequence[RankedSkill]) -> list[RankedSkill]:
            return learned(
                query,
                [replace(one, score=one.score * (1 + 1e-15 * (one.skill_id == "seek_b"))) for one in ranked],
            )

    hits = mesh.search.find_skills("where are parcel box", MESH, learn=Summed()).hits
    assert [hit.skill.id for hit in hits] == ["seek_a", "seek_b", "cancel_order"]


def test_a_skill_that_was_rated_bad_a_moment_ago_is_not_tried(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, explored=1.0)
    asked = "a journey by train"
    mesh.use("routes", "plan_route", times=5, text=asked)
    assert mesh.find(asked)[0] == "book_trip"
    mesh.end("trips", "book_trip")
    mesh.history.rate(ANNA, "book_trip", is_good=False)
    mesh.now += 10
    assert mesh.find(asked)[0] == "plan_route"


async def test_what_is_being_written_while_everything_is_forgotten_does_not_come_back(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = threading.Event()
    write, forget = mesh.store.write, mesh.store.forget

    def write_slowly(records: Sequence[Experience], dropped: Collection[str]) -> None:
        write(records, dropped)
        forgotten.wait(0.1)

    def forget_and_tell(at: float) -> int:
        count = forget(at)
        forgotten.set()
        return count

    monkeypatch.setattr(mesh.store, "write", write_slowly)
    monkeypatch.setattr(mesh.store, "forget", forget_and_tell)
    mesh.use("routes", "plan_route")
    mesh.find("a taxi", is_wish=True)
    flushing = asyncio.create_task(mesh.history.flush())
    await asyncio.sleep(0)
    assert mesh.history.list_records()
    await mesh.history.forget()
    await flushing
    assert (mesh.store.read(), mesh.store.read_wishes()) == ([], [])


async def test_wishes_that_another_hub_forgot_are_dropped_here(mesh: Mesh) -> None:
    mesh.use("routes", "plan_route")
    mesh.find("a taxi", is_wish=True)
    await mesh.history.flush()
    mesh.now += 1
    mesh.store.forget(mesh.now)
    await mesh.history.read_others()
    assert (len(mesh.history.wishes), len(mesh.history.list_records())) == (0, 0)


def test_characters_that_a_database_refuses_are_left_out_of_the_words_of_a_wish() -> None:
    wishes = WishBook()
    wishes.open((), "text")
    wishes.note("id", 0.0, (1,), 1, "paint\0a \ud800 wall")
    assert [wish.text for wish in wishes.list_all()] == ["paint a ? wall"]


def test_a_thousand_wishes_are_clustered_in_little_time() -> None:
    draw = random.Random(7)
    stems = [tuple(draw.sample(range(400), 8)) for _ in range(1_000)]
    wishes = [Wish(f"w{number}", float(number), row, number % 9, "") for number, row in enumerate(stems)]
    begun = time.process_time()
    clusters = cluster_wishes(wishes)
    assert time.process_time() - begun < 0.6
    assert sum(cluster.count for cluster in clusters) == 1_000


def test_agents_of_one_name_in_two_teams_have_histories_of_their_own(mesh: Mesh) -> None:
    (skill,) = ROUTES.record.skills
    news, words = (
        Listing(AgentRecord("routes", skills=(skill,)), "teams", f"agents/{team}/routes", digest=f"d-{team}")
        for team in ("news", "words")
    )
    mesh.hold(news, words, NOTES)
    before = {mesh.entry(one).key: score for one, score in zip((news, words), scores(mesh), strict=True)}
    for _ in range(3):
        mesh.find()
        mesh.end("routes", "plan_route", place=words.id)
        mesh.now += LISTED_FOR_S
    mesh.find()
    mesh.end("routes", "plan_route")  # of a call whose listing is not known, no one can say whose it was
    assert {record.key.agent for record in mesh.history.list_records()} == {"routes@words"}
    assert len(mesh.verdicts()) == 3
    key = mesh.history.rate(ANNA, "plan_route", is_good=True)
    assert key is not None
    assert key.agent == "routes@words"
    hits = mesh.search.find_skills(ASKED, MESH, learn=mesh.history.learn_for(ANNA, ASKED)).hits
    after = {hit.entry.key: hit.score for hit in hits}
    assert hits[0].entry.key == words.key
    assert after[words.key] > before[words.key]
    assert after[news.key] == before[news.key]


def scores(mesh: Mesh) -> list[float]:
    """The scores of the two teams' skills, without a history, by their keys."""
    hits = mesh.search.find_skills(ASKED, MESH).hits
    return [hit.score for hit in sorted(hits, key=lambda hit: hit.entry.key) if hit.skill.id == "plan_route"]
