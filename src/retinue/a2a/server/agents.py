"""Names the agent of an A2A endpoint without loading the endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from retinue.core.call import Principal
from retinue.core.record import Skill
from retinue.parts.text_skills import TextSkills

ListSkills = Callable[[Principal], Awaitable[tuple[Skill, ...]]]
"""The skills of one agent that the caller sees; raises RetinueError."""

RenderCard = Callable[[Principal, bool | None], Awaitable[Mapping[str, Any]]]
"""The A2A card that the caller sees, of 0.3 or of 1.x; None = as set. Raises RetinueError."""


@dataclass(frozen=True, slots=True)
class A2aAgent:
    """One agent at an endpoint.

    ``name`` None = calls go to whichever agent has the skill. ``is_named``: by the path of the request.
    ``text_skills`` finds the skill of a message that names none; without it that is an error.
    """

    name: str | None
    list_skills: ListSkills
    render_card: RenderCard
    is_named: bool = False
    text_skills: TextSkills | None = None


AgentOf = Callable[[Scope], A2aAgent]
"""The agent that a request is for, by its path."""
