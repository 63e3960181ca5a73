"""Records the plan of a step ``think``: the model that is options, and the skills that are its tools."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retinue.core.errors import (
    AgentUnreachableError,
    LookupFailedError,
    NoModelError,
    RoleNotOfferedError,
    StepFailedError,
    UnknownSkillError,
)
from retinue.mesh.directory.routing import CAPABILITIES
from retinue.thinking.completion import COMPLETE
from retinue.thinking.limits import Limits
from retinue.thinking.plan import LOOP_VERSION, ThinkPlan
from retinue.thinking.toolbox import (
    FIND_SKILLS,
    MAX_LISTED,
    SEARCH,
    PinnedTool,
    describe_function,
    digest_of,
    function_schema,
    is_permitted,
    name_function,
)
from retinue.workflows.caller import Caller, Choice, SkillOffer
from retinue.workflows.definitions.definition import AUTO, DEFAULT_ROLE
from retinue.workflows.definitions.think import Think
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.think.sessions import with_history
from retinue.workflows.runs.records import Origin, as_json, read_json

PLAN_S = 60.0

_NAMED = 500
"""Named skills that are looked at; more are only found."""


async def record_plan(frame: Frame, options: Think, path: str) -> ThinkPlan:
    """The plan of a step with these options, as it was when the step first ran; raises StepFailedError."""
    caller, origin = frame.tools.caller, frame.request.origin

    async def effect() -> Any:
        plan = await make_plan(caller, origin, options)
        return as_json(await with_history(frame, plan, options.session, path))

    facts = {"kind": "think", "below": "/plan", "message": options.prompt[:200]}
    outcome = await frame.context.step(f"{path}/plan", effect, timeout_s=PLAN_S, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, None, as_json(outcome.fault))
    return read_json(ThinkPlan, outcome.value)


async def make_plan(caller: Caller, origin: Origin, options: Think) -> ThinkPlan:
    """The plan for a caller with this origin, by what the mesh offers now."""
    role = read_role(options.model)
    if role is None:
        model = await find_model(caller, origin, options.model)
    else:
        model = await choose_model(caller, origin, role)
    named = [pattern for pattern in options.tools if pattern != SEARCH]
    offers = await caller.list_offers(named, origin, _NAMED) if named else ()
    offers = [
        offer for offer in offers if is_permitted(offer.agent, offer.skill, options.tools, options.deny)
    ]
    limits = options.limits
    return ThinkPlan(
        version=LOOP_VERSION,
        agent=model.agent,
        choice=as_json(replace(model, input_schema=None, output_schema=None)),
        instructions=options.instructions,
        prompt=options.prompt,
        tools=tuple(pin_offers(offers[:MAX_LISTED], [FIND_SKILLS])),
        patterns=options.tools,
        deny=options.deny,
        limits=Limits(limits.turns, limits.calls, limits.tokens, limits.dollars, limits.time_s),
        output=options.output,
        parallel=options.parallel,
        approve=options.approve,
        role=role,
        unlisted=max(0, len(offers) - MAX_LISTED),
        keep_bytes=options.context.keep_results,
        compact_at=options.context.compact_at,
    )


def read_role(model: str | None) -> str | None:
    """The role that a model is chosen for; None for the name of an agent."""
    if model in (None, "", AUTO):
        return DEFAULT_ROLE
    return model if model in CAPABILITIES else None


async def find_model(caller: Caller, origin: Origin, name: str | None) -> Choice:
    """The model agent of this name; raises UnknownAgentError, and UnknownSkillError if it takes no tools."""
    mesh = origin.as_mesh()
    try:
        return await caller.choose(COMPLETE, name, None, mesh.scopes, mesh.caller, mesh.reach)
    except UnknownSkillError as error:
        error.message = f"agent {name} takes no tools: it is no model, or a command line is its back-end"
        error.args = (error.message,)
        error.remedy = "name a model agent with an API: retinue agents --role execute"
        raise


async def choose_model(caller: Caller, origin: Origin, role: str, without: Collection[str] = ()) -> Choice:
    """The best available model agent for a role that takes tools; raises NoModelError."""
    mesh = origin.as_mesh()
    others: list[str] = []
    try:
        candidates = await caller.list_role(role, (), mesh.scopes, mesh.caller, mesh.reach)
    except RoleNotOfferedError:
        candidates = ()
    for candidate in candidates:
        if candidate.agent in without:
            continue
        try:
            return await caller.choose(COMPLETE, candidate.agent, None, mesh.scopes, mesh.caller, mesh.reach)
        except (LookupFailedError, AgentUnreachableError):
            others.append(candidate.agent)
    raise NoModelError(role, "a step think needs a model that takes tools", others)


def pin_offers(offers: Sequence[SkillOffer], taken: Sequence[str]) -> list[PinnedTool]:
    """The tools for skills, with names that are not among those ``taken``."""
    names = list(taken)
    tools: list[PinnedTool] = []
    for offer in offers:
        choice = offer.choice
        name = name_function(choice.agent, offer.skill, names)
        names.append(name)
        schema, is_wrapped = function_schema(choice.input_schema)
        tools.append(
            PinnedTool(
                name=name,
                description=describe_function(offer.agent, offer.skill, offer.description),
                input_schema=schema,
                agent=offer.agent,
                skill=offer.skill,
                digest=digest_of(choice.input_schema),
                choice=as_json(replace(choice, input_schema=None)),
                is_wrapped=is_wrapped,
                is_read_only=offer.is_read_only,
                polls=offer.polls,
                is_repeatable=choice.keeps_keys or choice.is_repeatable,
            )
        )
    return tools


def read_choice(stored: Mapping[str, Any]) -> Choice:
    """The choice of a recorded plan or tool."""
    return read_json(Choice, stored)
