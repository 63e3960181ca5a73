"""Pure: reads the servers in a client's configuration as imports of the hub.

An entry says how its client connects to a server. `read_server` gives the same as a table of
``[imports.NAME]``, or the reason why the hub cannot connect in the way that the entry asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retinue.mcp.client_configs.clients import Client, Places

_URL_KEYS = ("url", "httpUrl", "serverUrl")
_LOCAL_TOKEN = "Bearer rtn_local_"  # noqa: S105 - the beginning of every token of a state

_SWITCHED_OFF = {"disabled": True, "enabled": False}
_TOOL_FILTERS = (
    *("includeTools", "excludeTools", "enabledTools", "disabledTools", "enabled_tools", "disabled_tools"),
)
_OTHER_HUB = frozenset({"RETINUE_HOME", "RETINUE_HUB"})
_OWN_LOGINS = ("oauth", "headersHelper", "authProviderType", "auth")

_DOLLAR_NAME = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_BRACED_NAME = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_EDITOR_NAME = re.compile(r"\$\{(?:(\w+):)?([\w/]+)\}")


@dataclass(frozen=True, slots=True)
class FoundServer:
    """One entry: ``table`` is the import, or None with the reason why it ``stays`` in the client."""

    name: str
    table: Mapping[str, Any] | None
    stays: str = ""


class _StaysError(Exception):
    """The hub cannot connect as the entry asks for; the text is the reason."""


def is_hub(entry: Any, client: Client) -> bool:
    """Whether an entry is a hub of this program: by its command, or by the token of a state."""
    if not isinstance(entry, dict):
        return False
    command, args = entry.get("command"), entry.get("args")
    if isinstance(command, str):
        return _starts_hub([command, *map(str, args if isinstance(args, list) else ())])
    url = next((entry[key] for key in _URL_KEYS if isinstance(entry.get(key), str)), "")
    headers = entry.get(client.headers_key)
    values = headers.values() if isinstance(headers, dict) else ()
    return urlsplit(url).path.endswith("/mcp") and any(
        str(header).startswith(_LOCAL_TOKEN) for header in values
    )


def read_server(name: str, entry: Any, client: Client, at: Places, folder: Path | None) -> FoundServer:
    """The import of an entry; ``folder`` is the project that the configuration belongs to."""
    try:
        return FoundServer(name, _read_table(entry, client, _Text(client, at, folder)))
    except _StaysError as reason:
        return FoundServer(name, None, str(reason))


def _read_table(entry: Any, client: Client, text: _Text) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _StaysError("it is no object")
    if any(entry.get(key) is value for key, value in _SWITCHED_OFF.items()):
        raise _StaysError("it is switched off")
    if limits := next((key for key in _TOOL_FILTERS if entry.get(key)), None):
        raise _StaysError(f"{limits} limits its tools, which an import cannot do")
    if login := next((key for key in _OWN_LOGINS if entry.get(key)), None):
        raise _StaysError(f"{client.title} logs in for it ({login})")
    if "envFile" in entry:
        raise _StaysError("it reads variables from a file (envFile)")
    url = next((entry[key] for key in _URL_KEYS if isinstance(entry.get(key), str)), None)
    if url is not None:
        # in Gemini CLI, url means that transport, and httpUrl the present one
        is_old = client.url_key == "httpUrl" and "httpUrl" not in entry
        if entry.get("type", "sse" if is_old else "http") == "sse":
            raise _StaysError("it uses the HTTP+SSE transport of 2024, which the hub does not speak")
        place = text.read_fixed(url, "its url")
        if not is_web_url(place):
            raise _StaysError("its url is not an http or https url")
        return {"url": place, "headers": _read_headers(entry, client, text)}
    return _read_program(entry, text)


def _read_headers(entry: Mapping[str, Any], client: Client, text: _Text) -> dict[str, str]:
    headers = _read_texts(entry, "headers") | _read_texts(entry, client.headers_key)
    pairs = {key: text.read(value) for key, value in headers.items()}
    for key, variable in _read_texts(entry, "env_http_headers").items():
        pairs[key] = f"${{{variable}}}"
    if token_variable := entry.get("bearer_token_env_var"):
        pairs["Authorization"] = f"Bearer ${{{token_variable}}}"
    return pairs


def _read_program(entry: Mapping[str, Any], text: _Text) -> dict[str, Any]:
    command: Any = entry.get("command")
    if isinstance(command, dict):
        # the form of Zed before 2025-11
        entry = {"args": command.get("args"), "env": command.get("env")}
        command = command.get("path")
    if not isinstance(command, str) or not command:
        raise _StaysError("it has neither a command nor a url: it may belong to an extension of the client")
    args = entry.get("args")
    if args is not None and not isinstance(args, list):
        raise _StaysError(f"its args is {_kind_of(args)}, not a list")
    for argument in args or ():
        if not _is_text(argument):
            raise _StaysError(f"its args hold {_kind_of(argument)}, not a text")
    table: dict[str, Any] = {
        "command": text.read_fixed(command, "its command"),
        "args": [text.read_fixed(str(argument), "its arguments") for argument in args or ()],
        "env": {key: text.read(value) for key, value in _read_texts(entry, "env").items()},
    }
    passed_on = entry.get("env_vars")
    for variable in passed_on if isinstance(passed_on, list) else ():
        table["env"].setdefault(str(variable), f"${{{variable}}}")
    folder = entry.get("cwd")
    if isinstance(folder, str):
        cwd = Path(text.read_fixed(folder, "its cwd"))
        table["folder"] = str(cwd if text.folder is None else text.folder / cwd)
    elif text.folder is not None:
        table["folder"] = str(text.folder)
    if isinstance(start_s := entry.get("startup_timeout_sec"), int | float) and start_s > 0:
        table["start_s"] = float(start_s)
    return table


def _read_texts(entry: Mapping[str, Any], key: str) -> dict[str, str]:
    """The object of strings at ``key``, without nulls. Raises `_StaysError` for other types."""
    variables = entry.get(key)
    if variables is not None and not isinstance(variables, dict):
        raise _StaysError(f"its {key} is {_kind_of(variables)}, not an object")
    own = {name: value for name, value in (variables or {}).items() if value is not None}
    for name, value in own.items():
        if not _is_text(value):
            raise _StaysError(f"its {key} {name} is {_kind_of(value)}, not a text")
    return {name: str(value) for name, value in own.items()}


def _is_text(value: Any) -> bool:
    """Whether every client passes it on as one text: a number looks the same in each."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _kind_of(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def is_web_url(url: str) -> bool:
    """Whether it is an http or https url with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_own_hub(table: Mapping[str, Any], hub_url: str | None) -> bool:
    """Whether an import would connect to the hub that runs it: by its url, or by ``retinue mcp``.

    ``RETINUE_HOME`` and ``RETINUE_HUB`` in its env lead to another hub; ``--agent`` to one agent.
    """
    if command := table.get("command"):
        words = [str(command), *map(str, table.get("args") or ())]
        env = table.get("env") or {}
        return _starts_hub(words) and "--agent" not in words and not env.keys() & _OTHER_HUB
    url, own = table.get("url"), hub_url
    if not url or not own:
        return False
    return _address_of(str(url)) == (*_address_of(own)[:2], "/mcp")


def _starts_hub(words: Sequence[str]) -> bool:
    named = Path(words[0]).name.removesuffix(".exe") == "retinue" or list(words[1:3]) == ["-m", "retinue"]
    return named and "mcp" in words[1:]


def _address_of(url: str) -> tuple[str, int | None, str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_here = host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")  # noqa: S104 - read
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return "localhost" if is_here else host, port, parts.path.rstrip("/")


class _Text:
    """Reads the strings of an entry, with the variables that its client replaces in them."""

    def __init__(self, client: Client, at: Places, folder: Path | None) -> None:
        self.folder = folder
        self._at = at
        self._pattern = {
            "claude": _BRACED_NAME,
            "gemini": _DOLLAR_NAME,
            "cursor": _EDITOR_NAME,
            "vscode": _EDITOR_NAME,
        }.get(client.name)

    def read(self, text: str) -> str:
        """The text with variables as ``${NAME}`` and every other dollar sign doubled."""
        return "".join(
            f"${{{piece.name}}}" if isinstance(piece, _Variable) else piece.replace("$", "$$")
            for piece in self._split(text)
        )

    def read_fixed(self, text: str, what: str) -> str:
        """The text as it is. Raises `_StaysError` for a variable, because imports have them in env and
        headers.
        """
        pieces = []
        for piece in self._split(text):
            if isinstance(piece, _Variable):
                raise _StaysError(
                    f"{what} contain the variable {piece.name}; an import has variables only "
                    "in env and headers"
                )
            pieces.append(piece)
        return "".join(pieces)

    def _split(self, text: str) -> list[str | _Variable]:
        pieces: list[str | _Variable] = []
        at = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            pieces += [text[at : match.start()], self._value_of(match)]
            at = match.end()
        return [*pieces, text[at:]]

    def _value_of(self, match: re.Match[str]) -> str | _Variable:
        if self._pattern is not _EDITOR_NAME:
            name = match[1] or (match[2] if self._pattern is _DOLLAR_NAME else "")
            default = match[2] if self._pattern is _BRACED_NAME else None
            return _Variable(name) if default is None or name in self._at.environ else default
        kind, name = match[1], match[2]
        if kind == "env":
            return _Variable(name)
        known = {"userHome": str(self._at.home), "pathSeparator": "/", "/": "/"}
        if self.folder is not None:
            known |= {"workspaceFolder": str(self.folder), "workspaceFolderBasename": self.folder.name}
        if kind is None and name in known:
            return known[name]
        raise _StaysError(f"only the client knows {match[0]}")


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str
