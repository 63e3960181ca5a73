"""Under ``known``, the first contact is known by what answers at its URL, not by what a node says."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koi.network import (
    UUID_NODE,
    Signer,
    events,
    is_joined,
    make_node,
    post,
    publish,
    run_node,
    until,
    url_of,
)
from retinue.core.errors import InvalidSettingError
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.profiles import NodeProfile, NodeType
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.peers import FirstContact
from tests.requirements import requirement


@requirement("K-37")
@pytest.mark.parametrize("given", ["url", "url and RID"])
async def test_a_stranger_is_not_known_because_it_has_the_url_of_the_first_contact(
    tmp_path: Path, given: str
) -> None:
    async with run_node(tmp_path, "contact") as contact:
        first = FirstContact(url_of(contact), contact.rid if given == "url and RID" else None)
        async with run_node(tmp_path, "member", trust="known", first_contact=first) as member:
            await until(lambda: is_joined(contact, member))
            stranger = Signer("stranger", url_of(contact))
            status, reply = await stranger.send(member, stranger.introduction)
            assert (status, reply["error"]) == (400, "unknown_node")
            with capture_logs() as logged:
                await post(url_of(member) + p.BROADCAST, events(stranger.introduction))
                keyless = Bundle.generate(UUID_NODE, NodeProfile(NodeType.FULL, url_of(contact)).render())
                await post(url_of(member) + p.BROADCAST, events(Event.from_bundle(EventType.NEW, keyless)))
                await member.processor.idle()
                refused = [line["rid"] for line in logged if line["event"] == "koi_event_refused"]
            assert sorted(refused) == sorted([stranger.rid, UUID_NODE])
            assert set(member.graph.list_nodes()) == {member.rid, contact.rid}
            rid = await publish(contact, "helpful-agent")
            await until(lambda: rid in member.cache)


@requirement("K-37")
async def test_a_node_that_polls_knows_its_first_contact_once_that_has_signed(tmp_path: Path) -> None:
    async with run_node(tmp_path, "contact") as contact:
        early = await publish(contact, "helpful-agent")
        member = make_node(
            "member",
            folder=tmp_path / "member",
            first_contact=url_of(contact),
            trust="known",
            interest=[PERSONALITY_TYPE],
            poll_interval_s=0.05,
        )
        await member.start()
        try:
            await until(lambda: early in member.cache)
            assert member.wire.peers.first_contact is not None
            assert member.wire.peers.first_contact.rid == contact.rid
        finally:
            await member.stop()


RID = "orn:koi-net.node:coordinator+5e1f"


@pytest.mark.parametrize(
    ("written", "url", "rid"),
    [
        ("http://127.0.0.1:9000/koi-net/", "http://127.0.0.1:9000/koi-net", None),
        (f"http://127.0.0.1:9000/koi-net#{RID}", "http://127.0.0.1:9000/koi-net", RID),
    ],
)
def test_a_first_contact_is_written_as_its_url_or_as_url_and_rid(
    tmp_path: Path, written: str, url: str, rid: str | None
) -> None:
    node = make_node("joining", folder=tmp_path, first_contact=written)
    assert node.wire.peers.first_contact == FirstContact(url, rid)


@pytest.mark.parametrize("written", ["127.0.0.1:9000", "http://h#", "http://h#coordinator", f"#{RID}"])
def test_a_first_contact_that_is_neither_is_refused_with_the_field(tmp_path: Path, written: str) -> None:
    with pytest.raises(InvalidSettingError, match="first_contact"):
        make_node("joining", folder=tmp_path, first_contact=written)
