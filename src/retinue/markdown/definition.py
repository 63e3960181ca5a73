"""Reads a Markdown file with front matter as the definition of an agent.

The front matter has the keys of files for coding agents: name, description, tools, disallowedTools, model and
maxTurns. The key ``retinue`` holds what these programs have no place for. The body is the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson
from pydantic import ValidationError

from retinue.core.errors import DefinitionError, SchemaRefusedError
from retinue.core.json_values import name_shape
from retinue.core.text import fence, suggest
from retinue.markdown.foreign_names import read_model, read_tool, split_tools
from retinue.mesh.schema.checks import compile_schema
from retinue.thinking.toolbox import SEARCH
from retinue.workflows.definitions.checks import render_fault
from retinue.workflows.definitions.documents import Document, Path, read_text
from retinue.workflows.definitions.think import Think

Json = dict[str, Any]

OWN_KEY = "retinue"

FORM = "retinue docs agents-in-markdown"
"""The command that shows the form of a file."""

STEP = "think"
"""The id of the step of the workflow that an agent in Markdown is."""

_FAULT = re.compile(
    rf"steps\[0\]\.{STEP}\.(?P<key>tools|model)(?:\[(?P<place>\d+)\])?: (?P<problem>.*)", re.DOTALL
)

_PLAIN_KEYS = ("name", "description", "tools", "disallowedTools", "model")
_TURNS_KEYS = ("maxTurns", "max_turns", "steps")
_THINK_KEYS = tuple(
    key for key in ("limits", "approve", "deny", "parallel", "context") if key in Think.model_fields
)
_OWN_KEYS = ("skill", "input", "output", "examples", "expose", "session", *_THINK_KEYS)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FENCE = re.compile(r"---[ \t]*\r?\n(.*?)(?:^---[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE)
_DESCRIPTION = re.compile(r"^(description:[ \t]+)(?![\"'|>&*!\[{#])(\S.*?)[ \t]*\r?$", re.MULTILINE)
_OPENING = "${{"

PROMPT_SCHEMA: Json = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "minLength": 1, "description": "What the agent is to do"}},
    "required": ["prompt"],
}
"""The input of an agent that declares none."""


@dataclass(frozen=True, slots=True)
class MarkdownAgent:
    """An agent in Markdown; ``think`` is its loop, whose prompt each call gives.

    ``keeps_session`` = it takes the id of a session. ``digest`` is that of the file, ``content`` its text.
    ``warnings`` are what the file says and Retinue does not use. ``lines`` are those of the keys of the front
    matter.
    """

    name: str
    description: str
    skill: str
    think: Think
    input: Json
    output: Json
    examples: tuple[str, ...]
    exposes: bool
    keeps_session: bool
    digest: str
    warnings: tuple[str, ...]
    lines: Mapping[str, int]
    content: str

    @property
    def workflow(self) -> Json:
        """The definition of its runs: one step ``think``, whose input is ``{"prompt": text}``."""
        options = self.think.model_dump(mode="json", exclude_defaults=True)
        options["prompt"] = "${{ input.prompt }}"
        if self.keeps_session:
            options["session"] = "${{ has(input.session) ? input.session : '' }}"
        own = f"{self.name}/{self.skill}"
        if not {self.skill, own} & set(self.think.tools):
            # neither a search nor a glob means the agent itself, whose call would only begin its task again
            options["deny"] = [*self.think.deny, own]
        # the text of the file is no template
        options["instructions"] = self.think.instructions.replace(_OPENING, f"${_OPENING}")
        # a step with a condition may name tools that do not exist now: the agent then has none
        step = {"id": STEP, "when": "${{ input.prompt != '' }}", STEP: options}
        return {"name": self.name, "steps": [step], "output": f"${{{{ steps.{STEP}.output }}}}"}

    def describe_missing(self, faults: Sequence[Mapping[str, Any]], source: str) -> list[str]:
        """One line for each tool that names no skill of the mesh, and for a model that it does not have.

        ``faults`` are those of `workflow` as ``check_workflow`` gives them.
        """
        lines: list[str] = []
        missing: set[str] = set()
        for fault in faults:
            match = _FAULT.fullmatch(fault["message"])
            if match is None:
                continue
            key, place, problem = match["key"], match["place"], match["problem"]
            word = str(self.think.model) if place is None else self.think.tools[int(place)]
            missing |= {word} if key == "tools" else set()
            lines.append(f"{self._at(source, key)}: {word}: {problem}; {fault['remedy']}")
        if missing and missing == set(self.think.tools):
            lines.append(f"{self._at(source, 'tools')}: none of them is there, so the agent has no tools now")
        return lines

    def _at(self, source: str, key: str) -> str:
        return f"{source}:{self.lines.get(key, 1)}: {key}"

    def write_prompt(self, arguments: Mapping[str, Any]) -> str:
        """The prompt for a call: its only argument ``prompt``, else all arguments as JSON."""
        prompt = arguments.get("prompt")
        others = {key: value for key, value in arguments.items() if key != "prompt"}
        if not isinstance(prompt, str):
            prompt, others = "Do your task with this input.", dict(arguments)
        if not others:
            return prompt
        return f"{prompt}\n\n{fence('the input', orjson.dumps(others, option=orjson.OPT_INDENT_2).decode())}"


def parse_agent(text: str, source: str, *, name: str = "") -> MarkdownAgent:
    """The agent of a text; ``source`` names it in errors, ``name`` is for a file that has none.

    Raises DefinitionError with the line.
    """
    match = _FENCE.match(text.removeprefix("\ufeff"))
    if match is None:
        raise DefinitionError(
            "there is no front matter",
            source=source,
            line=1,
            remedy="begin the file with --- and name: and description:, and end these lines with ---",
        )
    # the line of the fence is kept, so that lines count from the begin of the file
    document = read_text("\n" + _DESCRIPTION.sub(_quote, match[1]), source)
    if not isinstance(document.value, Mapping):
        raise document.fault(
            (), f"the front matter is {name_shape(document.value)}", "write keys, as in name: x"
        )
    body = text.removeprefix("\ufeff")[match.end() :].strip()
    if not body:
        raise DefinitionError(
            "there are no instructions",
            source=source,
            line=match[0].rstrip().count("\n") + 1,
            remedy="write them below the front matter",
        )
    return _Reader(document, text).read(body, name)


def _quote(match: re.Match[str]) -> str:
    """A description with a colon in quotes: other programs read it so, and YAML does not."""
    value = match[2]
    return f"{match[1]}{orjson.dumps(value).decode()}" if ": " in value or value.endswith(":") else match[0]


class _Reader:
    """Reads the front matter of one file."""

    def __init__(self, document: Document, content: str) -> None:
        self._document = document
        self._keys: Mapping[str, Any] = document.value
        self._content = content
        self._warnings: list[str] = []
        try:
            orjson.dumps(self._keys, option=orjson.OPT_NON_STR_KEYS, default=str)
        except TypeError as error:  # YAML can write what no card and no request can have
            raise self._fault((), f"the front matter is not JSON: {error}", "write plain values") from None
        own = self._keys.get(OWN_KEY)
        if own is not None and not isinstance(own, Mapping):
            raise self._fault((OWN_KEY,), f"it is {name_shape(own)}", "write keys below it")
        self._own: Mapping[str, Any] = own or {}

    def read(self, body: str, name: str) -> MarkdownAgent:
        """The agent with these instructions; raises DefinitionError."""
        self._check_keys()
        name = self._name(("name",), self._text("name") or name)
        think = self._think(body)
        return MarkdownAgent(
            name=name,
            description=self._text("description").strip(),
            skill=self._name((OWN_KEY, "skill"), self._own.get("skill") or name),
            think=think,
            input=self._input(),
            output=think.output or {"type": "string"},
            examples=self._examples(),
            exposes=self._flag("expose"),
            keeps_session=self._flag("session", True),
            digest=f"sha256:{sha256(self._content.encode('utf-8', 'surrogatepass')).hexdigest()}",
            warnings=tuple(self._warnings),
            lines={key: self._document.place_of((key,)).line for key in self._keys},
            content=self._content,
        )

    def _check_keys(self) -> None:
        for key in self._own:
            if key not in _OWN_KEYS:
                near = suggest(key, _OWN_KEYS)
                remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OWN_KEYS)}"
                raise self._fault((OWN_KEY, key), "unknown key", remedy)
        for key in self._keys:
            if key not in (*_PLAIN_KEYS, *_TURNS_KEYS, OWN_KEY):
                self._warn(key, "Retinue does not use this key")

    def _think(self, body: str) -> Think:
        paths: dict[str, Path] = {"instructions": (), "model": ("model",), "tools": ("tools",)}
        options: Json = {"prompt": "prompt", "instructions": body, "tools": self._tools()}
        if (model := read_model(self._text("model"))) is not None:
            options["model"] = model
        for key in (*_THINK_KEYS, "output"):
            if self._own.get(key) is not None:
                options[key] = self._own[key]
                paths[key] = (OWN_KEY, key)
        if denied := self._list_skills("disallowedTools"):
            own = options.get("deny", [])
            options["deny"] = [
                *denied,
                *([own] if isinstance(own, str) else own if isinstance(own, list) else []),
            ]
        self._set_turns(options, paths)
        try:
            think = Think.model_validate(options)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            loc = fault["loc"] or ("instructions",)
            where = paths.get(".".join(map(str, loc))) or (*paths.get(str(loc[0]), ()), *loc[1:])
            raise render_fault(self._document, fault, where, FORM) from None
        if think.output is not None:
            self._check_schema("output", think.output)
        return think

    def _set_turns(self, options: Json, paths: dict[str, Path]) -> None:
        key = next((key for key in _TURNS_KEYS if self._keys.get(key) is not None), None)
        limits = options.get("limits", {})
        if key is None or not isinstance(limits, Mapping) or "turns" in limits:
            return
        turns = self._keys[key]
        if not isinstance(turns, int) or isinstance(turns, bool):
            raise self._fault((key,), f"it is {name_shape(turns)}", "write a whole number")
        paths["limits.turns"] = (key,)
        options["limits"] = {**limits, "turns": turns}

    def _tools(self) -> list[str]:
        if self._keys.get("tools") is None:
            return [SEARCH]
        tools = self._list_skills("tools")
        if not tools:
            self._warn("tools", "none of them is a skill of the mesh, so the agent has no tools")
        return tools

    def _list_skills(self, key: str) -> list[str]:
        """The skills and patterns that a list of tools means; each tool that means none is a warning."""
        value = self._keys.get(key)
        if isinstance(value, str):
            value = list(split_tools(value))
        if isinstance(value, Mapping):
            for tool, is_on in value.items():
                if not isinstance(is_on, bool):
                    raise self._fault((key, tool), f"it is {name_shape(is_on)}", "write true or false")
            value = [tool for tool, is_on in value.items() if is_on]
        if value is not None and not isinstance(value, list):
            raise self._fault((key,), f"it is {name_shape(value)}", "write tools in a list, or with commas")
        skills: dict[str, None] = {}
        for place, tool in enumerate(value or ()):
            if not isinstance(tool, str):
                raise self._fault((key, place), f"it is {name_shape(tool)}", "write the name of a skill")
            if not tool.strip():
                continue
            skill = read_tool(tool.strip())
            if skill is None:
                self._warn(key, f"{tool.strip()} is a tool of another program, which no skill replaces")
            else:
                skills.setdefault(skill)
        return list(skills)

    def _input(self) -> Json:
        schema = self._own.get("input")
        if schema is None:
            return PROMPT_SCHEMA
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            problem = f"it is {name_shape(schema)}, no JSON Schema of an object"
            raise self._fault((OWN_KEY, "input"), problem, "write {type: object, properties: {…}}")
        self._check_schema("input", schema)
        return {"type": "object", **schema}

    def _check_schema(self, key: str, schema: Any) -> None:
        try:
            compile_schema(schema, key)
        except SchemaRefusedError as error:
            raise self._fault((OWN_KEY, key), error.message, error.remedy) from None

    def _examples(self) -> tuple[str, ...]:
        examples = self._own.get("examples")
        if isinstance(examples, str):
            examples = [examples]
        if examples is None:
            return ()
        if not isinstance(examples, list) or not all(isinstance(example, str) for example in examples):
            raise self._fault(
                (OWN_KEY, "examples"), f"it is {name_shape(examples)}", "write a list of sentences"
            )
        return tuple(examples)

    def _flag(self, key: str, default: bool = False) -> bool:
        value = self._own.get(key, default)
        if not isinstance(value, bool):
            raise self._fault((OWN_KEY, key), f"it is {name_shape(value)}", "write true or false")
        return value

    def _text(self, key: str) -> str:
        value = self._keys.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._fault((key,), f"it is {name_shape(value)}", "write a text")
        return value

    def _name(self, path: Path, name: Any) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            remedy = "use letters, digits, dots, dashes and underscores, at most 64"
            raise self._fault(path, f"{str(name)[:80]!r} is no name", remedy)
        return name

    def _warn(self, key: str, problem: str) -> None:
        line = self._document.place_of((key,)).line
        self._warnings.append(f"{self._document.source}:{line}: {key}: {problem}")

    def _fault(self, path: Path, problem: str, remedy: str) -> DefinitionError:
        return self._document.fault(path, problem, remedy)
