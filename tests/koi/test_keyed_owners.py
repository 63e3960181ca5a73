"""What an unsigned message cannot do to a node that has a key, or that has signed a message."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from retinue.koi.codec import payloads as p
from retinue.koi.codec.rids import PERSONALITY_TYPE
from retinue.koi.peers import FirstContact
from tests.koi.network import events, new, personality, post, run_node, until, url_of
from tests.koi.test_hostile_peers import DEAD, Refusals
from tests.koi.test_node import is_joined, publish
from tests.requirements import requirement


@requirement("K-37")
async def test_an_unsigned_version_of_a_keyed_owners_name_is_asked_back(tmp_path: Path) -> None:
    async with (
        run_node(tmp_path) as node,
        run_node(tmp_path, "owner", first_contact=FirstContact(url_of(node), node.rid)) as owner,
    ):
        await until(lambda: is_joined(node, owner))
        true = await publish(owner, "helpful-agent")
        await until(lambda: true in node.cache)
        foreign = new(personality("helpful-agent", owner.rid, "9.9", mcp_url=DEAD))
        with capture_logs() as logged:
            assert (await post(url_of(node) + p.BROADCAST, events(foreign)))[0] == 200
            await node.processor.idle()
            assert f"it belongs to {owner.rid}, which does not have it" in Refusals(logged)
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [true]
