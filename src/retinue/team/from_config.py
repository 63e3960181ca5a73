"""Converts a ``retinue.toml`` into the ``team.toml`` of the same agents, imports, models and access lists.

What belongs to the machine, or has no exact version, is left out, and each such place is told with a reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from retinue.core.errors import InvalidSettingError
from retinue.team.definition import OF_THE_MACHINE, parse_definition
from retinue.team.fields import check_variable
from retinue.team.files import find_path_problem
from retinue.team.toml_text import quote, render_value

CONFIG_FILE = "retinue.toml"
FIRST_VERSION = "0.1.0"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SENSITIVE = re.compile(
    r"pass(word|wd|phrase)?($|[^a-z])|secret|token|api[-_]?key|access[-_]?key|(^|[-_])key($|[-_])|credential|"
    r"auth(orization)?($|[-_])|cookie|private|dsn|database[-_]?url|connection[-_]?string|signature",
    re.IGNORECASE,
)
"""Names whose literal values are taken for secrets."""

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\s\"']*)[^?#\s\"']*\??(?P<query>[^#\s\"']*)"
)
_EXACT = re.compile(r"(@?[^@=]+)(?:@|==)(\d[0-9A-Za-z.+!-]*)")
_RUNNERS = {"npx": "npm", "uvx": "pypi"}
_QUIET = frozenset({"-y", "--yes", "-q", "--quiet"})
_DESCRIPTION = "value of {name}, which {user} needs"
_KEPT_OF_IMPORTS = ("env", "headers", "start_s", "server")
_OF_COMMANDS = frozenset({"command", "args", "folder", "openapi", "url", "a2a", *_KEPT_OF_IMPORTS})


@dataclass(frozen=True, slots=True)
class Conversion:
    """The text of a ``team.toml``, and what of the settings is not in it, as lines."""

    text: str
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Converter:
    """Collects the tables of the team, and what is left out."""

    document: Mapping[str, Any]
    left_out: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    literals: dict[str, str] = field(default_factory=dict)
    """The literal values that became secrets, by name, to give one name to equal values only."""

    def leave_out(self, place: str, reason: str) -> None:
        self.left_out.append(f"{place}: {reason}")

    def list_agents(self) -> list[dict[str, Any]]:
        return [
            agent
            for number, table in enumerate(self.document.get("agents", ()))
            if (agent := self._convert_agent(f"agents[{number}]", table)) is not None
        ]

    def _convert_agent(self, place: str, table: Mapping[str, Any]) -> dict[str, Any] | None:
        target = str(table.get("target", ""))
        head, _, name = target.rpartition(":")
        path = head if head and name.isidentifier() else target
        is_markdown = path.endswith(".md")
        if find_path_problem(path) or not path.endswith((".py", ".json", ".md")):
            self.leave_out(place, f"{target[:80]} is no file of this folder; a digest holds the code itself")
            return None
        if not is_markdown and "/" not in path:
            self.leave_out(place, f"{target} lies beside the settings; move it to a folder of its own")
            return None
        for key in sorted(table.keys() - {"target", "env", "port"}):
            self.leave_out(f"{place}.{key}", "it belongs to the machine")
        agent: dict[str, Any] = {"target": target}
        env = table.get("env", {})
        if isinstance(env, Mapping):
            if kept := self._keep_texts(f"{place}.env", env, target):
                agent["env"] = kept
        else:
            self.leave_out(f"{place}.env", "a team declares each variable; name them in env")
        if isinstance(port := table.get("port"), int) and port >= 1024:
            agent["port"] = port
        return agent

    def list_imports(self) -> dict[str, dict[str, Any]]:
        imports = {}
        for name, table in self.document.get("imports", {}).items():
            if isinstance(table, Mapping) and (made := self._convert_import(name, table)) is not None:
                imports[name] = made
        return imports

    def _convert_import(self, name: str, table: Mapping[str, Any]) -> dict[str, Any] | None:
        place = f"imports.{name}"
        made = self._find_source(place, table)
        if made is None:
            return None
        for key in sorted(table.keys() - _OF_COMMANDS):
            self.leave_out(f"{place}.{key}", "it belongs to the machine")
        for key in _KEPT_OF_IMPORTS:
            value = table.get(key)
            if isinstance(value, Mapping):
                value = self._keep_texts(f"{place}.{key}", value, place)
            if isinstance(value, str) and holds_credential(value):
                self.leave_out(f"{place}.{key}", "it holds a key; write it without, and the key in headers")
            elif value:
                made[key] = value
        return made

    def _find_source(self, place: str, table: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the import is of: an address, a document, or a package in one exact version."""
        for key in ("url", "a2a"):
            if key in table:
                address = str(table[key])
                if "$" in address or holds_credential(address):
                    self.leave_out(place, f"its {key} holds a key; write it without, and the key in headers")
                    return None
                return {key: table[key]}
        if "openapi" in table:
            if find_path_problem(str(table["openapi"])):
                self.leave_out(place, "save its document as a file below this folder, and name that")
                return None
            return {"openapi": table["openapi"]}
        runner = _RUNNERS.get(str(table.get("command", "")).rpartition("/")[2])
        words = [str(word) for word in table.get("args", ())]
        while words and words[0] in _QUIET:
            words.pop(0)
        match = _EXACT.fullmatch(words[0]) if words else None
        if runner is None or match is None:
            reason = "its program is no package of npm or PyPI in one exact version"
            self.leave_out(place, f'{reason}; write npm = "NAME@1.2.3" or pypi = "NAME==1.2.3"')
            return None
        made: dict[str, Any] = {runner: f"{match[1]}{'@' if runner == 'npm' else '=='}{match[2]}"}
        if args := words[1:]:
            if any("$" in word for word in args):
                self.leave_out(f"{place}.args", "other users see arguments; pass secrets in env")
            elif any(map(holds_credential, words)):
                self.leave_out(f"{place}.args", "one of them is a URL with a password; pass it in env")
            elif any(word.startswith("-") and _SENSITIVE.search(word) for word in args):
                self.leave_out(f"{place}.args", "one of them is named as a key; pass secrets in env")
            else:
                made["args"] = args
        return made

    def _keep_texts(self, place: str, texts: Mapping[str, Any], user: str) -> dict[str, str]:
        """The texts whose variables become secrets of the team; others with a $ are left out.

        A literal value with the name of a key, and a URL with a password, become secrets, whose values are
        not copied.
        """
        kept = {}
        for key, text in texts.items():
            if place.endswith(".env") and (reason := _find_refusal(key)):
                self.leave_out(f"{place}.{key}", reason)
                continue
            if "$" in _VARIABLE.sub("", str(text)):
                self.leave_out(f"{place}.{key}", "it has a $ outside ${NAME}")
                continue
            names = _VARIABLE.findall(str(text))
            if text and (holds_credential(str(text)) or (_SENSITIVE.search(key) and not names)):
                name = self._name_secret(key, str(text), user, is_header=place.endswith("headers"))
                kept[key] = f"${{{name}}}"
                self.secrets.setdefault(name, _DESCRIPTION.format(name=key, user=user))
                self.leave_out(f"{place}.{key}", f"its value is not copied; set {name} for retinue up")
                continue
            for name in names:
                self.secrets.setdefault(name, _DESCRIPTION.format(name=name, user=user))
            kept[key] = str(text)
        return kept

    def _name_secret(self, key: str, value: str, user: str, *, is_header: bool) -> str:
        """The name of the secret of a literal value: its key, after its user where that name is another's."""
        owner = user.removeprefix("imports.")
        # headers of two imports have equal names
        for words in (f"{owner if is_header else ''} {key}", f"{owner} {key}"):
            name = re.sub(r"[^A-Z0-9]+", "_", words.upper()).strip("_")
            if name not in self.secrets or self.literals.get(name) == value:
                break
        self.literals[name] = value
        return name

    def list_models(self) -> dict[str, dict[str, Any]]:
        models = {}
        for name, table in self.document.get("llm", {}).items():
            if table.get("enabled") is False:
                continue
            if "command" in table or "folder" in table or table.get("backend") == "command":
                self.leave_out(f"llm.{name}", "a program of this machine is no part of a team")
                continue
            model = str(table.get("model", ""))
            if not model or model.endswith("latest"):
                self.leave_out(f"llm.{name}", "it names no exact model")
                continue
            if holds_credential(str(table.get("base_url", ""))):
                self.leave_out(f"llm.{name}", "its base_url holds a key; write it without")
                continue
            models[name] = {key: value for key, value in table.items() if key != "enabled"}
            if (variable := table.get("api_key_env")) is not None:
                self.secrets.setdefault(variable, _DESCRIPTION.format(name=variable, user=f"llm.{name}"))
            if isinstance(env := table.get("env"), Mapping):
                models[name]["env"] = self._keep_texts(f"llm.{name}.env", env, f"llm.{name}")
        return models

    def list_access(self, imports: Mapping[str, Any]) -> dict[str, Any]:
        access = dict(self.document.get("access", {}))
        for name in sorted(access.keys() & imports.keys()):
            self.leave_out(f"access.{name}", "it is an import; write a policy in policies/")
            del access[name]
        return access

    def list_workflows(self) -> list[str]:
        table = self.document.get("workflows", {})
        for key in sorted(table.keys() - {"directory"}):
            self.leave_out(f"workflows.{key}", "it belongs to the machine")
        folder = str(table.get("directory", "workflows")).rstrip("/")
        if find_path_problem(folder):
            self.leave_out("workflows.directory", "it is not below this folder")
            folder = "workflows"
        return [f"{folder}/*.yaml"]


def convert_config(content: bytes, name: str) -> Conversion:
    """The team ``name`` in the bytes of a ``retinue.toml``.

    Raises InvalidSettingError for settings that are no TOML, and for those of which nothing can be in a team.
    """
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # also UnicodeDecodeError
        raise InvalidSettingError(
            CONFIG_FILE, f"it is not TOML: {error}", remedy="correct the file"
        ) from error
    converter = _Converter(document)
    agents, imports, models = converter.list_agents(), converter.list_imports(), converter.list_models()
    access, workflows = converter.list_access(imports), converter.list_workflows()
    for key in document:
        if key in OF_THE_MACHINE or key not in ("agents", "imports", "llm", "access", "workflows", "policy"):
            converter.leave_out(key, "it belongs to the machine")
    if not agents and not imports:
        reasons = "; ".join(converter.left_out) or "it has neither [[agents]] nor [imports]"
        raise InvalidSettingError(
            CONFIG_FILE, f"nothing of it can be in a team: {reasons[:500]}", remedy="see retinue docs teams"
        )
    lines = [f"name = {quote(name)}", f"version = {quote(FIRST_VERSION)}"]
    for agent in agents:
        lines += ["", "[[agents]]", *_render_keys(agent)]
    for table, rows in (("llm", models), ("imports", imports), ("access", access)):
        for key, row in rows.items():
            lines += ["", f"[{table}.{quote(key)}]", *_render_keys(row)]
    lines += ["", "[workflows]", f"files = {quote(workflows)}"]
    if converter.secrets:
        lines += ["", "[secrets]", *_render_keys(converter.secrets)]
    text = "\n".join(lines) + "\n"
    parse_definition(text.encode())
    return Conversion(text, tuple(converter.left_out))


def _render_keys(row: Mapping[str, Any]) -> list[str]:
    return [f"{quote(key)} = {render_value(value)}" for key, value in row.items()]


def _find_refusal(variable: str) -> str:
    try:
        check_variable(variable)
    except ValueError as error:
        return str(error).partition("; ")[0]
    return ""


def holds_credential(text: str) -> bool:
    """Whether a text has a URL with a literal password, or with a literal key in its query.

    The user of an HTTP URL without a password is a token. ``${NAME}`` stands for a secret and is no literal.
    """
    for match in _URL.finditer(text):
        user, at, _ = match["authority"].rpartition("@")
        _, colon, password = user.partition(":")
        is_token = not colon and match["scheme"].lower().endswith(("http", "https"))
        if at and _VARIABLE.sub("", user if is_token else password):
            return True
        for name, value in parse_qsl(match["query"]):
            if _SENSITIVE.search(name) and _VARIABLE.sub("", value):
                return True
    return False
