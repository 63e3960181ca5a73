"""Receipts as a part: reads what other hubs measured of agents, and issues what this hub measured.

Nothing is fetched while no key of another owner is trusted. Nothing is issued unless ``receipts.publish`` is
set or a person asks for it. Without either nothing is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from retinue.authoring.agent import Agent
from retinue.cards.signatures import CardSigner
from retinue.core.record import HUB_NAME
from retinue.hub.receipts.book import CardPlace, ReceiptBook, ReceiptTrust
from retinue.hub.receipts.skills import add_receipt_skills
from retinue.mesh.directory.directory import Directory
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.learned_ranking import blame_nobody
from retinue.mesh.history.search_history import SearchHistory
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.factories import HOME_SOURCE, card_keys
from retinue.runtime.mesh import Registries
from retinue.runtime.parts.audit import flush_calls
from retinue.runtime.parts.finding.receipt_issuing import Claim, ReceiptIssuer
from retinue.runtime.parts.finding.receipt_reading import ReceiptReader
from retinue.runtime.serving import ending
from retinue.settings import Settings
from retinue.settings_tables import ReceiptsTable, SignatureTable
from retinue.storage.audit_log import AuditLog
from retinue.storage.receipt_store import ReceiptClaims, ReceiptFile

LOOK_S = 15.0
"""Seconds between two looks for cards whose receipts are to be read."""

ISSUE_S = 600.0
"""Seconds between two looks for receipts to issue."""

_DAY_S = 86_400.0
_log = structlog.get_logger("retinue.receipts")


class ReceiptsPart(Part):
    """Lets receipts of other hubs count in searches; a command without a hub uses those that were read."""

    name = "receipts"
    kinds = frozenset({"hub", "command"})
    is_required = True
    needs = (Directory, SearchHistory)
    runs_after = (FirstReading,)
    ready_after = (AgentsStarted,)

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        receipts = await asyncio.to_thread(_open, process)
        begun: list[asyncio.Task[None]] = []

        async def on_ready() -> None:
            begun.append(asyncio.create_task(repeat(receipts.reader.read_due, LOOK_S), name="receipts"))
            if process.tables.get(ReceiptsTable).publish:
                issuing = repeat(receipts.issuer.issue_due, ISSUE_S)
                begun.append(asyncio.create_task(issuing, name="receipts issued"))

        def add_skills(agent: Agent) -> None:
            if agent.name == HUB_NAME:
                directory, reader = process.get(Directory), receipts.reader
                add_receipt_skills(
                    agent, directory, receipts.book, reader.read_now, receipts.issuer.issue_now
                )

        is_hub = process.kind == "hub"
        yield Opened(running=lambda: ending(begun), on_ready=on_ready if is_hub else None, skills=add_skills)


@dataclass(frozen=True, slots=True)
class _Receipts:
    book: ReceiptBook
    reader: ReceiptReader
    issuer: ReceiptIssuer


def _open(process: Process) -> _Receipts:
    """The book with the stored receipts, what fills it, and what issues; it blocks on disk I/O."""
    table, state = process.tables.get(ReceiptsTable), process.state
    directory, history = process.get(Directory), process.get(SearchHistory)
    held = card_keys(process.tables.get(SignatureTable), state)
    max_age_s = table.max_age_days * _DAY_S

    def trust() -> ReceiptTrust:
        own = held.find_own_id()
        return ReceiptTrust(held.trusted(), own, table.trust, max_age_s)

    def note_change() -> None:
        history.blame = book.blame if book else blame_nobody

    file = ReceiptFile(state.receipts)
    book = ReceiptBook(trust, held.revision)
    book.load(file.read_cards())
    note_change()
    registries = {
        name: registry
        for name, registry in process.get(Registries).by_name.items()
        if isinstance(registry, HttpRegistry | LayoutRegistry)
    }
    reader = ReceiptReader(directory, registries, book, file, table.every_s, on_change=note_change)
    issuer = ReceiptIssuer(
        directory=directory,
        registries=registries,
        exams=process.get(ExamBook),
        audit=AuditLog(state.database),
        file=file,
        make_signer=lambda: CardSigner(held.signing_key()),
        own=HOME_SOURCE,
        window_s=max_age_s,
        every_s=table.publish_every_s,
        flush=partial(flush_calls, process),
        claim=_make_claim(process.tables.get(Settings).database, table.publish_every_s),
    )
    return _Receipts(book, reader, issuer)


def _make_claim(database: str | None, every_s: float) -> Claim:
    """What lets one of the hubs on a database issue a receipt; without a common one every hub may."""
    if database is None or not database.startswith("postgres"):
        return lambda _place: True
    claims = ReceiptClaims(database)

    def claim(place: CardPlace) -> bool:
        return claims.claim(place, time.time(), every_s)

    return claim


async def repeat(work: Callable[[], Awaitable[object]], every_s: float) -> None:
    """Go on until the task is cancelled; a round that fails is logged."""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - content of one registry must not end the reading of all
            _log.warning("receipts interrupted", error=repr(error))
        await asyncio.sleep(every_s)
