"""Skills of foreign agents that a hub shows to MCP clients all the same (setting ``hub.expose``, DESIGN 2).

A card from elsewhere says nothing of visibility and counts as ``mesh``. One that has a ``retinue`` block
speaks for itself and is left alone: whom an agent of ours serves is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from retinue.core.record import Listing, Skill
from retinue.mesh.entry import Entry

DIALECT = "hub"
LIFTED = "lifted"
"""``extra["hub"]["lifted"]`` of a skill: exposed by the hub, and by the mesh's right called."""

_BLOCK = b'"retinue"'
_EXPOSED = frozenset({"exposed"})


class Lifting:
    """The amendment of a directory that lifts what the globs name (``mesh.holdings.Amendment``)."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = tuple(globs)

    def concerns(self, entry: Entry) -> bool:
        """Whether a glob names a skill of this agent that is not exposed as it is."""
        mesh_skills = (skill for skill in entry.skills if not entry.offers(skill, _EXPOSED))
        return any(_is_named(f"{entry.name}__{skill}", self._globs) for skill in mesh_skills)

    def apply(self, listing: Listing) -> Listing:
        """As `lift`."""
        return lift(listing, self._globs)


def lift(listing: Listing, globs: Sequence[str]) -> Listing:
    """The listing with the skills exposed that a glob over ``<agent>__<skill>`` names."""
    if not globs or _BLOCK in listing.raw:
        return listing
    record = listing.record
    skills = tuple(_lift(skill, record.name, globs) for skill in record.skills)
    return listing if skills == record.skills else replace(listing, record=replace(record, skills=skills))


def is_lifted(skill: Skill) -> bool:
    """Whether this hub exposed the skill, rather than its author."""
    facts = skill.extra.get(DIALECT)
    return isinstance(facts, dict) and facts.get(LIFTED) is True


def _lift(skill: Skill, agent: str, globs: Sequence[str]) -> Skill:
    name = f"{agent}__{skill.id}"
    if skill.visibility != "mesh" or not _is_named(name, globs):
        return skill
    return replace(skill, visibility="exposed", extra={**skill.extra, DIALECT: {LIFTED: True}})


def _is_named(name: str, globs: Sequence[str]) -> bool:
    return any(name == glob or fnmatchcase(name, glob) for glob in globs)
