"""``POST /messages`` beyond the seed: tasks, callbacks, subscriptions, senders, signatures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from retinue.authoring.agent import Agent
from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Endpoint, Skill
from retinue.messages.codec.envelope import utc_now
from retinue.messages.codec.performatives import PERFORMATIVES
from retinue.messages.codec.signatures import find_flaw, sign
from retinue.web.issued_tokens import TokenFile
from tests.doors.message_worker import ASYNC, REPAIR, make_worker, open_home, open_inbox, say, until_ended
from tests.requirements import requirement
from tests.seeds.test_seed_000 import World, by_a2a
from tests.serving import serve_app
from tests.system import WAIT_S, Hub, Served, System, Wire, publish


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@requirement("W-20")
async def test_a_long_task_is_accepted_tells_its_progress_and_is_asked_for(
    system: System, wire: Wire
) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    accepted = await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1", headers=ASYNC)
    assert (accepted.status, accepted.json["performative"]) == (202, "TASK_ACCEPT")
    assert accepted.json["in_reply_to"] == "m-1"
    task_id = accepted.json["payload"]["task_id_assigned"]
    await worker.began.wait()
    for reference in (task_id, "m-1", f"task:{task_id}"):
        running = (await say(wire, url, "QUERY_REF", {"reference": reference})).json
        assert running["payload"]["comments"] == "50% half way"
    worker.go.set()
    ended = await until_ended(wire, url, task_id)
    assert ended["payload"]["result_details"] == {"result": "X"}
    assert ended["payload"]["result_summary"] == "X"


async def test_a_request_that_is_sent_again_has_the_task_of_the_first(system: System, wire: Wire) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    waiting = [
        asyncio.create_task(say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1")) for _ in range(2)
    ]
    await worker.began.wait()
    accepted = await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1", headers=ASYNC)
    assert accepted.json["performative"] == "TASK_ACCEPT"
    worker.go.set()
    answers = [(await one).json for one in waiting]
    answers.append((await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1")).json)
    assert {answer["performative"] for answer in answers} == {"INFORM_RESULT"}
    assert len({orjson.dumps(answer["payload"]) for answer in answers}) == 1
    worker.began.clear()
    await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1")
    assert not worker.began.is_set()
    await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-2")
    assert worker.began.is_set()


async def test_a_reply_waits_as_long_as_the_sender_prefers(system: System, wire: Wire) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    accepted = await say(wire, url, "TASK_REQUEST", REPAIR, headers={"prefer": "wait=0"})
    assert accepted.status == 202
    worker.go.set()
    done = await say(wire, url, "TASK_REQUEST", REPAIR, headers={"prefer": "wait=5"})
    assert (done.status, done.json["performative"]) == (200, "INFORM_RESULT")


@requirement("W-24")
async def test_cancel_ends_the_call_behind_a_task_also_through_the_hub(system: System, wire: Wire) -> None:
    worker = make_worker()
    agent, hub = (await system.start_agent(worker.agent)).url, (await system.start_hub()).url
    for url, more in ((agent, {}), (hub, {"receiver": "worker"})):
        worker.began.clear()
        worker.cancelled.clear()
        await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1", headers=ASYNC, **more)
        await worker.began.wait()
        done = (await say(wire, url, "CANCEL", {"task_id": "m-1"}, **more)).json
        assert done["performative"] == "INFORM_RESULT"
        async with asyncio.timeout(WAIT_S):
            await worker.cancelled.wait()
        ended = (await say(wire, url, "QUERY_REF", {"reference": "m-1"}, **more)).json
        assert (ended["performative"], ended["payload"]["error_code"]) == ("FAILURE", "cancelled")
        again = (await say(wire, url, "CANCEL", {"task_id": "m-1"}, **more)).json
        assert again["payload"]["error_code"] == "already_ended"


async def test_a_task_of_another_caller_answers_as_one_that_is_not_there(system: System, wire: Wire) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    accepted = await say(wire, url, "TASK_REQUEST", REPAIR, headers=ASYNC)
    task_id = accepted.json["payload"]["task_id_assigned"]
    stranger = {"authorization": system.token}
    answers = []
    for reference in (task_id, "0" * 32):
        for performative in ("QUERY_REF", "CANCEL"):
            reply = (await say(wire, url, performative, {"reference": reference}, headers=stranger)).json
            answers.append(orjson.dumps(reply["payload"]).replace(reference.encode(), b""))
    assert answers[:2] == answers[2:]
    assert not worker.cancelled.is_set()
    worker.go.set()


@pytest.mark.parametrize(
    ("payload", "performative", "code", "words"),
    [
        (
            {"task_type": "FIX", "task_parameters": {}},
            "NOT_UNDERSTOOD",
            "invalid_payload_structure",
            "'code'",
        ),
        ({"task_type": "fly"}, "TASK_REJECT", "incapable", "fly"),
        ({"task_type": "repiar"}, "TASK_REJECT", "incapable", "did you mean repair?"),
        ({}, "NOT_UNDERSTOOD", "invalid_payload_structure", "give task_type, the id of a skill"),
        ({"task_description": "do"}, "TASK_REJECT", "incapable", "give one of repair, execute"),
        ({"task_type": 7}, "NOT_UNDERSTOOD", "invalid_payload_structure", "payload.task_type is a number"),
        (
            {"task_type": "fail", "priority": "now"},
            "NOT_UNDERSTOOD",
            "invalid_payload_structure",
            "low, medium",
        ),
        ({"task_type": "execute", "task_parameters": {"code": "1"}}, "TASK_REJECT", "unauthorized", "token"),
        ({"task_type": "fail"}, "FAILURE", "execution_error", "broken"),
    ],
)
async def test_what_is_not_done_says_why(
    system: System, wire: Wire, payload: Any, performative: str, code: str, words: str
) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    hub = (await system.start_hub()).url
    for reply in (
        await say(wire, url, "TASK_REQUEST", payload),
        await say(wire, hub, "TASK_REQUEST", payload, receiver="worker"),
    ):
        assert (reply.status, reply.json["performative"]) == (200, performative)
        told = reply.json["payload"]
        assert told.get("reason_code", told.get("error_code")) == code
        assert words in told.get("reason_text", told.get("error_text", ""))


async def test_words_of_a_task_go_where_the_skill_wants_them(system: System, wire: Wire) -> None:
    agent = Agent("writer", version="1.0.0")

    @agent.skill(similes=["debug"])
    async def write(prompt: str, priority: str = "low") -> str:
        return f"{prompt}, {priority}"

    url = (await system.start_agent(agent)).url
    for payload, more in (
        ({"task_description": "a poem", "priority": "high"}, {}),
        (
            {"task_description": "a poem", "priority": "high"},
            {"ontology": "elizaos:ontology:code/python/debug_request"},
        ),
        ({"task_type": "DEBUG", "task_description": "a poem", "priority": "high"}, {}),
    ):
        reply = (await say(wire, url, "TASK_REQUEST", payload, **more)).json
        assert reply["payload"]["result_details"] == {"result": "a poem, high"}


@requirement("W-24")
async def test_the_result_goes_to_the_callback(stack: AsyncExitStack, tmp_path: Path, wire: Wire) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    worker, inbox = make_worker(), await open_inbox(stack)
    hub = await system.start_hub()
    for url in ((await system.start_agent(worker.agent)).url, f"{hub.url}/agents/worker"):
        accepted = await say(
            wire, url, "TASK_REQUEST", REPAIR, sender="eddy", reply_with="r", callback_url=inbox.url
        )
        assert (accepted.status, accepted.json["performative"]) == (202, "TASK_ACCEPT")
        worker.go.set()
        arrived = await inbox.next()
        assert (arrived["performative"], arrived["in_reply_to"]) == ("INFORM_RESULT", "r")
        assert (arrived["sender"], arrived["receiver"]) == ({"agent_id": "worker"}, {"agent_id": "eddy"})
        assert arrived["payload"]["result_details"] == {"result": "X"}
        worker.go.clear()


@requirement("W-24")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x",
        "http://localhost:9/x",
        "http://10.0.0.1/x",
        "http://169.254.169.254/latest",
        "http://[::ffff:127.0.0.1]/x",
        "file:///etc/passwd",
        "http://user:word@example.org/",
        "nonsense",
    ],
)
async def test_a_callback_into_a_private_range_is_refused(system: System, wire: Wire, url: str) -> None:
    worker = make_worker()
    agent = (await system.start_agent(worker.agent)).url
    for performative, payload in (("TASK_REQUEST", REPAIR), ("SUBSCRIBE", {})):
        reply = (await say(wire, agent, performative, payload, callback_url=url)).json
        assert reply["performative"] == "NOT_UNDERSTOOD"
        assert "callback_url is refused" in reply["payload"]["reason_text"]
    assert not worker.began.is_set()


@requirement("W-24")
async def test_a_subscription_tells_of_changes_until_it_is_cancelled(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    worker, inbox = make_worker(), await open_inbox(stack)
    url = (await system.start_agent(worker.agent)).url
    accepted = await say(wire, url, "SUBSCRIBE", {}, message_id="s-1", callback_url=inbox.url)
    assert (accepted.status, accepted.json["performative"]) == (202, "TASK_ACCEPT")

    @worker.agent.skill
    async def juggle() -> str:
        """Juggles."""
        return "up"

    news = await inbox.next()
    assert (news["performative"], news["in_reply_to"]) == ("INFORM_CAPABILITIES", "s-1")
    assert "juggle" in [one["name"] for one in news["payload"]["capabilities"]["actions"]]
    done = (await say(wire, url, "CANCEL", {"task_id": "s-1"})).json
    assert "has ended" in done["payload"]["result_summary"]
    assert (await say(wire, url, "CANCEL", {"task_id": "s-1"})).json["performative"] == "NOT_UNDERSTOOD"


@requirement("W-24")
async def test_a_subscription_to_a_task_tells_its_end(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, private_callbacks=True)
    worker, inbox = make_worker(), await open_inbox(stack)
    url = (await system.start_agent(worker.agent)).url
    await say(wire, url, "TASK_REQUEST", REPAIR, message_id="m-1", headers=ASYNC)
    topic = {"topic": "task", "task_id": "m-1"}
    await say(wire, url, "SUBSCRIBE", topic, message_id="s-1", callback_url=inbox.url)
    worker.go.set()
    news = await inbox.next()
    while news["performative"] == "TASK_ACCEPT":
        news = await inbox.next()
    assert (news["performative"], news["in_reply_to"]) == ("INFORM_RESULT", "s-1")
    missing = (await say(wire, url, "SUBSCRIBE", {"topic": "task", "task_id": "m-1"})).json
    assert "callback_url is missing" in missing["payload"]["reason_text"]


async def test_a_task_whose_time_has_passed_is_not_begun(system: System, wire: Wire) -> None:
    worker = make_worker()
    url = (await system.start_agent(worker.agent)).url
    reply = (await say(wire, url, "TASK_REQUEST", REPAIR, reply_by="2020-01-01T00:00:00Z")).json
    assert (reply["performative"], reply["payload"]["error_code"]) == ("FAILURE", "timeout")
    assert "reply_by 2020-01-01T00:00:00Z has passed" in reply["payload"]["error_text"]
    assert not worker.began.is_set()


async def test_reply_by_is_the_deadline_of_a_task_that_send_message_carries(
    system: System, wire: Wire
) -> None:
    worker = make_worker()
    await system.start_agent(worker.agent)
    hub = await system.start_hub()
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    message = {"performative": "TASK_REQUEST", "receiver": "worker", "payload": REPAIR, "reply_by": soon}
    async with asyncio.timeout(WAIT_S):
        reply = (await wire.call(hub.url, "send_message", {"message": message})).result
        await worker.cancelled.wait()
    assert (reply["performative"], reply["payload"]["error_code"]) == ("FAILURE", "timeout")


async def test_a_task_that_send_message_carries_takes_no_callback_url(system: System, wire: Wire) -> None:
    worker = make_worker()
    await system.start_agent(worker.agent)
    hub = await system.start_hub()
    message = {"performative": "TASK_REQUEST", "receiver": "worker", "payload": {"task_type": "reveal"}}
    urged = {**message, "callback_url": "https://example.com/inbox"}
    reply = (await wire.call(hub.url, "send_message", {"message": urged})).result
    assert (reply["performative"], reply["payload"]["reason_code"]) == (
        "NOT_UNDERSTOOD",
        "invalid_payload_structure",
    )
    assert "callback_url" in reply["payload"]["reason_text"]
    assert "/messages" in reply["payload"]["reason_text"]
    reply = (await wire.call(hub.url, "send_message", {"message": message})).result
    assert reply["performative"] == "INFORM_RESULT"


async def test_nobody_answers_in_the_name_of_an_agent_that_does_not_exist(system: System, wire: Wire) -> None:
    hub = (await system.start_hub()).url
    for performative, payload in (
        ("TASK_REQUEST", REPAIR),
        ("QUERY_CAPABILITIES", {"query_type": "summary"}),
    ):
        for url, more in ((hub, {"receiver": "nobody"}), (f"{hub}/agents/nobody", {})):
            reply = (await say(wire, url, performative, payload, **more)).json
            assert (reply["performative"], reply["sender"]) == ("TASK_REJECT", {"agent_id": "retinue"})


async def test_a_path_with_a_trailing_slash_is_answered_without_a_redirect(
    system: System, wire: Wire
) -> None:
    worker = make_worker()
    agent, hub = (await system.start_agent(worker.agent)).url, (await system.start_hub()).url
    for url in (f"{agent}/messages/", f"{hub}/messages/", f"{hub}/agents/worker/messages/"):
        reply = await wire.post(url, {"performative": "QUERY_REF", "payload": {"reference": "codons"}})
        assert (reply.status, reply.json["performative"]) == (200, "INFORM_RESULT")


async def test_a_reply_that_fits_no_conversation_is_not_understood(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    for performative in (name for name, one in PERFORMATIVES.items() if one.is_reply):
        reply = (await say(wire, url, performative, {}, in_reply_to="never-said")).json
        assert reply["performative"] == "NOT_UNDERSTOOD"
        assert "fits no open conversation" in reply["payload"]["reason_text"]


@requirement("W-24")
async def test_a_forged_sender_is_refused(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    hub = await system.start_hub()
    _, text = TokenFile(system.state.keys).issue(["mesh"], name="eddy")
    eddy = {"authorization": f"Bearer {text}"}
    as_agent = {"authorization": system.token, "x_retinue_for": "eddy"}
    for base in (url, f"{hub.url}/agents/worker"):
        for headers in (eddy, as_agent):
            for sender in ("worker", "Mallory", "retinue"):
                reply = await say(
                    wire, base, "TASK_REQUEST", {"task_type": "reveal"}, sender=sender, headers=headers
                )
                assert (reply.json["performative"], reply.json["payload"]["reason_code"]) == (
                    "TASK_REJECT",
                    "unauthorized",
                )
            for more in ({"sender": "Eddy"}, {}):
                reply = await say(
                    wire, base, "TASK_REQUEST", {"task_type": "reveal"}, headers=headers, **more
                )
                assert reply.json["payload"]["result_details"]["result"].endswith("eddy")


@requirement("W-24")
async def test_signed_messages_are_verified_and_replies_signed(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    system = await open_home(stack, tmp_path, sign=True, signatures="require")
    url = (await system.start_agent(make_worker().agent)).url
    key = system.state.mesh_key()
    message = {
        "message_id": "m",
        "performative": "TASK_REQUEST",
        "timestamp": utc_now(),
        "payload": {"task_type": "reveal"},
    }
    signed = sign(message, key)
    assert find_flaw(signed, key) is None
    reply = await wire.post(f"{url}/messages", signed)
    assert reply.json["performative"] == "INFORM_RESULT"
    assert find_flaw(reply.json, key) is None
    for wrong in (
        message,
        {**signed, "payload": {"task_type": "fail"}},
        sign(message, b"x" * 64),
        {**message, "signature": {"protected": "e30", "signature": ""}},
        {**message, "signature": {"protected": 1}},
        signed,
        sign({**message, "timestamp": "2020-01-01T00:00:00Z"}, key),
        sign({name: value for name, value in message.items() if name != "timestamp"}, key),
    ):
        refused = (await wire.post(f"{url}/messages", wrong)).json
        assert refused["payload"]["reason_code"] == "unauthorized", wrong
    old = (
        await wire.post(f"{url}/messages", sign({**message, "timestamp": "2020-01-01T00:00:00Z"}, key))
    ).json
    assert "the clock of the signer must not be behind" in old["payload"]["reason_text"]
    assert (await wire.post(f"{url}/messages", sign({**message, "message_id": "n"}, key))).json[
        "performative"
    ] == "INFORM_RESULT"


@requirement("W-22")
async def test_every_message_is_a_line_of_the_log(stack: AsyncExitStack, tmp_path: Path, wire: Wire) -> None:
    log = tmp_path / "messages.log"
    system = await open_home(stack, tmp_path / "home", log=log)
    url = (await system.start_agent(make_worker().agent)).url
    sent = {"performative": "TASK_REQUEST", "payload": {"task_type": "reveal"}}
    reply = await wire.post(f"{url}/messages", sent)
    received, answered = log.read_text().splitlines()
    assert received.startswith("MCP_MESSAGE_RECEIVED: ")
    assert orjson.loads(received.partition(": ")[2]) == sent
    assert answered.startswith("MCP_MESSAGE_SENT: ")
    assert orjson.loads(answered.partition(": ")[2]) == reply.json
    assert log.stat().st_mode & 0o077 == 0


@requirement("W-24")
async def test_an_unknown_ontology_is_a_warning_and_in_strict_mode_not_understood(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    lenient = await open_home(stack, tmp_path / "lenient")
    strict = await open_home(stack, tmp_path / "strict", strict=True)
    whole = {
        "mcp_version": "0.1.0",
        "message_id": "m",
        "sender": {"agent_id": "eddy"},
        "receiver": {"agent_id": "worker"},
        "language": "de",
        "ontology": "weather:forecast",
        "timestamp": "2026-11-22T12:00:00Z",
    }
    query = {"query_type": "summary"}
    url = (await lenient.start_agent(make_worker().agent)).url
    warned = (await say(wire, url, "QUERY_CAPABILITIES", query, **whole)).json
    assert warned["performative"] == "INFORM_CAPABILITIES"
    assert "'weather:forecast' is unknown" in warned["warnings"][0]
    assert warned["language"] == "en"
    url = (await strict.start_agent(make_worker().agent)).url
    refused = (await say(wire, url, "QUERY_CAPABILITIES", query, **whole)).json
    assert refused["payload"]["reason_code"] == "unknown_ontology"
    known = {**whole, "ontology": "elizaos:ontology:agent/capability_query"}
    answer = (await say(wire, url, "QUERY_CAPABILITIES", query, **known)).json
    assert answer["performative"] == "INFORM_CAPABILITIES"
    least = (await say(wire, url, "QUERY_CAPABILITIES", query)).json
    assert "strict mode requires every field" in least["payload"]["reason_text"]


async def test_a_message_to_another_agent_is_not_taken(system: System, wire: Wire) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    hub = (await system.start_hub()).url
    for base in (url, f"{hub}/agents/worker"):
        for name in ("worker", "WORKER", "*", ""):
            reply = await say(wire, base, "TASK_REQUEST", {"task_type": "reveal"}, receiver=name)
            assert reply.json["performative"] == "INFORM_RESULT"
        reply = (await say(wire, base, "TASK_REQUEST", {"task_type": "reveal"}, receiver="other")).json
        assert "names another agent" in reply["payload"]["reason_text"]
    by_spelling = (await say(wire, hub, "TASK_REQUEST", {"task_type": "reveal"}, receiver="Worker")).json
    assert by_spelling["performative"] == "INFORM_RESULT"
    asked = (await say(wire, hub, "QUERY_CAPABILITIES", {"query_type": "summary"}, receiver="Worker")).json
    assert (asked["performative"], asked["sender"]) == ("INFORM_CAPABILITIES", {"agent_id": "worker"})


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"7", b'"x"', b"null", b'{"a":' * 3000])
async def test_a_body_that_is_no_message_is_not_understood(system: System, wire: Wire, body: bytes) -> None:
    url = (await system.start_agent(make_worker().agent)).url
    reply = await wire.post(f"{url}/messages", body)
    assert (reply.status, reply.json["performative"]) == (200, "NOT_UNDERSTOOD")
    assert reply.json["payload"]["reason_code"] == "parsing_error"
    assert reply.json["in_reply_to"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_WORDS = st.sampled_from(
    [
        *(
            "query_type",
            "query_parameters",
            "capabilities",
            "match_type",
            "action_name",
            "condition",
            "topic",
        ),
        *("task_type", "task_parameters", "task_description", "priority", "reference", "task_id", "code"),
    ]
)
_VALUES = st.sampled_from(
    ["summary", "specific", "action_details", "all", "fail", "reveal", "echo", "task", "agents", "codons"]
)
_PAYLOADS = st.dictionaries(_WORDS, _VALUES | _JSON | st.dictionaries(_WORDS, _VALUES | _JSON, max_size=3))
_MESSAGES = st.fixed_dictionaries(
    {"performative": st.sampled_from(list(PERFORMATIVES)) | _JSON, "payload": _PAYLOADS | _JSON},
    optional={
        name: _JSON | st.text(max_size=30)
        for name in (
            *(
                "message_id",
                "sender",
                "receiver",
                "in_reply_to",
                "reply_with",
                "language",
                "ontology",
                "trace",
            ),
            *("timestamp", "signature", "callback_url", "reply_by", "mcp_version", "conversation_id"),
        )
    },
)


@pytest.fixture
async def fuzzed(system: System) -> tuple[Served, Hub]:
    agent = Agent("worker", version="1.0.0", topics=["Python"])

    @agent.skill
    async def fail() -> str:
        """Fails."""
        raise ValueError("broken")

    @agent.skill
    async def reveal(code: str = "") -> Any:
        """Gives what is no JSON."""
        return code

    @agent.skill
    async def echo(code: Any = None, task_description: str = "") -> Any:
        """Gives back what it got."""
        return code

    return await system.start_agent(agent), await system.start_hub()


@requirement("W-21")
async def test_whatever_is_sent_the_answer_is_a_message(fuzzed: tuple[Served, Hub], wire: Wire) -> None:
    """Generated and mutated envelopes, at an agent, at the hub and as the argument of send_message."""
    served, hub = fuzzed
    bodies: list[bytes] = []
    collect(bodies)
    urls = (f"{served.url}/messages", f"{hub.url}/messages", f"{hub.url}/agents/worker/messages")
    for number, body in enumerate(bodies):
        reply = await wire.post(urls[number % 3], body)
        assert reply.status in (200, 202), (body, reply)
        assert reply.json["performative"] in PERFORMATIVES, body
        assert PERFORMATIVES[reply.json["performative"]].is_reply, body
        assert reply.json["payload"].get("error_code") != "internal_error", (body, reply.body)
        assert reply.json["in_reply_to"], body
    for body in bodies[::7]:
        message = orjson.loads(body) if is_json_object(body) else {}
        told = (await wire.call(hub.url, "send_message", {"message": message})).result
        assert told["performative"] in PERFORMATIVES, body
        assert told["payload"].get("error_code") != "internal_error", (body, told)


@requirement("W-21")
async def test_whatever_envelope_is_sent_in_a_data_part_the_answer_is_one(
    fuzzed: tuple[Served, Hub], wire: Wire
) -> None:
    served, hub = fuzzed
    world = World(served, hub, wire)
    bodies: list[bytes] = []
    collect(bodies)
    messages = [orjson.loads(body) for body in bodies if is_json_object(body)]
    envelopes = [one for one in messages if isinstance(one.get("performative"), str)]
    assert len(envelopes) > 50
    urls = (f"{served.url}/", f"{hub.url}/", f"{hub.url}/agents/worker/")
    for number, envelope in enumerate(envelopes):
        answer = await by_a2a(world, urls[number % 3], envelope)
        assert answer["performative"] in PERFORMATIVES, envelope
        assert PERFORMATIVES[answer["performative"]].is_reply, envelope
        assert answer["payload"].get("error_code") != "internal_error", (envelope, answer)


def is_json_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        return False


def collect(bodies: list[bytes]) -> None:
    """Envelopes that Hypothesis made; of each a second one with some bytes changed."""

    @settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(_MESSAGES, st.integers(0, 10_000), st.binary(max_size=3))
    def make(message: Any, at: int, put: bytes) -> None:
        body = orjson.dumps(message, default=str) if fits(message) else b"{}"
        bodies.append(body)
        at %= len(body)
        bodies.append(body[:at] + put + body[at + 1 :])

    make()


def fits(message: Any) -> bool:
    try:
        orjson.dumps(message)
    except TypeError:
        return False
    return True


@requirement("W-24")
async def test_an_agent_that_takes_messages_alone_is_called_like_any_other(
    system: System, wire: Wire, stack: AsyncExitStack
) -> None:
    """A foreign agent: it accepts, and reports on its own or when it is asked."""
    inbox: list[Any] = []
    mode = "asked"
    hub = await system.start_hub()

    async def take(request: Request) -> Response:
        message = await request.json()
        inbox.append(message)
        reply = {"sender": "bob", "in_reply_to": message["message_id"], "payload": {}}
        if message["performative"] == "TASK_REQUEST" and mode == "at once":
            details = {"result": message["payload"]["task_parameters"]["x"] + 1}
            payload = {"task_status": "success", "result_details": details}
            return JSONResponse({**reply, "performative": "INFORM_RESULT", "payload": payload})
        if message["performative"] == "TASK_REQUEST" and mode == "refused":
            payload = {"status": "rejected", "reason_code": "busy", "reason_text": "later"}
            return JSONResponse({**reply, "performative": "TASK_REJECT", "payload": payload})
        if message["performative"] == "TASK_REQUEST":
            if mode == "on its own":
                done = {"task_status": "success", "result_details": {"result": "told"}}
                ended = {**reply, "performative": "INFORM_RESULT", "payload": done}
                asyncio.get_running_loop().create_task(wire.post(f"{hub.url}/messages", ended))
            payload = {"status": "accepted", "task_id_assigned": "t-1"}
            return JSONResponse({**reply, "performative": "TASK_ACCEPT", "payload": payload}, 202)
        if message["performative"] == "QUERY_REF" and mode == "asked":
            done = {"task_status": "success", "result_details": {"fixed": True}}
            return JSONResponse({**reply, "performative": "INFORM_RESULT", "payload": done})
        return JSONResponse({**reply, "performative": "NOT_UNDERSTOOD"})

    base = await stack.enter_async_context(serve_app(Router(routes=[Route("/talk", take, methods=["POST"])])))
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    record = AgentRecord(
        "bob",
        version="1.0.0",
        endpoints=(Endpoint("messages", f"{base}/talk"),),
        skills=(Skill("add", "Adds one.", input_schema=schema, visibility="exposed"),),
    )
    await publish(system.home, encode_card(render_card(record, scopes=frozenset({"exposed", "mesh"}))))
    for mode, wanted in (("at once", 3), ("on its own", "told"), ("asked", {"fixed": True})):
        reply = await wire.call(hub.url, "add", {"x": 2})
        assert reply.result == wanted, mode
    assert [one["performative"] for one in inbox[:2]] == ["TASK_REQUEST", "TASK_REQUEST"]
    assert inbox[0]["payload"] == {"task_type": "add", "task_parameters": {"x": 2}}
    assert inbox[0]["sender"] == {"agent_id": "retinue"}
    mode = "refused"
    by_message = (
        await say(wire, hub.url, "TASK_REQUEST", {"task_parameters": {"x": 1}}, receiver="bob")
    ).json
    assert by_message["payload"]["reason_code"] == "busy"
