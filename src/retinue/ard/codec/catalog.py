"""Pure codec of the AI catalog of ARD 0.9: agents as entries, and the entries of other catalogs.

An agent has an entry for its A2A card and, where MCP clients see a skill of it, one for its MCP server. An
entry is JSON with ``identifier``, ``displayName``, ``type`` and either ``url`` or ``data``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from retinue.cards.a2a_card import CARD_MEDIA_TYPE, CARD_PATH
from retinue.cards.retinue_block import list_shown_skills
from retinue.core.record import AgentRecord, Listing, Skill

CatalogEntry = dict[str, Any]

CATALOG_PATH = "/.well-known/ai-catalog.json"
A2A_TYPE = CARD_MEDIA_TYPE
MCP_TYPE = "application/mcp-server-card+json"
CATALOG_TYPE = "application/ai-catalog+json"
REGISTRY_TYPE = "application/ai-registry+json"

MAX_QUERIES = 5
MIN_QUERIES = 2
MAX_TEXT = 2_000
MAX_LISTED = 100
"""Tags and capabilities of one entry."""

MAX_NESTING = 4
"""Levels of catalogs within catalogs (ai-catalog specification)."""

_IDENTIFIER = re.compile(r"urn:air:(?P<publisher>[a-zA-Z0-9.-]+)(?::[a-zA-Z0-9._-]+)+")
_NOT_IN_URN = re.compile(r"[^a-zA-Z0-9._-]+")
_TEXTS = ("description", "version", "updatedAt")
_LISTS = ("tags", "capabilities", "representativeQueries")


@dataclass(frozen=True, slots=True)
class Publisher:
    """The publisher of the catalog: a domain for its identifiers, a name, and the hub's URL without slash."""

    domain: str
    name: str
    url: str

    def identifier(self, kind: str, name: str) -> str:
        """The URN of something that is published here."""
        return f"urn:air:{self.domain}:{kind}:{_NOT_IN_URN.sub('-', name).strip('-') or 'unnamed'}"


def render_catalog(publisher: Publisher, entries: Iterable[CatalogEntry]) -> dict[str, Any]:
    """The document at `CATALOG_PATH`: the registry itself first, then the entries."""
    return {
        "specVersion": "1.0",
        "host": {"displayName": publisher.name, "identifier": publisher.domain},
        "entries": [registry_entry(publisher), *entries],
    }


def registry_entry(publisher: Publisher) -> CatalogEntry:
    """The hub as a registry, whose search is at ``/search`` below the url."""
    return {
        "identifier": publisher.identifier("registry", "hub"),
        "displayName": publisher.name,
        "type": REGISTRY_TYPE,
        "url": f"{publisher.url}/",
        "description": "Search over all agents of this hub",
    }


def referral_entry(url: str) -> CatalogEntry:
    """Another registry or catalog, as an entry for clients that ask it themselves."""
    host = urlsplit(url).hostname or "localhost"
    is_catalog = is_catalog_url(url)
    kind = "catalog" if is_catalog else "registry"
    name = _NOT_IN_URN.sub("-", urlsplit(url).path.strip("/")) or "main"
    return {
        "identifier": f"urn:air:{_NOT_IN_URN.sub('-', host)}:{kind}:{name}",
        "displayName": host,
        "type": CATALOG_TYPE if is_catalog else REGISTRY_TYPE,
        "url": url,
    }


def is_catalog_url(url: str) -> bool:
    """Whether a url is that of a catalog document rather than the base of a registry."""
    return urlsplit(url).path.endswith(".json")


def render_entries(listing: Listing, publisher: Publisher, scopes: frozenset[str]) -> list[CatalogEntry]:
    """The entries of an agent, with the skills visible to these scopes; [] without a visible skill."""
    record = listing.record
    skills = list_shown_skills(record, scopes)
    if not skills:
        return []
    base = f"{publisher.url}/agents/{quote(record.name, safe='')}"
    entries = [
        {
            "identifier": publisher.identifier("agent", record.name),
            "type": A2A_TYPE,
            "url": f"{base}{CARD_PATH}",
            **_describe(listing, skills),
        }
    ]
    exposed = [skill for skill in skills if skill.visibility == "exposed"]
    if exposed:
        entries.append(
            {
                "identifier": publisher.identifier("mcp", record.name),
                "type": MCP_TYPE,
                "data": _server_card(record, exposed, f"{base}/mcp"),
                **_describe(listing, exposed),
            }
        )
    return entries


def _describe(listing: Listing, skills: Sequence[Skill]) -> CatalogEntry:
    record = listing.record
    tags = dict.fromkeys([*record.topics, *(tag for skill in skills for tag in skill.tags)])
    entry: CatalogEntry = {
        "displayName": record.title or record.name,
        "description": record.description[:MAX_TEXT],
        "tags": [tag for tag in tags if tag][:MAX_LISTED],
        "capabilities": [skill.id for skill in skills][:MAX_LISTED],
        "representativeQueries": _queries(skills),
        "version": record.version,
    }
    if listing.published_at is not None:
        entry["updatedAt"] = listing.published_at.isoformat()
    return {key: value for key, value in entry.items() if value}


def _queries(skills: Sequence[Skill]) -> list[str]:
    """Two to five queries: texts of examples of different skills first, then what the skills say they do."""
    examples = [[example.text for example in skill.examples if example.text] for skill in skills]
    queries = [texts[turn] for turn in range(MAX_QUERIES) for texts in examples if turn < len(texts)]
    queries = list(dict.fromkeys(text[:MAX_TEXT] for text in queries))
    if len(queries) < MIN_QUERIES:
        descriptions = [
            skill.description.strip().splitlines()[0] for skill in skills if skill.description.strip()
        ]
        queries = list(dict.fromkeys([*queries, *(line[:MAX_TEXT] for line in descriptions)]))
    return queries[:MAX_QUERIES] if len(queries) >= MIN_QUERIES else []


def _server_card(record: AgentRecord, skills: Sequence[Skill], url: str) -> dict[str, Any]:
    tools = [
        {
            "name": skill.id,
            "description": skill.description,
            "inputSchema": dict(skill.input_schema or {"type": "object"}),
        }
        for skill in skills[:MAX_LISTED]
    ]
    return {
        "name": record.name,
        "description": record.description[:MAX_TEXT],
        "version": record.version or "0",
        "remotes": [{"type": "streamable-http", "url": url}],
        "tools": tools,
    }


def parse_entry(value: Any) -> CatalogEntry | None:
    """An entry of another catalog or registry with the fields that are known; None for a malformed one."""
    if not isinstance(value, Mapping):
        return None
    identifier, name, kind = value.get("identifier"), value.get("displayName"), value.get("type")
    if not (isinstance(identifier, str) and _IDENTIFIER.fullmatch(identifier)):
        return None
    if not (isinstance(name, str) and name.strip() and isinstance(kind, str) and kind):
        return None
    url, data = value.get("url"), value.get("data")
    if (url is None) == (data is None):
        return None
    if url is not None and not (isinstance(url, str) and urlsplit(url).scheme in ("http", "https")):
        return None
    if data is not None and not isinstance(data, Mapping):
        return None
    entry: CatalogEntry = {"identifier": identifier, "displayName": name[:MAX_TEXT], "type": kind[:200]}
    entry |= {"url": url} if url is not None else {"data": data}
    for key in _TEXTS:
        if isinstance(value.get(key), str):
            entry[key] = value[key][:MAX_TEXT]
    for key in _LISTS:
        if isinstance(value.get(key), list):
            texts = [text[:MAX_TEXT] for text in value[key] if isinstance(text, str)]
            entry[key] = texts[:MAX_LISTED]
    for key in ("metadata", "trustManifest"):
        if isinstance(value.get(key), Mapping):
            entry[key] = value[key]
    return entry


def iterate_catalog(document: Any, depth: int = 1) -> Iterator[CatalogEntry]:
    """The entries of a catalog and of its inline catalogs, at most `MAX_NESTING` levels deep."""
    entries = document.get("entries") if isinstance(document, Mapping) else None
    for value in entries if isinstance(entries, list) else ():
        entry = parse_entry(value)
        if entry is None:
            continue
        if entry["type"] == CATALOG_TYPE and "data" in entry:
            if depth < MAX_NESTING:
                yield from iterate_catalog(entry["data"], depth + 1)
            continue
        yield entry


def publisher_of(entry: Mapping[str, Any]) -> str:
    """The publisher in the identifier of an entry."""
    parsed = _IDENTIFIER.fullmatch(str(entry.get("identifier", "")))
    return parsed["publisher"] if parsed else ""


def as_listing(entry: CatalogEntry) -> Listing:
    """An entry as a listing, so that its words are ranked as those of an agent are."""
    texts = [entry.get("description", ""), *entry.get("capabilities", ())]
    skill = Skill(
        "entry",
        description="\n".join(text for text in [entry["displayName"], *texts] if text),
        tags=tuple(entry.get("tags", ())),
        similes=tuple(entry.get("representativeQueries", ())),
    )
    record = AgentRecord(entry["displayName"], description=str(entry.get("description", "")), skills=(skill,))
    return Listing(record, "catalog", entry["identifier"])
