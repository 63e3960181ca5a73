"""Descriptions and input schemas of the orchestration tools, to the letter of seed 002.

The listed schemas differ from the checked ones. The seed's enums name two agents and four workflows; a call
may name any that the hub knows. So the list has the seed's texts, with enums that grow at the end
(`show_tool`), and `CHECKED` has the form of the arguments with limits of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

MAX_RETRIES = 19
"""A step has at most 20 attempts."""

MAX_TIMEOUT_MS = 24 * 3_600_000

MAX_NAMES = 20
"""Agents and workflows that an enum lists beyond the seed's, because each takes room in the list of tools."""

AGENTS = ("auto", "claude", "gemini")
WORKFLOWS = ("auto", "direct", "plan-execute", "competitive", "iterative", "think")
ROLES = ("auto", "plan", "execute", "review")


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", **more, "description": description}


def _object(properties: Json, required: Sequence[str] = (), **more: Any) -> Json:
    schema: Json = {"type": "object", "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


DESCRIPTIONS: Mapping[str, str] = {
    "orchestrate": "Process request with intelligent agent and workflow selection",
    "orchestrate_workflow": "Execute a specific workflow with full control",
    "orchestrate_parallel": "Execute task with multiple agents in parallel",
    "list_workflows": "List all available workflows and their descriptions",
    "list_agents": "List all available agents and their capabilities",
    "get_capabilities": "Get detailed capabilities for task matching",
    "execute_code": "Execute a prompt with Gemini (earlier form of orchestrate)",
    "execute_task": "Plan and execute a task (earlier form of orchestrate)",
}

_RUN = _text("Run id, an idempotency key: such a call outlives its client; repeating it picks it up")

LISTED: Mapping[str, Json] = {
    "orchestrate": _object(
        {
            "prompt": _text("The task or request to process"),
            "preferences": _object(
                {
                    "agent": _text("Preferred agent (auto for automatic selection)", enum=list(AGENTS)),
                    "workflow": _text("Workflow to use (auto for automatic selection)", enum=list(WORKFLOWS)),
                    "role": _text("Role for the agent", enum=list(ROLES)),
                    "cache": {
                        "type": "boolean",
                        "default": True,
                        "description": "Use cached results if available",
                    },
                }
            ),
            "options": _object(
                {
                    "timeout": {"type": "number", "description": "Timeout in milliseconds"},
                    "retries": {"type": "number", "description": "Number of retry attempts"},
                    "parallel": {
                        "type": "boolean",
                        "description": "Enable parallel execution where possible",
                    },
                }
            ),
            "run": _RUN,
        },
        ["prompt"],
    ),
    "orchestrate_workflow": _object(
        {
            "workflow": {
                "anyOf": [{"type": "string"}, {"type": "object"}],
                "description": "Workflow name or inline workflow definition",
            },
            "input": _text("Input for the workflow"),
            "context": {"type": "object", "description": "Initial context for workflow execution"},
            "overrides": _object(
                {
                    "agents": {
                        "type": "object",
                        "description": "Override agent selection for specific steps",
                    },
                    "timeouts": {
                        "type": "object",
                        "description": "Override timeouts for specific steps",
                    },
                }
            ),
            "run": _RUN,
        },
        ["workflow", "input"],
    ),
    "orchestrate_parallel": _object(
        {
            "prompt": _text("Task to execute"),
            "agents": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Agents to use (empty for all available)",
            },
            "mode": _text("How to handle parallel results", enum=["race", "all", "vote", "merge"]),
            "role": _text("Role for all agents"),
        },
        ["prompt"],
    ),
    "list_workflows": _object(
        {
            "filter": {"type": "string", "enum": ["all", "built-in", "custom"], "default": "all"},
            "detailed": {
                "type": "boolean",
                "default": False,
                "description": "Include full workflow definitions",
            },
        }
    ),
    "list_agents": _object(
        {
            "role": _text("Filter by role capability"),
            "includeMetrics": {
                "type": "boolean",
                "default": False,
                "description": "Include performance metrics",
            },
            "query": _text("What the agent should do, in words: only matching agents, best first"),
            "detailed": {
                "type": "boolean",
                "default": False,
                "description": "Include version, skills, url, source and measurements",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
            "after": _text("Continue after this place: next of the previous reply"),
        }
    ),
    "get_capabilities": _object(
        {
            "task": _text("Task description for capability matching"),
            "requirements": _object(
                {
                    "language": _text("Programming language requirement"),
                    "contextSize": {"type": "number", "description": "Required context window size"},
                    "role": _text("Required role"),
                }
            ),
        }
    ),
    "execute_code": _object({"prompt": _text("The task or request to process")}, ["prompt"]),
    "execute_task": _object(
        {"task": _object({"id": {}, "prompt": {"type": "string"}}, ["prompt"])}, ["task"]
    ),
}
"""The input schemas as they are listed: the seed's, with properties of our own after them."""

_SESSION = _text("Name of a conversation that is continued, and kept")


def _check(tool: str, **properties: Any) -> Json:
    """The listed schema as it is checked: closed, with other ``properties``."""
    schema = copy.deepcopy(LISTED[tool])
    schema["properties"] |= properties
    return {**schema, "additionalProperties": False}


def _preferences() -> Json:
    preferences: Json = copy.deepcopy(LISTED["orchestrate"]["properties"]["preferences"])
    for key in ("agent", "workflow", "role"):
        # any known name may be given; an unknown one gets an error that names similar ones
        preferences["properties"][key].pop("enum")
    return {**preferences, "additionalProperties": False}


_OPTIONS = _object(
    {
        "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_MS},
        "retries": {"type": "number", "minimum": 0, "maximum": MAX_RETRIES, "multipleOf": 1},
        "parallel": {"type": "boolean"},
    },
    additionalProperties=False,
)

CHECKED: Mapping[str, Json] = {
    "orchestrate": _check("orchestrate", preferences=_preferences(), options=_OPTIONS, session=_SESSION),
    # a workflow of the caller's own may take any value
    "orchestrate_workflow": _check("orchestrate_workflow", input={}),
    "orchestrate_parallel": _check("orchestrate_parallel", run=_RUN, session=_SESSION),
    "list_workflows": _check("list_workflows"),
    "list_agents": _check("list_agents"),
    "get_capabilities": _check(
        "get_capabilities",
        requirements={
            **LISTED["get_capabilities"]["properties"]["requirements"],
            "additionalProperties": False,
        },
    ),
    "execute_code": _check("execute_code"),
    "execute_task": _check("execute_task"),
}
"""The schemas that the arguments of a call are checked against."""


def show_tool(tool: str, agents: Sequence[str], workflows: Sequence[str]) -> Json:
    """The listed schema of a tool; the enums of ``orchestrate`` end with these names."""
    schema = LISTED[tool]
    if tool != "orchestrate":
        return schema
    schema = copy.deepcopy(schema)
    fields = schema["properties"]["preferences"]["properties"]
    for key, names in (("agent", agents), ("workflow", workflows)):
        more = [name for name in names if name not in fields[key]["enum"]]
        fields[key]["enum"] += more[:MAX_NAMES]
    return schema
