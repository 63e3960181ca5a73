"""The sets of the history benchmark: questions to ask, and other questions, which are the uses of the tools.

A set that is missing is left out with a message. Sets with many requests for each tool are MetaTool and
those of `benchmarks.intents`. The trackers and the tools of npm packages and OpenAPI documents have one
request for most tools. There the uses are one request of each tool that has several, so that a use and a
question are different requests. This leaves few questions of used tools; the other questions show what
happens to tools that are never used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from benchmarks.intents import load_acid, load_clinc, load_hwu, load_redwood, load_sgd, load_sgd_test
from benchmarks.python_tools import NoPackagesError, load_tracker
from benchmarks.ranking import Catalogue, Question, find_metatool, load_metatool, metatool_catalogue
from benchmarks.tool_catalogue import NoToolsError, load_tool_set


@dataclass(frozen=True)
class HistorySet:
    """A catalogue with the questions to ask, and ``uses``, the questions whose right tool was called.

    With ``is_sparse`` a use is one question of each tool that has several.
    """

    catalogue: Catalogue
    uses: Sequence[Question]
    is_sparse: bool = False


Load = Callable[[], Iterable[HistorySet]]
LoadIntents = Callable[[Literal["reported"]], Iterable[tuple[Catalogue, Sequence[Question]]]]


def load_metatool_set() -> Iterator[HistorySet]:
    """MetaTool with its held-out questions; none if it is missing."""
    folder = find_metatool()
    if folder is None:
        print("  SKIPPED: MetaTool is missing; RETINUE_METATOOL names its folder", flush=True)
        return
    data = load_metatool(folder)
    yield HistorySet(metatool_catalogue(data, data.held_out), data.tuning)


def load_tracker_set() -> Iterator[HistorySet]:
    """The tools of two trackers; none if their package cannot be installed."""
    try:
        listings, questions = load_tracker()
    except NoPackagesError as error:
        print(f"  SKIPPED: trackers: {error}", flush=True)
        return
    yield split_requests(Catalogue("trackers", listings, questions))


def load_npm_set() -> Iterator[HistorySet]:
    """The tools of npm packages and OpenAPI documents with the requests that chose no weight of the cards."""
    try:
        tools = load_tool_set()
    except NoToolsError as error:
        print(f"  SKIPPED: npm and OpenAPI: {error}", flush=True)
        return
    questions = [(request.text, request.tools) for request in tools.held_out]
    yield split_requests(Catalogue("npm and OpenAPI", tools.listings, questions))


def split_requests(catalogue: Catalogue) -> HistorySet:
    """The requests of a catalogue as a set: one of each tool with several is a use, others are asked."""
    counts = Counter(tool for _, tools in catalogue.questions for tool in tools)
    uses: dict[str, Question] = {}
    asked: list[Question] = []
    for text, tools in random.Random(4).sample(catalogue.questions, len(catalogue.questions)):
        tool = min(tools)
        if len(tools) == 1 and counts[tool] > 1 and tool not in uses:
            uses[tool] = (text, tools)
        else:
            asked.append((text, tools))
    return HistorySet(replace(catalogue, questions=asked), list(uses.values()), is_sparse=True)


def _load_reported(
    load: Callable[..., Iterator[tuple[Catalogue, Sequence[Question]]]],
) -> Iterator[HistorySet]:
    return (HistorySet(catalogue, uses) for catalogue, uses in load("reported"))


_INTENTS = (load_clinc, load_hwu, load_sgd, load_acid, load_redwood, load_sgd_test)
LOADERS: Sequence[Load] = (
    load_metatool_set,
    *(partial(_load_reported, load) for load in _INTENTS),
    load_tracker_set,
    load_npm_set,
)


def load_sets(loaders: Iterable[Load] = LOADERS) -> Iterator[HistorySet]:
    """The sets that are there; a message says which are missing."""
    for load in loaders:
        yield from load()
