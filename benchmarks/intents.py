"""Sets with many requests for each skill: CLINC150, Banking77, BFCL, HWU64 and SGD.

They are read from ``RETINUE_CLINC`` (`data_full.json` and `domains.json`; CC BY 3.0), ``RETINUE_BANKING``
(`train.csv` and `test.csv`; CC BY 4.0), ``RETINUE_BFCL`` (the data of the package bfcl-eval; Apache 2.0),
``RETINUE_HWU`` (`trainset` and `testset/csv` of one fold of NLU-Evaluation-Data; CC BY 4.0) and
``RETINUE_SGD`` (`schema.json` and dialogues of the part `dev`; CC BY-SA 4.0), and left out with a message if
they are missing. The cards of CLINC150, Banking77 and HWU64 are the names of intents alone, those of BFCL and
SGD have descriptions and parameters. Half of the domains of CLINC150, Banking77 and BFCL choose weights; the
other half, HWU64 and SGD are reported.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson

from benchmarks.ranking import Catalogue, Question
from retinue.core.record import AgentRecord, Listing, Skill

Part = Literal["tuning", "reported"]
CLINC_DOMAINS = 5
"""The domains of CLINC150 that choose weights; it has ten."""


def load_clinc(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """The catalogue with questions of one half of the domains, and the questions of uses; none if missing."""
    folder = _find("RETINUE_CLINC", "data_full.json")
    if folder is None:
        return
    domains = orjson.loads((folder / "domains.json").read_bytes())
    names = sorted(domains)
    random.Random(1).shuffle(names)
    half = names[:CLINC_DOMAINS] if part == "tuning" else names[CLINC_DOMAINS:]
    intents = {intent for name in half for intent in domains[name]}
    data = orjson.loads((folder / "data_full.json").read_bytes())
    yield _make("clinc", "CLINC150", intents, data["train"], data["test"])


def load_banking(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_clinc`; the whole set chooses weights."""
    folder = _find("RETINUE_BANKING", "train.csv")
    if folder is None or part == "reported":
        return
    train, test = ([(row["text"], row["category"]) for row in _read(folder / f"{name}.csv")] for name in _CSV)
    yield _make("banking", "Banking77", {intent for _, intent in train}, train, test)


def load_bfcl(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_banking`, with the functions of the file live_multiple and the last text of each person."""
    folder = _find("RETINUE_BFCL", _BFCL)
    if folder is None or part == "reported":
        return
    rows = [orjson.loads(line) for line in (folder / _BFCL).read_bytes().splitlines()]
    answers = [orjson.loads(line) for line in (folder / "possible_answer" / _BFCL).read_bytes().splitlines()]
    names = {row["id"]: next(iter(row["ground_truth"][0])) for row in answers}
    functions = {function["name"]: function for row in reversed(rows) for function in row["function"][::-1]}
    listings = [
        Listing(AgentRecord("", skills=(_make_function(functions[name]),)), "bfcl", name)
        for name in sorted(functions)
    ]
    questions = [
        ([turn["content"] for turn in row["question"][0] if turn["role"] == "user"][-1], names[row["id"]])
        for row in rows
    ]
    random.Random(4).shuffle(questions)
    pool, asked = (
        [(text, frozenset({f"bfcl/{name}"})) for text, name in some]
        for some in (questions[: len(questions) // 2], questions[len(questions) // 2 :])
    )
    yield Catalogue("BFCL", listings, asked), pool


def load_hwu(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_banking`; the whole set is reported."""
    folder = _find("RETINUE_HWU", "trainset")
    if folder is None or part == "tuning":
        return
    train, test = (
        [
            (row["answer_from_anno"], path.stem)
            for path in sorted((folder / name).glob("*.csv"))
            for row in _read(path, delimiter=";")
        ]
        for name in ("trainset", "testset/csv")
    )
    yield _make("hwu", "HWU64", {intent for _, intent in train}, train, test)


def load_sgd(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_hwu`, with one agent for each service, and the texts of persons that begin an intent."""
    folder = _find("RETINUE_SGD", "schema.json")
    if folder is None or part == "tuning":
        return
    services = orjson.loads((folder / "schema.json").read_bytes())
    listings = [
        Listing(
            AgentRecord(service["description"], skills=tuple(_list_intents(service))),
            "sgd",
            service["service_name"],
        )
        for service in services
    ]
    requests = [
        (turn["utterance"], frozenset({f"sgd/{_join(frame['service'], action['values'][0])}"}))
        for path in sorted(folder.glob("dialogues_*.json"))
        for dialogue in orjson.loads(path.read_bytes())
        for turn in dialogue["turns"]
        for frame in turn["frames"]
        for action in frame["actions"]
        if action["act"] == "INFORM_INTENT"
    ]
    random.Random(5).shuffle(requests)
    asked, pool = requests[:SGD_QUESTIONS], requests[SGD_QUESTIONS:]
    yield Catalogue("SGD", listings, asked), pool


SGD_QUESTIONS = 1_500


def _list_intents(service: dict[str, Any]) -> Iterator[Skill]:
    slots = {slot["name"]: {"description": slot["description"]} for slot in service["slots"]}
    for intent in service["intents"]:
        names = [*intent["required_slots"], *intent["optional_slots"]]
        schema = {"type": "object", "properties": {name: slots[name] for name in names}}
        name = _join(service["service_name"], intent["name"])
        yield Skill(name, intent["description"], input_schema=schema)


def _join(service: str, intent: str) -> str:
    """The id of a skill, such as ``FindMovies_Media2``."""
    return f"{intent}_{service.replace('_', '')}"


def _make_function(function: dict[str, Any]) -> Skill:
    properties = function["parameters"].get("properties", {})
    schema = {"type": "object", "properties": properties}
    return Skill(function["name"], function["description"], input_schema=schema)


_CSV = ("train", "test")
_BFCL = "BFCL_v4_live_multiple.json"


def _find(variable: str, name: str) -> Path | None:
    folder = Path(os.environ.get(variable, ""))
    if variable in os.environ and (folder / name).exists():
        return folder
    print(f"  SKIPPED: {name} is missing; {variable} names its folder", flush=True)
    return None


def _read(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def _make(
    source: str,
    name: str,
    intents: set[str],
    train: Sequence[Sequence[str]],
    test: Sequence[Sequence[str]],
) -> tuple[Catalogue, Sequence[Question]]:
    listings = [
        Listing(AgentRecord("", skills=(Skill(intent, intent.replace("_", " ").strip("?")),)), source, intent)
        for intent in sorted(intents)
    ]
    pool, questions = (
        [(text, frozenset({f"{source}/{intent}"})) for text, intent in rows if intent in intents]
        for rows in (train, test)
    )
    random.Random(2).shuffle(pool)
    random.Random(3).shuffle(questions)
    return Catalogue(name, listings, questions), pool
