"""What exchanges 3-3 … 3-5, 3-11, 3-12 of seed 003 say of each event: how often it is sent, what is told."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import until
from retinue_koi.codec.bundles import Bundle, EventType
from retinue_koi.codec.personality import AgentPersonality
from retinue_koi.codec.profiles import EdgeStatus
from retinue_koi.knowledge import HandlerType, KnowledgeSource
from retinue_koi.programs.nodes import CoordinatorAdapterNode, KoiAgentNode
from tests.requirements import requirement
from tests.seeds.koi_nodes import Net, contact, read
from tests.seeds.koi_nodes import net as net
from tests.seeds.test_koi_nodes import event, personality
from tests.system import Wire

AnyNode = CoordinatorAdapterNode | KoiAgentNode


class Arrivals:
    """The events of personalities that arrive at a node from now on."""

    def __init__(self, at: AnyNode) -> None:
        self.all: list[tuple[str, str | None]] = []

        @at.node.processor.register_handler(
            HandlerType.RID, [AgentPersonality], source=KnowledgeSource.External
        )
        def note(_: Any, kobj: Any) -> None:
            self.all.append((kobj.rid_text, kobj.event_type and kobj.event_type.value))

    def take(self) -> list[tuple[str, str | None]]:
        taken, self.all = self.all, []
        return taken


def is_quiet(*nodes: AnyNode) -> bool:
    """Whether every node has joined and fetched what it wanted, and every event has arrived."""
    return all(
        inner.work.is_idle and not inner.cache.queues and not inner.processor.waiting_objects
        for inner in (node.node for node in nodes)
    )


def subscribes(one: AnyNode, other: AnyNode) -> bool:
    return other.node.rid in one.node.graph.get_neighbors("in", EdgeStatus.APPROVED)


@requirement("K-19")
async def test_each_subscriber_gets_one_event_and_its_source_none(net: Net, wire: Wire) -> None:
    """Exchange 3-4: what the coordinator passes on, in each dialect."""
    coordinator = await net.coordinator()
    agents = [await net.agent(name, contact(coordinator)) for name in ("one", "two", "three")]
    every: list[AnyNode] = [coordinator, *agents]
    await until(
        lambda: (
            all(subscribes(one, coordinator) and subscribes(coordinator, one) for one in agents)
            and len(coordinator.mcp_adapter.agents) == 3
            and is_quiet(*every)
        )
    )
    arrivals = [Arrivals(one) for one in every]
    await agents[0].update_traits({"mood": "curious"})
    told = (str(agents[0].personality_rid), "UPDATE")
    await until(lambda: all(told in one.all for one in (arrivals[0], *arrivals[2:])) and is_quiet(*every))
    assert [one.take() for one in arrivals] == [[told], [], [told], [told]]

    outside = event(personality("outside"))
    sent = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [outside]})
    assert sent.status == 200
    told = (outside["rid"], "NEW")
    await until(lambda: all(told in one.all for one in arrivals) and is_quiet(*every))
    assert [one.take() for one in arrivals] == [[told]] * 4
    # the same again goes to nobody
    sent = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [outside]})
    assert sent.status == 200
    assert is_quiet(*every)
    assert [one.take() for one in arrivals] == [[told], [], [], []]


@requirement("K-10")
async def test_an_update_of_several_traits_is_one_event(net: Net) -> None:
    """Exchange 3-11."""
    coordinator = await net.coordinator()
    agent = await net.agent(first_contact=contact(coordinator))
    await until(lambda: subscribes(coordinator, agent) and is_quiet(coordinator, agent))
    arrived = Arrivals(coordinator)
    await agent.update_traits({"mood": "curious", "new": {"description": "Is new", "value": 1}})
    await until(lambda: bool(arrived.all) and is_quiet(coordinator, agent))
    assert arrived.take() == [(str(agent.personality_rid), "UPDATE")]
    listed = coordinator.mcp_adapter.agents["helpful-agent"]
    assert {trait.name: trait.value for trait in listed.traits} == {
        "mood": "curious",
        "calculate": None,
        "new": 1,
    }


@requirement("K-18")
@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        ({}, "traits: field required"),
        ({"traits": "none"}, "traits: input should be a valid list"),
        ({"traits": [{"description": "no name"}]}, "traits.0.name: field required"),
    ],
)
async def test_an_invalid_profile_is_logged_with_its_field_and_goes_no_further(
    net: Net, wire: Wire, traits: dict[str, Any], reason: str
) -> None:
    """Exchange 3-5."""
    coordinator = await net.coordinator()
    stages: list[str] = []
    for stage in (HandlerType.Network, HandlerType.Final):

        @coordinator.node.processor.register_handler(stage, [AgentPersonality])
        def note(_: Any, kobj: Any) -> None:
            stages.append(kobj.rid_text)

    contents = personality("bad", **traits)
    if not traits:
        del contents["traits"]
    bad, good = event(contents), event(personality("good"))
    with capture_logs() as logged:
        told = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [bad, good]})
    assert told.status == 200
    [line] = [line for line in logged if line["event"] == "personality refused"]
    assert (line["rid"], line["reason"]) == (bad["rid"], reason)
    assert stages == [good["rid"]] * 2
    listed = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
    assert [one["id"] for one in listed] == ["agent:good"]
    assert not coordinator.node.cache.exists(bad["rid"])


@requirement("K-11")
@requirement("K-17")
async def test_a_foreign_change_of_the_own_personality_is_logged_and_goes_no_further(
    net: Net, wire: Wire
) -> None:
    """Exchange 3-12."""
    agent = await net.agent()
    rid = str(agent.personality_rid)
    passed: list[KnowledgeSource] = []

    @agent.node.processor.register_handler(HandlerType.RID, [AgentPersonality])
    def note(_: Any, kobj: Any) -> None:
        passed.append(kobj.source)

    stolen = {**agent.profile.model_dump(), "traits": []}
    with capture_logs() as logged:
        told = await wire.post(
            f"{contact(agent)}/events/broadcast", {"events": [event(stolen, EventType.UPDATE)]}
        )
    assert told.status == 200
    warnings = [line for line in logged if line["event"] == "change of the own personality refused"]
    assert [(line["log_level"], line["rid"]) for line in warnings] == [("warning", rid)]
    await agent.node.processor.handle(bundle=Bundle.generate(rid, stolen), event_type=EventType.UPDATE)
    assert passed == [KnowledgeSource.Internal]


@requirement("K-09")
async def test_a_coordinator_that_is_away_at_the_start_is_told_of_in_the_log(net: Net) -> None:
    """Exchange 3-3."""
    with capture_logs() as logged:
        agent = await net.agent(first_contact="http://127.0.0.1:9/koi-net")
    [line] = [line for line in logged if line["event"] == "the first contact was not told"]
    assert line["url"] == "http://127.0.0.1:9/koi-net"
    assert "connection refused" in line["reason"]
    assert agent.node.cache.exists(agent.personality_rid)
