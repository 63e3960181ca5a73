"""The JSON Schema of the workflow grammar, with which editors complete and check definitions.

The schema is derived from the models of the grammar; this module adds a title and a description for each key.
A key may hold what the grammar allows: a value of its type and, where the grammar reads one, a text with
``${{ … }}``. Relations between steps are left to ``checks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import orjson

from retinue.core.errors import InvalidSettingError
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.starts import TRIGGERS, AgentEventName
from retinue.workflows.definitions.think import MAX_PATTERNS
from retinue.workflows.definitions.values import DURATION_SCHEMA

DRAFT = "https://json-schema.org/draft/2020-12/schema"

FILE_NAME = "workflow.schema.json"

_EXPRESSION = "a CEL expression, with or without ${{ }}"

_DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "Definition": {
        "name": "Name of the workflow: letters, digits, space and . _ -",
        "description": "What the workflow does, in one sentence",
        "version": "Version of the workflow, such as 1.0.0",
        "tags": "Words under which the workflow is found",
        "runs_as": "Rights of a run: those of its caller, or also those of the mesh",
        "settings": "Defaults and limits for all steps",
        "input": "JSON Schema of the input; the input is checked before the first step",
        "steps": "The steps, in the order in which they run",
        "output": "last (output of the last step), merged (the objects of all steps), or values with ${{ }}",
        "output_schema": "JSON Schema of the output",
        "schedule": "When it starts by itself, once added (retinue schedules add): cron text, or an object",
        "on": "Events that start it, once added (retinue schedules add): webhook, message, or an object",
    },
    "Triggers": {
        "webhook": "Signed HTTP requests at an address of the hub",
        "message": "Messages that arrive at the hub",
        "agent": "Agents that join, leave, become unreachable, or are healthy again",
    },
    "OnMessage": {
        "performative": "One or several kinds of messages, such as TASK_REQUEST; default: any",
        "sender": "Glob of the agent that sends the message",
        "receiver": "Glob of the agent that the message is for",
        "topic": "Glob of the topic in the payload of the message",
        "input": "Input of each run, with ${{ input }} for the message; default: the message",
        "per_minute": "How many events may start a run in a minute",
    },
    "OnAgent": {
        "event": "One or several of joined, left, unreachable and healthy",
        "name": "Glob of the names of agents",
        "input": "Input of each run, with ${{ input }} for the event; default: the event",
        "per_minute": "How many events may start a run in a minute",
    },
    "OnWebhook": {
        "input": "Input of each run, with ${{ input }} for the payload; default: the payload",
        "per_minute": "How many events may start a run in a minute",
        "max_bytes": "Largest payload in bytes",
    },
    "Schedule": {
        "cron": "Minute, hour, day of the month, month, day of the week, such as 0 3 * * mon-fri",
        "every": "Time between two starts, such as 15m, counted from when the schedule was added",
        "timezone": "Time zone of cron, such as Europe/Berlin",
        "input": "Input of each run",
        "missed": "After times at which no node ran: skip them, start once, or start all (at most 100)",
        "overlap": "While the previous run still runs: skip, queue, or cancel the previous run",
    },
    "WorkflowSettings": {
        "max_duration": "Time limit of the whole run",
        "on_error": "What steps without on_error do after a failure",
        "retry": "Repetition of steps without retry",
        "cache": "What is kept for five minutes: nothing, the result of each call, or of the whole run",
        "max_iterations": "Limit of rounds for every loop",
    },
    "Step": {
        "id": "Name of the step, unique in the workflow; a step with a role may omit it",
        "description": "What the step does",
        "skill": "Id of the skill to call",
        "with": "Arguments of the call; without it, outputs of earlier steps are passed on",
        "agent": "Name of the only agent to call, or a text with ${{ }}",
        "role": "Role of the agent to call: plan, execute or review",
        "prompt": "Prompt for the agent of a role, with ${{ }}",
        "version": "Range of versions of the agent, such as >=1.0.0",
        "parallel": "Run branches side by side, or ask several agents the same",
        "loop": "Repeat the nested steps",
        "foreach": "Run the nested steps for each item: a list, a text with ${{ }}, or {in, concurrency}",
        "switch": f"Run the branch with the name that this expression gives: {_EXPRESSION}",
        "workflow": "Name of a stored workflow to run as this step",
        "think": "Let a language model work on a prompt, with skills as its tools",
        "wait_for": "Wait for a signal: its topic, or an object",
        "wait": "Wait for a length of time, or until a point in time",
        "steps": "Nested steps of parallel, loop or foreach",
        "branches": "Named lists of steps of parallel or switch",
        "when": f"Run the step only if this is true: {_EXPRESSION}",
        "retry": "Repeat the step after errors that may pass",
        "timeout": "Time limit of each attempt of a call, or of everything inside another step",
        "on_error": "After a failure: stop, continue, or {goto: id of a later step}",
        "then": "Id of a later step to continue with",
        "compensate": "The call that undoes this step when a later step fails",
        "ask": "Ask agents first whether they can run the skill now: true, or {capabilities, timeout}",
        "cache": "Keep the result of equal calls: true, or {ttl: 10m}",
        "transform": "Value with ${{ }} that replaces the output of the step",
        "validate": f"Accept the output only if this is true: {_EXPRESSION}",
        "allow_empty": "Accept an empty result",
    },
    "Retry": {
        "attempts": "How often the step is tried, the first attempt included",
        "delay": "Pause before the second attempt",
        "backoff": "Factor by which each further pause is longer",
    },
    "Parallel": {
        "mode": "all: every result; race: the first success; vote: the majority; merge: one result of all",
        "agents": "Names of the agents to ask, or a text with ${{ }}; absent: all that have the role",
        "role": "Role of the agents to ask",
        "prompt": "Prompt for each agent, with ${{ }}",
        "reviewer": "Agent that decides a tied vote, or writes the result of merge",
        "k": "End the vote as soon as an answer leads by this many",
        "concurrency": "Calls at the same time",
    },
    "Loop": {
        "max": "Maximum number of rounds",
        "until": f"Stop when this is true after a round: {_EXPRESSION}",
    },
    "Foreach": {
        "in": "The items: a list, or a text with ${{ }}",
        "concurrency": "Items at the same time",
    },
    "Think": {
        "prompt": "The task, with ${{ }}",
        "instructions": "What the model should heed in any task, with ${{ }}",
        "model": "Name of a model agent, or a role; absent: the best available model that takes tools",
        "tools": "Skills by id, agent/skill or glob; search: further ones as they are needed (the default)",
        "deny": "Skills that are never tools, by id, agent/skill or glob",
        "approve": "Skills before whose calls a person is asked, by id, agent/skill or glob",
        "output": "JSON Schema of the answer; absent: text",
        "limits": "What may be used before the model has to answer",
        "parallel": "Calls at the same time",
        "context": "How the conversation stays within what the model reads at once",
        "session": "Id of a session: the step begins with its earlier prompts and answers, with ${{ }}",
    },
    "ThinkContext": {
        "keep_results": "Bytes of text from which a result is kept as an artifact",
        "compact_at": "Part of the model's window, 0.1 to 0.9, at which older turns are condensed",
    },
    "ThinkLimits": {
        "turns": "Requests to the model",
        "calls": "Calls of tools",
        "tokens": "Tokens of all requests, read and written",
        "dollars": "Money for all requests, in US dollars",
        "time": "Time of all requests and calls, such as 10m",
    },
    "WaitFor": {
        "topic": "Topic of the signal: letters, digits, space and . _ -",
        "message": "Question to the person who answers, with ${{ }}",
        "schema": "JSON Schema of the answer",
        "timeout": "How long to wait; default 24h",
    },
    "Timer": {
        "for": "How long to wait, such as 10m; at most 3650d",
        "until": "When to go on: RFC 3339 with a time zone, or a text with ${{ }} that gives it",
    },
    "Compensation": {
        "skill": "Id of the skill that undoes the step",
        "with": "Arguments; without it, taken from the output and the arguments of the step",
        "agent": "Name of the only agent to call; default: the agent that ran the step",
        "version": "Range of versions of the agent",
        "retry": "Repetition; default: three attempts",
        "timeout": "Time limit of each attempt",
    },
    "AskFirst": {
        "capabilities": "Further capabilities that the agent must confirm",
        "timeout": "How long to wait for the answers; at most 60s",
    },
}
"""Model → key → description. A model's field with a description of its own needs no row here."""

_TITLES = {
    "Definition": "Workflow",
    "AskFirst": "Ask first",
    "ThinkContext": "Context",
    "ThinkLimits": "Limits",
    "WaitFor": "Wait for",
    "OnWebhook": "Webhook",
    "OnMessage": "Message",
    "OnAgent": "Agent",
}


def editor_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a workflow.

    Raises InvalidSettingError for a key of the grammar that has no description.
    """
    schema = Definition.model_json_schema(by_alias=True)
    models: dict[str, Any] = schema.pop("$defs")
    root = models.pop("Definition", None) or schema
    _complete("Definition", root)
    for name, model in models.items():
        _complete(name, model)
    _write_unions({"Definition": root, **models})
    return {"$schema": DRAFT, **root, "$defs": models}


def render_schema() -> bytes:
    """The bytes of the schema's file."""
    return orjson.dumps(editor_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _complete(name: str, model: dict[str, Any]) -> None:
    """Give a model its title, each key its description, and remove what editors would show as noise."""
    rows = _DESCRIPTIONS.get(name, {})
    model["title"] = _TITLES.get(name, name)
    model["description"] = " ".join(model["description"].split("\n\n")[0].split()).replace("``", "")
    for key, value in model["properties"].items():
        description = value.get("description") or rows.get(key)
        if description is None:
            raise InvalidSettingError(
                f"{name}.{key}",
                "the grammar's schema for editors has no description of it",
                remedy="give the field a description, or a row in workflows/definitions/editor_schema.py",
            )
        value = _simplify(value)
        value.pop("title", None)
        model["properties"][key] = {"title": key, "description": description, **value}


def _simplify(value: dict[str, Any]) -> dict[str, Any]:
    """A key's schema without null and without defaults that say no more than that the key may be absent."""
    if value.get("default", ...) is None or isinstance(value.get("default"), dict):
        value = {name: part for name, part in value.items() if name != "default"}
    kinds = [kind for kind in value.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        value = {name: part for name, part in value.items() if name != "anyOf"} | kinds[0]
    elif kinds:
        value = value | {"anyOf": kinds}
    return value


def _write_unions(models: dict[str, Any]) -> None:
    """The keys that the grammar reads in several forms, which no type of a field says."""
    step = models["Step"]
    step["required"] = []
    # name_steps gives a step with a role its id
    step["anyOf"] = [{"required": [key]} for key in ("id", "role", "prompt", "agent", "parallel")]
    text, true_or_false = {"type": "string"}, {"type": "boolean"}
    goto = {
        "type": "object",
        "properties": {"goto": text},
        "required": ["goto"],
        "additionalProperties": False,
    }
    ttl = {
        "type": "object",
        "properties": {"ttl": DURATION_SCHEMA},
        "required": ["ttl"],
        "additionalProperties": False,
    }
    unions: dict[tuple[str, str], list[Any]] = {
        ("Step", "on_error"): [{"enum": ["stop", "continue"]}, goto],
        ("Step", "cache"): [true_or_false, ttl],
        ("Step", "ask"): [true_or_false, {"$ref": "#/$defs/AskFirst"}],
        ("Step", "foreach"): [text, {"type": "array"}, {"$ref": "#/$defs/Foreach"}],
        ("Step", "wait_for"): [text, {"$ref": "#/$defs/WaitFor"}],
        ("Definition", "on"): [
            {"enum": [kind for kind in TRIGGERS if kind != "agent"]},
            {"$ref": "#/$defs/Triggers"},
        ],
        ("Triggers", "message"): [{"type": "null"}, {"const": True}, {"$ref": "#/$defs/OnMessage"}],
        ("OnMessage", "performative"): [text, {"type": "array", "items": text, "maxItems": 20}],
        ("OnAgent", "event"): [
            {"enum": list(get_args(AgentEventName))},
            {"type": "array", "items": {"enum": list(get_args(AgentEventName))}, "minItems": 1},
        ],
        ("Triggers", "webhook"): [{"type": "null"}, {"const": True}, {"$ref": "#/$defs/OnWebhook"}],
        ("Definition", "schedule"): [text, {"$ref": "#/$defs/Schedule"}],
        ("Step", "wait"): [DURATION_SCHEMA, {"$ref": "#/$defs/Timer"}],
        ("Think", "tools"): [text, {"type": "array", "items": text, "maxItems": MAX_PATTERNS}],
        ("Think", "deny"): [text, {"type": "array", "items": text, "maxItems": MAX_PATTERNS}],
        ("Think", "approve"): [text, {"type": "array", "items": text, "maxItems": MAX_PATTERNS}],
        ("Parallel", "agents"): [text, {"type": "array", "items": text, "maxItems": 100}],
    }
    for (model, key), kinds in unions.items():
        shown = models[model]["properties"][key]
        for word in ("anyOf", "$ref", "default"):
            shown.pop(word, None)
        shown["anyOf"] = kinds
