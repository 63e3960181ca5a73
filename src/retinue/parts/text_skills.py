"""Finds the skill of a plain text, for protocols whose messages need not name one; a hub has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from retinue.core.call import Principal
from retinue.core.record import Skill


@dataclass(frozen=True, slots=True)
class SkillOption:
    """A skill that may take a text, and the name of an agent that offers it."""

    skill: Skill
    agent: str


@dataclass(frozen=True, slots=True)
class TextSkills:
    """Finds skills among those that a caller sees. The functions raise StateError.

    ``choose`` gives the skill to which a text goes without a question, None where none is sure.
    ``list_options`` gives the skills to choose from, those that fit the text first. ``find`` gives the skill
    of an id.
    """

    choose: Callable[[str, Principal], Awaitable[SkillOption | None]]
    list_options: Callable[[str, Principal], Awaitable[Sequence[SkillOption]]]
    find: Callable[[str, Principal], Awaitable[SkillOption | None]]
