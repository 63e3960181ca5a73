"""The manifest of the specification and the tags of the tests agree, in both directions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import REQUIREMENTS

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = (TESTS, *sorted(ROOT.glob("packages/*/tests")))
LAST_NUMBERS = {"W": 25, "P": 31, "L": 35, "K": 44, "S": 17, "T": 17}


def _tags_in(source: str, filename: str) -> Iterator[tuple[str, int]]:
    """Each id given to ``requirement(...)`` with its line: decorators, ``pytestmark``, parameters."""
    for node in ast.walk(ast.parse(source, filename)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name != "requirement":
            continue
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value, node.lineno
            else:
                raise AssertionError(f"{filename}:{node.lineno}: the id must be written out")


def _tags() -> dict[str, list[str]]:
    """Id → places that carry it, over all test files."""
    places: dict[str, list[str]] = {}
    for path in sorted(path for folder in FOLDERS for path in folder.rglob("*.py")):
        if path in (Path(__file__), TESTS / "requirements.py"):
            continue
        name = str(path.relative_to(ROOT))
        for spec_id, line in _tags_in(path.read_text("utf-8"), name):
            places.setdefault(spec_id, []).append(f"{name}:{line}")
    return places


def test_every_id_of_the_specification_is_listed_once_and_in_order() -> None:
    expected = [f"{letter}-{n:02}" for letter, last in LAST_NUMBERS.items() for n in range(1, last + 1)]
    assert list(REQUIREMENTS) == expected
    written = re.findall(
        r'^    "([A-Z]-\d\d)":', (TESTS / "requirements.py").read_text("utf-8"), re.MULTILINE
    )
    assert written == expected


def test_every_text_is_one_line_of_its_own() -> None:
    texts = [item.text for item in REQUIREMENTS.values()]
    assert all(text and "\n" not in text for text in texts)
    assert len(set(texts)) == len(texts)


def test_every_tag_names_an_id_of_the_specification() -> None:
    unknown = {spec_id: places for spec_id, places in _tags().items() if spec_id not in REQUIREMENTS}
    assert not unknown


def test_every_id_has_a_test() -> None:
    missing = REQUIREMENTS.keys() - _tags().keys()
    assert not missing


def test_tags_are_found_as_decorator_as_module_mark_and_on_a_parameter() -> None:
    source = (
        'pytestmark = [requirement("P-01")]\n'
        '@requirement("P-02")\ndef test_a(): pass\n'
        'cases = pytest.param(1, marks=requirements.requirement("P-03"))\n'
    )
    assert sorted(_tags_in(source, "example")) == [("P-01", 1), ("P-02", 2), ("P-03", 4)]
