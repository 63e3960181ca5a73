"""Names in files for other programs: their built-in tools, tools of MCP servers, and models of vendors."""

from __future__ import annotations

import re
from collections.abc import Iterator

BUILT_IN_TOOLS = frozenset(
    {
        "Agent",
        "AskUserQuestion",
        "Bash",
        "BashOutput",
        "Edit",
        "EnterPlanMode",
        "ExitPlanMode",
        "Glob",
        "Grep",
        "KillBash",
        "KillShell",
        "LS",
        "ListMcpResourcesTool",
        "LSP",
        "MultiEdit",
        "NotebookEdit",
        "NotebookRead",
        "Read",
        "ReadMcpResourceTool",
        "Skill",
        "SlashCommand",
        "Task",
        "TaskOutput",
        "TaskStop",
        "TodoRead",
        "TodoWrite",
        "ToolSearch",
        "WebFetch",
        "WebSearch",
        "Write",
    }
)
"""Tools of Claude Code that work on the machine of its user; no agent of a mesh has them."""

DEFAULT_MODELS = frozenset({"", "inherit", "auto", "default"})
"""Words for the model that is used anyway."""

_VENDORS = (
    (re.compile(r"(anthropic/.*|claude.*|sonnet|opus|haiku|opusplan|best)(\[1m\])?"), "claude"),
    (re.compile(r"(google/.*|gemini.*|flash|pro)"), "gemini"),
    (re.compile(r"(openai/.*|gpt.*|codex.*|o\d.*)"), "openai"),
)

_MCP = "mcp__"


def read_model(model: str) -> str | None:
    """The model agent that a name of a model means; None for the default one."""
    word = model.strip()
    if word.lower() in DEFAULT_MODELS:
        return None
    for pattern, agent in _VENDORS:
        if pattern.fullmatch(word.lower()):
            return agent
    return word


def split_tools(text: str) -> Iterator[str]:
    """The tools of a comma text; a comma in brackets belongs to its tool, as in ``Bash(git add:*, ls)``."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth = max(0, depth + (sign == "(") - (sign == ")"))
        if sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def read_tool(tool: str) -> str | None:
    """The skill, or pattern of skills, that a tool means; None for a built-in tool of another program.

    ``mcp__files__read`` is ``files/read``, and ``mcp__files`` is ``files/*``.
    """
    if tool.partition("(")[0].strip() in BUILT_IN_TOOLS:
        return None
    if tool.startswith(_MCP):
        server, _, name = tool.removeprefix(_MCP).partition("__")
        return f"{server}/{name or '*'}" if server else tool
    return tool
