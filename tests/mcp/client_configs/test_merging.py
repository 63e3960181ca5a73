"""Moved servers put back: byte for byte, and into configurations that were changed since."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.mcp.client_configs.clients import CLIENTS, Client
from retinue.mcp.client_configs.jsonc import set_value
from retinue.mcp.client_configs.merging import MovedEntry, PutBack, put_back
from retinue.mcp.client_configs.toml import set_table
from tests.mcp.client_configs.samples import BY_CLIENT

SERVERS: dict[str, dict[str, Any]] = {
    "one": {"command": "x", "args": ["-y"], "env": {"A": "b"}},
    "two": {"command": "y", "args": [], "env": {}},
}
NAMES = list(CLIENTS)


def _with_servers(client: Client) -> str:
    text = BY_CLIENT[client.name]
    for name, entry in SERVERS.items():
        text = _put(client, text, name, entry)
    return text


def _put(client: Client, text: str, name: str, entry: dict[str, Any]) -> str:
    if client.format == "toml":
        return set_table(text, (client.container, name), entry, frozenset(), "f")
    return set_value(text, (client.container, name), entry, "f")


def _move(client: Client, before: str) -> tuple[str, list[MovedEntry]]:
    moved, text = [], before
    for name, entry in client.list_entries(before, "f").items():
        moved.append(MovedEntry((client.container,), name, entry))
        text = client.remove_entry(text, name, "f")
    return client.write_entry(text, "retinue", _hub(client), "f"), moved


def _hub(client: Client) -> dict[str, Any]:
    if client.url_key is None:
        return client.render_stdio("/opt/retinue", ["mcp"], {})
    return client.render_http("http://127.0.0.1:9000/mcp", "secret")


def _back(client: Client, text: str | None, before: str, after: str, moved: list[MovedEntry]) -> PutBack:
    return put_back(client, text, before=before, after=after, moved=moved, hub_name="retinue", where="f")


@pytest.mark.parametrize("name", NAMES)
def test_only_the_hub_is_left_and_everything_comes_back_to_the_byte(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    assert list(client.list_entries(after, "f")) == ["retinue"]
    assert _back(client, after, before, after, moved) == PutBack(before, tuple(one.name for one in moved))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_changed_elsewhere_since_stays_and_the_rest_is_as_it_was(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    line_end = "\r\n" if "\r\n" in before else "\n"
    note = f"# since{line_end}" if client.format == "toml" else f"// since{line_end}"
    back = _back(client, after + note, before, after, moved)
    assert back == PutBack(before + note, tuple(one.name for one in moved))


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_was_added_since_stays_beside_those_put_back(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    added = _put(client, after, "three", {"command": "z", "args": []})
    back = _back(client, added, before, after, moved)
    assert back.text is not None
    found = client.list_entries(back.text, "f")
    assert found == client.list_entries(before, "f") | {"three": {"command": "z", "args": []}}
    assert _comments(back.text) == _comments(before)


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_was_added_again_with_another_entry_stays_as_it_is_now(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    added = _put(client, after, "one", {"command": "mine", "args": []})
    back = _back(client, added, before, after, moved)
    assert back.kept == ("one",)
    assert back.text is not None
    assert client.list_entries(back.text, "f") == client.list_entries(before, "f") | {
        "one": {"command": "mine", "args": []}
    }


@pytest.mark.parametrize("name", NAMES)
def test_into_a_file_that_is_gone_come_the_servers_alone(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    back = _back(client, None, before, after, moved)
    assert back.text is not None
    assert client.list_entries(back.text, "f") == client.list_entries(before, "f")


@pytest.mark.parametrize("name", ["cursor", "zed"])
def test_a_server_added_again_since_stands_once_in_the_file(name: str) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    # the edits here replace an entry, so the text shows whether there are two
    text = set_value(after, (client.container, "one"), {"command": "mine"}, "f")
    back = _back(client, text, before, after, moved)
    assert back.kept == ("one",)
    assert "two" in back.restored
    assert back.text is not None
    assert back.text.count('"one":') == 1
    assert client.list_entries(back.text, "f")["one"] == {"command": "mine"}


KEYS = st.sampled_from(["a", "b", "theme", "x y", "ü"])
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.just({}), st.just({"k": [1]})
)


@given(
    st.sampled_from(["claude", "cursor", "vscode", "zed"]),
    st.lists(st.tuples(KEYS, VALUES), max_size=4),
    st.lists(st.sampled_from(["one", "three", "retinue"]), max_size=3),
)
def test_whatever_was_set_since_the_servers_come_back_and_nothing_else_changes(
    name: str, settings: list[tuple[str, Any]], touched: list[str]
) -> None:
    client = CLIENTS[name]
    before = _with_servers(client)
    after, moved = _move(client, before)
    text = after
    for key, value in settings:
        text = set_value(text, (key,), value, "f")
    for server in touched:
        text = set_value(text, (client.container, server, "timeout"), 9, "f")
    back = _back(client, text, before, after, moved)
    assert back.text is not None
    now, then = client.read_document(text, "f"), client.read_document(back.text, "f")
    wanted = {**client.list_entries(before, "f"), **now[client.container]}
    wanted.pop("retinue", None)
    assert then[client.container] == wanted
    assert {**then, client.container: 0} == {**now, client.container: 0}


def _comments(text: str) -> list[str]:
    return sorted(re.findall(r"(?m)(?:^|\s)(?://|#) .*$|/\*.*?\*/", text))
