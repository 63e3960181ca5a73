"""Words as they are compared: split, folded, without stop words and endings."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.mesh.search.words import (
    GREETINGS,
    MAX_TEXT_CHARS,
    MAX_WORD_CHARS,
    join_stems,
    split_words,
    stem,
    stem_words,
)


@pytest.mark.parametrize("name", ["create_plan", "create-plan", "Create Plan", "create.plan", "CREATE/PLAN"])
def test_an_identifier_is_split_at_its_punctuation(name: str) -> None:
    assert split_words(name) == ["create", "plan"]


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        ("createPlan", ["create", "plan", "createplan"]),
        ("GitHub", ["git", "hub", "github"]),
        ("parseHTTPRequest", ["parse", "http", "request", "parsehttprequest"]),
        ("base64", ["base", "base64"]),
        ("mp3", ["mp3"]),
        ("Straße", ["strasse"]),
        ("CRÈME", ["creme"]),
        ("ﬁle", ["file"]),
        ("C++", ["cplusplus"]),
        ("F#", ["fsharp"]),
        ("x", []),
        ("🚀", ["🚀"]),
        ("機械翻訳", ["機械", "械翻", "翻訳"]),
        ("हिन्दी", ["हिन्दी"]),
        ("", []),
    ],
)
def test_a_chunk_gives_its_parts_and_itself(chunk: str, words: list[str]) -> None:
    assert split_words(chunk) == words


def test_stop_words_go_unless_there_is_nothing_else() -> None:
    assert stem_words("Can you please help me to plan?") == [("plan", "plan")]
    assert stem_words("get_all") == [("get", "get"), ("all", "all")]


@pytest.mark.parametrize(
    "family",
    [
        ("plan", "plans", "planned", "planning"),
        ("translate", "translation", "translator", "translating"),
        ("summary", "summaries"),
        ("organize", "organization", "organizer"),
        ("hopeful", "hopefulness"),
        ("agree", "agreed"),
        ("control", "controlling", "controller"),
    ],
)
def test_words_of_one_family_have_one_stem(family: tuple[str, ...]) -> None:
    assert len({stem(word) for word in family}) == 1


@pytest.mark.parametrize("word", ["sky", "sing", "bed", "is", "größe", "x" * 50, "base64", "feed"])
def test_what_has_no_ending_stays(word: str) -> None:
    assert stem(word) == word


def test_a_stem_is_told_with_the_word_that_gave_it() -> None:
    assert stem_words("Planning trips") == [("plan", "planning"), ("trip", "trips")]


@given(st.text())
@example("\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}")
def test_any_text_gives_words_without_spaces_that_are_bounded(text: str) -> None:
    for one, word in stem_words(text):
        assert one == "".join(one.split())
        assert 0 < len(one) <= MAX_WORD_CHARS
        assert 0 < len(word) <= MAX_WORD_CHARS


@given(st.lists(st.sampled_from(["plans", "Planned", "get", "all", "hello", "GitHub", "a b"])), st.text())
def test_joined_stems_are_those_of_the_text(known: list[str], other: str) -> None:
    text = " ".join([*known, other])
    assert join_stems(text, keep=GREETINGS) == " ".join(stem for stem, _ in stem_words(text, keep=GREETINGS))


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz", max_size=30))
def test_stemming_ends_and_never_lengthens_a_word_by_more_than_an_e(word: str) -> None:
    assert len(stem(word)) <= len(word) + 1


def test_a_text_without_bound_costs_no_more_than_a_long_one() -> None:
    assert split_words("ab " * MAX_TEXT_CHARS) == ["ab"] * (MAX_TEXT_CHARS // 3) + ["ab"]
