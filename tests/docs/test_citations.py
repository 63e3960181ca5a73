"""Citations resolve: sections, rows, doubts and exchanges of the specification, and decisions."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DECISIONS, PAGES, REPORTS, ROOT
from tests.requirements import REQUIREMENTS

SPECIFICATION = ROOT / "docs" / "specification.md"
CODE = [
    path
    for folder in ("src", "packages", "tests", "benchmarks", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ".venv" not in path.parts
]

_NUMBERS = r"\d+(?:(?: to | and |, | … )\d+)*"
_OTHERS = r"(?<!A2A )(?<!MCP )(?<!OCI )(?<!ARD )(?<!distribution )"
_SECTION = re.compile(_OTHERS + r"\bspecification (\d+(?:\.\d+)?)(?: and (\d+(?:\.\d+)?))?", re.IGNORECASE)
_DOUBTS = re.compile(rf"\bspecification (\d)(?:\.\d+)?,? doubts? ({_NUMBERS})", re.IGNORECASE)
_EXCHANGES = re.compile(r"\bexchanges? (\d-\w+)(?:(?: … | to | and |, )(\d-\w+))*", re.IGNORECASE)
_ROW = re.compile(r"\b[A-Z]{1,2}-\d{2}\b")
_LINE_BREAK = re.compile(r"\s*\n\s*(?:#\s*)?")
_DECISION = re.compile(r"\bdecisions? (\d{4})\b", re.IGNORECASE)
_ABSENT = re.compile(r"\b(?:SPEC|DESIGN|FACTS|HOUSE|FOUND|GOLDEN)\b")
"""Documents that the repository does not have."""

CONFIGURATION = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "mkdocs.yml", ROOT / ".importlinter"]


def read_prose(path: Path) -> str:
    """The comments and docstrings of a Python file, or all text of a page, as one line."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return " ".join(text.split())
    comments = [
        token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    docstrings = [
        statement.value.value
        for statement in ast.walk(ast.parse(text))
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
    return " ".join(" ".join([*comments, *docstrings]).split())


@cache
def list_headings() -> set[str]:
    """The numbers of the sections and subsections."""
    text = SPECIFICATION.read_text("utf-8")
    return set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", text, re.MULTILINE))


@cache
def list_rows() -> set[str]:
    """The ids of the requirements."""
    return set(re.findall(r"^\| ([A-Z]-\d{2}) \|", SPECIFICATION.read_text("utf-8"), re.MULTILINE))


@cache
def list_doubts() -> dict[str, set[int]]:
    """Section → the numbers of its doubts."""
    text = SPECIFICATION.read_text("utf-8")
    parts = re.findall(r"^### (\d)\.\d+ Doubts settled\n(.*?)(?=^#)", text, re.MULTILINE | re.DOTALL)
    return {
        section: {int(number) for number in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)}
        for section, part in parts
    }


@cache
def list_exchanges() -> set[str]:
    """The ids of the exchanges; a row may hold a range."""
    ids: set[str] = set()
    for first, last in re.findall(
        r"^\| (\d-\w+)(?: … (\d-\w+))? \|", SPECIFICATION.read_text("utf-8"), re.MULTILINE
    ):
        seed, number = first.split("-")
        end = last.partition("-")[2] or number
        ids |= {f"{seed}-{n}" for n in range(int(number), int(end) + 1)} if number.isdigit() else {first}
    return ids | {re.sub(r"[a-z]$", "", exchange) for exchange in ids if not exchange.endswith("-all")}


def numbers_in(text: str) -> set[int]:
    """``1 to 3 and 7`` → 1, 2, 3, 7."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:(?: to | … )(\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def list_dangling(text: str) -> list[str]:
    """The citations of a text that lead nowhere."""
    headings, doubts, exchanges = list_headings(), list_doubts(), list_exchanges()
    decisions = {page.name[:4] for page in DECISIONS}
    dangling = [
        f"specification {number}"
        for match in _SECTION.finditer(text)
        for number in match.groups()
        if number is not None and number not in headings
    ]
    dangling += [
        f"specification {section}, doubt {number}"
        for section, numbers in _DOUBTS.findall(text)
        for number in sorted(numbers_in(numbers) - doubts.get(section, set()))
    ]
    for match in _EXCHANGES.finditer(text):
        cited = set(re.findall(r"\d-\w+", match.group()))
        dangling += [f"exchange {exchange}" for exchange in sorted(cited - exchanges)]
    dangling += [f"decision {number}" for number in _DECISION.findall(text) if number not in decisions]
    return dangling


def list_unknown_rows(text: str) -> list[str]:
    """The ids of a text that are no requirements."""
    return sorted(set(_ROW.findall(text)) - list_rows())


def check_files(paths: Iterable[Path], find: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """File → what ``find`` finds in its prose; most files are settled by their text, which costs less."""
    findings: dict[str, list[str]] = {}
    for path in paths:
        text = _LINE_BREAK.sub(" ", path.read_text("utf-8"))
        if find(text) and (prose := find(read_prose(path))):
            findings[str(path.relative_to(ROOT))] = prose
    return findings


def test_citations_lead_to_sections_rows_and_decisions() -> None:
    assert check_files([*CODE, *PAGES, *REPORTS], list_dangling) == {}
    assert check_files(CODE, list_unknown_rows) == {}


def test_no_text_cites_a_document_that_is_not_here() -> None:
    assert check_files([*CODE, *PAGES, *REPORTS, *CONFIGURATION], _ABSENT.findall) == {}


@pytest.mark.parametrize(
    ("text", "dangling"),
    [
        ("specification 7.2, specification 5, doubts 1 to 3 and 7; specification 5 and 7", []),
        ("exchanges 0-1a … 0-5, 0-all; exchange 2-5; decision 0018", []),
        ("specification 99", ["specification 99"]),
        ("Specification 7.99", ["specification 7.99"]),
        ("specification 5, doubt 77", ["specification 5, doubt 77"]),
        ("specification 7 and 98", ["specification 98"]),
        ("exchanges 1-1 … 1-99", ["exchange 1-99"]),
        ("decision 9999", ["decision 9999"]),
    ],
)
def test_a_citation_that_leads_nowhere_is_named(text: str, dangling: list[str]) -> None:
    assert list_dangling(text) == dangling


def test_the_specification_has_each_requirement_once() -> None:
    text = SPECIFICATION.read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z]-\d{2}) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(REQUIREMENTS)
