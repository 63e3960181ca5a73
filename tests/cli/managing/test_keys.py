"""``retinue keys``, and what a signature changes for ``publish``, ``pull`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.cards.signatures import SigningKey
from tests.cli.conftest import PLAN_CARD, Retinue, publish


@pytest.fixture
def card(tmp_path: Path) -> Path:
    file = tmp_path / "plan_card.json"
    file.write_bytes(orjson.dumps(PLAN_CARD))
    return file


def test_the_own_key_is_shown_without_its_private_half(retinue: Retinue) -> None:
    shown = orjson.loads(retinue("keys", "--jwks").stdout)
    (key,) = shown["keys"]
    assert key["crv"] == "P-256"
    assert "d" not in key
    listed = orjson.loads(retinue("keys", "--json").stdout)
    assert listed["signing"] == key["kid"]
    assert [row["name"] for row in listed["trusted"]] == ["this state"]


def test_a_published_card_is_pulled_with_its_signature(
    retinue: Retinue, card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_SIGNATURES__POLICY", "require")
    assert retinue("publish", str(card)).exit_code == 0
    pulled = retinue("pull", "agents/plan", "-o", str(tmp_path / "copy.json"))
    assert "signed by this state" in pulled.stderr
    assert (tmp_path / "copy.json").read_bytes() == card.read_bytes()
    checks = orjson.loads(retinue("doctor", "--json").stdout)["checks"]
    (check,) = [one for one in checks if one["check"] == "signatures"]
    assert check["found"] == "policy require; 1 of 1 cards are signed"


def test_an_unsigned_card_is_refused_where_signatures_are_required(
    retinue: Retinue, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(retinue_home, "plan-agent", orjson.dumps(PLAN_CARD))
    assert retinue("pull", "agents/plan", "-o", "-").exit_code == 0
    monkeypatch.setenv("RETINUE_SIGNATURES__POLICY", "require")
    refused = retinue("pull", "agents/plan", "-o", "-")
    assert refused.exit_code == 7
    assert "agents/plan: it is not signed" in refused.stderr
    listed = orjson.loads(retinue("agents", "--json").stdout)
    assert listed["agents"] == [one for one in listed["agents"] if one["name"] != "plan-agent"]
    assert "it is not signed" in listed["missing"][0]["error"]
    checks = orjson.loads(retinue("doctor", "--json").stdout)["checks"]
    (check,) = [one for one in checks if one["check"] == "signatures"]
    assert (check["status"], "it is not signed" in check["found"]) == ("fail", True)


def test_keys_are_trusted_and_forgotten(retinue: Retinue, tmp_path: Path) -> None:
    key = SigningKey.create()
    file = tmp_path / "partner.json"
    file.write_bytes(orjson.dumps({"keys": [key.public]}))
    assert retinue("keys", "trust", "partner", str(file)).stdout == f"{key.kid}\n"
    names = {row["name"] for row in orjson.loads(retinue("keys", "--json").stdout)["trusted"]}
    assert names == {"this state", "partner"}
    assert retinue("keys", "forget", "partner").exit_code == 0
    assert "no keys of" in retinue("keys", "forget", "partner").stderr


@pytest.mark.parametrize("content", [b"", b"[]", b'{"keys": [{"kty": "oct", "k": "AAAA"}]}'])
def test_what_is_no_key_is_refused(retinue: Retinue, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    assert retinue("keys", "trust", "partner", str(file)).exit_code == 2
