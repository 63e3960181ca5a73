"""What can be searched of an agent: per skill, the stems of its words, by the weight of where they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.record import AgentRecord, Listing, ListingKey, Schema, Skill, Visibility
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.search.words import stem_words

FIELD_WEIGHTS = (3.0, 2.0, 1.0, 0.5, 0.5)
"""Of name · title, tags and similes · description and examples · parameters · the agent itself.

The name counts three times (FACTS 5); the others are set by judgement: MetaTool has none of them.
"""

FIELDS = len(FIELD_WEIGHTS)
AGENT_FIELD = FIELDS - 1

TEXT_FORM = "1"
"""Changes whenever the same record would give other stems, so that indexes are filled anew."""

MAX_EXAMPLES = 50
"""More examples of one skill are not read; FACTS 5 measured a gain up to that many."""

_MAX_PROPERTIES = 64


@dataclass(frozen=True, slots=True)
class SkillText:
    """One skill as it is searched; ``fields`` are stems set apart by spaces, in the order of the weights."""

    listing_id: ListingKey
    skill_id: str
    visibility: Visibility
    fields: tuple[str, ...]

    @property
    def length(self) -> float:
        """How many words it has, each counted with the weight of its field."""
        return sum(w * (f.count(" ") + 1) for w, f in zip(FIELD_WEIGHTS, self.fields, strict=True) if f)


@dataclass(frozen=True, slots=True)
class ListingText:
    """All skills of one listing; ``words`` gives a word for each stem, ``mark`` changes with the text."""

    listing_id: ListingKey
    mark: str
    skills: tuple[SkillText, ...]
    words: Mapping[str, str]


def render_text(listing: Listing) -> ListingText:
    """What can be searched of the listing."""
    record = listing.record
    words: dict[str, str] = {}
    about = _join(_agent_words(record), words)
    skills = tuple(
        SkillText(listing.id, skill.id, skill.visibility, (*_skill_fields(skill, words), about))
        for skill in record.skills
    )
    return ListingText(listing.id, mark_of(listing), skills, words)


def mark_of_entry(entry: Entry) -> str | None:
    """As `mark_of` the listing; None where that takes the whole of it."""
    return f"{TEXT_FORM} {entry.digest} {entry.kinds}" if entry.digest is not None else None


def mark_of(listing: Listing) -> str:
    """Equal for listings that give the same text.

    Visibility is told apart from the digest: settings may change it without a new card.
    """
    mark = mark_of_entry(entry_of(listing))
    if mark is not None:
        return mark
    said = listing.raw + repr(listing.record).encode("utf-8", "backslashreplace")
    return f"{TEXT_FORM} {hashlib.blake2b(said, digest_size=16).hexdigest()}"


def _skill_fields(skill: Skill, words: dict[str, str]) -> tuple[str, str, str, str]:
    # Backwards, for the last word of a stem stays: a person is best shown the one that stands in a name.
    parameters = _join(_property_names(skill.input_schema), words)
    told = _join((skill.description, *_example_words(skill)), words)
    labels = _join((skill.title or "", *skill.tags, *skill.similes), words)
    return _join((skill.id,), words), labels, told, parameters


def _agent_words(record: AgentRecord) -> Sequence[str]:
    return (record.name, record.title or "", *record.topics, record.description)


def _example_words(skill: Skill) -> Iterator[str]:
    return (example.text for example in skill.examples[:MAX_EXAMPLES] if example.text)


def _property_names(schema: Schema | None) -> Sequence[str]:
    properties: Any = schema.get("properties") if isinstance(schema, Mapping) else None
    return [str(name) for name in properties][:_MAX_PROPERTIES] if isinstance(properties, Mapping) else ()


def _join(texts: Iterable[str], words: dict[str, str]) -> str:
    pairs = stem_words("\n".join(texts))
    words.update(pairs)
    return " ".join([one for one, _ in pairs])
