"""Exchanges between stock nodes, recorded once, verify offline: signatures, hashes, canonical bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from retinue_koi.codec.bundles import has_hash, hash_contents, parse_event
from retinue_koi.codec.envelopes import (
    SignedEnvelope,
    canonical_message,
    decode_json,
    is_signed_by,
    parse_envelope,
)
from retinue_koi.codec.payloads import BROADCAST, parse_reply, parse_request
from tests.requirements import requirement

OWN = Path(__file__).parent / "recorded.jsonl"
VARIABLE = "STOCK_KOI_RECORDING"
ELSEWHERE = Path(__file__).parents[3] / "shared" / "data" / "koi" / "wire_stock_stock.jsonl"


def _elsewhere() -> Path:
    path = Path(os.environ.get(VARIABLE) or ELSEWHERE)
    if not path.is_file():
        pytest.skip(f"no recording of two stock nodes: set {VARIABLE} to a file of lines with req and resp")
    return path


@requirement("K-05")
@pytest.mark.parametrize("kept", [pytest.param(True, id="kept"), pytest.param(False, id="stock")])
def test_every_envelope_of_a_recording_verifies(kept: bool) -> None:
    lines = [json.loads(line) for line in (OWN if kept else _elsewhere()).read_text().splitlines()]
    verify_recording(lines, at_least=8)


def verify_recording(lines: list[dict[str, Any]], *, at_least: int) -> None:
    """Check each signature, hash and canonical form of a recording that holds so many envelopes."""
    keys: dict[str, str] = {}
    verified = 0
    for line in lines:
        keys.update(_keys(json.loads(line["req"])))
    for line in lines:
        path = "/" + line["path"].partition("/koi-net/")[2]
        envelope = _check(line["req"].encode(), keys, path, is_reply=False)
        parse_request(path, envelope.payload)
        _check_hashes(envelope.payload)
        verified += 1
        if line["status"] == 200 and path != BROADCAST:
            reply = _check(line["resp"].encode(), keys, path, is_reply=True)
            parse_reply(path, reply.payload)
            verified += 1
    assert verified >= at_least


def _check(body: bytes, keys: dict[str, str], path: str, *, is_reply: bool) -> SignedEnvelope:
    envelope = parse_envelope(decode_json(body), body)
    key = keys[envelope.source_node]
    assert canonical_message(envelope, path, is_reply=is_reply) == envelope.message
    assert is_signed_by(envelope, key, path, is_reply=is_reply)
    without = SignedEnvelope(
        envelope.payload, envelope.source_node, envelope.target_node, envelope.signature, None
    )
    assert is_signed_by(without, key, path, is_reply=is_reply)
    stolen = SignedEnvelope(
        envelope.payload, envelope.target_node, envelope.source_node, envelope.signature, None
    )
    assert not is_signed_by(stolen, key, path, is_reply=is_reply)
    return envelope


def _check_hashes(payload: dict[str, Any]) -> None:
    for data in payload.get("events", []):
        event = parse_event(data)
        if event.manifest is not None and event.contents is not None:
            assert has_hash(event.contents, event.manifest.sha256_hash)
            assert hash_contents(event.contents, "signed") == event.manifest.sha256_hash


def _keys(request: dict[str, Any]) -> dict[str, str]:
    found = {}
    for event in request["payload"].get("events", []):
        key = (event.get("contents") or {}).get("public_key")
        if key:
            found[event["rid"]] = key
    return found
