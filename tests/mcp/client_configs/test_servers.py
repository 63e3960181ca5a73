"""A client's entries as imports: what each client's own syntax means, and what cannot be moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.mcp.client_configs.clients import CLIENTS, Places
from retinue.mcp.client_configs.servers import is_hub, read_server

AT = Places("linux", Path("/home/ada"), {"SET": "1"})
PROJECT = Path("/work/app")


def _read(client: str, entry: Any, folder: Path | None = None) -> Any:
    found = read_server("one", entry, CLIENTS[client], AT, folder)
    return found.stays if found.table is None else found.table


@pytest.mark.parametrize(
    ("client", "written", "read"),
    [
        ("claude", "${TOKEN}", "${TOKEN}"),
        ("claude", "${TOKEN:-none}", "none"),
        ("claude", "${SET:-none}", "${SET}"),
        ("claude", "pa$$word $1", "pa$$$$word $$1"),
        ("gemini", "$TOKEN/${TOKEN}", "${TOKEN}/${TOKEN}"),
        ("cursor", "${env:TOKEN}@${userHome}", "${TOKEN}@/home/ada"),
        ("vscode", "${env:TOKEN}", "${TOKEN}"),
        ("codex", "$TOKEN", "$$TOKEN"),
        ("zed", "${TOKEN}", "$${TOKEN}"),
        ("claude-desktop", "$", "$$"),
    ],
)
def test_variables_mean_in_the_hub_what_they_meant_in_the_client(
    client: str, written: str, read: str
) -> None:
    assert _read(client, {"command": "x", "env": {"K": written}})["env"] == {"K": read}


def test_a_server_of_a_project_runs_in_the_folder_of_the_project() -> None:
    entry = {"command": "x", "args": ["${workspaceFolder}/a", "${workspaceFolderBasename}"]}
    table = _read("vscode", entry, PROJECT)
    assert table["args"] == ["/work/app/a", "app"]
    assert table["folder"] == "/work/app"
    assert _read("gemini", {"command": "x", "cwd": "sub"}, PROJECT)["folder"] == "/work/app/sub"
    assert "folder" not in _read("claude", {"command": "x"})


def test_codex_names_variables_by_keys_of_their_own() -> None:
    entry = {
        "url": "https://x.example/mcp",
        "bearer_token_env_var": "TOKEN",
        "http_headers": {"A": "$b"},
        "env_http_headers": {"C": "D"},
    }
    assert _read("codex", entry)["headers"] == {"Authorization": "Bearer ${TOKEN}", "A": "$$b", "C": "${D}"}
    table = _read("codex", {"command": "x", "env_vars": ["E"], "startup_timeout_sec": 20})
    assert (table["env"], table["start_s"]) == ({"E": "${E}"}, 20.0)


def test_the_former_form_of_zed_is_read_too() -> None:
    table = _read("zed", {"command": {"path": "x", "args": ["-y"], "env": {"A": "b"}}})
    assert table == {"command": "x", "args": ["-y"], "env": {"A": "b"}}


@pytest.mark.parametrize(
    ("client", "entry", "reason"),
    [
        ("claude", "text", "it is no object"),
        ("claude", {"command": "x", "disabled": True}, "it is switched off"),
        ("codex", {"command": "x", "enabled": False}, "it is switched off"),
        ("gemini", {"command": "x", "excludeTools": ["rm"]}, "excludeTools limits its tools"),
        ("gemini", {"url": "https://x.example/sse"}, "the HTTP+SSE transport of 2024"),
        ("claude", {"type": "sse", "url": "https://x.example/sse"}, "the HTTP+SSE transport of 2024"),
        ("claude", {"url": "https://x.example", "headersHelper": "p"}, "Claude Code logs in for it"),
        (
            "claude",
            {"command": "x", "args": ["--token", "${TOKEN}"]},
            "its arguments contain the variable TOKEN",
        ),
        ("vscode", {"command": "x", "env": {"K": "${input:key}"}}, "only the client knows ${input:key}"),
        ("vscode", {"command": "x", "envFile": ".env"}, "envFile"),
        ("zed", {"source": "extension", "settings": {}}, "it may belong to an extension"),
        ("cursor", {"command": "x", "args": "run.py"}, "its args is a string, not a list"),
        ("cursor", {"command": "x", "args": ["-n", True]}, "its args hold true or false, not a text"),
        ("cursor", {"command": "x", "args": [None]}, "its args hold null, not a text"),
        ("cursor", {"command": "x", "env": {"K": True}}, "its env K is true or false, not a text"),
        ("cursor", {"command": "x", "env": ["K=1"]}, "its env is a list, not an object"),
        ("cursor", {"url": "https://x.example/mcp", "headers": {"A": {}}}, "its headers A is an object"),
        ("cursor", {"url": "ws://x.example/mcp"}, "its url is not an http or https url"),
        ("cursor", {"url": "https://"}, "its url is not an http or https url"),
        ("cursor", {"url": "http://[::1/mcp"}, "its url is not an http or https url"),
    ],
)
def test_what_the_hub_cannot_do_as_the_client_does_stays_with_its_reason(
    client: str, entry: Any, reason: str
) -> None:
    assert reason in _read(client, entry)


def test_numbers_are_read_as_text_and_a_variable_without_a_value_is_left_out() -> None:
    table = _read("vscode", {"command": "x", "args": ["-p", 80], "env": {"N": 3, "NONE": None}})
    assert table == {"command": "x", "args": ["-p", "80"], "env": {"N": "3"}}


def test_a_hub_is_known_by_its_command_or_by_its_token() -> None:
    claude = CLIENTS["claude"]
    token = {"Authorization": "Bearer rtn_local_x"}
    assert is_hub({"url": "http://127.0.0.1:9000/mcp", "headers": token}, claude)
    assert is_hub({"command": "/opt/bin/retinue", "args": ["mcp"]}, claude)
    assert is_hub({"command": "python", "args": ["-m", "retinue", "mcp"]}, claude)
    assert not is_hub({"command": "retinue", "args": ["serve", "--stdio", "x.py"]}, claude)
    assert not is_hub({"url": "http://127.0.0.1:9000/mcp", "headers": {"Authorization": "Bearer x"}}, claude)
    assert not is_hub({"url": 1, "headers": []}, claude)
