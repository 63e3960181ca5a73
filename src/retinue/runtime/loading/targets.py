"""Loads the target of ``serve`` and ``publish``: Python, an ``agent.json``, a character, or Markdown."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyjson5
import structlog

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.core.json_values import name_shape
from retinue.core.record import Trait
from retinue.mesh.permissions import AccessRule, ExposureLists

if TYPE_CHECKING:
    from retinue.markdown.definition import MarkdownAgent
    from retinue.parts.process import Process
    from retinue.settings import Settings
    from retinue.storage.state import State

_log = structlog.get_logger("retinue.targets")

MAX_FILE_BYTES = 1024 * 1024

_KNOWN = (
    "name",
    "version",
    "entry",
    "description",
    "topics",
    "scores",
    "traits",
    "deprecated",
    "mcp",
    "access",
)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_BYTES = re.compile(r"b'(\w+)'")
"""Bytes literals in pyjson5's messages, such as ``Unclosed b'object'``."""

_NO_LISTS = AccessRule()


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded agent and the files that it was loaded from."""

    agent: Agent
    files: tuple[Path, ...]
    access: AccessRule = _NO_LISTS
    lists_file: Path | None = None
    """The ``agent.json`` with the exposure lists; None without one."""
    model: str | None = None
    """The model that answers the actions of a character without functions."""
    has_runs: bool = False
    """Whether a call of the agent is a run, which the process executes itself while no hub runs."""
    open_hub_skills: Callable[[Settings, State], AbstractAsyncContextManager[Process]] | None = None
    """Opens what executes these runs, shared by the agents of a folder; None for one of its own."""


def load_target(text: str, *, folder: Path | None = None) -> Target:
    """Load ``file.py[:attr]``, ``module:attr``, ``agent.json``, a character or an agent in Markdown.

    Raises InvalidSettingError, and DefinitionError for Markdown. A skill without a description, which no
    search finds, is logged as a warning.
    """
    target = _load(text, folder or Path.cwd())
    silent = [
        skill.id
        for skill in target.agent.skills
        if not skill.description and skill.visibility != "private" and not target.has_runs
    ]
    if silent:
        _log.warning(
            f"no description of {', '.join(silent)}: write a docstring, by which callers find the skill"
        )
    return target


def _load(text: str, folder: Path) -> Target:
    place, _, attribute = text.rpartition(":") if _has_attribute(text) else (text, "", "")
    path = (folder / place).resolve()
    if path.suffix in (".json", ".jsonc"):
        return _load_agent_file(path)
    if path.suffix == ".md":
        return _load_markdown(path)
    if path.suffix == ".py":
        return Target(_pick(_import_file(path), attribute, text), (path,))
    if path.is_dir() and (path / "agent.json").is_file():
        return _load_agent_file(path / "agent.json")
    if attribute and _MODULE.fullmatch(place):
        return _load_module(place, attribute, text)
    raise InvalidSettingError(
        "target",
        f"{text!r} is not an agent",
        remedy="give a Python file (agent.py, agent.py:name), package.module:name, agent.json or agent.md",
    )


def _has_attribute(text: str) -> bool:
    head, colon, tail = text.rpartition(":")
    return bool(colon and head and tail.isidentifier())


def _load_module(name: str, attribute: str, text: str) -> Target:
    with _import_errors(name):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InvalidSettingError(
                "target", f"no module named {error.name}", remedy="install it in this environment"
            ) from error
    file = getattr(module, "__file__", None)
    return Target(_pick(module, attribute, text), (Path(file),) if file else ())


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidSettingError("target", f"no file {path}", remedy="check the path")
    # as python does for a script, so that it can import modules of its folder
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSettingError("target", f"{path} cannot be imported", remedy="name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _import_errors(path.name):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _import_errors(imported: str) -> Iterator[None]:
    """Turn any error of an import into InvalidSettingError; a sys.exit there must not end this process."""
    try:
        yield
    except RetinueError:
        raise
    except (Exception, SystemExit) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        raise InvalidSettingError(
            "target", f"importing {imported} raised {type(error).__name__}: {line}", remedy="fix the file"
        ) from error


def _pick(module: ModuleType, attribute: str, text: str) -> Agent:
    agents = {name: value for name, value in vars(module).items() if isinstance(value, Agent)}
    if attribute:
        chosen = getattr(module, attribute, None)
        if isinstance(chosen, Agent):
            return chosen
        have = ", ".join(agents) or "none"
        raise InvalidSettingError(
            "target", f"{text!r} names no Agent; the file has: {have}", remedy="name one of them"
        )
    distinct = {id(agent): name for name, agent in agents.items()}
    if len(distinct) == 1:
        return next(iter(agents.values()))
    if not agents:
        raise InvalidSettingError(
            "target", f"{text!r} has no Agent", remedy='write agent = Agent("my-agent") at its top level'
        )
    names = ", ".join(sorted(distinct.values()))
    raise InvalidSettingError("target", f"{text!r} has several agents", remedy=f"name one: {names}")


def _load_agent_file(path: Path) -> Target:
    facts = _read_object(path)
    if "entry" not in facts and (character := _load_character(facts, path)):
        return character
    _check_keys(facts, path)
    entry = facts.get("entry")
    if not isinstance(entry, str):
        raise InvalidSettingError(
            f"{path.name}: entry", "it is missing", remedy='name the Python object, such as "tools.py:agent"'
        )
    loaded = load_target(entry, folder=path.parent)
    agent = loaded.agent
    agent.amend(
        name=_text(facts, "name", path),
        version=_text(facts, "version", path),
        description=_text(facts, "description", path),
        topics=_texts(facts, "topics", path),
        scores=_scores(facts, path),
        traits=_traits(facts, path),
        deprecated=_deprecated(facts, path),
    )
    agent.expose_by(_lists(facts, path))
    return Target(agent, (path, *loaded.files), _access(facts, path), path, loaded.model)


def _load_character(facts: Mapping[str, Any], path: Path) -> Target | None:
    """A character file, with the Python file that it names, or else the Python file of the same name.

    None for any other file.
    """
    # imported here, because other agents need nothing of it
    from retinue.authoring.character import CharacterAgent
    from retinue.cards.character_file import is_character, parse_character

    if not is_character(facts):
        return None
    character = parse_character(facts, path.name)
    functions = path.with_suffix(".py") if character.bind is None else path.parent / character.bind
    is_bound = character.bind is not None or functions.is_file()
    module = _import_file(functions.resolve()) if is_bound else None
    agent = CharacterAgent(character, module, path.name)
    files = (path, functions) if is_bound else (path,)
    return Target(agent, files, model=character.model if agent.needs_model else None)


def _load_markdown(path: Path) -> Target:
    # imported here, because other agents need nothing of it: the grammar of workflows, and YAML
    from retinue.runtime.loading.markdown_files import read_definition

    return markdown_target(read_definition(path), path)


def markdown_target(definition: MarkdownAgent, path: Path) -> Target:
    """The target of an agent in Markdown; its warnings are logged."""
    from retinue.markdown.agent import ThinkingAgent

    for warning in definition.warnings:
        _log.warning(warning)
    return Target(ThinkingAgent(definition, path.name), (path,), has_runs=True)


def read_lists(path: Path) -> ExposureLists | None:
    """Read the ``mcp`` block of an ``agent.json``; raises InvalidSettingError."""
    facts = _read_object(path)
    _check_keys(facts, path)
    return _lists(facts, path)


def _lists(facts: Mapping[str, Any], path: Path) -> ExposureLists | None:
    block = facts.get("mcp")
    if block is None:
        return None
    if not isinstance(block, Mapping):
        raise InvalidSettingError(f"{path.name}: mcp", _found(block), remedy='write {"expose_tools": [...]}')
    known = [field.name for field in fields(ExposureLists)]
    for key in block:
        if key not in known:
            raise InvalidSettingError(
                f"{path.name}: mcp.{key}", "unknown key", remedy=f"known are {', '.join(known)}"
            )
    return ExposureLists(**{name: _texts(block, name, path) or () for name in known})


def _access(facts: Mapping[str, Any], path: Path) -> AccessRule:
    lists = facts.get("access")
    if lists is None:
        return _NO_LISTS
    if not isinstance(lists, Mapping) or lists.keys() - {"receive", "send"}:
        raise InvalidSettingError(
            f"{path.name}: access", _found(lists), remedy='write {"receive": [...], "send": [...]}'
        )
    return AccessRule(_texts(lists, "receive", path), _texts(lists, "send", path))


def _read_utf8(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidSettingError(
                path.name, f"it is over {MAX_FILE_BYTES:,} bytes", remedy="make it smaller"
            )
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise InvalidSettingError("target", f"no file {path}", remedy="check the path") from None
    except UnicodeDecodeError:
        raise InvalidSettingError(path.name, "it is not UTF-8", remedy="save it as UTF-8 text") from None


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        facts = pyjson5.decode(_read_utf8(path))
    except pyjson5.Json5DecoderException as error:
        reason = _BYTES.sub(r"\1", str(error.args[0]))
        raise InvalidSettingError(
            path.name, f"not valid JSON: {reason}", remedy="write JSON; comments are allowed"
        ) from error
    if not isinstance(facts, dict):
        raise InvalidSettingError(path.name, _found(facts), remedy="write an object")
    return facts


def _check_keys(facts: Mapping[str, Any], path: Path) -> None:
    for key in facts:
        if key not in _KNOWN:
            raise InvalidSettingError(
                f"{path.name}: {key}", "unknown key", remedy=f"known are {', '.join(_KNOWN)}"
            )


def _text(facts: Mapping[str, Any], key: str, path: Path) -> str | None:
    value = facts.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidSettingError(f"{path.name}: {key}", _found(value), remedy="write a string")
    return value


def _texts(facts: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...] | None:
    value = facts.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSettingError(f"{path.name}: {key}", _found(value), remedy="write a list of strings")
    return tuple(value)


def _scores(facts: Mapping[str, Any], path: Path) -> dict[str, float] | None:
    value = facts.get("scores")
    if value is None:
        return None
    if not isinstance(value, dict) or not all(
        isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1
        for score in value.values()
    ):
        raise InvalidSettingError(
            f"{path.name}: scores", _found(value), remedy='write numbers from 0 to 1: {"planning": 0.7}'
        )
    return {str(name): float(score) for name, score in value.items()}


def _traits(facts: Mapping[str, Any], path: Path) -> tuple[Trait, ...] | None:
    value = facts.get("traits")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidSettingError(f"{path.name}: traits", _found(value), remedy='write {"mood": "calm"}')
    return tuple(
        Trait(name=name, description=f"{name} trait", type=type(item).__name__, value=item)
        for name, item in value.items()
    )


def _deprecated(facts: Mapping[str, Any], path: Path) -> bool | str | None:
    value = facts.get("deprecated")
    if value is not None and not isinstance(value, bool | str):
        raise InvalidSettingError(
            f"{path.name}: deprecated", _found(value), remedy="write true, or the reason as a string"
        )
    return value


def _found(value: Any) -> str:
    return f"it is {name_shape(value)}"
