"""Notices of approvals to a chat system: which are sent, once for all hubs, repeated, signed and masked."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.approvals.records import MAX_TRIES, ApprovalRequest
from retinue.core.errors import InvalidSettingError
from retinue.hub.approvals.notices import ApprovalNotices
from retinue.hub.scheduling.signatures import new_secret, verify
from retinue.runtime.parts.runs import read_secret
from retinue.settings_tables import ApprovalsTable
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.signals import SignalTable
from tests.mesh.scripted import FakeClock
from tests.workflows.implementations import make_database

REQUEST = ApprovalRequest(
    "token:ann", "mail", "1.0.0", "send", {"to": "ben@example.org", "password": "hunter2", "text": "hello"}
)
SECRET = new_secret()


class Chat:
    """A chat system that two hubs of one database tell; ``problem`` is why it takes nothing."""

    def __init__(self, table: ApprovalTable, clock: FakeClock) -> None:
        self.table = table
        self.clock = clock
        self.problem = ""
        self.sent: list[tuple[Mapping[str, str], Any]] = []
        self.tries = 0

        claim, settle = table.claim_notices, table.settle_notice
        self.hubs = [ApprovalNotices(claim, settle, self.post, SECRET, clock=clock) for _ in range(2)]

    async def post(self, headers: Mapping[str, str], body: bytes) -> str:
        self.tries += 1
        verify(SECRET, {name.lower(): value for name, value in headers.items()}, body, self.clock())
        if not self.problem:
            self.sent.append((headers, orjson.loads(body)))
        return self.problem

    async def look(self, after_s: float = 0.0) -> list[str]:
        """The types of the notices that arrive when both hubs look at once."""
        self.clock.pass_time(after_s)
        before = len(self.sent)
        await asyncio.gather(*(hub.send_due() for hub in self.hubs))
        return [body["type"] for _, body in self.sent[before:]]


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Chat]:
    shutil.copy(await make_database(), tmp_path / "runs.db")
    database, clock = RunDatabase(f"sqlite:///{tmp_path}/runs.db"), FakeClock()
    yield Chat(ApprovalTable(database, SignalTable(database), clock), clock)
    database.close()


async def test_each_change_is_told_once_by_one_of_two_hubs(chat: Chat) -> None:
    first = await chat.table.ask(REQUEST, expires_s=900)
    second = await chat.table.ask(replace(REQUEST, skill="read"), expires_s=900)
    assert await chat.look() == ["approval.asked"] * 2
    assert await chat.look(60) == []
    await chat.table.answer(first.id, "yes", "token:boss")
    assert await chat.look() == ["approval.answered"]
    assert chat.sent[-1][1]["data"]["by"] == "token:boss"
    assert await chat.look(640) == ["approval.reminder"]
    assert chat.sent[-1][1]["data"]["approval"] == second.id
    assert await chat.look(200) == ["approval.expired"]
    assert await chat.look(60) == []
    ids = [headers["webhook-id"] for headers, _ in chat.sent]
    assert len(set(ids)) == len(ids) == 5


async def test_a_failed_delivery_is_repeated_with_its_id_up_to_a_limit(chat: Chat) -> None:
    await chat.table.ask(REQUEST, expires_s=100_000)
    chat.problem = "HTTP status 500"
    assert await chat.look() == []
    assert (await chat.look(1), chat.tries) == ([], 1)  # not at once
    chat.problem = ""
    assert (await chat.look(2), chat.tries) == (["approval.asked"], 2)
    await chat.table.ask(replace(REQUEST, skill="read"), expires_s=100_000)
    chat.problem, chat.tries = "connection refused", 0
    for _ in range(12):
        await chat.look(4_000)
    assert chat.tries == MAX_TRIES


async def test_secrets_and_personal_data_are_masked_and_the_approver_reads_them(chat: Chat) -> None:
    approval = await chat.table.ask(REQUEST, expires_s=900)
    await chat.look()
    (_, body) = chat.sent[0]
    data = body["data"]
    assert data["arguments"] == {"to": "redacted@example.invalid", "password": "[key]", "text": "hello"}
    assert sorted(data["masked"]) == ["password", "to"]
    assert data["answer"]["yes"] == f"retinue approvals approve {approval.id}"
    assert b"hunter2" not in orjson.dumps(body)
    known = await chat.table.find(approval.id)
    assert known is not None
    assert known.request.arguments["password"] == "hunter2"


def test_a_hub_with_a_webhook_needs_its_secret() -> None:
    table = ApprovalsTable(webhook="https://chat.example/hook")
    assert read_secret(table, {table.webhook_secret_env: SECRET}) == SECRET
    for value in ("", "whsec_c2hvcnQ="):
        with pytest.raises(InvalidSettingError, match=r"has no secret of a webhook"):
            read_secret(table, {table.webhook_secret_env: value})
