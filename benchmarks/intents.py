"""Sets with many requests for each skill: CLINC150, Banking77, BFCL, ACID, HWU64, SGD and Redwood.

They are read from ``RETINUE_CLINC`` (`data_full.json` and `domains.json`; CC BY 3.0), ``RETINUE_BANKING``
(`train.csv` and `test.csv`; CC BY 4.0), ``RETINUE_BFCL`` (the data of the package bfcl-eval; Apache 2.0),
``RETINUE_HWU`` (`trainset` and `testset/csv` of one fold of NLU-Evaluation-Data; CC BY 4.0),
``RETINUE_SGD`` and ``RETINUE_SGD_TEST`` (`schema.json` and dialogues of the parts `dev` and `test`; CC BY-SA
4.0), ``RETINUE_ACID`` (`customer_training.csv` and `customer_testing.csv`; no licence named) and
``RETINUE_REDWOOD`` (`redwood_test.json`; no licence named), and left out with a message if they are missing.
The cards of BFCL and SGD have descriptions and parameters, those of the others are the names of intents.
Half of the domains of CLINC150, half of the intents of ACID, Banking77 and BFCL choose weights; the other
halves, HWU64, SGD and what Redwood has from none of these are reported.
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


def load_acid(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_clinc`, with halves of the intents."""
    folder = _find("RETINUE_ACID", "customer_training.csv")
    if folder is None:
        return
    train, test = (
        [(row["UTTERANCES"], row["INTENT_NAME"].lower()) for row in _read(folder / f"customer_{name}ing.csv")]
        for name in _CSV
    )
    names = sorted({intent for _, intent in train})
    random.Random(21).shuffle(names)
    half = len(names) // 2
    yield _make("acid", "ACID", set(names[:half] if part == "tuning" else names[half:]), train, test)


def load_redwood(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_hwu`, of the intents with eight requests or more that are in no other set here."""
    folder = _find("RETINUE_REDWOOD", "redwood_test.json")
    if folder is None or part == "tuning":
        return
    by_label: dict[str, list[tuple[str, str]]] = {}
    for row in orjson.loads((folder / "redwood_test.json").read_bytes()):
        if row["source dataset"] not in _ELSEWHERE:
            by_label.setdefault(row["label"], []).append((row["text"], row["source intent"]))
    requests = [
        (text, held[0][1]) for held in by_label.values() if len(held) >= MIN_REQUESTS for text, _ in held
    ]
    random.Random(22).shuffle(requests)
    uses = len(requests) * 6 // 10
    yield _make("redwood", "Redwood", {name for _, name in requests}, requests[:uses], requests[uses:])


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
    if folder is not None and part == "reported":
        yield _load_services(folder, "SGD", frozenset(), SGD_QUESTIONS)


def load_sgd_test(part: Part) -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """As `load_sgd`, with the services that the part `dev` does not have."""
    known = _find("RETINUE_SGD", "schema.json")
    folder = _find("RETINUE_SGD_TEST", "schema.json")
    if folder is None or known is None or part == "tuning":
        return
    services = orjson.loads((known / "schema.json").read_bytes())
    names = frozenset(service["service_name"] for service in services)
    yield _load_services(folder, "SGD test", names, SGD_TEST_QUESTIONS)


def _load_services(
    folder: Path, name: str, known: frozenset[str], questions: int
) -> tuple[Catalogue, Sequence[Question]]:
    services = orjson.loads((folder / "schema.json").read_bytes())
    listings = [
        Listing(
            AgentRecord(service["description"], skills=tuple(_list_intents(service))),
            "sgd",
            service["service_name"],
        )
        for service in services
        if service["service_name"] not in known
    ]
    requests = [
        (turn["utterance"], frozenset({f"sgd/{_join(frame['service'], action['values'][0])}"}))
        for path in sorted(folder.glob("dialogues_*.json"))
        for dialogue in orjson.loads(path.read_bytes())
        for turn in dialogue["turns"]
        for frame in turn["frames"]
        if frame["service"] not in known
        for action in frame["actions"]
        if action["act"] == "INFORM_INTENT"
    ]
    random.Random(5).shuffle(requests)
    return Catalogue(name, listings, requests[:questions]), requests[questions:]


SGD_QUESTIONS = 1_500
SGD_TEST_QUESTIONS = 1_000
MIN_REQUESTS = 8
_ELSEWHERE = frozenset({"clinc150", "acid", "banking77", "hwu", "dstc8"})
"""Sets whose requests Redwood has too."""


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
