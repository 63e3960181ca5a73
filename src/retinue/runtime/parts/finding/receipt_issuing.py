"""Issues receipts: measures the recorded calls of agents of registries, signs the figures, attaches them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from retinue.cards.receipts import Receipt, measure_quantiles, sign_receipt
from retinue.cards.signatures import CardSigner
from retinue.core.errors import RetinueError
from retinue.hub.receipts.book import CardPlace, place_of
from retinue.hub.receipts.measuring import Measured, Version, measure_calls
from retinue.hub.receipts.skills import Issued
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.mesh.observing.call_facts import shorten_digest
from retinue.oci.attached_receipts import AttachingRegistry, attach_receipt
from retinue.storage.audit_log import AuditLog
from retinue.storage.receipt_store import IssuedReceipt, ReceiptFile

MIN_CALLS = 20
"""Calls from which a receipt is issued by itself."""

Claim = Callable[[CardPlace], bool]
"""Whether this hub may issue the receipt for a card now, of the hubs on one database; it blocks."""

_OWN = "its registry belongs to this mesh, and a hub issues no receipts of its own agents"

_log = structlog.get_logger("retinue.receipts")


@dataclass(slots=True, kw_only=True)
class ReceiptIssuer:
    """Issues receipts for agents of ``registries`` that are not of the source ``own``.

    Calls of the last ``window_s`` seconds are measured, and each card has a receipt every ``every_s``.
    ``flush`` writes the calls that wait in memory to the audit log. ``make_signer`` may block.
    """

    directory: Directory
    registries: Mapping[str, AttachingRegistry]
    exams: ExamBook
    audit: AuditLog
    file: ReceiptFile
    make_signer: Callable[[], CardSigner]
    own: str
    window_s: float
    every_s: float
    flush: Callable[[], None]
    claim: Claim
    clock: Callable[[], float] = time.time
    _issuing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def issue_due(self) -> Sequence[Issued]:
        """Issue the receipts that are due."""
        issued = await asyncio.to_thread(self.file.read_issued)
        oldest = self.clock() - self.every_s
        recent = {place for place, last in issued.items() if last.at > oldest}
        return await self._issue(None, MIN_CALLS, recent, claims=True)

    async def issue_now(self, agent: str | None) -> Sequence[Issued]:
        """Issue the receipts of one agent, or of all that were called, whenever the last ones were issued."""
        return await self._issue(agent, 1, (), claims=False)

    async def _issue(
        self, agent: str | None, min_calls: int, recent: Container[tuple[str, str]], *, claims: bool
    ) -> Sequence[Issued]:
        """Issue receipts for the called versions of one agent (None = of all), except those in ``recent``."""
        async with self._issuing:
            self.flush()
            measured = await asyncio.to_thread(self._measure)
            called = {version.agent for version, figures in measured.items() if figures.calls >= min_calls}
            results = []
            for entry in await self._list_called(called, agent):
                figures = measured.get(Version(entry.name, shorten_digest(entry.digest) or ""))
                if figures is None or figures.calls < min_calls or place_of(entry) in recent:
                    continue
                result = await self._try(entry, figures, claims=claims)
                if result is not None:
                    results.append(result)
            return results

    async def _list_called(self, called: Container[str], agent: str | None) -> list[Entry]:
        """The entries of ``called`` agents that registries have; other tasks run while all are looked at."""
        if agent is not None:
            entries = list(self.directory.list_named(agent))
        else:
            pages = self.directory.iterate_pages()
            entries = [entry async for page in pages for entry in page if entry.name in called]
        return [entry for entry in entries if entry.source in self.registries and entry.digest is not None]

    def _measure(self) -> Mapping[Version, Measured]:
        since = datetime.fromtimestamp(self.clock() - self.window_s, UTC)
        return measure_calls(self.audit.iterate_calls(since))

    async def _try(self, entry: Entry, figures: Measured, *, claims: bool) -> Issued | None:
        """Issue one receipt; None where another hub on the same database does."""
        registry = self.registries[entry.source]
        issued = Issued(entry.name, registry.name, entry.key, figures.calls)
        if entry.source == self.own:
            return None if claims else replace(issued, reason=_OWN)
        try:
            signer = await asyncio.to_thread(self.make_signer)
            if claims and not await asyncio.to_thread(self.claim, place_of(entry)):
                return None
            await self._attach(entry, figures, registry, signer)
        except RetinueError as error:
            _log.warning(
                "receipt not published", agent=entry.name, registry=registry.name, error=error.message
            )
            return replace(issued, reason=error.message)
        return issued

    async def _attach(
        self, entry: Entry, figures: Measured, registry: AttachingRegistry, signer: CardSigner
    ) -> None:
        place, now = place_of(entry), int(self.clock())
        exam = self.exams.find(entry)
        receipt = Receipt(
            place.repository,
            place.digest,
            entry.name,
            signer.key.kid,
            figures.calls,
            dict(figures.failures),
            measure_quantiles(figures.durations_ms),
            "not_examined" if exam is None else exam.status,
            int(figures.begins_at),
            min(now, int(figures.ends_at)),
            now,
        )
        issued = await asyncio.to_thread(self.file.read_issued)
        last = issued.get(place)
        signed = await asyncio.to_thread(sign_receipt, receipt, signer)
        digest = await attach_receipt(registry, signed, replaced=None if last is None else last.digest)
        await asyncio.to_thread(self.file.note_issued, place, IssuedReceipt(digest, float(now)))
