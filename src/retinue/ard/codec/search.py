"""Pure codec of ``POST /search`` of ARD 0.9: requests, filters, the order of results, page tokens.

The registry that a search has passed through is told in a header, because requests may have no fields but
those of the specification, which says nothing on loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

from retinue.ard.codec.catalog import CatalogEntry, parse_entry, publisher_of
from retinue.core.errors import InvalidParametersError, Problem
from retinue.core.json_values import decode_json, name_shape

Federation = Literal["auto", "referrals", "none"]

VISITED_HEADER = "x-retinue-visited"
"""The ids of the registries that a search has passed through, with commas."""

INCOMPLETE_HEADER = "x-retinue-incomplete"
"""A JSON list of the registries that did not answer, each with ``source`` and ``error``."""

DEFAULT_PAGE, MAX_PAGE = 10, 100
MAX_RESULTS = 1_000
MAX_TEXT = 2_000
MAX_KEYS = 20
MAX_VALUES = 100
MAX_VISITED = 32

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Search:
    """One request; ``filter`` maps field paths to the accepted values."""

    text: str
    filter: Mapping[str, tuple[str, ...]]
    federation: Federation = "auto"
    page_size: int = DEFAULT_PAGE
    offset: int = 0

    @property
    def key(self) -> bytes:
        """The search itself, independent of its caller."""
        return orjson.dumps([self.text, dict(self.filter)], option=orjson.OPT_SORT_KEYS)


def parse_search(body: bytes) -> Search:
    """Raises InvalidParametersError, which names the field and the remedy."""
    try:
        document = decode_json(body)
    except ValueError:
        raise _refuse("", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise _refuse("", f"the body is {name_shape(document)}; send an object")
    query = document.get("query")
    if not isinstance(query, dict):
        raise _refuse("query", f"it is {name_shape(query)}; send an object with a text")
    text = query.get("text")
    if not isinstance(text, str) or not text.strip():
        raise _refuse("query.text", "it is missing; say what you need in words")
    if len(text) > MAX_TEXT:
        raise _refuse("query.text", f"it has more than {MAX_TEXT:,} characters; shorten it")
    federation = document.get("federation", "auto")
    if federation not in get_args(Federation):
        raise _refuse("federation", "it is unknown; use auto, referrals or none")
    size = document.get("pageSize", DEFAULT_PAGE)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise _refuse("pageSize", f"it is no number from 1 to {MAX_PAGE}")
    offset = _parse_token(document.get("pageToken"))
    return Search(text, _parse_filter(query.get("filter")), federation, min(size, MAX_PAGE), offset)


def render_search(search: Search, federation: Federation) -> bytes:
    """The request for another registry: everything up to the end of the wanted page."""
    query: dict[str, Any] = {"text": search.text}
    if search.filter:
        query["filter"] = {key: list(values) for key, values in search.filter.items()}
    size = min(search.offset + search.page_size, MAX_PAGE)
    return orjson.dumps({"query": query, "federation": federation, "pageSize": size})


def render_results(
    search: Search, results: Sequence[CatalogEntry], referrals: Sequence[CatalogEntry] | None = None
) -> dict[str, Any]:
    """The reply: the wanted page of the results, and a token where there is another one."""
    end = search.offset + search.page_size
    reply: dict[str, Any] = {"results": list(results[search.offset : end])}
    if referrals is not None:
        reply["referrals"] = list(referrals)
    if len(results) > end:
        reply["pageToken"] = str(end)
    return reply


def parse_results(body: bytes, source: str) -> list[CatalogEntry]:
    """The results of another registry, malformed ones left out; raises ValueError for no reply."""
    document = orjson.loads(body)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise ValueError("its reply has no results")
    hits = []
    for value in results[:MAX_PAGE]:
        entry = parse_entry(value)
        if entry is not None:
            number = value.get("score")
            score = round(number) if isinstance(number, int | float) and not isinstance(number, bool) else 0
            origin = value.get("source")
            is_url = isinstance(origin, str) and origin.startswith(("http://", "https://"))
            hits.append({**entry, "score": max(0, min(100, score)), "source": origin if is_url else source})
    return hits


def merge(parts: Iterable[Iterable[CatalogEntry]]) -> list[CatalogEntry]:
    """All results, best first; of one identifier the first part's, which is the own one."""
    by_identifier: dict[str, CatalogEntry] = {}
    for part in parts:
        for entry in part:
            by_identifier.setdefault(entry["identifier"], entry)
    return sorted(by_identifier.values(), key=lambda entry: (-entry["score"], entry["identifier"]))[
        :MAX_RESULTS
    ]


def matches(entry: CatalogEntry, required_values: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether an entry satisfies every constraint: any of the values of a key, all keys."""
    return all(bool(set(values) & set(_values_at(entry, path))) for path, values in required_values.items())


def parse_visited(header: str | None) -> tuple[str, ...]:
    """The registries that a search has passed through."""
    ids = [registry_id.strip() for registry_id in (header or "").split(",")]
    return tuple(registry_id for registry_id in ids if _ID.fullmatch(registry_id))[:MAX_VISITED]


def _values_at(entry: CatalogEntry, path: str) -> list[str]:
    if path == "publisher":
        return [publisher_of(entry)]
    level: list[Any] = [entry]
    for part in path.split("."):
        level = [value[part] for value in level if isinstance(value, Mapping) and part in value]
        level = [inner for value in level for inner in (value if isinstance(value, list) else [value])]
    return [value if isinstance(value, str) else orjson.dumps(value).decode() for value in level]


def _parse_filter(value: Any) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_KEYS:
        raise _refuse("query.filter", f"it is no object with at most {MAX_KEYS} field paths")
    filters = {}
    for path, accepted in value.items():
        values = accepted if isinstance(accepted, list) else [accepted]
        if len(values) > MAX_VALUES or not all(isinstance(option, str | int | float) for option in values):
            raise _refuse(f"query.filter.{path[:60]}", f"it is no list of at most {MAX_VALUES} values")
        filters[path] = tuple(
            option if isinstance(option, str) else orjson.dumps(option).decode() for option in values
        )
    return filters


def _parse_token(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,4}", value) or int(value) > MAX_RESULTS:
        raise _refuse("pageToken", "it is not a token of an earlier reply")
    return int(value)


def _refuse(path: str, problem: str) -> InvalidParametersError:
    return InvalidParametersError([Problem(path, f"{path}: {problem}" if path else problem)])
