"""Triggers at a hub: which answer ``POST /webhooks/{hook}`` gives, messages, agents, pages and logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from retinue.hub.scheduling.signatures import sign
from retinue.oci.registry import publish_workflow
from retinue.settings_tables import AuthTable
from retinue.storage.state import State
from tests.dashboard.site import Site
from tests.system import NOON, Reply, open_system, open_wire

DEPLOY = {
    "name": "deploy",
    "on": {"webhook": {"per_minute": 5, "max_bytes": 200}},
    "input": {"type": "object", "properties": {"commit": {"type": "string"}}, "required": ["commit"]},
    "steps": [{"id": "a", "wait_for": "go"}],
}
BODY = orjson.dumps({"commit": "ab12"})


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    # nobody may call without a token, except at the address of a webhook
    secured = AuthTable(anonymous=False)
    async with open_system(State(retinue_home), auth=secured) as system, open_wire() as wire:
        await publish_workflow(system.home, "deploy", orjson.dumps(DEPLOY), created=NOON)
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def ask(site: Site, skill: str, **arguments: Any) -> dict[str, Any]:
    reply = await site.wire.call(site.hub.url, skill, arguments, authorization=site.system.token)
    result: dict[str, Any] = reply.result
    return result


async def send(
    site: Site, added: dict[str, Any], event: str, body: bytes = BODY, *, age_s: float = 0, **headers: str
) -> Reply:
    sent_at = int(time.time() - age_s)
    signed = {
        "webhook_id": event,
        "webhook_timestamp": str(sent_at),
        "webhook_signature": sign(added["secret"], event, sent_at, body),
    }
    return await site.wire.post(added["url"], body, **signed | headers)


async def test_a_signed_request_without_a_token_starts_one_run(site: Site) -> None:
    added = await ask(site, "add_schedule", workflow="deploy")
    assert added["url"].startswith(f"{site.hub.url}/webhooks/")
    taken = await send(site, added, "evt_1")
    assert (taken.status, taken.json) == (202, {"run": "deploy:evt_1"})
    again = await send(site, added, "evt_1", age_s=-2)
    assert (again.status, again.json) == (200, {"run": "deploy:evt_1"})
    shown = await ask(site, "show_run", run="deploy:evt_1")
    assert shown["input"] == {"commit": "ab12"}
    assert [row["run"] for row in (await ask(site, "list_runs"))["runs"]] == ["deploy:evt_1"]


async def test_each_refusal_has_its_status_and_the_form_of_rest(site: Site) -> None:
    added = await ask(site, "add_schedule", workflow="deploy")
    assert (await send(site, added, "evt_1")).status == 202
    unknown = {**added, "url": added["url"][:-4] + "0000"}
    refused = {
        "unsigned": (await site.wire.post(added["url"], BODY), 401, "not_authenticated"),
        "old": (await send(site, added, "old", age_s=301), 401, "not_authenticated"),
        "replayed": (await send(site, added, "evt_1", age_s=1), 409, "repeated_event"),
        "other body": (await send(site, added, "evt_1", b'{"commit":"x"}', age_s=-9), 409, "run_conflict"),
        "large": (await send(site, added, "large", b'"' + b"x" * 200 + b'"'), 413, "too_large"),
        "no JSON": (await send(site, added, "text", b"commit"), 400, "parse_error"),
        "other input": (await send(site, added, "none", b"{}"), 422, "validation_error"),
        "form": (await send(site, added, "form", content_type="text/plain"), 415, "unsupported_media_type"),
        "unknown": (await send(site, unknown, "evt_2"), 404, None),
    }
    for name, (reply, status, kind) in refused.items():
        assert reply.status == status, (name, reply.body)
        assert isinstance(reply.json["detail"], str)
        assert reply.json.get("data", {}).get("type") == kind, name
    for number in range(4):
        assert (await send(site, added, f"more_{number}")).status == 202
    busy = await send(site, added, "one-too-many")
    assert (busy.status, busy.json["data"]["type"]) == (429, "busy")
    assert 1 <= int(busy.headers["retry-after"]) <= 60
    await ask(site, "change_schedule", schedule="deploy", change="pause")
    assert (await send(site, added, "later")).status == 403
    assert (await site.wire.get(added["url"])).status == 405


async def test_the_other_addresses_still_want_a_token(site: Site) -> None:
    for path in ("/hooks/registry", "/execute"):
        assert (await site.wire.post(f"{site.hub.url}{path}", {"events": []})).status == 401


async def test_the_secret_is_shown_once_and_in_no_list_page_or_log(site: Site) -> None:
    with capture_logs() as logs:
        added = await ask(site, "add_schedule", workflow="deploy")
        secret = added["secret"].removeprefix("whsec_")
        assert (await send(site, added, "evt_1")).status == 202
        await send(site, {**added, "secret": "whsec_" + "A" * 44}, "evt_2")
        page = (await site.read("/ui/workflows", site.system.token)).body.decode()
    assert "on webhook" in page
    assert added["url"] in page
    listed = orjson.dumps(await ask(site, "list_schedules")).decode()
    assert "secret" not in await ask(site, "add_schedule", workflow="deploy")
    calls = orjson.dumps(await ask(site, "list_calls")).decode()
    rows = str(list(site.hub.audit.recent(100)))
    for text in (page, listed, calls, rows, str(logs)):
        assert secret not in text


async def test_a_message_to_the_hub_starts_a_workflow_and_gets_its_own_answer(site: Site) -> None:
    definition = {"name": "by-message", "on": {"message": {"topic": "build"}}, "steps": DEPLOY["steps"]}
    await publish_workflow(site.system.home, "by-message", orjson.dumps(definition), created=NOON)
    assert (await ask(site, "add_schedule", workflow="by-message"))["status"] == "active"
    payload = {"task_type": "unknown", "topic": "build"}
    message = {"performative": "TASK_REQUEST", "payload": payload, "sender": "ci", "message_id": "m1"}
    url, own = f"{site.hub.url}/messages", site.system.token
    for _ in range(2):
        reply = await site.wire.post(url, message, authorization=own)
        assert reply.json["performative"] == "TASK_REJECT", "the answer is that of the message"
    sent = {"message": {**message, "message_id": "m2"}}
    assert (await ask(site, "send_message", **sent))["performative"] == "TASK_REJECT"
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        # on a busy machine the answer comes before the run
        while len(rows) < 2:
            rows = (await ask(site, "list_runs"))["runs"]
    assert [row["workflow"] for row in rows] == ["by-message"] * 2
    shown = await ask(site, "show_run", run=rows[0]["run"])
    assert (shown["input"]["sender"], shown["input"]["payload"]) == ("ci", payload)
    assert "on message" in (await site.read("/ui/workflows", own)).body.decode()
