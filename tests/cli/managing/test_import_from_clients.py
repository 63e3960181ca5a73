"""``retinue import``: servers of the seven clients, in their own forms, shown and chosen; a misplaced URL."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retinue.mcp.client_configs.clients import CLIENTS, Places
from retinue.mcp.client_configs.config_files import find_file
from retinue.storage.state import State
from tests.cli.conftest import Retinue

NAMES = list(CLIENTS)


@dataclass(frozen=True)
class Form:
    """A configuration as its client has it: ``files`` and ``docs`` can be imported, ``off`` cannot.

    ``docs`` is at a url where the client can have one. ``tables`` are the imports that come of it.
    """

    text: str
    tables: dict[str, dict[str, Any]]
    stays: str = "it is switched off"


FILES = {"command": "npx", "args": ["-y", "server-files", "/notes"]}
KEY = {"env": {"KEY": "${FILES_KEY}"}}
DOCS = {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}}
FIXED = {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer abc"}}

FORMS = {
    "claude": Form(
        """{
  "numStartups": 3,
  "mcpServers": {
    "files": {"type": "stdio", "command": "npx", "args": ["-y", "server-files", "/notes"],
              "env": {"KEY": "${FILES_KEY}"}},
    "docs": {"type": "http", "url": "https://docs.example/mcp",
             "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}},
    "off": {"type": "sse", "url": "https://old.example/sse"},
    "retinue": {"type": "http", "url": "http://127.0.0.1:9000/mcp",
                "headers": {"Authorization": "Bearer rtn_local_x"}}
  }
}""",
        {"files": FILES | KEY, "docs": DOCS},
        "the HTTP+SSE transport of 2024",
    ),
    "claude-desktop": Form(
        """{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "server-files", "/notes"], "env": {"KEY": "abc"}},
    "docs": {"command": "npx", "args": ["-y", "mcp-remote", "https://docs.example/mcp"]},
    "off": {"command": "x", "disabled": true},
    "retinue": {"command": "/opt/bin/retinue", "args": ["mcp"], "env": {"RETINUE_HOME": "/state"}}
  }
}""",
        {
            "files": FILES | {"env": {"KEY": "abc"}},
            "docs": {"command": "npx", "args": ["-y", "mcp-remote", "https://docs.example/mcp"]},
        },
    ),
    "cursor": Form(
        """{
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "server-files", "/notes"],
              "env": {"KEY": "${env:FILES_KEY}"}},
    "docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${env:DOCS_TOKEN}"}},
    "off": {"command": "x", "envFile": ".env"}
  }
}""",
        {"files": FILES | KEY, "docs": DOCS},
        "it reads variables from a file (envFile)",
    ),
    "vscode": Form(
        """{
\t"inputs": [{"type": "promptString", "id": "key", "password": true}],
\t"servers": {
\t\t"files": {"type": "stdio", "command": "npx", "args": ["-y", "server-files", "/notes"],
\t\t\t"env": {"KEY": "${env:FILES_KEY}"}},
\t\t// with a token
\t\t"docs": {"type": "http", "url": "https://docs.example/mcp",
\t\t\t"headers": {"Authorization": "Bearer ${env:DOCS_TOKEN}"}},
\t\t"off": {"type": "stdio", "command": "x", "env": {"K": "${input:key}"}},
\t}
}""",
        {"files": FILES | KEY, "docs": DOCS},
        "only the client knows ${input:key}",
    ),
    "gemini": Form(
        """{
  "theme": "Dracula",
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "server-files", "/notes"], "env": {"KEY": "$FILES_KEY"},
              "timeout": 30000, "trust": false},
    "docs": {"httpUrl": "https://docs.example/mcp", "headers": {"Authorization": "Bearer $DOCS_TOKEN"}},
    "off": {"command": "x", "excludeTools": ["rm"]}
  }
}""",
        {"files": FILES | KEY, "docs": DOCS},
        "excludeTools limits its tools",
    ),
    "codex": Form(
        """model = "gpt-5.1-codex"  # the default

[mcp_servers.files]
command = "npx"
args = ["-y", "server-files", "/notes"]
env = { KEY = "abc" }
startup_timeout_sec = 20

[mcp_servers.docs]
url = "https://docs.example/mcp"
bearer_token_env_var = "DOCS_TOKEN"

[mcp_servers.off]
command = "x"
enabled = false
""",
        {"files": FILES | {"env": {"KEY": "abc"}, "start_s": 20.0}, "docs": DOCS},
    ),
    "zed": Form(
        """// Zed settings
{
  "buffer_font_size": 15,
  "context_servers": {
    "files": {"source": "custom", "command": "npx", "args": ["-y", "server-files", "/notes"],
              "env": {"KEY": "abc"}},
    "docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer abc"}},
    "off": {"source": "extension", "settings": {}},
  },
}
""",
        {"files": FILES | {"env": {"KEY": "abc"}}, "docs": FIXED},
        "it may belong to an extension",
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty home of a person."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def write(home: Path, client: str) -> Path:
    """The configuration of the person, where the client has it."""
    places = Places("linux", home, {"XDG_CONFIG_HOME": str(home / ".config")})
    file = find_file(CLIENTS[client].files(places))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FORMS[client].text)
    return file


def kept(retinue_home: Path) -> dict[str, Any]:
    """The imports of the state."""
    file = State(retinue_home).imports
    return tomllib.loads(file.read_text()) if file.exists() else {}


def test_every_client_has_a_form() -> None:
    assert list(FORMS) == NAMES


@pytest.mark.parametrize("client", NAMES)
def test_the_servers_of_a_client_are_shown_and_nothing_is_kept(
    retinue: Retinue, home: Path, retinue_home: Path, client: str
) -> None:
    file = write(home, client)
    shown = retinue("import", client)
    assert shown.exit_code == 0, shown.output
    assert "npx -y server-files /notes" in shown.output
    assert "https://docs.example/mcp" in shown.output
    assert FORMS[client].stays in shown.output
    assert f"retinue import {client} --all" in shown.output
    assert "9000" not in shown.output
    assert "/opt/bin/retinue" not in shown.output
    assert kept(retinue_home) == {}
    assert file.read_text() == FORMS[client].text


@pytest.mark.parametrize("client", NAMES)
def test_all_servers_of_a_client_are_kept_but_those_that_the_hub_cannot_run(
    retinue: Retinue, home: Path, retinue_home: Path, client: str
) -> None:
    file = write(home, client)
    said = retinue("import", client, "--all")
    assert said.exit_code == 0, said.output
    (left_out,) = [line for line in said.output.splitlines() if "is left out" in line]
    assert left_out.startswith("off ")
    assert FORMS[client].stays in left_out
    assert "kept: files, docs" in said.output
    assert kept(retinue_home) == FORMS[client].tables
    assert file.read_text() == FORMS[client].text


@pytest.mark.parametrize("client", NAMES)
def test_servers_of_a_client_are_chosen_by_their_names(
    retinue: Retinue, home: Path, retinue_home: Path, client: str
) -> None:
    write(home, client)
    assert retinue("import", client, "docs").exit_code == 0
    assert kept(retinue_home) == {"docs": FORMS[client].tables["docs"]}
    refused = retinue("import", client, "docs", "missing")
    assert (refused.exit_code, "one of files, docs, off" in refused.output) == (2, True)
    refused = retinue("import", client, "off")
    assert (refused.exit_code, FORMS[client].stays in refused.output) == (2, True)
    assert list(kept(retinue_home)) == ["docs"]


@pytest.mark.parametrize("client", [name for name in NAMES if CLIENTS[name].project_file])
def test_the_servers_of_a_project_stand_beside_those_of_the_person(
    retinue: Retinue, home: Path, retinue_home: Path, tmp_path: Path, client: str
) -> None:
    write(home, client)
    project = tmp_path / "app"
    file = project / CLIENTS[client].project_file
    file.parent.mkdir(parents=True)
    file.write_text(
        '[mcp_servers.shared]\ncommand = "./run"\n'
        if client == "codex"
        else json.dumps({CLIENTS[client].container: {"shared": {"command": "./run", "args": ["-v"]}}})
    )
    assert "./run" not in retinue("import", client).output
    assert "./run" in retinue("import", client, "--project", str(project)).output
    said = retinue("import", client, "--project", str(project), "shared", "files")
    assert said.exit_code == 0, said.output
    arguments = {} if client == "codex" else {"args": ["-v"]}
    shared = {"command": "./run", "folder": str(project)} | arguments
    assert kept(retinue_home) == {"files": FORMS[client].tables["files"], "shared": shared}


def test_what_claude_code_keeps_for_one_project_belongs_to_that_project(
    retinue: Retinue, home: Path, retinue_home: Path, tmp_path: Path
) -> None:
    project = tmp_path / "app"
    project.mkdir()
    own = {"projects": {str(project): {"mcpServers": {"mine": {"command": "x", "args": []}}}}}
    (home / ".claude.json").write_text(json.dumps(own))
    assert "has no MCP servers" in retinue("import", "claude").output
    assert retinue("import", "claude", "--project", str(project), "--all").exit_code == 0
    assert kept(retinue_home) == {"mine": {"command": "x", "folder": str(project)}}


@pytest.mark.parametrize("client", [name for name in NAMES if not CLIENTS[name].project_file])
def test_a_client_without_projects_says_so(retinue: Retinue, home: Path, tmp_path: Path, client: str) -> None:
    write(home, client)
    refused = retinue("import", client, "--project", str(tmp_path))
    assert (refused.exit_code, "has no configuration for projects" in refused.output) == (2, True)


@pytest.mark.parametrize("before", [[], ["--"]])
def test_a_url_in_the_place_of_the_command_is_refused_with_the_option(
    retinue: Retinue, retinue_home: Path, before: list[str]
) -> None:
    refused = retinue("import", "mcp-server", "docs", *before, "https://docs.example/mcp")
    assert refused.exit_code == 2
    assert "is a URL, not a command: give it as --url https://docs.example/mcp" in refused.output
    assert not (retinue_home / "imports.toml").exists()
