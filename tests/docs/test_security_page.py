"""The security page claims only what a test tries to refute: each sentence and each row names such a test.

A sentence ends with a comment that lists names of tests, or says ``no claim``; the comment after a table
does so for each row. A name that two files have is written with its path.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "security.md"
FOLDERS = ("tests", "packages")
MAX_WITHOUT_CLAIM = 16
NO_CLAIM = "no claim"
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^(?:- )?\*\*[^*]+\.\*\*\s*")
_END = re.compile(r"[.!?](?=\s+\S|\s*$)")
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def list_blocks() -> list[str]:
    """Paragraphs, points and tables, each with its comments."""
    text = _FENCE.sub("", PAGE.read_text("utf-8"))
    blocks = [block.strip() for block in re.split(r"\n\s*\n|\n(?=- )", text)]
    return [block for block in blocks if block and not block.startswith("#")]


def split_sentences(block: str) -> list[tuple[str, str]]:
    """What stands before each comment of a paragraph, with the comment; the last may have none."""
    parts = _COMMENT.split(_TITLE.sub("", block))
    texts = [" ".join(part.split()) for part in parts[::2]]
    return [
        (text, comment) for text, comment in zip(texts, [*parts[1::2], ""], strict=True) if text or comment
    ]


def count_sentences(text: str) -> int:
    """Sentences of a text; full stops in code and in targets of links do not count."""
    return len(_END.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "x", text)))


def list_names(comment: str) -> list[str]:
    return [name.strip() for name in comment.split(",") if name.strip()]


BLOCKS = list_blocks()
SENTENCES = [one for block in BLOCKS if not block.startswith("|") for one in split_sentences(block)]
TABLES = [block for block in BLOCKS if block.startswith("|")]


@cache
def list_tests() -> Mapping[str, Sequence[str]]:
    """The files of each test of the project."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("test_*.py")):
            for name in _TEST.findall(file.read_text("utf-8")):
                found[name].append(file.relative_to(ROOT).as_posix())
    return found


def check_names(names: Sequence[str]) -> None:
    assert names, "name a test that tries to refute it, or strike it"
    for name in names:
        path, _, function = name.rpartition("::")
        files = list_tests().get(function, ())
        assert files, f"there is no test {name}"
        assert path in files if path else len(files) == 1, f"which of {files}: path::{function}"


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda one: re.sub(r"\W+", "-", one[0][:50]).strip("-"))
def test_every_sentence_names_tests_that_exist(sentence: tuple[str, str]) -> None:
    text, comment = sentence
    assert count_sentences(text) == 1, f"one comment after each sentence: {text!r}"
    if comment != NO_CLAIM:
        check_names(list_names(comment))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[:20].strip("| "))
def test_every_row_of_a_table_names_tests_that_exist(table: str) -> None:
    cells = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]
    (comment,) = _COMMENT.findall(table)
    named = dict(split_row(cells, row) for row in comment.removeprefix("rows:").split(";"))
    assert list(named) == cells
    for names in named.values():
        check_names(names)


def split_row(cells: Sequence[str], row: str) -> tuple[str, list[str]]:
    """The first cell of a row, and its tests."""
    text = row.strip()
    cell = next((one for one in cells if text.startswith(f"{one}:")), text)
    return cell, list_names(text.removeprefix(f"{cell}:"))


def test_the_sentences_without_a_claim_are_few() -> None:
    assert sum(comment == NO_CLAIM for _, comment in SENTENCES) <= MAX_WITHOUT_CLAIM
    assert len(SENTENCES) > 80


@pytest.mark.parametrize(
    ("block", "counts"),
    [
        ("One is claimed. <!-- test_a -->", [1]),
        ("**A title.** One. <!-- test_a -->\nTwo, see [0.1](a.md). <!-- no claim -->", [1, 1]),
        ("One. Two. <!-- test_a -->", [2]),
        ("One. <!-- test_a --> Two.", [1, 1]),
        ("- **The file** has `a. b` in it. <!-- test_a -->", [1]),
    ],
)
def test_sentences_are_counted_as_they_are_read(block: str, counts: list[int]) -> None:
    assert [count_sentences(text) for text, _ in split_sentences(block)] == counts
