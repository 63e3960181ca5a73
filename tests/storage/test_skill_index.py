"""The text index: one suite over both implementations, and what only a large index or a file can do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.core.errors import StateDamagedError, StateError
from retinue.core.record import AgentRecord, Listing, ListingKey, Skill
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.skill_texts import render_text
from retinue.mesh.search.text_index import Corpus, MemoryTextIndex, TextIndex
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from tests.strategies import texts

MESH = frozenset({"mesh", "exposed"})
ANY = ("private", "mesh", "exposed")

Open = Callable[[], TextIndex]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "retinue.db"


@pytest.fixture(params=["memory", "sqlite"])
def index(request: pytest.FixtureRequest, path: Path) -> Iterator[TextIndex]:
    opened: TextIndex = MemoryTextIndex() if request.param == "memory" else SqliteTextIndex(path)
    yield opened
    opened.close()


def listing(key: str, *offered: Skill, **facts: Any) -> Listing:
    return Listing(AgentRecord(f"agent {key}", skills=offered, **facts), "home", key)


def put(index: TextIndex, *listings: Listing) -> None:
    index.put_all([render_text(one) for one in listings])


def digests(index: TextIndex) -> dict[ListingKey, str]:
    return dict(index.iterate_digests())


def candidates(index: TextIndex, *asked: str, expanded: str = "", seen: tuple[str, ...] = ANY) -> list[str]:
    found = index.list_candidates(asked, expanded.split(), seen, limit=100)
    return sorted(text.skill_id for text in found)


PLAN = listing("a", Skill("create_plan", "Plans work", tags=("planning",)))
CODE = listing("b", Skill("write", "Writes code by plan"), Skill("run", "Runs code", visibility="private"))


def test_texts_come_back_as_they_were_put(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    texts = index.list_candidates(["code"], [], ANY, limit=9)
    assert sorted(texts, key=str) == sorted(render_text(CODE).skills, key=str)
    assert sorted(index.list_skills([CODE.id, PLAN.id], ANY), key=str) == sorted(
        [*render_text(CODE).skills, *render_text(PLAN).skills], key=str
    )


def test_all_skills_of_a_few_listings_that_have_a_stem_are_found(index: TextIndex, path: Path) -> None:
    put(index, PLAN, CODE, listing("c", Skill("plan_trip", "Plans a trip")))
    indexes = [index]
    if isinstance(index, SqliteTextIndex):
        indexes.append(SqliteTextIndex(path, rows_per_listing=0))
    for one in indexes:

        def find(*stems: str, ids: tuple[ListingKey, ...] = (PLAN.id, CODE.id), seen: Any = ANY) -> list[str]:
            texts = one.list_matching(ids, stems, (), seen, limit=9)  # noqa: B023
            return sorted(text.skill_id for text in texts)

        assert find("plan") == ["create_plan", "write"]
        assert find("code", "nowhere") == ["run", "write"]
        assert find("code", seen=("mesh",)) == ["write"]
        assert find("plan", ids=(ListingKey("home", "gone"), CODE.id)) == ["write"]
        assert find("nowhere") == find() == find("plan", ids=()) == []
        assert [*one.list_matching([PLAN.id], ["plan"], [], ANY, limit=9)] == [*render_text(PLAN).skills]
        assert not one.list_matching([PLAN.id], ["code"], [], ANY, limit=9)
        (best,) = one.list_matching([PLAN.id, CODE.id], ["code", "plan"], [], ANY, limit=1)
        assert best.skill_id == "write", "it has both"
        index.remove([PLAN.id])
        assert find("plan") == ["write"]
        put(index, PLAN)
        assert find("plan") == ["create_plan", "write"]
        expanded = one.list_matching([PLAN.id, CODE.id], ["nowhere"], ["run"], ANY, limit=9)
        assert [text.skill_id for text in expanded] == ["run"]
    for one in indexes[1:]:
        one.close()


def test_a_candidate_shares_a_stem_that_was_asked_or_expanded(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    assert candidates(index, "plan") == ["create_plan", "write"]
    assert candidates(index, "plan", "nowhere") == ["create_plan", "write"]
    assert candidates(index, "nowhere", expanded="run unheard") == ["run"]
    assert candidates(index, "nowhere") == []
    assert candidates(index) == []


def test_only_what_is_visible_is_proposed(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    assert candidates(index, "code", seen=("mesh",)) == ["write"]
    assert candidates(index, "code", seen=("private",)) == ["run"]
    assert candidates(index, "code", seen=()) == []
    assert [one.skill_id for one in index.list_skills([CODE.id], ("mesh",))] == ["write"]


def test_a_listing_put_again_takes_the_place_of_its_former_text(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    put(index, replace(PLAN, record=replace(PLAN.record, skills=(Skill("draw", "Draws maps"),))))
    assert candidates(index, "plan") == ["write"]
    assert candidates(index, "draw") == ["draw"]
    assert index.counts(["plan", "draw", "creat"]) == {"plan": 1, "draw": 1}


def test_the_last_of_one_listing_put_twice_at_once_stays(index: TextIndex) -> None:
    put(index, PLAN, replace(PLAN, record=replace(PLAN.record, skills=(Skill("draw"),))))
    assert candidates(index, "plan", "draw") == ["draw"]
    assert index.corpus().skills == 1


def test_a_removed_listing_leaves_nothing_behind(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    index.remove([PLAN.id, CODE.id, ListingKey("home", "never")])
    assert digests(index) == {}
    assert index.corpus() == Corpus()
    assert index.counts(["plan", "code"]) == {}
    assert index.list_terms("", limit=9) == []
    assert index.list_skills([PLAN.id], ANY) == []


def test_the_counts_are_of_skills(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    assert index.corpus().skills == 3
    assert index.corpus().mean_length == pytest.approx(
        sum(one.length for text in (PLAN, CODE) for one in render_text(text).skills) / 3
    )
    assert index.counts(["plan", "code", "nowhere", "agent"]) == {"plan": 2, "code": 2, "agent": 3}


def test_terms_are_listed_by_their_beginning_the_most_frequent_first(index: TextIndex) -> None:
    put(index, PLAN, CODE, listing("c", Skill("planet", "Stars and planets")))
    found = index.list_terms("plan", limit=9)
    assert [(term.stem, term.skills) for term in found] == [("plan", 2), ("planet", 1)]
    assert found[0].word in {"plan", "plans", "planning"}
    assert len(index.list_terms("", limit=2)) == 2
    put(index, listing("d", Skill("plank")))
    assert [term.stem for term in index.list_terms("plank", limit=9)] == ["plank"]


def test_numbers_of_stems_outlive_a_process_that_has_not_merged_them(path: Path) -> None:
    for number in range(3):
        # never closed, as after a crash
        put(SqliteTextIndex(path), listing(f"p{number}", Skill(f"x{number}", "Plans trips")))
    SqliteTextIndex(path).remove([ListingKey("home", "p0", "")])
    reopened = SqliteTextIndex(path)
    assert reopened.counts(["plan", "x0", "x1"]) == {"plan": 2, "x1": 1}
    assert [term.word for term in reopened.list_terms("plan", limit=1)] == ["plans"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.lists(st.sampled_from(["plan", "plans", "planned", "trip", "code", "coded"]), max_size=3),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_numbers_of_stems_are_those_of_the_index_in_memory(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, list[str], bool, bool]]
) -> None:
    index, expected = SqliteTextIndex(tmp_path_factory.mktemp("index") / "retinue.db"), MemoryTextIndex()
    stems = ["plan", "trip", "code"]
    for key, words, is_put, is_read in changes:
        text = listing(key, Skill("x", " ".join(words)))
        for one in (index, expected):
            if is_put:
                put(one, text)
            else:
                one.remove([text.id])
        if is_read:
            assert index.counts(stems) == expected.counts(stems)
    assert index.counts(stems) == expected.counts(stems)
    terms = [(term.stem, term.skills) for term in index.list_terms("", limit=99)]
    assert terms == [(term.stem, term.skills) for term in expected.list_terms("", limit=99)]
    index.close()


def test_digests_tell_what_is_stored(index: TextIndex) -> None:
    put(index, PLAN, CODE)
    assert digests(index) == {PLAN.id: render_text(PLAN).digest, CODE.id: render_text(CODE).digest}
    assert index.digests([CODE.id, ListingKey("home", "never")]) == {CODE.id: render_text(CODE).digest}


HOSTILE = [
    "", " ", "AND", "plan AND", "NOT plan", "plan OR", "NEAR(plan, 2)", "name : plan",
    "{name description} : plan",
    'plan"', '"', '""', "'", "'; DROP TABLE search_terms; --", "plan*", "*", "^plan", "plan + work",
    "(plan", ")", "-plan", "C++", "foo-bar",
    "\\", "%", "_", "\x00plan", "\ud800", "😀 plan 🏳️‍🌈", "計画", "ﷺ", "İ", "ß" * 99,
    "the and of", "plan " * 200_000, "x" * 1_000_000,
    " ".join(f"w{n}" for n in range(50_000)), "\u0301" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_breaks_the_search(index: TextIndex, text: str) -> None:
    held = {one.id: one for one in (PLAN, CODE)}
    put(index, *held.values())
    found = SkillSearch(index, held.get).find_skills(text, MESH)
    if "plan" in text.split():
        assert found.hits[0].skill.id == "create_plan"


@pytest.mark.parametrize("text", HOSTILE[:31], ids=range(31))
def test_no_card_breaks_the_index(index: TextIndex, text: str) -> None:
    hostile = listing("x", Skill("odd", text, title=text, tags=(text, text)), description=text)
    put(index, hostile, PLAN)
    assert "create_plan" in candidates(index, "creat")
    put(index, hostile)
    index.remove([hostile.id, PLAN.id])
    assert index.corpus() == Corpus()


some_skills = st.builds(
    Skill,
    st.sampled_from(["create_plan", "runTests", "plan", "é"]),
    texts | st.sampled_from(["plans and tests", "planning", "a plan of plans"]),
    tags=st.lists(texts, max_size=2).map(tuple),
    visibility=st.sampled_from(ANY),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offered=st.lists(some_skills, max_size=4), text=st.text(max_size=40))
def test_both_indexes_find_the_same(tmp_path: Path, offered: list[Skill], text: str) -> None:
    held = {one.id: one for one in (listing(str(n), skill) for n, skill in enumerate(offered))}
    memory, file = MemoryTextIndex(), SqliteTextIndex(tmp_path / "same.db")
    try:
        file.remove(list(digests(file)))
        for index in (memory, file):
            put(index, *held.values())
        asked = " ".join([text, *(skill.description for skill in offered[:1])])
        found = [SkillSearch(index, held.get).find_skills(asked, MESH) for index in (memory, file)]
        assert [hit.entry.id for hit in found[0].hits] == [hit.entry.id for hit in found[1].hits]
        assert [hit.score for hit in found[0].hits] == pytest.approx([hit.score for hit in found[1].hits])
        assert file.counts(["agent"]) == memory.counts(["agent"])
    finally:
        file.close()


@pytest.fixture
def crowd(path: Path) -> Iterator[SqliteTextIndex]:
    """An index in which ``common`` is in too many skills to be looked up whole."""
    opened = SqliteTextIndex(path, exact_rows=30, stage_rows=20)
    put(
        opened,
        *(listing(f"c{n}", Skill("common", "frequent work")) for n in range(60)),
        *(listing(f"b{n}", Skill("both", f"common rare {'frequent ' * (n % 2)}")) for n in range(6)),
        listing("r", Skill("other", "rare thing")),
    )
    yield opened
    opened.close()


def test_in_a_crowd_the_rare_words_are_found_among_the_frequent(crowd: SqliteTextIndex) -> None:
    assert {"both", "other"} <= set(candidates(crowd, "common", "rare", "frequent"))
    assert candidates(crowd, "rare", "thing") == ["both"] * 6 + ["other"]


def test_in_a_crowd_a_frequent_word_alone_finds_a_bounded_part(crowd: SqliteTextIndex) -> None:
    assert candidates(crowd, "common") == ["common"] * 20
    assert candidates(crowd, "common", "frequent", "work") == ["common"] * 20
    assert len(candidates(crowd, "common", "nowhere")) == 20


def test_in_a_crowd_all_words_asked_come_before_some(crowd: SqliteTextIndex) -> None:
    best = crowd.list_candidates(["common", "rare"], [], ANY, limit=6)
    assert [text.skill_id for text in best] == ["both"] * 6


def test_in_a_crowd_hidden_skills_take_no_place_of_visible_ones(crowd: SqliteTextIndex) -> None:
    put(crowd, *(listing(f"0{n}", Skill("common", "frequent", visibility="private")) for n in range(50)))
    put(crowd, listing("zz", Skill("common_exposed", "frequent", visibility="exposed")))
    assert candidates(crowd, "common", seen=("exposed",)) == ["common_exposed"]


def test_the_file_is_the_same_after_it_was_closed(path: Path) -> None:
    first = SqliteTextIndex(path)
    put(first, PLAN, CODE)
    known = first.corpus(), digests(first)
    first.close()
    second = SqliteTextIndex(path)
    assert (second.corpus(), digests(second)) == known
    assert candidates(second, "plan") == ["create_plan", "write"]
    second.close()


def test_it_lives_in_the_file_of_the_listings(path: Path) -> None:
    listings, index = SqliteListings(path), SqliteTextIndex(path)
    put(index, PLAN)
    listings.put_all([PLAN])
    put(index, CODE)
    assert [one.key for one in listings.load()] == ["a"]
    assert candidates(index, "plan") == ["create_plan", "write"]
    index.close()
    listings.close()


def test_an_index_of_another_version_is_emptied(path: Path) -> None:
    first = SqliteTextIndex(path)
    put(first, PLAN)
    first.close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE search_form SET form = 'older'")
        other.execute("DROP TABLE search_terms")
    other.close()
    second = SqliteTextIndex(path)
    assert digests(second) == {}
    put(second, PLAN)
    assert candidates(second, "plan") == ["create_plan"]
    second.close()


def test_a_write_that_fails_changes_nothing(path: Path) -> None:
    index = SqliteTextIndex(path)
    put(index, PLAN)
    with sqlite3.connect(path) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON search_skills BEGIN SELECT RAISE(ABORT, 'no'); END")
    other.close()
    with pytest.raises(StateError):
        put(index, CODE)
    assert index.corpus().skills == 1
    assert candidates(index, "plan") == ["create_plan"]
    index.close()


def test_a_file_that_cannot_be_prepared_is_given_back(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as other:
        other.execute("CREATE VIEW search_form AS SELECT 1 AS form")
    other.close()
    with pytest.raises(StateError):
        SqliteTextIndex(path)


def test_a_file_that_is_no_database_is_said_to_be_damaged(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StateDamagedError):
        SqliteTextIndex(path)
