"""An agent with a language model: roles, ``agent.ask``, code skills, and ``complete`` for loops with tools.

Every skill is one request to the model, checked against the budget, repeated by the one retry policy,
streamed to the caller, and cancelled with its call. The result is the text, or the fields of the
skill; tokens and cost are the usage of the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import ModelError
from retinue.core.record import AgentRecord
from retinue.llm import prompts
from retinue.llm.completion import Model
from retinue.llm.model_calls import ALLOWANCE_S, ASK, ModelCalls, OpenModel
from retinue.llm.spec import ModelSpec
from retinue.llm.spending import Ledger
from retinue.llm.structured import read_code, read_object
from retinue.thinking.completion import COMPLETE, CompletionRequest

Text = Annotated[str, Field(min_length=1)]


_OF_MODELS = (ASK, COMPLETE)
"""The skills besides the roles that only model agents have."""


def model_agent(spec: ModelSpec, open_model: OpenModel, ledger: Ledger, *, version: str) -> Agent:
    """The agent of a model."""
    agent = Agent(**describe_agent(spec, version))
    add_skills(agent, spec, ModelCalls(spec, open_model, ledger))
    return agent


def add_skills(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    """Give an agent the skills of a model agent."""
    _add_roles(agent, spec, calls)
    _add_ask(agent, spec, calls)
    _add_code_skills(agent, spec, calls)
    if spec.backend != "command":
        _add_complete(agent, spec, calls)


def describe_model(spec: ModelSpec, version: str) -> AgentRecord:
    """The record of a model that is not started: that of its agent, without an endpoint.

    It has the skills by which a model is chosen as such. Those of code, which other agents offer too, are
    left out: a search for them should find the agents that can be called. None is a tool of MCP clients.
    """

    async def refuse() -> Model:
        raise ModelError(spec.name, "unavailable", "it is not started")

    record = model_agent(spec, refuse, Ledger(Path(), spec), version=version).record()
    shown = [
        replace(skill, listed=False) for skill in record.skills if skill.id in {*skill.roles, *_OF_MODELS}
    ]
    return replace(record, skills=tuple(shown))


def describe_agent(spec: ModelSpec, version: str) -> dict[str, Any]:
    """The facts on the card of a model agent, as the options of `Agent`."""
    model = spec.model or (spec.asks_model if spec.backend != "command" else "")
    through = {"anthropic": "Anthropic", "google": "Google", "openai": "OpenAI or a compatible server"}
    vendor = through.get(spec.provider or "", spec.program or "a command")
    backend = "command" if spec.backend == "command" else ""
    labels = {"kind": "model", "provider": spec.provider or "", "model": model, "backend": backend}
    return {
        "name": spec.name,
        "version": version,
        "title": spec.name,
        "description": f"Plans, does and reviews tasks given in words: a language model ({model or vendor}).",
        "topics": ("Planning", "Code", "Review", "Writing"),
        "scores": spec.scores or None,
        "context_window": spec.context_window,
        "languages": spec.languages,
        "labels": {name: value for name, value in labels.items() if value},
    }


def _add_roles(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    descriptions: Mapping[prompts.Role, str] = {
        "plan": "Writes a plan for a task given in words.",
        "execute": "Carries out a task given in words, and returns the result.",
        "review": "Reviews what is given in words, and returns the findings.",
    }

    def add(role: prompts.Role) -> None:
        @agent.skill(
            role,
            description=descriptions[role],
            roles=[role],
            expose=True,
            listed=False,
            open_world=True,
            timeout_s=spec.timeout_s + ALLOWANCE_S,
        )
        async def take_role(
            prompt: Annotated[Text, Field(description="The task, in words")],
            ctx: Context,
            context: Annotated[
                Any, Field(description="Data that the task is about, such as results of other agents")
            ] = None,
        ) -> Answer:
            task = prompts.write_task(prompt, [("what the task is about", context)])
            return await calls.answer(ctx, prompts.ROLE_INSTRUCTIONS[role], task)

    for role in descriptions:
        add(role)


def _add_ask(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    @agent.skill(ASK, expose=True, open_world=True, timeout_s=spec.timeout_s + ALLOWANCE_S)
    async def ask(
        prompt: Annotated[Text, Field(description="The question or task, in words")],
        ctx: Context,
        timeoutMs: Annotated[  # noqa: N803 - the name of seed 004
            int | None, Field(ge=1, description="Time limit in milliseconds")
        ] = None,
    ) -> Answer:
        """Asks the model and returns its answer."""
        timeout_s = None if timeoutMs is None else timeoutMs / 1000
        return await calls.answer(ctx, prompts.ASK_INSTRUCTIONS, prompt, timeout_s=timeout_s)


def _add_complete(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    @agent.skill(COMPLETE, listed=False, open_world=True, timeout_s=spec.timeout_s + ALLOWANCE_S)
    async def complete(
        messages: Annotated[
            list[dict[str, Any]], Field(description="The conversation: messages of user, assistant and tool")
        ],
        ctx: Context,
        system: Annotated[str, Field(description="The instructions")] = "",
        tools: Annotated[
            list[dict[str, Any]] | None,
            Field(description="The tools: name, description and input_schema of each"),
        ] = None,
        tool_choice: Annotated[
            Literal["auto", "none"], Field(description="none: the model may call no tool")
        ] = "auto",
        output_schema: Annotated[
            dict[str, Any] | None, Field(description="The JSON Schema of the output")
        ] = None,
        max_tokens: Annotated[int | None, Field(ge=1, description="Limit of the answer in tokens")] = None,
    ) -> Answer:
        """Continues a conversation in which the model may call tools. Returns its reply with the calls."""
        request = {
            "system": system,
            "messages": messages,
            "tools": tools,
            "tool_choice": tool_choice,
            "output_schema": output_schema,
            "max_tokens": max_tokens,
        }
        return await calls.complete(ctx, CompletionRequest.from_json(request))


def _add_code_skills(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    shared: dict[str, Any] = {
        "expose": True,
        "listed": False,
        "open_world": True,
        "timeout_s": spec.timeout_s + ALLOWANCE_S,
    }

    def form(texts: Sequence[str], lists: Sequence[str] = ()) -> dict[str, Any]:
        kinds = {key: {"type": "string"} for key in texts} | {key: {"type": "array"} for key in lists}
        return {"type": "object", "properties": kinds, "required": list(texts)}

    @agent.skill(tags=["planning"], roles=["plan"], output_schema=form(["plan"], ["steps"]), **shared)
    async def create_plan(
        requirements: Annotated[Text, Field(description="What is to be made, in words")],
        ctx: Context,
        context: Annotated[Any, Field(description="Data that the requirements are about")] = None,
    ) -> Answer:
        """Creates a structured implementation plan from requirements."""
        task = prompts.write_task(
            f"Write the plan for these requirements:\n\n{requirements}", [("context", context)]
        )
        return await calls.answer_form(
            ctx, prompts.PLAN_INSTRUCTIONS, task, lambda text: read_object(text, ("plan",), ("steps",))
        )

    @agent.skill(tags=["execution", "code"], roles=["execute"], output_schema=form(["code"]), **shared)
    async def generate_code(
        plan: Annotated[Text, Field(description="The plan to implement")],
        ctx: Context,
        requirements: Annotated[str, Field(description="The requirements behind the plan")] = "",
        code: Annotated[str, Field(description="The code of the previous round, to be improved")] = "",
        feedback: Annotated[str, Field(description="What a review of that code asks for")] = "",
    ) -> Answer:
        """Generates code from a plan, or improves it by the feedback of a review."""
        task = prompts.write_task(
            "Write the code that the plan describes"
            + (", improving the previous code by the feedback." if code or feedback else "."),
            [
                ("the plan", plan),
                ("the requirements", requirements),
                ("the previous code", code),
                ("the feedback of its review", feedback),
            ],
        )
        return await calls.answer_form(
            ctx, prompts.CODE_INSTRUCTIONS, task, lambda text: {"code": read_code(text)}
        )

    @agent.skill(
        tags=["review", "code"], roles=["review"], output_schema=form(["review", "feedback"]), **shared
    )
    async def review_code(
        code: Annotated[Text, Field(description="The code to review")],
        ctx: Context,
        requirements: Annotated[str, Field(description="What the code has to do")] = "",
        plan: Annotated[str, Field(description="The plan that it implements")] = "",
    ) -> Answer:
        """Reviews code: a judgement, and what to change."""
        task = prompts.write_task(
            "Review this code.", [("the code", code), ("its requirements", requirements), ("its plan", plan)]
        )
        return await calls.answer_form(
            ctx, prompts.REVIEW_INSTRUCTIONS, task, lambda text: read_object(text, ("review", "feedback"))
        )
