"""The benchmark of the history measures the sets that are there, and says which are missing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks.history import measure_set
from benchmarks.history_sets import HistorySet, load_metatool_set, load_sets, split_requests
from benchmarks.intents import load_clinc
from benchmarks.ranking import Catalogue, Question
from retinue.core.record import AgentRecord, Listing, Skill

INTENTS = [
    f"{verb}_{noun}" for verb in ("book", "cancel") for noun in ("table", "flight", "car", "hotel", "taxi")
]


def ask_for(*pairs: tuple[str, str]) -> list[Question]:
    return [(text, frozenset({f"home/{tool}" for tool in tools.split(",")})) for tools, text in pairs]


def make_catalogue(questions: list[Question]) -> Catalogue:
    skills = tuple(Skill(name, f"{name} of the house") for name in ("open_door", "close_door", "ring_bell"))
    return Catalogue("home", [Listing(AgentRecord("home", skills=skills), "home", "home")], questions)


def test_a_missing_set_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[f"please {intent.replace('_', ' a ')} for me", intent] for intent in INTENTS]
    (tmp_path / "domains.json").write_bytes(orjson.dumps({intent: [intent] for intent in INTENTS}))
    (tmp_path / "data_full.json").write_bytes(orjson.dumps({"train": rows, "test": rows}))
    monkeypatch.setenv("RETINUE_METATOOL", str(tmp_path / "none"))
    monkeypatch.setenv("RETINUE_CLINC", str(tmp_path))

    def load() -> list[HistorySet]:
        return [HistorySet(catalogue, uses) for catalogue, uses in load_clinc("reported")]

    (clinc,) = load_sets((load_metatool_set, load))
    assert "MetaTool is missing" in capsys.readouterr().out
    names = [figure.name for figure in measure_set(clinc)]
    for label in ("no history: hit@1", "no history: recall@5", "FTS5: hit@1", "FTS5: recall@5"):
        assert any(name.startswith(f"CLINC150, 5 questions, {label} [") for name in names), label
    for told in ("1 use, used: hit@1", "20 uses, used: recall@5", "5 uses, 30% wrong, used: hit@1"):
        assert any(told in name for name in names), told


def test_a_use_and_a_question_are_different_requests_of_one_tool() -> None:
    questions = ask_for(
        ("open_door", "let me in"),
        ("open_door", "the door should open"),
        ("close_door", "shut it"),
        ("close_door,ring_bell", "make a noise at the door"),
        ("ring_bell", "ring the bell"),
    )
    one = split_requests(make_catalogue(questions))
    assert one.is_sparse
    used = [min(tools) for _, tools in one.uses]
    assert sorted(used) == ["home/close_door", "home/open_door", "home/ring_bell"]
    assert sorted([*one.uses, *one.catalogue.questions]) == sorted(questions)
    for tool in used:
        assert any(tool in tools for _, tools in one.catalogue.questions)
    figures = {figure.name: figure.value for figure in measure_set(one)}
    assert any("3 tools used, 2 questions of used tools" in name for name in figures)
    assert not any("5 uses" in name for name in figures)


def test_tools_with_one_request_are_never_used() -> None:
    one = split_requests(make_catalogue(ask_for(("open_door", "let me in"), ("ring_bell", "ring the bell"))))
    assert list(one.uses) == []
    assert len(one.catalogue.questions) == 2
