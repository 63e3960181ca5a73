"""The tools that run something: ``orchestrate``, its relatives, ``execute_code`` and ``execute_task``.

With the lists of agents and of workflows they are the eight orchestration tools (L-01 … L-26).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import InvalidParametersError, Problem
from retinue.hub.orchestration.answer_cache import AnswerCache
from retinue.hub.orchestration.execution import Orchestration
from retinue.hub.orchestration.requests import TIED, OrchestrationRequest, ask_all
from retinue.hub.orchestration.tool_schemas import CHECKED, DESCRIPTIONS
from retinue.hub.workflows import WORKFLOW_TIMEOUT_S
from retinue.mesh.directory.routing import parse_role
from retinue.mesh.schema.messages import describe_shape
from retinue.workflows.definitions.definition import AUTO, DEFAULT_ROLE

Json = dict[str, Any]

_SESSION = "session"


def add_orchestration_skills(
    agent: Agent, orchestration: Orchestration, cache: AnswerCache, clear_steps: Callable[[], int]
) -> None:
    """Add the tools that run something, and ``clear_cache``."""
    _add_orchestrate_tools(agent, orchestration)
    _add_execute_tools(agent, orchestration)

    @agent.skill(idempotent=True)
    async def clear_cache() -> Json:
        """Forgets the cached answers and the cached results of steps."""
        return {"answers": cache.clear(), "steps": clear_steps()}


def _tool(agent: Agent, name: str) -> Callable[[Any], Any]:
    """The decorator of a tool with its fixed description and schema."""
    return agent.skill(
        name,
        description=DESCRIPTIONS[name],
        input_schema=CHECKED[name],
        expose=True,
        timeout_s=WORKFLOW_TIMEOUT_S,
    )


def _add_orchestrate_tools(agent: Agent, orchestration: Orchestration) -> None:
    @_tool(agent, "orchestrate")
    async def orchestrate(
        prompt: str,
        ctx: Context,
        preferences: Json | None = None,
        options: Json | None = None,
        run: str | None = None,
        session: str | None = None,
    ) -> Any:
        return await orchestration.execute(
            _read_orchestrate(prompt, preferences, options, run=run, session=session), ctx
        )

    @_tool(agent, "orchestrate_workflow")
    async def orchestrate_workflow(
        workflow: Any,
        input: Any,  # noqa: A002 - the seed's name
        ctx: Context,
        context: Json | None = None,
        overrides: Json | None = None,
        run: str | None = None,
    ) -> Any:
        context = dict(context or {})
        session, is_tied = context.pop(_SESSION, None), context.pop(TIED, False) is True
        if session is not None and not isinstance(session, str):
            problem = f"field 'context.session' must be string; it is {describe_shape(session)}"
            raise InvalidParametersError([Problem("context.session", problem)])
        request = OrchestrationRequest(
            "orchestrate_workflow",
            workflow,
            input,
            context=context,
            overrides=overrides,
            run=run,
            is_tied=is_tied,
            session=session,
        )
        return await orchestration.execute(request, ctx)

    @_tool(agent, "orchestrate_parallel")
    async def orchestrate_parallel(
        prompt: str,
        ctx: Context,
        agents: list[str] | None = None,
        mode: str = "all",
        role: str = DEFAULT_ROLE,
        run: str | None = None,
        session: str | None = None,
    ) -> Any:
        _check_prompt(prompt)
        role = parse_role(DEFAULT_ROLE if role == AUTO else role)
        definition = ask_all(mode, list(dict.fromkeys(agents or ())), role)
        request = OrchestrationRequest(
            "orchestrate_parallel", definition, {"prompt": prompt}, run=run, session=session
        )
        return await orchestration.execute(request, ctx)


def _add_execute_tools(agent: Agent, orchestration: Orchestration) -> None:
    @_tool(agent, "execute_code")
    async def execute_code(prompt: str, ctx: Context) -> Any:
        preferences = {"agent": "gemini", "role": "execute", "workflow": "direct"}
        return await orchestration.execute(_read_orchestrate(prompt, preferences, None), ctx)

    @_tool(agent, "execute_task")
    async def execute_task(task: Json, ctx: Context) -> Any:
        task_id = task.get("id")
        request = _read_orchestrate(
            task["prompt"], {"workflow": "plan-execute"}, None, echoed={"taskId": task_id}
        )
        answer = await orchestration.execute(request, ctx)
        value = {**answer.value, "taskId": task_id}
        return Answer(value, meta=answer.meta)


def _read_orchestrate(
    prompt: str,
    preferences: Json | None,
    options: Json | None,
    *,
    run: str | None = None,
    session: str | None = None,
    echoed: Json | None = None,
) -> OrchestrationRequest:
    """The request of ``orchestrate``; the run gets ``echoed`` in addition to the checked arguments."""
    _check_prompt(prompt, "task.prompt" if echoed else "prompt")
    preferences, options = preferences or {}, options or {}
    timeout_ms, retries = options.get("timeout"), options.get("retries")
    return OrchestrationRequest(
        "orchestrate",
        preferences.get("workflow") or AUTO,
        prompt,
        agent=preferences.get("agent") or AUTO,
        role=preferences.get("role") or AUTO,
        reads_cache=preferences.get("cache", True),
        keeps=True,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        retries=None if retries is None else int(retries),
        parallel=options.get("parallel"),
        run=run,
        session=session,
        echoed=echoed or {},
    )


def _check_prompt(prompt: str, field: str = "prompt") -> None:
    """Raise InvalidParametersError for a prompt without words, which would cost a call of a model."""
    if not prompt.strip():
        problem = f"field '{field}' has no words; it is {describe_shape(prompt)}"
        raise InvalidParametersError([Problem(field, problem)])
