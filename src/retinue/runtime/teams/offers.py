"""What the programs of a digest offer, compared with its lock, before it serves."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.core.errors import TeamRefusedError
from retinue.core.record import Skill
from retinue.team.package import Team

_REMEDY = "lock it again: retinue lock"


def check_card(team: Team, name: str, skills: Iterable[Skill]) -> None:
    """Raise TeamRefusedError for an agent whose card has other skills or schemas than its lock."""
    locked = next((row for row in team.lock.agents.values() if row.name == name and row.skills), None)
    if locked is None:
        return
    offered = {
        skill.id: (skill.input_schema, skill.output_schema)
        for skill in skills
        if skill.visibility != "private"
    }
    packed = {skill.id: (skill.input_schema, skill.output_schema) for skill in locked.skills}
    differing = sorted(skill for skill in {*offered, *packed} if offered.get(skill) != packed.get(skill))
    if differing:
        problem = f"{name} offers another {differing[0]} than its lock"
        raise TeamRefusedError("tools_differ", team.name, problem, remedy=_REMEDY)


def offers_locked_tools(team: Team, name: str, offered: Iterable[str]) -> bool:
    """Whether an import offers all tools of its lock. Raises TeamRefusedError for more than these."""
    locked = {tool.id for tool in team.lock.imports[name].tools} if name in team.lock.imports else set()
    tools = {*offered}
    if locked and (more := sorted(tools - locked)):
        problem = f"the import {name} offers {more[0]}, which its lock does not have"
        raise TeamRefusedError("tools_differ", team.name, problem, remedy=_REMEDY)
    return locked <= tools
