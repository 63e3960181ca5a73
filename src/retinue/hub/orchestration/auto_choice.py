"""Chooses the workflow ``auto``: by the rules, and the workflow ``think`` where a skill surely fits a prompt.

Also tells who is missing where no model takes tools.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from retinue.core.call import Principal
from retinue.core.errors import (
    AgentUnreachableError,
    LookupFailedError,
    NoModelError,
    StateError,
    UnknownAgentError,
)
from retinue.core.record import HUB_NAME
from retinue.hub.orchestration.roster import Roster, describe_missing
from retinue.hub.orchestration.tool_schemas import AGENTS
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.permissions import Access, is_seen, may_call
from retinue.mesh.search.ranking import SkillSearch
from retinue.workflows.caller import Caller
from retinue.workflows.definitions.definition import AUTO, DEFAULT_ROLE
from retinue.workflows.interpreter.think.plan import choose_model, find_model, read_role
from retinue.workflows.orchestrator import DIRECT, Selection, choose_workflow
from retinue.workflows.runs.records import Origin
from retinue.workflows.skill_offers import TRUSTED

THINK = "think"
"""The built-in workflow whose model finds and calls skills."""

SURE_FROM = 0.5
"""The `Fit` score from which a skill that is likely to fit a prompt surely fits it.

On MetaTool 64 % of the correct answers reach it, and 7 % of the requests of other sets (docs/search.md).
"""

_log = structlog.get_logger("retinue.search")


class AutoChoice:
    """Chooses workflows for prompts, by what the caller sees of the mesh."""

    def __init__(
        self,
        caller: Caller,
        directory: Directory,
        search: SkillSearch,
        roster: Roster,
        access: Access,
        history: SearchHistory,
        exams: ExamBook,
    ) -> None:
        self._caller = caller
        self._directory = directory
        self._search = search
        self._roster = roster
        self._access = access
        self._history = history
        self._exams = exams

    async def choose(
        self, prompt: str, principal: Principal, *, agent: str = AUTO, parallel: bool | None = None
    ) -> tuple[Selection, str | None]:
        """The workflow for a prompt that prefers ``agent``; ``parallel`` as in `choose_workflow`.

        A simple task becomes ``think`` if a skill surely fits it and a model can call it. A prompt that no
        skill serves is noted as a wish, whose id is the second value.
        """
        chosen = choose_workflow(prompt, parallel=parallel)
        if chosen.workflow != DIRECT:
            return chosen, None
        skill, is_wish = await self._find_sure(prompt, principal)
        wish = self._history.note_wish(principal, prompt) if is_wish else None
        if skill is None or await self.find_model_problem(agent, principal) is not None:
            return chosen, wish
        because = f"the skill {skill} fits it, and a model can call skills"
        return replace(chosen, workflow=THINK, because=because), wish

    async def check_model(self, model: str | None, principal: Principal) -> None:
        """Raise NoModelError if no model that takes tools has the role ``model``; it says what is missing."""
        role = read_role(model)
        if role is None:
            return
        try:
            await choose_model(self._caller, _origin(principal), role)
        except NoModelError as error:
            members = await self._roster.list_with_role(role, principal)
            models = [member for member in members if member.listing.record.labels.get("kind") == "model"]
            away = [member for member in models if member.status == "unavailable"]
            reasons = ["a step think needs a model that takes tools", describe_missing({role: away})]
            reasons += [f"{member.name}: takes no tools" for member in models if member not in away]
            raise NoModelError(role, "; ".join(filter(None, reasons))) from error

    async def find_model_problem(self, agent: str, principal: Principal) -> str | None:
        """Why this agent, or the best one for ``auto``, cannot call skills in a loop; None if it can.

        Raises UnknownAgentError for a name that no agent ever had.
        """
        try:
            if agent == AUTO:
                await choose_model(self._caller, _origin(principal), DEFAULT_ROLE)
            else:
                await find_model(self._caller, _origin(principal), agent)
        except (LookupFailedError, AgentUnreachableError) as error:
            if isinstance(error, UnknownAgentError) and agent not in AGENTS:
                raise  # more likely misspelt than away
            return error.message
        return None

    async def _find_sure(self, prompt: str, principal: Principal) -> tuple[str | None, bool]:
        """The skill of a trusted agent that surely fits a prompt, and whether the prompt is a wish."""
        view = self._access.view_of(principal)

        def accept(entry: Entry) -> bool:
            return (
                is_seen(view, entry.name)
                and entry.enabled
                and entry.reachable is not False
                and entry.trust <= TRUSTED
                and self._exams.may_choose(entry)
                and entry.name != HUB_NAME
                and entry.labels.get("kind") != "model"
                and self._directory.represents_agent(entry)
            )

        await self._directory.ensure_fresh()
        try:
            learn = self._history.learn_for(principal, prompt)
            result = self._search.find_skills(prompt, principal.scopes, limit=1, accept=accept, learn=learn)
        except StateError as error:
            _log.warning("text index unusable", error=error.message)
            return None, False
        if not result.hits or not result.fit.is_likely or result.fit.score < SURE_FROM:
            return None, result.is_wish
        skill = result.hits[0].skill
        return skill.id if may_call(skill, principal.scopes) else None, result.is_wish


def _origin(principal: Principal) -> Origin:
    return Origin(principal.scopes, principal.id)
