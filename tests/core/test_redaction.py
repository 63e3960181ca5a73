"""Tokens are cut out of text that is kept."""

from __future__ import annotations

import secrets

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from retinue.core.text import HIDDEN, hide_tokens
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
