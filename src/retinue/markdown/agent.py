"""The agent of a Markdown file: its one skill starts a run of the step think, and waits for the answer."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import orjson

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context, current_context
from retinue.core.call import Answer
from retinue.core.errors import RemoteFaultError, RetinueError, StepFailedError, UnknownSkillError
from retinue.core.record import HUB_NAME, RUN_WORKFLOW, Example, Skill
from retinue.core.session_field import SESSION_SCHEMA
from retinue.markdown.definition import MarkdownAgent
from retinue.mesh.schema.checks import check_skill
from retinue.workflows.definitions.loading import load
from retinue.workflows.runs.records import find_limit

RUN = "run"
"""The argument with the id of the run; a run with an id survives its caller, who repeats the call."""

SESSION = "session"
"""The argument with the id of a session: the model knows what its caller asked before with the same one."""

WAIT_S = 120.0
"""A call may last this much longer than the time limit of its loop."""

DIGEST_KEY = "io.retinue.markdown"
"""The annotation of the card with the digest of the file, so that an edited file has a new card."""

TIED = {"tied": True}
"""The context with which a run ends with its callers, and goes on when its call is repeated."""

PATIENCE_S = 120.0
"""How long a hub that was lost in a call is waited for; while none runs, this process executes the run."""

_RUN_SCHEMA = {
    "type": "string",
    "description": "Run id; the run then goes on without its caller, who repeats the call with it",
}


class ThinkingAgent(Agent):
    """An agent in Markdown. Each call is a run with the rights, the budget and the time of the caller.

    Raises DefinitionError for a definition that no run could have, and SchemaRefusedError for its schemas.
    """

    def __init__(self, definition: MarkdownAgent, source: str = "") -> None:
        super().__init__(
            definition.name,
            description=definition.description,
            annotations={DIGEST_KEY: definition.digest},
        )
        self._source = source or definition.name
        self.definition = definition
        self._workflow = _load_workflow(definition, self._source)
        self.declare(_make_skill(definition))

    def adopt(self, definition: MarkdownAgent) -> None:
        """Follow an edited file of the same name; calls that run keep the definition that they began with.

        Raises what the constructor raises; then nothing has changed.
        """
        skill, workflow = _make_skill(definition), _load_workflow(definition, self._source)
        check_skill(skill)
        former = self.definition
        self.definition, self._workflow = definition, workflow
        self._facts["annotations"] = {DIGEST_KEY: definition.digest}
        self.amend(description=definition.description)
        if skill.id == former.skill:
            self.replace_skills([skill])
        else:
            self.declare(skill)
            self.forget_skill(former.skill)

    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        """Run the workflow for the caller and wait; progress and text pass through as they come."""
        if skill_id != self.definition.skill:
            raise UnknownSkillError(skill_id)
        definition, arguments = self.definition, dict(params)
        run = arguments.pop(RUN, None) if _takes_run(definition) else None
        session = arguments.pop(SESSION, None) if _takes_session(definition) else None
        workflow_input = {"prompt": definition.write_prompt(arguments)}
        if session:
            workflow_input[SESSION] = session
        request: dict[str, Any] = {"workflow": self._workflow, "input": workflow_input}
        context = current_context()
        if run is None:
            request |= {"run": self._name_run(context), "context": TIED}
        else:
            request["run"] = run
        outcome = await context.ask_as_caller(RUN_WORKFLOW, request, agent=HUB_NAME, patience_s=PATIENCE_S)
        if outcome.error is not None:
            raise _read_failure(outcome.error)
        return Answer(outcome.value["output"], usage=outcome.usage)

    def _name_run(self, context: Context) -> str:
        """The id of the run of a call without one: the same for repetitions of a call, which find the run."""
        if context.idempotency_key is None:
            return uuid.uuid4().hex
        key = [context.principal.id, self.name, self.definition.skill, context.idempotency_key]
        return hashlib.sha256(orjson.dumps(key)).hexdigest()[:32]


def _load_workflow(definition: MarkdownAgent, source: str) -> dict[str, Any]:
    workflow = definition.workflow
    load(workflow, source=source)
    return workflow


def _make_skill(definition: MarkdownAgent) -> Skill:
    schema = definition.input
    own = {SESSION: dict(SESSION_SCHEMA)} if _takes_session(definition) else {}
    own |= {RUN: _RUN_SCHEMA} if _takes_run(definition) else {}
    schema = {**schema, "properties": {**schema.get("properties", {}), **own}}
    return Skill(
        id=definition.skill,
        description=definition.description,
        input_schema=schema,
        output_schema=definition.output,
        examples=tuple(Example(text=example) for example in definition.examples),
        visibility="exposed" if definition.exposes else "mesh",
        timeout_s=definition.think.limits.time_s + WAIT_S,
    )


def _takes_session(definition: MarkdownAgent) -> bool:
    """Whether callers may name a session: the file keeps one, and the input has no argument of this name."""
    return definition.keeps_session and SESSION not in definition.input.get("properties", {})


def _takes_run(definition: MarkdownAgent) -> bool:
    """Whether callers may name the run: the input has no argument of this name."""
    return RUN not in definition.input.get("properties", {})


def _read_failure(error: RetinueError) -> RetinueError:
    """The limit that ended the run, with the last answer; any other error as it is."""
    failure: Mapping[str, Any] = {}
    if isinstance(error, StepFailedError):
        failure = error.data
    elif isinstance(error, RemoteFaultError) and error.remote_type == StepFailedError.type:
        failure = error.fault_data
    return find_limit(failure) or error
