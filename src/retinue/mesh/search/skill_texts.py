"""Renders listings for the text index: the stems of each skill, by field."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from retinue.core.record import AgentRecord, Listing, ListingKey, Schema, Skill, Visibility
from retinue.mesh.entry import Entry, kinds_of
from retinue.mesh.search.words import GREETINGS, join_stems, stem_words

FIELDS = {"name": 3.0, "labels": 2.0, "description": 1.0, "parameters": 0.5, "agent": 0.5}
"""Field name → weight. ``labels`` holds the title, tags and similes, ``description`` the examples too,
``parameters`` names, descriptions and enum values, ``agent`` the name and description of the agent."""

FIELD_WEIGHTS = tuple(FIELDS.values())
PARAMETERS_FIELD = list(FIELDS).index("parameters")
AGENT_FIELD = len(FIELDS) - 1
OWN_FIELDS = 3
"""The first fields of a text are about the skill itself: name, labels and description."""

TEXT_VERSION = "3"
"""Change it whenever the same record gives other stems or fields: stored indexes are then rebuilt."""

MAX_EXAMPLES = 50
_MAX_PARAMETERS = 64
_MAX_ENUM_VALUES = 64


@dataclass(frozen=True, slots=True)
class SkillText:
    """One skill; ``fields`` are its stems, separated by spaces, in the order of `FIELDS`."""

    listing_id: ListingKey
    skill_id: str
    visibility: Visibility
    fields: tuple[str, ...]

    @property
    def length(self) -> float:
        """The number of stems, each weighted by its field."""
        return sum(w * (f.count(" ") + 1) for w, f in zip(FIELD_WEIGHTS, self.fields, strict=True) if f)

    @property
    def stems(self) -> frozenset[str]:
        return frozenset(" ".join(self.fields).split())


@dataclass(frozen=True, slots=True)
class ListingText:
    """All skills of one listing. ``digest`` changes with the text.

    ``find_words`` gives a word for each of some stems. It reads the fields that have one of them, because
    only stems that are new to an index need a word.
    """

    listing_id: ListingKey
    digest: str
    skills: tuple[SkillText, ...]
    find_words: Callable[[Set[str]], Mapping[str, str]]


def render_text(listing: Listing) -> ListingText:
    """The searchable text of the listing."""
    record = listing.record
    agent = _join(_agent_texts(record))
    skills = tuple(
        SkillText(listing.id, skill.id, skill.visibility, (*map(_join, _skill_texts(skill)), agent))
        for skill in record.skills
    )
    return ListingText(listing.id, text_digest(listing), skills, partial(_find_words, record, skills))


def text_digest(listing: Listing) -> str:
    """Equal for listings that have the same text."""
    if listing.digest is not None:
        return f"{listing.digest} {kinds_of(listing.record)}"
    content = listing.raw + repr(listing.record).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def entry_text_digest(entry: Entry) -> str | None:
    """As `text_digest`; None if it takes the whole listing to compute it.

    Visibility is not part of the digest of a card: settings change it without a new card.
    """
    return f"{entry.digest} {entry.kinds}" if entry.digest is not None else None


def _find_words(record: AgentRecord, skills: tuple[SkillText, ...], stems: Set[str]) -> Mapping[str, str]:
    """The last word of each stem: names are read last, because a name is the best word to show."""
    fields: list[tuple[str, Iterable[str]]] = []
    for skill, text in zip(record.skills, skills, strict=True):
        if not fields:
            fields.append((text.fields[AGENT_FIELD], _agent_texts(record)))
        fields += reversed([*zip(text.fields, _skill_texts(skill), strict=False)])
    return {
        stem: word
        for joined, texts in fields
        if not stems.isdisjoint(joined.split())
        for stem, word in stem_words("\n".join(texts), keep=GREETINGS)
    }


def _agent_texts(record: AgentRecord) -> Iterable[str]:
    return (record.name, record.title or "", *record.topics, record.description)


def _skill_texts(skill: Skill) -> tuple[Iterable[str], Iterable[str], Iterable[str], Iterable[str]]:
    """The texts of each field but the last, in the order of `FIELDS`."""
    examples = (example.text for example in skill.examples[:MAX_EXAMPLES] if example.text)
    return (
        (skill.id,),
        (skill.title or "", *skill.tags, *skill.similes),
        (skill.description, *examples),
        _parameter_texts(skill.input_schema),
    )


def _parameter_texts(schema: Schema | None) -> Iterator[str]:
    properties: Any = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for name, parameter in list(properties.items())[:_MAX_PARAMETERS]:
        yield str(name)
        # a check of the class itself is ten times as fast, and a card holds nothing else
        if type(parameter) is dict or isinstance(parameter, Mapping):
            if isinstance(description := parameter.get("description"), str):
                yield description
            for part in (parameter, parameter.get("items")):
                values = part.get("enum") if type(part) is dict or isinstance(part, Mapping) else None
                if isinstance(values, list | tuple):
                    yield from (value for value in values[:_MAX_ENUM_VALUES] if isinstance(value, str))


def _join(texts: Iterable[str]) -> str:
    return join_stems("\n".join(texts), keep=GREETINGS)
