from __future__ import annotations

import datetime
import decimal
import fractions
import io
import pathlib
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue_testwriter.strategies import PLAIN_DATA, UNTYPED, TypeReader, list_text_flavours

NAMES = {
    "st": st,
    "io": io,
    "datetime": datetime,
    "decimal": decimal,
    "fractions": fractions,
    "pathlib": pathlib,
    "plain_data": eval(PLAIN_DATA, {"st": st}),
    "any_shape": st.just("a shape"),
}
READER = TypeReader(
    {"Shape": "any_shape"},
    {"Number": "float | Decimal", "T": "TypeVar('T', int, str)", "Name": "NewType('Name', str)"},
)
QUICK = settings(max_examples=5, database=None, suppress_health_check=list(HealthCheck))


def draw(source: str) -> list[object]:
    drawn: list[object] = []

    @QUICK
    @given(eval(source, dict(NAMES)))
    def collect(value: object) -> None:
        drawn.append(value)

    collect()
    return drawn


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        ("int", int),
        ("float", float),
        ("str", str),
        ("bool", bool),
        ("bytes", bytes),
        ("None", type(None)),
        ("Decimal", decimal.Decimal),
        ("fractions.Fraction", fractions.Fraction),
        ("int | str", (int, str)),
        ("Optional[int]", (int, type(None))),
        ("typing.Union[int, None]", (int, type(None))),
        ("'int'", int),
        ("list[int]", list),
        ("Sequence[float]", list),
        ("Iterable[str]", list),
        ("dict[str, int]", dict),
        ("tuple[int, str]", tuple),
        ("tuple[int, ...]", tuple),
        ("set[int]", set),
        ("frozenset[int]", frozenset),
        ("Literal['a', 'b']", str),
        ("ReadableBuffer", bytes),
        ("StrPath", str),
        ("datetime.date", datetime.date),
        ("SupportsRead[str]", io.StringIO),
        ("IO[bytes]", io.BytesIO),
        ("Callable[[int], str]", object),
        ("Number", (float, decimal.Decimal)),
        ("T", (int, str)),
        ("Name", str),
        ("Any", object),
    ],
)
def test_every_candidate_of_a_type_makes_values_of_it(
    annotation: str, kinds: type | tuple[type, ...]
) -> None:
    candidates = READER.list_candidates(annotation)
    assert candidates
    assert "nothing()" not in "".join(candidates)
    for candidate in candidates:
        assert all(isinstance(value, kinds) for value in draw(candidate))


def test_instances_of_the_module_s_classes_come_from_their_own_strategy() -> None:
    assert READER.list_candidates("Shape") == ["any_shape"]
    assert READER.list_candidates("Self", own_class="Shape") == ["any_shape"]
    assert READER.list_candidates("list[Shape]")[0] == "st.lists(any_shape, max_size=8)"


@pytest.mark.parametrize("annotation", ["type[int]", "Unknown", "list[Unknown]", "CodeType", "not a type ("])
def test_a_type_that_cannot_be_made_has_no_candidates(annotation: str) -> None:
    assert READER.list_candidates(annotation) == []


@given(st.text(max_size=30))
@settings(max_examples=50)
def test_any_text_as_annotation_is_survived(annotation: str) -> None:
    READER.list_candidates(annotation)


def test_every_guess_for_an_untyped_parameter_can_be_drawn() -> None:
    for candidate in UNTYPED:
        draw(candidate)


def test_text_flavours_use_the_words_and_generalise_the_examples() -> None:
    flavours = list_text_flavours(["&amp;"], ["1.0a5"])
    assert any("&amp;" in flavour for flavour in flavours)
    generalised = next(flavour for flavour in flavours if flavour.startswith("st.from_regex"))
    assert all(re.fullmatch(r"[0-9]{1,2}\.[0-9]{1,2}a[0-9]{1,2}", str(text)) for text in draw(generalised))


def test_no_words_make_no_flavours() -> None:
    assert list_text_flavours([], []) == []


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4))
@settings(max_examples=30)
def test_flavours_of_any_words_can_be_drawn(words: list[str]) -> None:
    for flavour in list_text_flavours(words, words):
        eval(flavour, dict(NAMES)).validate()
