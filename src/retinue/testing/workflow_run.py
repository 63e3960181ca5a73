"""Runs a workflow in a test, over agents of this process and scripted skills.

>>> import asyncio
>>> flow = '''
... name: hello
... steps:
...   - {id: greet, skill: greet, with: {name: "${{ input.who }}"}}
...   - {id: ask, wait_for: approve}
... output: {text: "${{ steps.greet.output }}", by: "${{ steps.ask.output.by }}"}
... '''
>>> run = asyncio.run(
...     run_workflow(
...         flow,
...         {"who": "Ada"},
...         skills={"greet": lambda arguments: f"Hello, {arguments['name']}!"},
...         signals={"approve": {"by": "Bo"}},
...     )
... )
>>> run.get()
{'text': 'Hello, Ada!', 'by': 'Bo'}
>>> run.calls
[('greet', {'name': 'Ada'})]
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.approvals.records import ApprovalStore, MemoryApprovals, Verdict
from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError, SkillNotOfferedError, UnknownAgentError
from retinue.core.record import Skill
from retinue.core.text import suggest
from retinue.flows.body import CodeBody, HostedWorkflows
from retinue.flows.determinism import find_hints
from retinue.flows.workflow import CodeWorkflow
from retinue.mesh.artifacts import ArtifactStore
from retinue.mesh.directory.routing import CAPABILITIES, find_role_skill
from retinue.testing.memory_artifacts import MemoryArtifacts
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns, MemorySessions
from retinue.testing.scripted_peer import InTurn, ScriptedPeer
from retinue.thinking.toolbox import matches_any
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.documents import document_of
from retinue.workflows.definitions.loading import Loaded, load
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library, StoredText, bundle
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.preflight import KnownSkill, inspect_with_mesh
from retinue.workflows.runs.ports import Runs, SessionStore
from retinue.workflows.runs.records import MESH_SCOPES, Origin, RunEvent, RunRecord, StepRecord

SCRIPTED = "scripted-agent"
"""The name of the agent that offers the scripted skills."""


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A run that has ended.

    ``calls`` are (skill, arguments) in order, also of calls that failed; ``agents`` the agents that were
    called; ``slept_s`` the delays before further attempts and the timers, which take no time here.
    """

    record: RunRecord
    calls: list[tuple[str, Any]]
    agents: list[str]
    slept_s: list[float]
    steps: Sequence[StepRecord]
    events: Sequence[RunEvent]

    @property
    def status(self) -> str:
        """``done``, ``failed`` or ``cancelled``."""
        return self.record.status

    def get(self) -> Any:
        """The output; raises the error of a failed run."""
        return self.record.get()


async def run_workflow(
    definition: str | Path | Mapping[str, Any] | Definition | CodeWorkflow,
    input: Any = None,  # noqa: A002 - the word of the command line and of the grammar
    *,
    agents: Sequence[Agent] = (),
    skills: Mapping[str, Any] | None = None,
    signals: Mapping[str, Any] | None = None,
    workflows: Mapping[str, str] | None = None,
    approvals: Mapping[str, bool | str] | None = None,
    crash_at_every_step: bool = False,
    artifacts: ArtifactStore | None = None,
    sessions: SessionStore | None = None,
) -> WorkflowRun:
    """Run a workflow to its end; time that it sleeps passes at once.

    ``definition`` is a file (Path), a text in YAML or JSON, an object, a `Workflow`, or a function with
    `@workflow`. Its steps call the
    skills of ``agents``, with their schemas, and those in ``skills``, each with a script as `scripted_peer`
    takes them. ``signals`` hold the value for each topic that a step waits for, or ``in_turn(…)`` for several
    waits; ``workflows`` the texts of workflows that it runs, by name. With ``crash_at_every_step`` the run is
    interrupted after each step and resumed, as if its process had died: a function that does not repeat
    its steps then fails with a NondeterminismError. Calls between the steps of a function that cannot be
    repeated, such as ``time.time()``, are Python warnings at their lines.

    ``approvals`` answer the questions about calls of a step ``think``, by skill, ``agent/skill`` or glob:
    True, False, or the reason of a no. ``artifacts`` holds the files that agents and steps save; by default
    it is a `MemoryArtifacts` of this run. ``sessions`` holds the histories of sessions, for runs that go on
    with the session of another one: `MemorySessions`.

    Raises DefinitionError for a faulty definition and for what `retinue run` would refuse,
    InvalidParametersError where the input does not fit, and InvalidSettingError where a step waits for a
    signal that is not there. The failure of a step is part of the run.
    """
    loaded = _load(definition)
    if isinstance(definition, CodeWorkflow):
        for hint in find_hints(definition):
            warnings.warn_explicit(f"{hint.message}: {hint.remedy}", UserWarning, hint.file, hint.line)
    mesh = [*agents, ScriptedPeer(SCRIPTED, skills)] if skills else list(agents)
    caller = MemoryCaller()
    artifacts = artifacts or MemoryArtifacts()
    for agent in mesh:
        _offer(caller, agent, mesh, artifacts)

    async def matches_any(pattern: str) -> bool:
        return bool(await caller.list_offers([pattern], Origin(), 1))

    bundled = await bundle(Library([_Texts(workflows or {})]), loaded)
    for finding in await inspect_with_mesh(
        loaded, bundled.texts, _finder(mesh), run_input=input, matches_any=matches_any
    ):
        if finding.blocks:
            raise finding.fault
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        await asyncio.sleep(0)

    def clock() -> float:
        return time.time() + sum(slept_s)

    store = MemoryApprovals(clock)

    async def open_approvals() -> ApprovalStore:
        return store

    kept = MemorySessions() if sessions is None else sessions

    async def open_sessions() -> SessionStore:
        return kept

    tools = Tools(
        caller,
        clock=clock,
        open_approvals=open_approvals,
        artifacts=artifacts,
        open_sessions=open_sessions,
    )
    hosted = HostedWorkflows([definition] if isinstance(definition, CodeWorkflow) else [])
    library = Library([_Texts(workflows or {})], code=hosted.list_loaded())
    body = Interpreter(tools, code=CodeBody(hosted, tools, library).run).run
    async with MemoryRuns(body, sleep=sleep, clock=clock, interrupts=crash_at_every_step) as runs:
        run_input = {} if input is None and hosted.list_loaded() else input
        record = await Orchestrator(runs).start(loaded.definition, run_input, nested=bundled.nested)
        signalling = asyncio.create_task(
            _answer_waits(runs, record.id, _Answers(dict(signals or {}), dict(approvals or {}), store))
        )
        finishing = asyncio.create_task(_finish(runs, record.id))
        await asyncio.wait((signalling, finishing), return_when=asyncio.FIRST_EXCEPTION)
        if signalling.done():
            signalling.result()  # raises where a signal is missing
        return WorkflowRun(
            record=await finishing,
            calls=[(call.skill, call.arguments) for call in caller.calls],
            agents=[call.agent for call in caller.calls],
            slept_s=slept_s,
            steps=await runs.list_steps(record.id),
            events=await runs.list_events(record.id),
        )


async def _finish(runs: Runs, run_id: str) -> RunRecord:
    """Wait for the end of a run, and resume it each time that it is interrupted."""
    while (record := await runs.finish(run_id)).status == "cancelled":
        await runs.resume(run_id)
    return record


def _load(definition: str | Path | Mapping[str, Any] | Definition | CodeWorkflow) -> Loaded:
    if isinstance(definition, CodeWorkflow):
        return definition.loaded
    if isinstance(definition, Path):
        return load(definition.read_text("utf-8"), source=definition.name)
    if isinstance(definition, Definition):
        return Loaded(definition, document_of(definition.to_json(), "definition"))
    return load(definition)


def _offer(caller: MemoryCaller, agent: Agent, mesh: Sequence[Agent], artifacts: ArtifactStore) -> None:
    """Offer each skill of an agent that others may see; its further calls reach the whole mesh."""
    record = agent.record()
    peers = [other for other in mesh if other is not agent]
    for skill in agent.skills:
        if skill.visibility == "private":
            continue
        roles = [role for role in CAPABILITIES if find_role_skill(record, role, MESH_SCOPES) == skill]
        scores = record.scores or {}
        caller.offer(
            skill.id,
            _call_with(agent, skill, peers, artifacts),
            agent=agent.name,
            input_schema=skill.input_schema,
            output_schema=skill.output_schema,
            roles=roles,
            score=max((scores.get(CAPABILITIES[role], 0.0) for role in roles), default=None),
            described=skill,
            context_window=record.context_window,
        )


def _call_with(
    agent: Agent, skill: Skill, peers: Sequence[Agent], artifacts: ArtifactStore
) -> Callable[[Any], Awaitable[Any]]:
    async def call(arguments: Any) -> Any:
        return await agent.ask(skill.id, arguments, peers=peers, artifacts=artifacts)

    return call


def _finder(mesh: Sequence[Agent]) -> Callable[[str, str | None, str | None], Awaitable[KnownSkill]]:
    """What the agents of the test know of a skill."""

    async def find_skill(skill: str, agent: str | None, version: str | None) -> KnownSkill:
        agents = [peer for peer in mesh if agent is None or peer.name == agent.partition("@")[0]]
        if not agents and agent is not None:
            return KnownSkill(UnknownAgentError(agent, near=suggest(agent, [peer.name for peer in mesh])))
        visible = [offer for peer in agents for offer in peer.skills if offer.visibility != "private"]
        offers = [offer for offer in visible if offer.id == skill]
        if not offers:
            return KnownSkill(
                SkillNotOfferedError(skill, near=suggest(skill, [offer.id for offer in visible]))
            )
        return KnownSkill(
            inputs=tuple(offer.input_schema for offer in offers),
            outputs=tuple(offer.output_schema for offer in offers),
        )

    return find_skill


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the test answers: signals by topic, approvals by pattern, and where approvals are kept."""

    signals: Mapping[str, Any]
    approvals: Mapping[str, bool | str]
    store: ApprovalStore

    async def approve(self, approval_id: str) -> Any:
        """Answer a question about a call; returns the value of its signal."""
        approval = await self.store.find(approval_id)
        assert approval is not None
        agent, skill = approval.request.agent, approval.request.skill
        verdict = next((v for p, v in self.approvals.items() if matches_any((p,), agent, skill)), None)
        if verdict is None:
            raise InvalidSettingError(
                "approvals",
                f"a person is asked about {agent}/{skill}, and no answer is given",
                remedy=f'give it: approvals={{"{agent}/{skill}": True}}',
            )
        answer: Verdict = "yes" if verdict is True else "no"
        comment = verdict if isinstance(verdict, str) else ""
        await self.store.answer(approval_id, answer, "test", comment)
        return {"verdict": answer, "by": "test", "comment": comment}


async def _answer_waits(runs: Runs, run_id: str, answers: _Answers) -> None:
    """Send each step that waits its signal; a run that is interrupted is followed on."""
    seen = 0
    while (await runs.get(run_id)).status in ("running", "cancelled"):
        async for event in runs.follow(run_id, after=seen):
            seen = event.seq
            await _answer_wait(runs, event, answers)
        await asyncio.sleep(0)


async def _answer_wait(runs: Runs, event: RunEvent, answers: _Answers) -> None:
    if event.kind != "step_started" or event.facts.get("kind") != "wait":
        return
    topic = str(event.facts["topic"])
    if "approval" in event.facts:
        await runs.signal(event.run_id, topic, await answers.approve(event.facts["approval"]))
        return
    answer = answers.signals.get(topic, _MISSING)
    if isinstance(answer, InTurn):
        answer = answer.take() if answer.left else _MISSING
    if answer is _MISSING:
        raise InvalidSettingError(
            "signals",
            f"step {event.step} waits for {topic!r}, and no answer is left",
            remedy=f'give it: signals={{"{topic}": VALUE}}, or in_turn(VALUE, …) for several waits',
        )
    await runs.signal(event.run_id, topic, answer)


_MISSING = object()


class _Texts:
    """The texts of nested workflows, by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    async def list_names(self) -> Sequence[str]:
        return tuple(self._texts)

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        return StoredText(self._texts[name], name) if name in self._texts else None
