"""Why a look-up found nobody: what to say, within what the caller sees."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.errors import (
    LookupFailedError,
    SkillNotOfferedError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.mesh.access import AgentView, is_seen, within
from retinue.mesh.entry import Scopes
from retinue.mesh.listing_index import ListingIndex
from retinue.mesh.routing import select_candidates
from retinue.mesh.suggest import suggest


def explain_miss(
    index: ListingIndex,
    skill_id: str,
    scopes: Scopes,
    *,
    version_range: str | None,
    agent: str | None,
    view: AgentView | None,
    unasked: Sequence[str],
) -> LookupFailedError:
    """The error for a caller with these scopes and this view; ``unasked`` are sources without an answer.

    What the caller does not see is as if it were not there, among the near names as well.
    """
    offering = select_candidates(within(view, index.list_offering(skill_id, scopes)), agent=agent)
    if offering:
        versions = [a.version or "none" for a in offering]
        return VersionConflictError(skill_id, version_range or "any", list(dict.fromkeys(versions)))
    if agent is None:
        near = index.suggest_skills(skill_id, scopes, view)
        return SkillNotOfferedError(skill_id, near=near, unasked=unasked)
    named = index.find_named(agent)
    if named is None or not named.enabled or not is_seen(view, named.name):
        return UnknownAgentError(agent, near=index.suggest_names(agent, view))
    near = suggest(skill_id, named.list_skills(scopes))
    return UnknownSkillError(skill_id, near=near, unasked=unasked)
