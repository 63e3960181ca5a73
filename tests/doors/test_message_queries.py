"""Proposals, conditions and references of ``POST /messages``."""

from __future__ import annotations

from typing import Any

from retinue.authoring.agent import Agent
from retinue.messages.codec.performatives import CODONS, PERFORMATIVES
from tests.doors.message_worker import REPAIR, make_worker, say
from tests.requirements import requirement
from tests.system import System, Wire


async def test_a_reference_to_no_task_names_the_field(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    for payload, problem in (
        ({}, "payload.task_id is missing"),
        ({"task_id": "x"}, "payload.task_id 'x' names no"),
    ):
        reply = (await say(wire, url, "CANCEL", payload)).json
        assert problem in reply["payload"]["reason_text"]


@requirement("W-24")
async def test_a_proposal_is_answered_and_runs_nothing(system: System, wire: Wire) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    agreed = (await say(wire, url, "PROPOSE", REPAIR)).json
    assert agreed["performative"] == "TASK_ACCEPT"
    assert not worker.began.is_set()
    assert (await say(wire, url, "PROPOSE", {"task_type": "repair"})).json["performative"] == "NOT_UNDERSTOOD"
    refused = (
        await say(wire, url, "PROPOSE", {"task_type": "execute", "task_parameters": {"code": "1"}})
    ).json
    assert refused["payload"]["reason_code"] == "unauthorized"

    @worker.agent.can
    def can(capability: str) -> bool:
        return False

    busy = (await say(wire, url, "PROPOSE", REPAIR)).json
    assert (busy["performative"], busy["payload"]["reason_code"]) == ("TASK_REJECT", "incapable")


@requirement("W-21")
async def test_conditions_are_answered_from_the_record(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    for condition, holds in (
        ({"capabilities": ["python", "fix"]}, True),
        ({"capabilities": ["python", "cook"], "match_type": "any"}, True),
        ({"capabilities": ["python", "cook"]}, False),
        ({"topic": "PYTHON", "action": "repair", "language": "en"}, True),
        ({"action": "fly"}, False),
        ({"language": "de"}, False),
    ):
        reply = (await say(wire, url, "QUERY_IF", {"condition": condition})).json
        assert reply["performative"] == "INFORM_RESULT"
        assert reply["payload"]["result_details"]["holds"] is holds
    malformed: tuple[Any, ...] = ({}, {"weather": "fine"}, {"capabilities": 7}, "raining", {"language": 7})
    for condition in malformed:
        reply = (await say(wire, url, "QUERY_IF", {"condition": condition})).json
        assert reply["performative"] == "NOT_UNDERSTOOD"


@requirement("W-01")
@requirement("W-21")
async def test_references_are_answered_from_what_is_known(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    hub = (await system.start_hub()).url

    async def refer(base: str, reference: str, **more: Any) -> Any:
        return (await say(wire, base, "QUERY_REF", {"reference": reference, **more})).json["payload"]

    codons = (await refer(url, "codons"))["result_details"]["codons"]
    assert [one["name"] for one in codons] == [one.name for one in CODONS.values()]
    listed = (await refer(url, "performatives"))["result_details"]["performatives"]
    assert [one["name"] for one in listed] == list(PERFORMATIVES)
    assert (await refer(url, "fipa"))["result_details"]["fipa"]["to"]["TASK_ACCEPT"] == "agree"
    assert (await refer(url, "topics"))["result_details"] == {"topics": ["Python"]}
    assert (await refer(url, "Repair"))["result_details"]["action"]["name"] == "repair"
    assert (await refer(url, "nothing"))["error_code"] == "unknown_reference"
    # the directory as Yellow Pages
    agents = (await refer(hub, "agents"))["result_details"]["agents"]
    assert "worker" in [one["name"] for one in agents]


@requirement("W-24")
async def test_a_query_to_anybody_is_asked_of_every_agent_at_the_hub(system: System, wire: Wire) -> None:
    await system.start_agent(make_worker().agent)
    await system.start_agent(Agent("cook", version="1.0.0", topics=["Cooking"]))
    hub = (await system.start_hub()).url
    query = {"query_type": "specific", "query_parameters": {"capabilities": ["python"]}}
    reply = (await say(wire, hub, "QUERY_CAPABILITIES", query, receiver="*")).json
    assert reply["performative"] == "INFORM_CAPABILITIES"
    assert [one["agent"] for one in reply["payload"]["answers"]] == ["worker"]
    done = (await say(wire, hub, "TASK_REQUEST", {"task_type": "reveal"}, receiver="*")).json
    assert done["payload"]["result_details"] == {"result": "anonymous"}
