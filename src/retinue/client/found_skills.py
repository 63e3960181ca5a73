"""The skills that a search has found, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class FoundSkill:
    """One skill of one agent. ``row`` is everything that the hub tells of it."""

    skill: str
    agent: str
    description: str
    version: str | None
    status: str
    input_schema: Mapping[str, Any]
    row: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class FoundSkills(Sequence[FoundSkill]):
    """The skills that were found, as a sequence.

    ``more`` counts those beyond the limit. ``is_likely`` is False where only some of the words match;
    ``did_you_mean`` is another spelling of them. ``why`` are the reasons for the place of the agent that was
    asked about. ``missing`` are registries and cards that could not be read. ``gap`` says what was asked for
    that no skill offers.
    """

    skills: tuple[FoundSkill, ...]
    more: int = 0
    is_likely: bool = True
    did_you_mean: str | None = None
    why: tuple[str, ...] = ()
    missing: tuple[Mapping[str, Any], ...] = ()
    gap: str | None = None

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> FoundSkills:
        """The reply of ``find_skills`` with schemas."""
        return cls(
            tuple(_read_row(row) for row in reply["skills"]),
            reply.get("more", 0),
            reply.get("fit", {}).get("likely", True),
            reply.get("did_you_mean"),
            tuple(reply.get("why", {}).get("reasons", ())),
            tuple(reply.get("missing", ())),
            reply.get("gap"),
        )

    def __len__(self) -> int:
        return len(self.skills)

    @overload
    def __getitem__(self, index: int) -> FoundSkill: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FoundSkill, ...]: ...

    def __getitem__(self, index: int | slice) -> FoundSkill | tuple[FoundSkill, ...]:
        return self.skills[index]


def _read_row(row: Mapping[str, Any]) -> FoundSkill:
    return FoundSkill(
        row["skill"],
        row["agent"],
        row.get("description") or "",
        row.get("version"),
        row.get("status", "unknown"),
        row.get("input_schema") or {},
        row,
    )
