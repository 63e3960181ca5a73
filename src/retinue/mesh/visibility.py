"""Who sees which skill: ``private`` ⊂ ``mesh`` ⊂ ``exposed``, and the lists of an agent (DESIGN 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Protocol

from retinue.core.record import AgentRecord, Visibility


class Shown(Protocol):
    """A skill, a resource or a prompt: whatever is marked with who sees it."""

    @property
    def visibility(self) -> Visibility: ...


def is_visible(thing: Shown, scopes: frozenset[str]) -> bool:
    """Whether a caller of these scopes sees it; a hidden one is to it as a missing one.

    What is exposed to MCP clients is open to the mesh as well.
    """
    return thing.visibility in scopes or (thing.visibility == "exposed" and "mesh" in scopes)


def apply_lists(
    record: AgentRecord, expose_tools: Iterable[str], private_tools: Iterable[str] = ()
) -> AgentRecord:
    """``record`` as the ``mcp`` block of its ``agent.json`` wants it seen (S-06 … S-08).

    Both lists hold ids or globs such as ``fs:*``. Listed = exposed, not listed = private, and
    ``private_tools`` wins over everything.
    """
    exposed, private = tuple(expose_tools), tuple(private_tools)

    def choose(skill_id: str) -> Visibility:
        if _matches(skill_id, private) or not _matches(skill_id, exposed):
            return "private"
        return "exposed"

    return replace(
        record, skills=tuple(replace(skill, visibility=choose(skill.id)) for skill in record.skills)
    )


def _matches(skill_id: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(skill_id, glob) for glob in globs)
