"""Contents that lie or could do harm are refused on both dialects, with a reason in the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import (
    UUID_NODE,
    Refusals,
    events,
    introduced,
    new,
    personality,
    post,
    run_node,
    url_of,
)
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType, Manifest
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.node import KoiNode
from tests.requirements import requirement

both_dialects = pytest.mark.parametrize("dialect", ["unsigned", "signed"])


async def tell(node: KoiNode, dialect: str, make_event: Callable[[str], Event]) -> None:
    """Broadcast the event that is made for the RID of its sender, who owns it."""
    if dialect == "unsigned":
        assert (await post(url_of(node) + p.BROADCAST, events(make_event(UUID_NODE))))[0] == 200
        return
    signer = await introduced(node)
    assert (await signer.send(node, make_event(signer.rid)))[0] == 200


@requirement("K-37")
@both_dialects
async def test_contents_must_have_the_hash_of_their_manifest(tmp_path: Path, dialect: str) -> None:
    def make_event(owner: str) -> Event:
        contents = personality("a", owner)
        manifest = Manifest(contents["rid"], "2026-01-01T00:00:00Z", "0" * 64)
        return Event(contents["rid"], EventType.NEW, manifest, contents)

    async with run_node(tmp_path) as node:
        with capture_logs() as logged:
            await tell(node, dialect, make_event)
            assert "do not have the hash" in Refusals(logged)
        assert not node.cache.list_rids([PERSONALITY_TYPE])


@requirement("K-37")
@both_dialects
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mcp_url": "http://169.254.169.254/latest"}, "mcp_url: "),
        ({"base_url": "http://[fe80::1]/koi-net"}, "base_url: "),
        ({"mcp_url": "file:///etc/passwd"}, "not an http or https url"),
        ({"rid": f"{PERSONALITY_TYPE}:b/1.0"}, "contents.rid is not the RID"),
        ({"node_rid": "somebody"}, "contents.node_rid is not"),
        ({"node_rid": None}, "contents.node_rid is not"),
        ({"mood": "x" * 300_000}, "larger than"),
    ],
)
async def test_contents_that_could_do_harm_are_refused(
    tmp_path: Path, more: dict[str, Any], reason: str, dialect: str
) -> None:
    def make_event(owner: str) -> Event:
        contents = {**personality("a", owner), **more}
        return Event.from_bundle(EventType.NEW, Bundle.generate(f"{PERSONALITY_TYPE}:a/1.0", contents))

    async with run_node(tmp_path) as node:
        with capture_logs() as logged:
            await tell(node, dialect, make_event)
            assert reason in Refusals(logged)
        assert not node.cache.list_rids([PERSONALITY_TYPE])


@requirement("K-37")
@both_dialects
async def test_a_private_address_is_refused_where_the_setting_says_so(tmp_path: Path, dialect: str) -> None:
    async with run_node(tmp_path, allow_private_urls=False) as node:
        with capture_logs() as logged:
            await tell(
                node, dialect, lambda owner: new(personality("a", owner, mcp_url="http://10.0.0.1:8101"))
            )
            assert "mcp_url: " in Refusals(logged)
        assert not node.cache.list_rids([PERSONALITY_TYPE])


@requirement("K-37")
@both_dialects
async def test_a_long_rid_is_refused(tmp_path: Path, dialect: str) -> None:
    long = f"{PERSONALITY_TYPE}:{'a' * 300}/1.0"
    async with run_node(tmp_path) as node:
        with capture_logs() as logged:
            await tell(node, dialect, lambda _: Event(long, EventType.NEW))
            assert "more than 184 bytes" in Refusals(logged)
        assert not node.cache.list_rids([PERSONALITY_TYPE])
