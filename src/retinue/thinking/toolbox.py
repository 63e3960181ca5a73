"""The tools of a loop: patterns that name skills, names of functions, and the skills pinned to them.

A pattern is the id of a skill, ``agent/skill``, or a glob of one of these. A tool is pinned to the agent, the
version and the input schema that the run recorded. Tools are only ever added, because a changed list would
make the provider read the whole conversation again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import orjson

from retinue.core.foreign_text import cut_text, strip_hidden
from retinue.core.text import suggest
from retinue.thinking.completion import COMPLETE, Tool
from retinue.thinking.read_tool import READ_RESULT, READ_TOOL, KnownLinks

SEARCH = "search"
"""In a list of tools: the model may find further skills."""

FIND_SKILLS = "find_skills"
"""The tool with which the model finds skills."""

MAX_LISTED = 20
"""Named skills that are listed from the start; further ones are found."""

MAX_FOUND = 20
"""Skills that a loop may find."""

INPUT_FIELD = "input"
"""The argument of a skill whose input is no object."""

_MARK = "__"
_MAX_NAME = 64
_HASH_LENGTH = 8
_MAX_DESCRIPTION = 1_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_GLOB = re.compile(r"[*?\[]")


def matches(pattern: str, agent: str, skill: str) -> bool:
    """Whether a pattern names this skill of this agent. A pattern without ``/`` names it at any agent."""
    own, slash, wanted = pattern.partition("/")
    if not slash:
        return fnmatchcase(skill, pattern)
    return fnmatchcase(agent, own) and fnmatchcase(skill, wanted)


def matches_any(patterns: Iterable[str], agent: str, skill: str) -> bool:
    """Whether one of the patterns names this skill of this agent."""
    return any(matches(pattern, agent, skill) for pattern in patterns)


def is_glob(pattern: str) -> bool:
    """Whether a pattern may name several skills."""
    return _GLOB.search(pattern) is not None


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """The agent, None for any, and the skill of a pattern that is no glob."""
    agent, slash, skill = pattern.partition("/")
    return (agent, skill) if slash else (None, pattern)


def is_permitted(agent: str, skill: str, tools: Sequence[str], deny: Sequence[str]) -> bool:
    """Whether a skill may become a tool: ``tools`` names it, or permits the search, and ``deny`` does not.

    The skill of model agents never may, because the loop itself asks the model.
    """
    if skill == COMPLETE or matches_any(deny, agent, skill):
        return False
    return SEARCH in tools or matches_any(tools, agent, skill)


def digest_of(schema: Mapping[str, Any] | None) -> str:
    """The digest of an input schema, the same for equal schemas."""
    return sha256(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class PinnedTool:
    """A function of the model, and the skill behind it.

    ``input_schema`` is that of the function: an object, with the argument ``input`` if the skill
    ``is_wrapped``. ``digest`` is that of the skill's own schema. ``choice`` is how a run calls the skill.
    ``is_read_only`` = its author says so; ``polls`` = equal calls are expected; ``is_repeatable`` = after a
    crash a call whose outcome is unknown may be made again.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    agent: str
    skill: str
    digest: str
    choice: Mapping[str, Any]
    is_wrapped: bool = False
    is_read_only: bool = False
    polls: bool = False
    is_repeatable: bool = True

    @property
    def id(self) -> str:
        """The skill for people, as ``agent/skill``."""
        return f"{self.agent}/{self.skill}"

    @property
    def tool(self) -> Tool:
        """The function as the model sees it."""
        return Tool(self.name, self.description, self.input_schema)

    def arguments_of(self, fields: Mapping[str, Any]) -> Any:
        """The arguments of the skill in those of the function."""
        return fields.get(INPUT_FIELD) if self.is_wrapped else fields


@dataclass(slots=True)
class Toolbox:
    """The tools that the model has now, by the name of their function, in the order in which they came.

    ``searches`` = it may find further ones; ``links`` are those of the artifacts that it may read, which it
    ``reads`` from the first link on.
    """

    searches: bool = False
    links: KnownLinks = field(default_factory=KnownLinks)
    reads: bool = False
    _tools: dict[str, PinnedTool] = field(default_factory=dict)
    _listed: list[Tool] = field(default_factory=list)

    def __post_init__(self) -> None:
        # the search comes first, because others follow later
        if self.searches:
            self._listed.append(FIND_TOOL)

    def __len__(self) -> int:
        return len(self._tools)

    def copy(self) -> Toolbox:
        """A toolbox with the same tools, to which others can be added."""
        box = Toolbox(self.searches, self.links, self.reads)
        box.add(self._tools.values())
        return box

    def add(self, tools: Iterable[PinnedTool]) -> None:
        """Add tools behind the others."""
        for tool in tools:
            if tool.name not in self._tools:
                self._listed.append(tool.tool)
            self._tools[tool.name] = tool

    def note_links(self, text: str) -> None:
        """Let the model read the artifacts whose links are in a text that it reads."""
        self.links.note(text)
        if self.links and not self.reads:
            self.reads = True
            self._listed.append(READ_TOOL)

    def find(self, name: str) -> PinnedTool | None:
        """The tool with this function; None for an unknown one."""
        return self._tools.get(name)

    def find_own(self, name: str) -> Tool | None:
        """The tool of the loop itself with this name, if the model has it."""
        own = {FIND_SKILLS: FIND_TOOL} if self.searches else {}
        return (own | ({READ_RESULT: READ_TOOL} if self.reads else {})).get(name)

    def find_skill(self, agent: str, skill: str, version: str | None, digest: str) -> PinnedTool | None:
        """The tool that is pinned to this skill of this agent in this form."""
        for tool in self._tools.values():
            is_same = (tool.agent, tool.skill, tool.digest) == (agent, skill, digest)
            if is_same and tool.choice.get("version") == version:
                return tool
        return None

    def suggest(self, name: str) -> tuple[str, ...]:
        """The names of functions that are similar to an unknown one, the nearest first."""
        return suggest(name, self.names)

    @property
    def names(self) -> list[str]:
        """The names of all functions."""
        own = [FIND_SKILLS] * self.searches + [READ_RESULT] * self.reads
        return [*self._tools, *own]

    def list_tools(self) -> tuple[Tool, ...]:
        """The functions as the model sees them, in the order in which they came."""
        return tuple(self._listed)


FIND_TOOL = Tool(
    FIND_SKILLS,
    "Finds further tools by a description of what is needed. The tools that it finds can be called from the "
    "next message on.",
    {
        "type": "object",
        "properties": {"what": {"type": "string", "description": "What the tool should do, in words"}},
        "required": ["what"],
        "additionalProperties": False,
    },
)


def name_function(agent: str, skill: str, taken: Iterable[str]) -> str:
    """The name of the function for a skill, ``agent__skill``; other vendors' rules allow 64 characters.

    It is the same in each run, unless another skill has taken it: then, and where it is too long, it ends in
    a hash of its parts.
    """
    plain = f"{agent}{_MARK}{skill}"
    name = _UNSAFE.sub("_", plain)
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    known = set(taken)
    if len(name) <= _MAX_NAME and name not in known:
        return name
    digest = sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
    for length in range(_HASH_LENGTH, _MAX_NAME - 1):
        hashed = f"{name[: _MAX_NAME - 1 - length]}_{digest[:length]}"
        if hashed not in known:
            return hashed
    raise AssertionError("two skills with one hash")


def describe_function(agent: str, skill: str, description: str) -> str:
    """What the model reads of a function: text of the skill's author without hidden characters."""
    text = strip_hidden(description).strip() or skill
    return cut_text(f"{text} ({agent}: {skill})", _MAX_DESCRIPTION)


def function_schema(schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """The schema of a function for that of its skill, and whether the input is wrapped in an object."""
    if schema is None or not _may_be_other(schema):
        # OpenAI refuses an object without properties
        return {"properties": {}, **(schema or {}), "type": "object"}, False
    inner = {key: value for key, value in schema.items() if key not in _ROOT_KEYS}
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {INPUT_FIELD: inner},
        "required": [INPUT_FIELD],
    }
    # definitions stay at the root, where references point
    return wrapped | {key: schema[key] for key in _ROOT_KEYS if key in schema}, True


_ROOT_KEYS = ("$defs", "definitions", "$schema")


def _may_be_other(schema: Mapping[str, Any]) -> bool:
    """Whether something other than an object fits; a schema without a type says nothing about it."""
    kind = schema.get("type")
    if kind is not None:
        return kind != "object" and not (isinstance(kind, list) and "object" in kind)
    return bool(set(schema) & {"anyOf", "oneOf", "allOf", "enum", "const", "$ref", "items"})
