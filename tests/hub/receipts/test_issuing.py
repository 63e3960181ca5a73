"""When a hub issues receipts, and that one round that fails does not end the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from retinue.cards.receipts import RECEIPT_TYPE
from retinue.cards.signatures import CardSigner, SigningKey
from retinue.core.errors import StateError
from retinue.core.record import AgentRecord, Listing
from retinue.hub.receipts.book import CardPlace
from retinue.hub.receipts.measuring import MAX_PER_CALLER
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.exams import ExamBook
from retinue.mesh.observing.call_facts import shorten_digest
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import EMPTY_CONFIG, EMPTY_JSON, Manifest, render_manifest
from retinue.oci.codec.reference import digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.parts.finding.receipt_issuing import MIN_CALLS, ReceiptIssuer
from retinue.runtime.parts.finding.receipts import repeat
from retinue.storage.audit_log import AuditLog
from retinue.storage.receipt_store import IssuedReceipt, ReceiptFile
from tests.hub.receipts.test_book import DAY_S, NOW, row


class Calls:
    """The audit log: the calls of one version of the agent."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def iterate_calls(self, _since: object) -> Sequence[dict[str, object]]:
        return self.rows


class Agents:
    """The directory with one agent of the registry ``far``."""

    def __init__(self, digest: str) -> None:
        listing = Listing(AgentRecord("plan-agent"), "far", "agents/plan", tag="v1", digest=digest)
        self.entry = entry_of(listing)

    async def iterate_pages(self) -> AsyncIterator[Sequence[Entry]]:
        yield [self.entry]


class Issuing:
    """An issuer with a clock, whose claims are noted and answered with ``may_issue``."""

    def __init__(self, folder: Path, registry: LayoutRegistry, digest: str) -> None:
        self.now: float = NOW
        self.calls, self.claims, self.may_issue, self.flushed = Calls(), list[CardPlace](), True, 0
        self.digest, key = digest, SigningKey.create()
        self.issuer = ReceiptIssuer(
            directory=cast(Directory, Agents(digest)),
            registries={"far": registry},
            exams=ExamBook(),
            audit=cast(AuditLog, self.calls),
            file=ReceiptFile(folder / "receipts.json"),
            make_signer=lambda: CardSigner(key),
            own="home",
            window_s=30 * DAY_S,
            every_s=DAY_S,
            flush=self.note_flush,
            claim=self.claim,
            clock=lambda: self.now,
        )

    def note_flush(self) -> None:
        self.flushed += 1

    def claim(self, place: CardPlace) -> bool:
        self.claims.append(place)
        return self.may_issue

    def note_calls(self, count: int) -> None:
        facts = {"listing": shorten_digest(self.digest)}
        self.calls.rows += [row(facts=facts, status="failed", error="timeout") for _ in range(count)]

    async def issue_due(self) -> list[int]:
        return [issued.calls for issued in await self.issuer.issue_due()]


@pytest.fixture
async def registry(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


@pytest.fixture
async def issuing(tmp_path: Path, registry: LayoutRegistry) -> Issuing:
    raw = render_manifest(manifest := Manifest(EMPTY_CONFIG, (), artifact_type="application/vnd.test"))
    card = Package(manifest, raw, digest_of(raw), {EMPTY_CONFIG.digest: EMPTY_JSON})
    return Issuing(tmp_path, registry, await registry.push_package("agents/plan", "v1", card))


async def test_a_receipt_is_issued_from_enough_calls_once_a_day_and_replaces_the_last_one(
    issuing: Issuing, registry: LayoutRegistry
) -> None:
    async def count_receipts() -> int:
        return len(await registry.list_referrers("agents/plan", issuing.digest, RECEIPT_TYPE))

    issuing.note_calls(MIN_CALLS - 1)
    assert await issuing.issue_due() == []
    assert issuing.claims == [], "too few calls claim nothing"
    issuing.note_calls(1)
    assert await issuing.issue_due() == [MIN_CALLS]
    assert issuing.flushed == 2
    issuing.note_calls(5)
    issuing.now += DAY_S - 60
    assert await issuing.issue_due() == [], "the last one is less than a day old"
    issuing.now += 120
    assert await issuing.issue_due() == [MIN_CALLS + 5]
    assert await count_receipts() == 1
    assert issuing.claims == [CardPlace("agents/plan", issuing.digest)] * 2
    issuing.note_calls(MAX_PER_CALLER)
    (issued,) = await issuing.issuer.issue_now(None)
    assert (issued.calls, issued.reason) == (MAX_PER_CALLER, ""), "asked for, it waits for no day"


async def test_a_hub_whose_neighbour_has_claimed_a_card_issues_nothing(
    issuing: Issuing, registry: LayoutRegistry
) -> None:
    issuing.may_issue = False
    issuing.note_calls(MIN_CALLS)
    assert await issuing.issue_due() == []
    assert await registry.list_referrers("agents/plan", issuing.digest, RECEIPT_TYPE) == []
    issuing.may_issue = True
    assert await issuing.issue_due() == [MIN_CALLS]


async def test_a_round_that_fails_for_an_unknown_reason_does_not_end_the_next_ones() -> None:
    rounds = asyncio.Queue[int]()

    async def read() -> Any:
        rounds.put_nowait(1)
        raise ValueError("Invalid IPv6 URL")

    task = asyncio.create_task(repeat(read, 0.0))
    for _ in range(3):
        await asyncio.wait_for(rounds.get(), 60)
    task.cancel()


def test_a_file_that_cannot_be_read_now_is_not_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    file = ReceiptFile(path)
    file.write_cards([{"repository": "agents/plan"}])
    content = path.read_bytes()
    path.unlink()
    path.mkdir()  # no user may read it
    assert file.read_cards() is None
    with pytest.raises(StateError, match="cannot read"):
        file.write_cards([])
    with pytest.raises(StateError, match="cannot read"):
        file.note_issued(("a", "b"), IssuedReceipt("c", 1.0))
    path.rmdir()
    path.write_bytes(content)
    file.note_issued(("a", "b"), IssuedReceipt("c", 1.0))
    assert file.read_cards() == [{"repository": "agents/plan"}]
