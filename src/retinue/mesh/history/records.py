"""The record of one call that was found by words, and the stores of such records.

A record holds no text of a caller: the stems of the request and the caller are hashed with a key of the
state. It names the skill by source, agent and id, so a copy of a skill at another agent has no history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import orjson

from retinue.core.record import ListingKey, Skill
from retinue.mesh.directory.versions import folder_of
from retinue.mesh.search.words import stem_words

Verdict = Literal["done", "failed", "refused", "corrected", "good", "bad"]

VALUES: dict[Verdict, float] = {
    "done": 1.0,
    "failed": -0.5,
    "refused": 0.0,
    "corrected": -1.0,
    "good": 1.0,
    "bad": -1.0,
}
"""What a verdict says of the skill for requests like this one; "good" and "bad" are those of a person."""

MAX_STEMS = 24
"""Stems of one request that are kept."""

_PURPOSE = b"rtn history"

_MEMBER = 0xFF
"""The lowest byte of the hash of a caller that named itself with a token of the mesh."""


class SkillKey(NamedTuple):
    """A skill of one agent of one source; ``agent`` is as `name_agent` says."""

    source: str
    agent: str
    skill: str


@dataclass(frozen=True, slots=True)
class Experience:
    """What came of one call; ``at`` is in seconds since 1970, ``digest`` that of the skill's definition.

    ``id`` names the record in the whole history. ``stems`` and ``caller`` are keyed hashes of 64 bits.
    """

    id: str
    at: float
    key: SkillKey
    digest: str
    stems: tuple[int, ...]
    caller: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Wish:
    """A request that no skill served; ``text`` is "" unless the owner lets the words be kept."""

    id: str
    at: float
    stems: tuple[int, ...]
    caller: int
    text: str


class HistoryStore(Protocol):
    """Stores the history of a state; the methods block, and raise StateError."""

    def read(self, since: float = 0.0) -> Sequence[Experience]:
        """The records that were written at or after ``since``, oldest first."""

    def write(self, records: Sequence[Experience], dropped: Collection[str]) -> None:
        """Store records, each in place of the one with its id, and remove others by their ids."""

    def read_wishes(self) -> Sequence[Wish]:
        """All wishes, oldest first."""

    def write_wishes(self, wishes: Sequence[Wish], dropped: Collection[str]) -> None:
        """Store wishes, and remove others by their ids."""

    def forget(self, at: float) -> int:
        """Remove everything; returns the number of records and wishes. Other hubs are told ``at``, if any."""

    def forgotten_at(self) -> float:
        """When everything was removed last, in seconds since 1970; 0 for never."""

    def close(self) -> None:
        """Release the store."""


class Hashes:
    """Keyed hashes of stems and callers; the same key gives the same hashes in each hub of a mesh."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=_PURPOSE).digest()

    def of(self, text: str) -> int:
        """A signed number of 64 bits, as databases hold it."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def of_all(self, stems: Iterable[str]) -> tuple[int, ...]:
        """The hashes of stems."""
        return tuple(map(self.of, stems))

    def of_caller(self, caller: str, *, is_member: bool) -> int:
        """The hash of a caller's id; ``is_member`` = it chose the id itself, with a token of the mesh."""
        hashed = self.of(f"caller {caller}")
        if is_member:
            return hashed | _MEMBER
        return hashed & ~1 if hashed & _MEMBER == _MEMBER else hashed

    def of_request(self, text: str) -> tuple[int, ...]:
        """The hashes of the different stems of a text, at most `MAX_STEMS`."""
        stems = dict.fromkeys(stem for stem, _ in stem_words(text))
        return self.of_all(list(stems)[:MAX_STEMS])


def name_agent(name: str, listing_id: ListingKey | None) -> str:
    """The name of an agent in the history: ``NAME@TEAM`` of what a team brings, because teams share names."""
    team = "" if listing_id is None else folder_of(listing_id)
    return f"{name}@{team}" if team else name


def find_voice(caller: int) -> int:
    """What a hashed caller counts as for others: all members of the mesh that name themselves are one."""
    return _MEMBER if caller & _MEMBER == _MEMBER else caller


def skill_digest(skill: Skill) -> str:
    """A digest of the definition of a skill; it changes whenever the skill promises something else."""
    parts = (
        skill.id,
        skill.title,
        skill.description,
        skill.tags,
        skill.similes,
        [example.text for example in skill.examples],
        skill.input_schema,
        skill.output_schema,
        [skill.hints.read_only, skill.hints.idempotent, skill.hints.destructive],
    )
    content = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return hashlib.blake2b(content, digest_size=12).hexdigest()
