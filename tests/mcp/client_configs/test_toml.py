"""Edits of TOML: one table comes in or goes, and every other byte stays."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs.clients import TRANSPORT_KEYS
from retinue.mcp.client_configs.toml import read_value, remove_table, set_table
from tests.mcp.client_configs.samples import CODEX

PATH = ("mcp_servers", "retinue")
ENTRY = {"url": "http://127.0.0.1:9000/mcp", "http_headers": {"Authorization": "Bearer x"}}
OTHER = {"command": '/bücher/\x7f"r"', "args": ["mcp"], "env": {"RETINUE_HOME": "C:\\x"}}

lines = st.sampled_from(
    [
        "# comment [mcp_servers.retinue]",
        "",
        "  ",
        '[mcp_servers.a]\ncommand = "x" # c',
        '[mcp_servers."b.c".env]\n"k y" = \'[mcp_servers.retinue]\'',
        '[[list]]\ntext = """\n[mcp_servers.retinue]\nurl = "\\""""',
        "[[list]]\nnested = [\n  { a = 1 }, # ]\n  [2],\n]",
        "[profiles.x]\nsmall = { mcp_servers = 1 }",
        "[other]\nname.with.dots = '''\n'' [x]'''",
    ]
)


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    """Comments and tables, each once, with either line end, and with or without the last one."""
    blocks = draw(st.lists(lines, max_size=6, unique=True))
    text = "\n".join(['model = "m"', *blocks] if draw(st.booleans()) else blocks)
    text += draw(st.sampled_from(["", "\n", "\n\n"])) if text else ""
    text = text.replace("\n", "\r\n") if draw(st.booleans()) else text
    return draw(st.sampled_from(["", "\ufeff"])) + text


def _set(text: str, entry: dict[str, Any]) -> str:
    return set_table(text, PATH, entry, TRANSPORT_KEYS, "f")


def _read(text: str) -> dict[str, Any]:
    return tomllib.loads(text.removeprefix("\ufeff"))


@given(toml_texts(), st.sampled_from([ENTRY, OTHER]))
def test_adding_is_undone_by_removing_to_the_byte(text: str, entry: dict[str, Any]) -> None:
    edited = _set(text, entry)
    servers = _read(text).get("mcp_servers", {})
    assert _read(edited) == _read(text) | {"mcp_servers": servers | {"retinue": entry}}
    assert edited.startswith(text)
    assert _set(edited, entry) == edited
    assert remove_table(edited, PATH, "f") == text


@given(toml_texts())
def test_the_other_form_takes_the_place_of_the_first(text: str) -> None:
    edited = _set(_set(text, ENTRY), OTHER)
    assert read_value(edited, PATH, "f") == OTHER
    assert edited == _set(text, OTHER)


@given(st.text(st.sampled_from("[]{}=\"'#\n\r\\ab1.,\ufeff")) | st.text())
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        edited = _set(text, ENTRY)
    except InvalidSettingError:
        return
    assert read_value(edited, PATH, "f") == ENTRY


def test_a_table_in_the_middle_keeps_what_is_the_persons_own() -> None:
    text = (
        '[mcp_servers.retinue] # mine\nurl = "old"\n# so long\ntool_timeout_sec = 3\n\n'
        '[mcp_servers.retinue.http_headers]\nX = "y"\n[mcp_servers.retinue.tools.call]\nmode = "a"\n[z]\n'
    )
    assert _set(text, OTHER | {"command": "r"}) == (
        '[mcp_servers.retinue] # mine\ncommand = "r"\nargs = ["mcp"]\nenv = { RETINUE_HOME = "C:\\\\x" }\n'
        '# so long\ntool_timeout_sec = 3\n\n[mcp_servers.retinue.tools.call]\nmode = "a"\n[z]\n'
    )


def test_the_codex_configuration_of_a_person_stays_as_it_is() -> None:
    edited = _set(CODEX, ENTRY)
    assert edited == (
        CODEX + '\n[mcp_servers.retinue]\nurl = "http://127.0.0.1:9000/mcp"\n'
        'http_headers = { Authorization = "Bearer x" }\n'
    )
    assert remove_table(edited, PATH, "f") == CODEX


def test_an_entry_in_one_line_is_found_and_replaced() -> None:
    text = '[mcp_servers]\nretinue = { url = "x" }\nb = { url = "y" }\n'
    assert remove_table(text, PATH, "f") == '[mcp_servers]\nb = { url = "y" }\n'
    assert _read(_set(text, ENTRY)) == {"mcp_servers": {"b": {"url": "y"}, "retinue": ENTRY}}


@pytest.mark.parametrize(
    "text", ['mcp_servers = { retinue = { url = "x" } }\n', "mcp_servers = { b = {} }\n", "mcp_servers = 3\n"]
)
def test_a_way_of_writing_that_is_not_edited_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"mcp_servers.retinue is written in a way") as caught:
        _set(text, ENTRY)
    assert caught.value.remedy == "write it as [mcp_servers.retinue], or edit it by hand: --print shows what"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('a = "b\n', "no TOML at line 1, column 7: "),
        ("a = 1\n[b\n", "no TOML at line 2, column 3: "),
        ("a = 1\na = 2\n", "no TOML at line 2, column 6: "),
    ],
)
def test_a_broken_text_is_refused_at_its_line_and_column(text: str, said: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        _set(text, ENTRY)
    assert caught.value.message.startswith(f"f: {said}")
    with pytest.raises(InvalidSettingError, match="no TOML"):
        remove_table(text, PATH, "f")
