"""The hub's agent ``retinue``: the directory, orchestration, runs and workflows of the mesh as skills.

The command line and every endpoint call these skills; nothing here depends on a protocol. The modules
next to this one add the skills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retinue.authoring.agent import Agent
from retinue.core.record import HUB_NAME, Listing, Skill, Stats
from retinue.hub.agents import add_agent_skills, add_call_skills
from retinue.hub.asking import add_query_skill
from retinue.hub.drafts import StoreWorkflow, add_draft_skills
from retinue.hub.known_skills import KnownSkills
from retinue.hub.orchestration.agent_list import SpendingOf, add_capability_skills
from retinue.hub.orchestration.answer_cache import AnswerCache
from retinue.hub.orchestration.auto_choice import AutoChoice
from retinue.hub.orchestration.conversations import NamedConversations
from retinue.hub.orchestration.execution import Orchestration
from retinue.hub.orchestration.roster import Roster
from retinue.hub.orchestration.skills import add_orchestration_skills
from retinue.hub.orchestration.tool_list import ToolList
from retinue.hub.orchestration.workflow_list import add_workflow_list
from retinue.hub.resources import WorkflowPrompts, add_agent_resources
from retinue.hub.run_access import RunAccess
from retinue.hub.runs import add_run_skills
from retinue.hub.search import add_search_skills
from retinue.hub.text_skills import HubTextSkills
from retinue.hub.workflows import RunStarter, add_start_skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Lookup
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.call_figures import TrackRecord
from retinue.mesh.permissions import Access
from retinue.mesh.reading import Change
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.parts.text_skills import TextSkills
from retinue.workflows.caller import Caller
from retinue.workflows.library import Library
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.run_progress import RunProgress

Json = dict[str, Any]

_NO_ACCESS_LISTS = Access()

_RELAYED_S = 86_400.0
"""Longer than any limit of the skill that ``call_skill`` calls: that one ends it, and its error says so."""


SKILLS = (
    "call_skill",
    "call_read_only_skill",
    "show_agent",
    "map_agents",
    "refresh_agents",
    "orchestrate",
    "orchestrate_workflow",
    "orchestrate_parallel",
    "execute_code",
    "execute_task",
    "clear_cache",
    "list_workflows",
    "list_agents",
    "get_capabilities",
    "find_skills",
    "query_capabilities",
    "list_calls",
    "show_trace",
    "list_imports",
    "show_mesh",
    "check_workflow",
    "store_workflow",
    "start_run",
    "list_runs",
    "show_run",
    "follow_run",
    "cancel_run",
    "resume_run",
    "extend_run",
    "rerun_run",
    "signal_run",
    "list_schedules",
    "add_schedule",
    "change_schedule",
    "list_approvals",
    "show_approval",
    "answer_approval",
    "explain_policies",
    "check_policies",
    "send_message",
    "rate_call",
    "show_history",
    "forget_history",
    "list_wishes",
    "show_receipts",
    "publish_receipts",
)
"""The order of the skills on cards and in lists; skills of other distributions follow."""


@dataclass(frozen=True, slots=True)
class HubAgent:
    """The hub's agent, its prompts for stored workflows, the list of its tools, and what starts its runs.

    ``text_skills`` finds the skill of a plain text.
    """

    agent: Agent
    prompts: WorkflowPrompts
    tools: ToolList
    starter: RunStarter
    text_skills: TextSkills


class _HubsAgent(Agent):
    """The hub's agent, whose skills keep the order of `SKILLS` whatever part adds them first."""

    _declares_reserved = True

    def declare(self, skill: Skill) -> None:
        super().declare(skill)
        self._skills = dict(sorted(self._skills.items(), key=lambda item: _rank(item[0])))


def _rank(skill_id: str) -> int:
    return SKILLS.index(skill_id) if skill_id in SKILLS else len(SKILLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshView:
    """The mesh that the hub's agent shows: its agents, their figures, and who may see them.

    ``caller`` chooses agents as runs do, from those of ``lookup``. ``spending_of`` tells the spending of a
    model agent.
    """

    directory: Directory
    lookup: Lookup
    search: SkillSearch
    history: SearchHistory
    exams: ExamBook
    caller: Caller
    track: TrackRecord
    access: Access = _NO_ACCESS_LISTS
    spending_of: SpendingOf = lambda agent: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """The workflows that the hub's agent lists, stores and runs.

    ``clear_steps`` forgets the cached results of steps and returns their number. ``progress`` holds what the
    steps of runs report in this process. ``store`` stores a definition.
    """

    orchestrator: Orchestrator
    library: Library
    clear_steps: Callable[[], int]
    progress: RunProgress = field(default_factory=RunProgress)
    store: StoreWorkflow | None = None


def hub_agent(
    mesh: MeshView, workflows: Workflows, conversations: NamedConversations, *, version: str
) -> HubAgent:
    """The agent ``retinue``; parts of the process add further skills, and `SKILLS` is the order of all."""
    directory, search, track, access = mesh.directory, mesh.search, mesh.track, mesh.access
    orchestrator, library = workflows.orchestrator, workflows.library

    def stats_of(listing: Listing) -> Stats:
        return track.figures.find(listing.name)

    agent = _HubsAgent(
        HUB_NAME,
        version=version,
        title="Retinue",
        description="Finds agents by what they can do, calls them, and runs workflows of them.",
    )

    add_call_skills(agent, directory, access, mesh.history.expect)
    add_agent_skills(agent, directory, access, stats_of, mesh.exams)
    run_access = RunAccess(orchestrator.runs, access)
    roster = Roster(directory, track, access, mesh.exams)
    known_skills = KnownSkills(mesh.lookup, access, mesh.caller)
    starter = RunStarter(orchestrator, library, run_access, known_skills, workflows.progress)
    auto = AutoChoice(mesh.caller, directory, search, roster, access, mesh.history, mesh.exams)
    cache = AnswerCache()
    orchestration = Orchestration(
        starter,
        mesh.caller,
        directory,
        roster,
        run_access,
        access,
        auto=auto,
        cache=cache,
        conversations=conversations,
        history=mesh.history,
    )
    add_orchestration_skills(agent, orchestration, cache, workflows.clear_steps)
    add_workflow_list(agent, library, roster)
    agent_search = AgentSearch(search)
    add_capability_skills(agent, directory, agent_search, roster, access, mesh.history, mesh.spending_of)
    add_search_skills(agent, directory, search, access, mesh.history, mesh.exams)
    add_query_skill(agent, directory, agent_search, track, access, mesh.history)
    add_draft_skills(agent, library, known_skills, workflows.store)
    add_start_skill(agent, starter, auto, mesh.history)
    add_run_skills(agent, orchestrator.runs, run_access, workflows.progress)
    add_agent_resources(agent, directory, stats_of, access)
    prompts = WorkflowPrompts(agent, library)
    tools = ToolList(directory, prompts.list_custom, lambda: agent.changes.notify(Change("tools")))
    starter.on_first_start(tools.note_run)
    finder = HubTextSkills(agent, directory, search, roster, access, mesh.history)
    text_skills = TextSkills(finder.choose, finder.list_options, finder.find)
    return HubAgent(agent, prompts, tools, starter, text_skills)
