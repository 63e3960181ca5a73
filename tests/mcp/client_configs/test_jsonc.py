"""Edits of JSON with comments: what is asked for comes in, and every other byte stays."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs.jsonc import MAX_DEPTH, parse_tree, read_value, remove_value, set_value
from tests.mcp.client_configs import samples
from tests.strategies import json_values, texts

PATH = ("mcpServers", "retinue")
ENTRY = {"type": "http", "url": "http://127.0.0.1:9000/mcp", "headers": {"Authorization": "Bearer x"}}

fillings = st.sampled_from(["", "", " ", "\n", "\r\n", "\t", " // c\n", "/* c, { */", '\n  // d "\n  '])
keys = texts | st.sampled_from(["mcpServers", "retinue", "a"])


@st.composite
def jsonc_texts(draw: st.DrawFn, value: Any) -> str:
    """The value with space and comments wherever they may stand, and commas at the ends."""

    def write(item: Any) -> str:
        around = draw(fillings)
        if isinstance(item, dict) and item:
            rows = [f"{draw(fillings)}{json.dumps(k)}{draw(fillings)}:{write(v)}" for k, v in item.items()]
        elif isinstance(item, list) and item:
            rows = [write(element) for element in item]
        else:
            return around + json.dumps(item, ensure_ascii=draw(st.booleans())) + draw(fillings)
        trailing = draw(st.sampled_from(["", ",", ",\n", " ,// last\n"]))
        inside = ",".join(rows) + trailing + draw(fillings)
        return around + (f"{{{inside}}}" if isinstance(item, dict) else f"[{inside}]") + draw(fillings)

    return draw(st.sampled_from(["", "\ufeff"])) + write(value)


documents = st.dictionaries(keys, json_values | st.dictionaries(keys, json_values, max_size=3), max_size=4)
texts_and_values = documents.flatmap(lambda value: st.tuples(jsonc_texts(value), st.just(value)))


def _is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


@given(texts_and_values)
def test_what_is_read_is_what_the_text_says(given_: tuple[str, Any]) -> None:
    text, value = given_
    tree = parse_tree(text, "f")
    assert tree is not None
    assert tree.value == value == pyjson5.loads(text.removeprefix("\ufeff"))


@given(texts_and_values)
def test_adding_only_inserts_and_says_nothing_else(given_: tuple[str, Any]) -> None:
    text, value = given_
    if not isinstance(value.get("mcpServers", {}), dict):
        with pytest.raises(InvalidSettingError, match="mcpServers is no object"):
            set_value(text, PATH, ENTRY, "f")
        return
    value.get("mcpServers", {}).pop("retinue", None)
    text = remove_value(text, PATH, "f")
    edited = set_value(text, PATH, ENTRY, "f")
    servers = value.get("mcpServers", {}) | {"retinue": ENTRY}
    assert pyjson5.loads(edited.removeprefix("\ufeff")) == value | {"mcpServers": servers}
    assert _is_subsequence(text, edited)
    assert set_value(edited, PATH, ENTRY, "f") == edited
    if servers.keys() - {"retinue"}:
        assert remove_value(edited, PATH, "f") == text


@given(texts_and_values)
def test_a_value_that_changes_takes_the_place_of_the_old_one(given_: tuple[str, Any]) -> None:
    text, value = given_
    for key in value:
        edited = set_value(text, (key,), ENTRY, "f")
        assert pyjson5.loads(edited.removeprefix("\ufeff")) == value | {key: ENTRY}
        tree = parse_tree(text, "f")
        assert tree is not None
        at = tree.find(key)
        assert at is not None
        node = (tree.members or ())[at].node
        assert edited.startswith(text[: node.start])
        assert edited.endswith(text[node.end :])


@given(texts_and_values)
def test_removing_leaves_the_others_and_their_comments(given_: tuple[str, Any]) -> None:
    text, value = given_
    for key in value:
        edited = remove_value(text, (key,), "f")
        assert pyjson5.loads(edited.removeprefix("\ufeff")) == {k: v for k, v in value.items() if k != key}
        assert _is_subsequence(edited, text)


@given(st.text(st.sampled_from('{}[]",:/*\\ \n\ufeffat1-.')) | st.text())
def test_any_text_is_edited_or_refused(text: str) -> None:
    with suppress(InvalidSettingError):
        edited = set_value(text, PATH, ENTRY, "f")
        assert read_value(edited, PATH, "f") == ENTRY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n  "b" 2}', "line 2, column 7: a colon is missing before '2'"),
        ('{"a": 1\n "b": 2}', "line 2, column 2: a comma or } is missing before '\"'"),
        ('{"a": [1, 2}', "line 1, column 12: a comma or ] is missing before '}'"),
        ('{"a": 1', "line 1, column 8: a comma or } is missing before the end"),
        ('{"a": "b\n"}', "line 1, column 7: a text without its end"),
        ('{"a": yes}', "line 1, column 7: a value is missing before 'y'"),
        ("{'a': 1}", 'line 1, column 2: a key in double quotes, or } is missing before "\'"'),
        ('{"a": 1} {', "line 1, column 10: more text behind the end"),
        ('\ufeff{"a": NaN}', "line 1, column 7: a value is missing before 'N'"),
        ('{"a": 01}', "line 1, column 7: a value is missing before '0'"),
        ("[" * (MAX_DEPTH + 2), f"nested over {MAX_DEPTH} levels deep"),
    ],
)
def test_a_broken_text_is_refused_at_its_line_and_column(text: str, said: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        set_value(text, PATH, ENTRY, "the file")
    assert caught.value.message.startswith("the file: no JSON at line ")
    assert said in caught.value.message
    assert caught.value.remedy == "mend it in an editor; nothing was changed"


@pytest.mark.parametrize("text", ["", " \n", "\ufeff", "\ufeff\r\n"])
def test_an_empty_text_gets_a_document(text: str) -> None:
    edited = set_value(text, PATH, ENTRY, "f")
    assert edited.startswith("\ufeff") == text.startswith("\ufeff")
    assert pyjson5.loads(edited.removeprefix("\ufeff")) == {"mcpServers": {"retinue": ENTRY}}
    assert edited.endswith("}\r\n" if "\r" in text else "}\n")


def test_a_text_of_comments_keeps_them() -> None:
    edited = set_value("// nothing yet", PATH, ENTRY, "f")
    assert edited.startswith("// nothing yet\n{\n")


def test_the_persons_own_style_goes_on() -> None:
    assert "\n\t\t},\n" not in samples.VSCODE
    edited = set_value(samples.VSCODE, ("servers", "retinue"), ENTRY, "f")
    assert '\t\t}, // signed in by the editor\n\t\t"retinue": {\n\t\t\t"type": "http",\n' in edited
    edited = set_value(samples.ZED, ("context_servers", "retinue"), {"command": "r", "args": ["mcp"]}, "f")
    assert '    },\n    "retinue": {\n      "command": "r",\n      "args": ["mcp"]\n    },\n  },\n' in edited
    edited = set_value(samples.CURSOR, PATH, {"url": "u"}, "f")
    assert edited == samples.CURSOR.replace("}}}", '}, "retinue": {"url": "u"}}}')
    edited = set_value(samples.GEMINI, PATH, {"url": "u"}, "f")
    assert edited.count("\n") == edited.count("\r\n") == 9
    assert (
        '",\r\n    "mcpServers": {\r\n        "retinue": {\r\n            "url": "u"\r\n        }\r\n'
        in edited
    )


def test_a_name_that_stands_there_twice_is_gone_after_removing() -> None:
    text = '{"mcpServers": {"retinue": 1, "a": 2, "retinue": 3}}'
    assert remove_value(text, PATH, "f") == '{"mcpServers": {"a": 2}}'
    assert read_value(text, PATH, "f") == 3


def test_what_is_not_there_needs_no_removing() -> None:
    for text in ("", "[]", '{"mcpServers": 1}', samples.ZED):
        assert remove_value(text, PATH, "f") == text
        assert read_value(text, PATH, "f") is None
