"""The supported MCP clients: where each keeps its configuration, and the form of an entry there.

Paths and keys are from the clients' documentation of November 2026. The entry of a hub is written into the
user's configuration only, never into a project's, because it holds a token, and projects are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal

from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs import jsonc as jsonc_edit
from retinue.mcp.client_configs import toml as toml_edit

TRANSPORT_KEYS = frozenset(
    {"type", "url", "httpUrl", "headers", "http_headers", "command", "args", "env", "source"}
    | {"bearer_token_env_var", "env_http_headers"}
)
"""Keys of the other form of an entry, removed when the form changes; all other keys are the user's own."""

TOKEN_KEYS = frozenset({"headers", "http_headers", "bearer_token_env_var", "env_http_headers"})
"""Keys that may hold the token for the hub."""


@dataclass(frozen=True, slots=True)
class Places:
    """The facts that determine the location of a configuration; ``platform`` as in ``sys.platform``."""

    platform: str
    home: Path
    environ: Mapping[str, str]

    def folder(self, variable: str, default: Path) -> Path:
        """The folder that the variable names, else the default."""
        return Path(folder).expanduser() if (folder := self.environ.get(variable)) else default

    @property
    def application_data(self) -> Path:
        """The folder for the settings of desktop programs."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return self.folder("APPDATA", self.home / "AppData" / "Roaming")
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its configuration file, the keys of both forms of an entry, and the next step for the user.

    ``files`` returns candidates: the first whose folder exists is used, else the last; all but the last may
    hold ``glob`` wildcards. ``url_key`` is None if the client can only start programs. ``program`` is its
    name on the PATH.
    """

    name: str
    title: str
    files: Callable[[Places], tuple[Path, ...]]
    container: str
    next_step: str
    url_key: str | None = "url"
    headers_key: str = "headers"
    typed: bool = False
    format: Literal["json", "toml"] = "json"
    program: str = ""
    project_file: str = ""
    """Path of the configuration that belongs to a project, in the folder of that project."""
    project_container: Callable[[Path], tuple[str, ...]] | None = None
    """Where the user's configuration keeps the servers of one project."""

    def render_http(self, url: str, token: str | None) -> dict[str, Any]:
        """An entry with the url of the hub."""
        assert self.url_key is not None, self.name
        entry: dict[str, Any] = {"type": "http"} if self.typed else {}
        entry[self.url_key] = url
        if token is not None:
            entry[self.headers_key] = {"Authorization": f"Bearer {token}"}
        return entry

    def render_stdio(self, command: str, arguments: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
        """An entry that starts a program and uses its standard input and output."""
        entry: dict[str, Any] = {"type": "stdio"} if self.typed else {}
        return entry | {"command": command, "args": arguments, "env": dict(environ)}

    def read_entry(self, text: str, entry_name: str, where: str) -> Any:
        """The entry of that name, or None. Raises InvalidSettingError for invalid syntax."""
        codec = toml_edit if self.format == "toml" else jsonc_edit
        return codec.read_value(text, (self.container, entry_name), where)

    def read_document(self, text: str, where: str) -> dict[str, Any]:
        """The whole configuration, {} if it is empty. Raises InvalidSettingError for invalid syntax."""
        codec = toml_edit if self.format == "toml" else jsonc_edit
        entries = codec.read_value(text, (), where)
        return dict(entries) if isinstance(entries, dict) else {}

    def list_entries(self, text: str, where: str, container: tuple[str, ...] = ()) -> dict[str, Any]:
        """Every entry by name, {} if there is none. Raises InvalidSettingError for invalid syntax."""
        codec = toml_edit if self.format == "toml" else jsonc_edit
        entries = codec.read_value(text, container or (self.container,), where)
        return dict(entries) if isinstance(entries, dict) else {}

    def write_entry(self, text: str, entry_name: str, entry: dict[str, Any], where: str) -> str:
        """The text with the entry added; unchanged if it has the entry.

        In an existing entry only the keys for the connection change.
        """
        path = (self.container, entry_name)
        if self.format == "toml":
            return toml_edit.set_table(text, path, entry, TRANSPORT_KEYS, where)
        old = self.read_entry(text, entry_name, where)
        if not isinstance(old, dict):
            return jsonc_edit.set_value(text, path, entry, where)
        for key in sorted(TRANSPORT_KEYS & old.keys() - entry.keys()):
            text = jsonc_edit.remove_value(text, (*path, key), where)
        for key, value in entry.items():
            text = jsonc_edit.set_value(text, (*path, key), value, where)
        return text

    def copy_entry(
        self, text: str, source: str, entry_name: str, where: str, container: tuple[str, ...] = ()
    ) -> str:
        """The text with the entry of another text. In JSON it is copied with its comments."""
        path = (*(container or (self.container,)), entry_name)
        if self.format == "toml":
            entry = toml_edit.read_value(source, path, where)
            return toml_edit.set_table(text, path, entry, frozenset(), where)
        return jsonc_edit.copy_value(text, source, path, where)

    def remove_entry(self, text: str, entry_name: str, where: str, container: tuple[str, ...] = ()) -> str:
        """The text without the entry; unchanged if it has none."""
        path = (*(container or (self.container,)), entry_name)
        if self.format == "toml":
            return toml_edit.remove_table(text, path, where)
        return jsonc_edit.remove_value(text, path, where)


def get_client(name: str) -> Client:
    """The client of that name. Raises InvalidSettingError."""
    if name not in CLIENTS:
        raise InvalidSettingError("CLIENT", f"{name!r} is unknown", remedy=f"one of {', '.join(CLIENTS)}")
    return CLIENTS[name]


def _find_claude(at: Places) -> tuple[Path, ...]:
    return (at.folder("CLAUDE_CONFIG_DIR", at.home) / ".claude.json",)


def _find_claude_desktop(at: Places) -> tuple[Path, ...]:
    file = "claude_desktop_config.json"
    usual = at.application_data / "Claude" / file
    if at.platform != "win32":
        return (usual,)
    local = Path(escape(str(at.folder("LOCALAPPDATA", at.home / "AppData" / "Local"))))
    # Packaged builds have their own folder in place of %APPDATA%.
    packaged = local / "Packages" / "Claude_*" / "LocalCache" / "Roaming" / "Claude" / file
    return (local / "Claude-Data" / "[Cc]laude*" / file, packaged, usual)


def _find_zed(at: Places) -> tuple[Path, ...]:
    if at.platform == "win32":
        return (at.application_data / "Zed" / "settings.json",)
    config = at.home / ".config"
    if at.platform != "darwin":
        config = at.folder("XDG_CONFIG_HOME", config)
    return (config / "zed" / "settings.json",)


CLIENTS = {
    client.name: client
    for client in (
        Client(
            "claude",
            "Claude Code",
            _find_claude,
            "mcpServers",
            "start claude and type: /mcp",
            typed=True,
            program="claude",
            project_file=".mcp.json",
            project_container=lambda folder: ("projects", str(folder), "mcpServers"),
        ),
        Client(
            "claude-desktop",
            "Claude Desktop",
            _find_claude_desktop,
            "mcpServers",
            "quit Claude Desktop and start it again; its tools stand under Settings, Developer",
            url_key=None,
        ),
        Client(
            "cursor",
            "Cursor",
            lambda at: (at.home / ".cursor" / "mcp.json",),
            "mcpServers",
            "restart Cursor; the server stands under Settings, MCP, where it is switched on",
            program="cursor",
            project_file=".cursor/mcp.json",
        ),
        Client(
            "vscode",
            "VS Code",
            lambda at: (at.application_data / "Code" / "User" / "mcp.json",),
            "servers",
            "in VS Code run the command: MCP: List Servers, choose the server and start it",
            typed=True,
            program="code",
            project_file=".vscode/mcp.json",
        ),
        Client(
            "gemini",
            "Gemini CLI",
            lambda at: (at.folder("GEMINI_CLI_HOME", at.home) / ".gemini" / "settings.json",),
            "mcpServers",
            "start gemini in a folder that it trusts (else it connects to nothing) and type: /mcp",
            url_key="httpUrl",
            program="gemini",
            project_file=".gemini/settings.json",
        ),
        Client(
            "codex",
            "Codex",
            lambda at: (at.folder("CODEX_HOME", at.home / ".codex") / "config.toml",),
            "mcp_servers",
            "start codex and type: /mcp",
            headers_key="http_headers",
            format="toml",
            program="codex",
            project_file=".codex/config.toml",
        ),
        Client(
            "zed",
            "Zed",
            _find_zed,
            "context_servers",
            "open the agent panel of Zed; its settings show the server with a green dot",
            program="zed",
        ),
    )
}
"""By the name used on the command line."""
