"""Each client's own configuration: where it lies, what an entry says, and what stays untouched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retinue.cli.managing.connect import NAMES
from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs.clients import CLIENTS, Client, Places, get_client
from tests.mcp.client_configs.samples import BY_CLIENT

URL = "http://127.0.0.1:9000/mcp"
HEADERS = {"Authorization": "Bearer secret"}
STDIO = {"command": "/opt/retinue", "args": ["mcp"], "env": {"RETINUE_HOME": "/home/ädä/.retinue"}}

HTTP_ENTRIES: dict[str, dict[str, Any]] = {
    "claude": {"type": "http", "url": URL, "headers": HEADERS},
    "cursor": {"url": URL, "headers": HEADERS},
    "vscode": {"type": "http", "url": URL, "headers": HEADERS},
    "gemini": {"httpUrl": URL, "headers": HEADERS},
    "codex": {"url": URL, "http_headers": HEADERS},
    "zed": {"url": URL, "headers": HEADERS},
}


def _stdio(client: Client) -> dict[str, Any]:
    return client.render_stdio("/opt/retinue", ["mcp"], {"RETINUE_HOME": "/home/ädä/.retinue"})


def _entries(client: Client) -> list[dict[str, Any]]:
    return [_stdio(client), *([client.render_http(URL, "secret")] if client.url_key else [])]


def test_the_command_line_names_them_all() -> None:
    assert tuple(CLIENTS) == NAMES == tuple(BY_CLIENT)
    with pytest.raises(InvalidSettingError, match="'emacs' is unknown"):
        get_client("emacs")


@pytest.mark.parametrize("name", CLIENTS)
def test_an_entry_says_what_the_client_reads(name: str) -> None:
    client = CLIENTS[name]
    assert (client.url_key is None) == (name not in HTTP_ENTRIES)
    if client.url_key:
        assert client.render_http(URL, "secret") == HTTP_ENTRIES[name]
        assert not {"headers", "http_headers"} & client.render_http(URL, None).keys()
    typed = {"type": "stdio"} if name in ("claude", "vscode") else {}
    assert _stdio(client) == typed | STDIO


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_persons_configuration_takes_the_entry_in_and_gives_it_up_again(
    name: str, mark: str, line_end: str
) -> None:
    client = CLIENTS[name]
    text = mark + BY_CLIENT[name].lstrip("\ufeff").replace("\r\n", "\n").replace("\n", line_end)
    for entry in _entries(client):
        edited = client.write_entry(text, "retinue", entry, "f")
        assert client.read_entry(edited, "retinue", "f") == entry
        assert client.write_entry(edited, "retinue", entry, "f") == edited
        assert edited.count("\n") == edited.count(line_end)
        others = client.remove_entry(edited, "retinue", "f")
        if name not in ("gemini", "claude-desktop"):
            assert others == text
        assert client.read_entry(others, "retinue", "f") is None


@pytest.mark.parametrize("name", HTTP_ENTRIES)
def test_the_other_form_replaces_the_first_and_keeps_what_the_person_added(name: str) -> None:
    client = CLIENTS[name]
    http, stdio = client.render_http(URL, "secret"), _stdio(client)
    text = client.write_entry(BY_CLIENT[name], "retinue", http | {"timeout": "9"}, "f")
    switched = client.write_entry(text, "retinue", stdio, "f")
    assert client.read_entry(switched, "retinue", "f") == stdio | {"timeout": "9"}
    back = client.write_entry(switched, "retinue", http, "f")
    assert client.read_entry(back, "retinue", "f") == http | {"timeout": "9"}


def test_a_comment_in_the_entry_stays_when_the_port_changes() -> None:
    text = '{"servers": {\n  "retinue": {\n    // mine\n    "url": "http://127.0.0.1:9000/mcp"\n  }\n}}\n'
    edited = CLIENTS["vscode"].write_entry(text, "retinue", {"url": "http://127.0.0.1:9001/mcp"}, "f")
    assert edited == text.replace(":9000", ":9001")


PLACES: list[tuple[str, str, Mapping[str, str], str]] = [
    ("claude", "linux", {}, ".claude.json"),
    ("claude", "darwin", {"CLAUDE_CONFIG_DIR": "{home}/.claude-work"}, ".claude-work/.claude.json"),
    ("claude-desktop", "darwin", {}, "Library/Application Support/Claude/claude_desktop_config.json"),
    ("claude-desktop", "linux", {}, ".config/Claude/claude_desktop_config.json"),
    ("claude-desktop", "win32", {"APPDATA": "{home}/R"}, "R/Claude/claude_desktop_config.json"),
    ("cursor", "win32", {}, ".cursor/mcp.json"),
    ("vscode", "linux", {"XDG_CONFIG_HOME": "{home}/cfg"}, "cfg/Code/User/mcp.json"),
    ("vscode", "darwin", {}, "Library/Application Support/Code/User/mcp.json"),
    ("vscode", "win32", {}, "AppData/Roaming/Code/User/mcp.json"),
    ("gemini", "linux", {}, ".gemini/settings.json"),
    ("gemini", "linux", {"GEMINI_CLI_HOME": "{home}/gm"}, "gm/.gemini/settings.json"),
    ("codex", "linux", {}, ".codex/config.toml"),
    ("codex", "darwin", {"CODEX_HOME": "{home}/cx"}, "cx/config.toml"),
    ("zed", "linux", {"XDG_CONFIG_HOME": "{home}/cfg"}, "cfg/zed/settings.json"),
    ("zed", "darwin", {"XDG_CONFIG_HOME": "{home}/cfg"}, ".config/zed/settings.json"),
    ("zed", "win32", {}, "AppData/Roaming/Zed/settings.json"),
]


@pytest.mark.parametrize(("name", "platform", "environ", "place"), PLACES)
def test_a_configuration_lies_where_the_client_looks(
    name: str, platform: str, environ: Mapping[str, str], place: str, tmp_path: Path
) -> None:
    variables = {key: value.format(home=tmp_path) for key, value in environ.items()}
    files = CLIENTS[name].files(Places(platform, tmp_path, variables))
    assert files[-1] == tmp_path / place


def test_packaged_builds_for_windows_have_places_of_their_own(tmp_path: Path) -> None:
    found = CLIENTS["claude-desktop"].files(
        Places("win32", tmp_path, {"LOCALAPPDATA": str(tmp_path / "[L]")})
    )
    assert [str(file.relative_to(tmp_path)) for file in found[:2]] == [
        "[[]L]/Claude-Data/[Cc]laude*/claude_desktop_config.json",
        "[[]L]/Packages/Claude_*/LocalCache/Roaming/Claude/claude_desktop_config.json",
    ]
