"""The word of a hub's owner about skills of others: that they are exposed, and what their calls do.

The store keeps listings as their source gave them; the directory applies the overrides whenever it shows one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from retinue.core.record import HintName, Listing, Skill
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import DIALECT, EXPOSED_HERE

_RETINUE_BLOCK = b'"retinue"'

_MCP_SCOPES = frozenset({"exposed"})


def states_visibility(listing: Listing) -> bool:
    """Whether the card states the visibility of each skill, as the card of a Retinue agent does."""
    return _RETINUE_BLOCK in listing.raw


class ExposeOverride:
    """Exposes skills of foreign agents that globs over ``<agent>__<skill>`` name (setting ``hub.expose``).

    A card without a ``retinue`` block does not state
    visibility, so its skills count as ``mesh``. A card with such a block is not changed: its author chose.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = tuple(globs)

    def concerns(self, entry: Entry) -> bool:
        """Whether a glob names a skill of this agent that is not exposed already."""
        mesh_skills = (skill for skill in entry.skills if not entry.offers(skill, _MCP_SCOPES))
        return any(self._names(entry.name, skill) for skill in mesh_skills)

    def apply(self, listing: Listing) -> Listing:
        """The listing with the named skills exposed; one with nothing to change is returned as it is."""
        if states_visibility(listing):
            return listing
        record = listing.record
        skills = tuple(self._expose(skill, record.name) for skill in record.skills)
        return listing if skills == record.skills else replace(listing, record=replace(record, skills=skills))

    def _expose(self, skill: Skill, agent: str) -> Skill:
        if skill.visibility != "mesh" or not self._names(agent, skill.id):
            return skill
        return replace(skill, visibility="exposed", extra={**skill.extra, DIALECT: {EXPOSED_HERE: True}})

    def _names(self, agent: str, skill_id: str) -> bool:
        name = f"{agent}__{skill_id}"
        return any(name == glob or fnmatchcase(name, glob) for glob in self._globs)


class HintsOverride:
    """Sets the hints of skills that globs over ``<agent>/<skill>`` name, whatever their cards say.

    A hint that no glob sets stays as the card says. Of several globs, the last one counts.
    """

    def __init__(self, hints: Mapping[str, Mapping[HintName, bool]]) -> None:
        self._hints = tuple(hints.items())

    def concerns(self, entry: Entry) -> bool:
        """Whether a glob names a skill of this agent."""
        return any(self._find(entry.name, skill) for skill in entry.skills)

    def apply(self, listing: Listing) -> Listing:
        """The listing with the hints of the owner; one with nothing to change is returned as it is."""
        record = listing.record
        skills = tuple(self._set(skill, record.name) for skill in record.skills)
        return listing if skills == record.skills else replace(listing, record=replace(record, skills=skills))

    def _set(self, skill: Skill, agent: str) -> Skill:
        hints = self._find(agent, skill.id)
        return replace(skill, hints=replace(skill.hints, **hints)) if hints else skill

    def _find(self, agent: str, skill_id: str) -> dict[HintName, bool]:
        name = f"{agent}/{skill_id}"
        named = (hints for glob, hints in self._hints if fnmatchcase(name, glob))
        return {hint: value for hints in named for hint, value in hints.items()}


ListingOverride = ExposeOverride | HintsOverride


def make_overrides(
    expose: Sequence[str], hints: Mapping[str, Mapping[HintName, bool]]
) -> Sequence[ListingOverride]:
    """The overrides of these settings; hints are those of globs over ``<agent>/<skill>``."""
    overrides: list[ListingOverride] = []
    if expose:
        overrides.append(ExposeOverride(expose))
    if hints:
        overrides.append(HintsOverride(hints))
    return overrides
