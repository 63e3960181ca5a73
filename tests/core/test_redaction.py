"""Tokens are cut out of text that is kept."""

from __future__ import annotations

import secrets

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from retinue.core.text import HIDDEN, hide_always, hide_argument_secrets, hide_tokens, hide_url_secrets
from retinue.mesh.observing.events import ToolCallEvent, now, record_calls
from retinue.storage.mesh_key import Join, render_join
from tests.support.memory_audit import MemoryAudit

JWT = jwt.encode({"alg": "HS256"}, {"sub": "alice"}, OctKey.import_key(secrets.token_bytes(32)))
TOKENS = {
    "given": f"rtn_0011aabb_{secrets.token_urlsafe(32)}",
    "local": f"rtn_local_{secrets.token_urlsafe(32)}",
    "mesh": f"rtnm_{JWT}",
    "jwt": JWT,
    "join": render_join(Join("rtn_0_x", b"0" * 64)),
}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ada:pass@word@h.example/mcp", "https://***@h.example/mcp"),
        ("https://h.example/mcp?apiKey=abc&page=2#x", "https://h.example/mcp?apiKey=***&page=2#x"),
        ("https://h.example/mcp?x_access_token=abc", "https://h.example/mcp?x_access_token=***"),
        (
            "https://h.example/@team/mcp?author=ada&keyboard=de",
            "https://h.example/@team/mcp?author=ada&keyboard=de",
        ),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert hide_url_secrets(url) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key=abc", "--keyboard=de"], ["--api-key=***", "--keyboard=de"]),
        (["--token", "abc", "abc"], ["--token", "***", "abc"]),
        (["--auth", "--verbose", "x"], ["--auth", "--verbose", "x"]),
        (["-e", "GITHUB_TOKEN=abc", "-e", "LANG=C"], ["-e", "GITHUB_TOKEN=***", "-e", "LANG=C"]),
        (["--header", "X-Api-Key: abc def"], ["--header", "X-Api-Key: ***"]),
        (["--header", "Authorization: Bearer ${TOKEN}"], ["--header", "Authorization: Bearer ${TOKEN}"]),
        (["--api-key=${KEY}", "--token", "$TOKEN"], ["--api-key=${KEY}", "--token", "$TOKEN"]),
        (["postgres://ada:pw@db/x?sslmode=on"], ["postgres://***@db/x?sslmode=on"]),
        (["--db=postgres://ada:pw@db/x"], ["--db=postgres://***@db/x"]),
        (["sk-ant-0123456789abcdef"], ["***"]),
        (["-y", "@scope/server-tokens", "/home/ada/keys"], ["-y", "@scope/server-tokens", "/home/ada/keys"]),
    ],
)
def test_the_words_of_a_command_are_shown_without_their_secrets(words: list[str], shown: list[str]) -> None:
    assert hide_argument_secrets(words) == shown


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize(
    "text", ["{}", "x={}&y=1", '"{}"', "Authorization: Bearer {}", "ValueError('bad {}')"]
)
def test_no_form_of_token_stays(token: str, text: str) -> None:
    hidden = hide_tokens(text.format(token))
    assert token[8:] not in hidden
    assert HIDDEN in hidden


def test_tokens_of_others_are_known_by_the_word_before_them() -> None:
    assert hide_tokens("authorization: Bearer abcdefghijklmnop123") == f"authorization: Bearer {HIDDEN}"
    assert hide_tokens("authorization: basic dXNlcjpwYXNzd29yZA==") == f"authorization: basic {HIDDEN}"


@pytest.mark.parametrize("text", ["plan-agent called create_plan", "rtn_", "a bearer of bad news", "eyJ.a.b"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert hide_tokens(text) == text


def test_the_audit_keeps_no_token_that_was_sent_as_the_name_of_a_skill() -> None:
    audit = MemoryAudit()
    record_calls(audit.append)(ToolCallEvent("1", TOKENS["given"], {}, "anonymous", TOKENS["jwt"], 0, now()))
    (row,) = audit.recent(1)
    assert (row["tool"], row["trace_id"], row["caller"]) == (HIDDEN, HIDDEN, "anonymous")


def test_values_that_are_told_are_hidden_in_text_json_and_urls_and_short_ones_are_not() -> None:
    hide_always(['p"ss word', "p", "one line\nanother line", "ne line\n"])
    assert hide_tokens('p"ss word, {"a":"p\\"ss word"}, ?a=p%22ss%20word') == '***, {"a":"***"}, ?a=***'
    assert hide_tokens("p: another line of one line") == "p: *** of ***"
