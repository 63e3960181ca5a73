"""Webhooks start one run for each event, with the rights of their owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from retinue.core.call import Principal
from retinue.core.errors import (
    BusyError,
    DefinitionError,
    ExecutionFailedError,
    InvalidParametersError,
    InvalidRequestError,
    NotAllowedError,
    NotAuthenticatedError,
    ParseError,
    RegistryUnreachableError,
    RepeatedEventError,
    RetinueError,
    RunConflictError,
    StateError,
    TooLargeError,
    UnknownScheduleError,
    UnknownWebhookError,
)
from retinue.hub.scheduling.events import EventStarter, StartedByEvent
from retinue.hub.scheduling.signatures import sign
from retinue.hub.scheduling.webhooks import UNKNOWN_HOOKS, Webhooks
from retinue.web.security import LOCAL_TOKEN
from tests.hub.scheduling.bench import TOKEN, WORK, Node, ScheduleBench

DEPLOY = f"""on: webhook
input: {{type: object, properties: {{commit: {{type: string}}}}, required: [commit]}}
{WORK}"""

PAYLOAD = {"commit": "ab12"}


class Sender:
    """Signs and sends events to the webhook of a row, at a node."""

    def __init__(self, bench: ScheduleBench, added: dict[str, Any]) -> None:
        self._bench = bench
        self.hook = added["url"].removeprefix("http://hub.test/webhooks/")
        self.secret = added["secret"]

    async def send(
        self,
        node: Node,
        event: str = "evt_1",
        payload: Any = PAYLOAD,
        *,
        age_s: float = 0,
        secret: str | None = None,
    ) -> StartedByEvent:
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        sent_at = int(self._bench.now - age_s)
        headers = {
            "webhook-id": event,
            "webhook-timestamp": str(sent_at),
            "webhook-signature": sign(secret or self.secret, event, sent_at, body),
        }
        return await node.webhooks.receive(self.hook, headers, body)


async def add(node: Node, principal: Principal = LOCAL_TOKEN, **given: Any) -> dict[str, Any]:
    return await node.all.add(principal, "nightly", None, **given)


@pytest.fixture
def node(bench: ScheduleBench) -> Node:
    return bench.node(DEPLOY)


@pytest.fixture
async def sender(bench: ScheduleBench, node: Node) -> Sender:
    return Sender(bench, await add(node))


async def test_an_event_starts_a_run_whose_input_is_the_payload(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    assert await sender.send(node) == StartedByEvent("nightly:evt_1", is_new=True)
    record = await bench.runs.finish("nightly:evt_1")
    assert (record.status, record.request.input) == ("done", PAYLOAD)
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert (row["status"], row["on"], row["url"]) == (
        "active",
        "webhook",
        f"http://hub.test/webhooks/{sender.hook}",
    )
    assert row["last"] == {"at": "2026-12-01T00:00:00+00:00", "status": "done", "run": "nightly:evt_1"}
    assert sender.secret not in str(row)


async def test_a_run_acts_with_the_rights_of_who_added_the_trigger(bench: ScheduleBench, node: Node) -> None:
    sender = Sender(bench, await add(node, TOKEN))
    assert (await sender.send(node)).run == "nightly:evt_1"
    origin = (await bench.runs.finish("nightly:evt_1~mesh")).request.origin
    assert (origin.caller, origin.scopes, origin.calls_left) == ("token:ci", TOKEN.scopes, 99)


async def test_an_event_that_is_sent_again_has_the_same_run(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    await sender.send(node)
    bench.now += 20
    assert await sender.send(node) == StartedByEvent("nightly:evt_1", is_new=False)
    bench.now += 86_400
    assert (await sender.send(node)).run == "nightly:evt_1"
    assert await bench.list_runs() == ["nightly:evt_1"]


async def test_a_recorded_request_is_refused_and_names_the_run(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    await sender.send(node)
    bench.now += 20
    with pytest.raises(RepeatedEventError) as caught:
        await sender.send(node, age_s=20)
    assert caught.value.data == {"run": "nightly:evt_1"}
    bench.now += 300
    with pytest.raises(NotAuthenticatedError, match="320 s old"):
        await sender.send(node, age_s=320)


async def test_another_payload_under_the_same_id_is_a_conflict(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    await sender.send(node)
    bench.now += 1
    with pytest.raises(RunConflictError, match="nightly:evt_1 exists"):
        await sender.send(node, payload={"commit": "other"})


async def test_an_event_at_many_nodes_starts_one_run(bench: ScheduleBench, sender: Sender) -> None:
    nodes = [bench.node(DEPLOY, home=home) for home in ("one", "one", "two", "three")]
    taken = await asyncio.gather(
        *(sender.send(node, f"evt_{n}") for n in range(5) for node in nodes), return_exceptions=True
    )
    assert sorted(await bench.list_runs()) == [f"nightly:evt_{n}" for n in range(5)]
    assert sum(isinstance(one, StartedByEvent) for one in taken) == 5
    assert sum(isinstance(one, RepeatedEventError) for one in taken) == 15


async def test_a_strange_id_of_an_event_becomes_a_valid_id_of_a_run(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    event = "x/" + "y" * 200
    run = (await sender.send(node, event)).run
    assert run.startswith("nightly:")
    assert len(run) == len("nightly:") + 32
    bench.now += 1
    assert (await sender.send(node, event)).run == run


@pytest.mark.parametrize(
    ("payload", "error", "problem"),
    [
        (b"commit=ab12", ParseError, "not JSON"),
        (b"[" * 200 + b"]" * 200, ParseError, "more than 128 levels"),
        ({"commit": 7}, InvalidParametersError, "commit"),
        ({}, InvalidParametersError, "commit"),
        ({"commit": "x" * 300_000}, TooLargeError, "262,144"),
    ],
)
async def test_a_wrong_payload_is_refused_and_starts_nothing(
    bench: ScheduleBench, node: Node, sender: Sender, payload: Any, error: type[RetinueError], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        await sender.send(node, payload=payload)
    assert await bench.list_runs() == []
    # after the sender was corrected the same event is taken, also within the second
    assert (await sender.send(node)).is_new


async def test_another_secret_and_another_address_are_refused(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    with pytest.raises(NotAuthenticatedError):
        await sender.send(node, secret="whsec_" + "A" * 44)
    for hook in ("f" * 32, "nightly", "x"):
        sender.hook = hook
        with pytest.raises(UnknownWebhookError):
            await sender.send(node)
    assert await bench.list_runs() == []


async def test_requests_to_unknown_addresses_are_counted_together(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    taken: list[str] = []
    hub = Webhooks(
        node.open_triggers,
        EventStarter(node.firing, clock=bench.read_clock),
        take=taken.append,
        clock=bench.read_clock,
    )
    node.webhooks = hub
    for event in ("a", "b"):
        assert (await sender.send(node, event)).is_new
    for number in range(3):
        with pytest.raises(UnknownWebhookError):
            await hub.receive(f"{number:032x}", {}, b"")
    own = f"webhook:{sender.hook}"
    assert taken == [UNKNOWN_HOOKS, own, *[UNKNOWN_HOOKS] * 3]
    await node.all.change(LOCAL_TOKEN, "nightly", "remove")
    for _ in range(2):
        with pytest.raises(UnknownWebhookError):
            await sender.send(node)
    assert taken[5:] == [own, UNKNOWN_HOOKS]


async def test_the_remedy_of_a_broken_trigger_replaces_it(bench: ScheduleBench, node: Node) -> None:
    await node.all.add(LOCAL_TOKEN, "nightly", "deploys")
    node.texts["nightly"] += "description: other\n"
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert row["reason"].endswith("retinue schedules add nightly --name deploys --on webhook")


async def test_events_beyond_the_rate_are_refused_for_a_while(bench: ScheduleBench, node: Node) -> None:
    sender = Sender(bench, await add(node, on={"webhook": {"per_minute": 2}}))
    for event in ("a", "b"):
        await sender.send(node, event)
        bench.now += 10
    with pytest.raises(BusyError) as caught:
        await sender.send(node, "c")
    assert caught.value.retry_after_s == 40.0
    bench.now += 40
    assert (await sender.send(node, "c")).is_new


async def test_the_input_is_made_of_the_event_by_templates(bench: ScheduleBench) -> None:
    text = DEPLOY.replace("on: webhook", 'on: {webhook: {input: {commit: "${{ input.push.head }}"}}}')
    node = bench.node(text)
    sender = Sender(bench, await add(node))
    await sender.send(node, payload={"push": {"head": "ab12"}, "more": True})
    assert (await bench.runs.finish("nightly:evt_1")).request.input == {"commit": "ab12"}
    with pytest.raises(InvalidParametersError, match="cannot be made of the event"):
        await sender.send(node, "evt_2", payload={})


async def test_a_paused_trigger_starts_nothing_until_it_is_resumed(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    row = await node.all.change(LOCAL_TOKEN, "nightly", "pause")
    assert (row["status"], row["reason"]) == ("paused", "paused by local")
    with pytest.raises(NotAllowedError, match="starts nothing now"):
        await sender.send(node)
    assert (await node.all.change(LOCAL_TOKEN, "nightly", "resume"))["status"] == "active"
    assert (await sender.send(node)).is_new


async def test_a_trigger_whose_token_ended_is_paused_and_tells_its_owner(
    bench: ScheduleBench, node: Node
) -> None:
    sender = Sender(bench, await add(node, TOKEN))
    bench.ended[TOKEN.id] = "the token token:ci was revoked"
    with pytest.raises(NotAllowedError) as caught:
        await sender.send(node)
    assert "token:ci" not in str(caught.value) + caught.value.remedy
    bench.ended.clear()
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert (row["status"], row["reason"]) == ("paused", "the token token:ci was revoked")
    with pytest.raises(NotAllowedError):
        await sender.send(node)
    assert await bench.list_runs() == []


async def test_the_trigger_of_a_token_starts_runs_where_the_token_is_known_only(
    bench: ScheduleBench, node: Node
) -> None:
    sender, elsewhere = Sender(bench, await add(node, TOKEN)), bench.node(DEPLOY, home="two")
    with pytest.raises(NotAllowedError):
        await sender.send(elsewhere)
    assert (await sender.send(node)).is_new


async def test_a_trigger_whose_workflow_changed_or_went_is_broken(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    node.texts["nightly"] += "description: other\n"
    with pytest.raises(NotAllowedError):
        await sender.send(node)
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert row["status"] == "broken"
    assert "was changed since" in row["reason"]
    del node.texts["nightly"]
    with pytest.raises(NotAllowedError):
        await sender.send(node)
    assert "Unknown workflow" in (await node.all.list_all(LOCAL_TOKEN))[0]["reason"]
    node.texts["nightly"] = DEPLOY
    assert (await sender.send(node)).is_new
    assert (await node.all.list_all(LOCAL_TOKEN))[0]["status"] == "active"


async def test_a_reason_that_is_not_the_senders_is_kept_for_the_owner(
    bench: ScheduleBench, node: Node, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise DefinitionError("secret-agent is away", remedy="wait")

    with monkeypatch.context() as patched:
        patched.setattr(node.starter, "start", refuse)
        with pytest.raises(ExecutionFailedError) as caught:
            await sender.send(node)
        assert "secret-agent" not in str(caught.value)

    async def lose(*_: Any, **__: Any) -> Any:
        raise StateError("postgresql://db.example does not answer", remedy="")

    with monkeypatch.context() as patched:
        patched.setattr(node.starter, "start", lose)
        with pytest.raises(StateError, match="cannot be stored now"):
            await sender.send(node)
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert row["last"]["status"] == "failed"
    assert (await sender.send(node)).is_new


async def test_a_workflow_that_cannot_be_read_now_is_shown_as_failed(
    bench: ScheduleBench, node: Node, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(_: Any) -> Any:
        raise RegistryUnreachableError("http://home.example", "refused")

    with monkeypatch.context() as patched:
        patched.setattr(node.starter.library, "get", lose)
        with pytest.raises(ExecutionFailedError):
            await sender.send(node)
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert (row["status"], row["last"]["status"]) == ("active", "failed")
    assert "home.example is unreachable" in row["last"]["reason"]
    assert (await sender.send(node)).is_new


async def test_added_again_a_webhook_keeps_address_and_secret_unless_a_new_one_is_wanted(
    bench: ScheduleBench, node: Node, sender: Sender
) -> None:
    row = await add(node)
    assert row["url"].endswith(sender.hook)
    assert "secret" not in row
    assert (await sender.send(node)).is_new
    changed = await add(node, secret="new")
    assert changed["url"] == row["url"]
    with pytest.raises(NotAuthenticatedError):
        await sender.send(node, "evt_2")
    sender.secret = changed["secret"]
    assert (await sender.send(node, "evt_2")).is_new
    given = "whsec_" + "B" * 40
    assert (await add(node, secret=given))["secret"] == given
    sender.secret = given
    assert (await sender.send(node, "evt_3")).is_new


async def test_another_owner_gets_another_address_and_secret(bench: ScheduleBench, node: Node) -> None:
    first = await add(node, TOKEN)
    second = await add(node, replace(TOKEN, id="token:other"))
    assert first["url"] != second["url"]
    assert first["secret"] != second["secret"]
    assert len(await node.all.list_all(LOCAL_TOKEN)) == 1


async def test_a_removed_trigger_is_gone(bench: ScheduleBench, node: Node, sender: Sender) -> None:
    assert (await node.all.change(LOCAL_TOKEN, "nightly", "remove"))["status"] == "removed"
    with pytest.raises(UnknownWebhookError):
        await sender.send(node)
    with pytest.raises(UnknownScheduleError):
        await node.all.change(LOCAL_TOKEN, "nightly", "pause")


async def test_a_trigger_is_not_run_by_hand_because_an_event_brings_the_input(
    node: Node, sender: Sender
) -> None:
    with pytest.raises(InvalidRequestError, match="for each webhook event"):
        await node.all.change(LOCAL_TOKEN, "nightly", "run_now")


async def test_a_caller_changes_its_own_trigger_before_a_schedule_of_others_with_its_name(
    bench: ScheduleBench,
) -> None:
    node = bench.node(DEPLOY.replace("required: [commit]", ""))
    await node.book.add(TOKEN, "nightly", None, {"every": "1h"})
    await add(node)
    assert (await node.all.change(LOCAL_TOKEN, "nightly", "pause"))["on"] == "webhook"
    await node.all.change(LOCAL_TOKEN, "nightly", "remove")
    (row,) = await node.all.list_all(LOCAL_TOKEN)
    assert (row["schedule"], row["status"]) == ("nightly~mesh", "active")


async def test_a_trigger_beyond_the_rights_of_a_caller_does_not_exist_for_it(
    node: Node, sender: Sender
) -> None:
    assert await node.all.list_all(TOKEN) == []
    with pytest.raises(UnknownScheduleError):
        await node.all.change(TOKEN, "nightly", "pause")


async def test_a_workflow_with_several_ways_to_start_wants_a_choice(bench: ScheduleBench) -> None:
    node = bench.node(f"schedule: 0 3 * * *\n{DEPLOY}".replace("required: [commit]", ""))
    with pytest.raises(InvalidRequestError, match="in several ways: schedule, webhook") as caught:
        await add(node)
    assert "--on webhook" in caught.value.remedy
    assert (await add(node, on="webhook"))["on"] == "webhook"
    with pytest.raises(InvalidRequestError, match="starts on events"):
        await add(node, on="schedule")
    row = await node.all.add(LOCAL_TOKEN, "nightly", "by-time", on="schedule")
    assert row["cron"] == "0 3 * * *"
    with pytest.raises(InvalidRequestError, match="starts at certain times"):
        await node.all.add(LOCAL_TOKEN, "nightly", "by-time", on="webhook")
    assert [row["schedule"] for row in await node.all.list_all(LOCAL_TOKEN)] == ["by-time", "nightly"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"on": "telephone"}, "on.telephone"),
        ({"on": {"webhook": {"per_minute": 0}}}, "on.webhook.per_minute"),
        ({"on": {}}, "one kind of event"),
        ({"on": "webhook", "schedule": "0 3 * * *"}, "not both"),
        ({"on": "webhook", "secret": "short"}, "no secret of a webhook"),
        ({"schedule": {"every": "1h", "input": PAYLOAD}, "secret": "new"}, "for webhooks only"),
    ],
)
async def test_a_wrong_trigger_is_refused_with_the_field(
    node: Node, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidParametersError, match=problem):
        await add(node, **given)
    assert await node.all.list_all(LOCAL_TOKEN) == []
