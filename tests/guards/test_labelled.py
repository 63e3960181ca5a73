"""The figures of the guide to guards are those of texts that took no part in the choice of the patterns.

``heldout.jsonl`` was written by somebody who had not seen the patterns, after they were chosen with
``development.jsonl``. Each line has a text, its ``marks`` (kind, part) and whether it ``instructs`` a model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.guards.instructing import find_instruction
from retinue.guards.sensitive import KINDS, find_sensitive
from tests.docs.pages import table_rows

FOLDER = Path(__file__).parent
GUIDE = FOLDER.parents[1] / "docs" / "guides" / "guards.md"


def read_set(name: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines()]


def count_sensitive(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """By kind: marks that are found, all marks, and findings that no mark overlaps."""
    found, marked, false = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        text, findings = row["text"], find_sensitive(row["text"])
        marks = [(kind, text.index(part), text.index(part) + len(part)) for kind, part in row["marks"]]
        for kind, start, end in marks:
            marked[kind] += 1
            found[kind] += any(f.kind == kind and f.start < end and f.end > start for f in findings)
        for f in findings:
            false[f.kind] += not any(
                kind == f.kind and f.start < end and f.end > start for kind, start, end in marks
            )
    return {kind: (found[kind], marked[kind], false[kind]) for kind in KINDS}


def count_instructing(rows: list[dict[str, Any]]) -> tuple[int, int, int]:
    instructing = [row for row in rows if row["instructs"]]
    others = [row for row in rows if not row["instructs"]]
    found = sum(find_instruction(row["text"]) is not None for row in instructing)
    return found, len(instructing), sum(find_instruction(row["text"]) is not None for row in others)


def test_the_guide_has_the_figures_of_the_held_out_set() -> None:
    rows = read_set("heldout")
    counted = {**count_sensitive(rows), "instructions": count_instructing(rows)}
    published = {
        kind.strip("`"): (int(found), int(marked), int(false))
        for kind, found, marked, false in table_rows(GUIDE.read_text("utf-8"), "what")
    }
    assert published == counted


@pytest.mark.parametrize("name", ["development", "heldout"])
def test_most_secrets_are_found_and_hardly_anything_else(name: str) -> None:
    counts = count_sensitive(read_set(name)).values()
    found, marked, false = (sum(numbers) for numbers in zip(*counts, strict=True))
    assert found / marked > 0.9
    assert false <= 2


def test_no_text_is_in_both_sets() -> None:
    texts = [row["text"] for name in ("development", "heldout") for row in read_set(name)]
    assert len(set(texts)) == len(texts)
