"""The table of approvals, which all nodes of a database share: an ApprovalStore.

The question of a run is open only while the run goes on. A run that was cancelled may be resumed, and its
question is open again then. So the table tells the state of the run each time that it reads the question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
import sqlalchemy as sa

from retinue.approvals.records import (
    MAX_OPEN_PER_CALLER,
    Approval,
    ApprovalRequest,
    ApprovalState,
    Notice,
    Verdict,
    topic_of,
)
from retinue.core.errors import BusyError, UnknownApprovalError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.signals import SignalTable

KEPT_S = 7 * 24 * 3600.0
"""How long an ended approval can be read."""

MAX_LISTED = 1_000

MAX_CLAIMED = 20
"""Notices that one process sends at once."""

TOLD_S = 3600.0
"""How long after its end an approval has notices."""

WAITING: tuple[ApprovalState, ...] = ("open", "approved")
"""The states of a question that the end of its run ends."""


class ApprovalTable:
    """The approvals in a database. ``signals`` tells a waiting run of the answer.

    All methods raise StateError where the database does not answer.
    """

    def __init__(
        self, database: RunDatabase, signals: SignalTable, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._signals = signals
        self._clock = clock

    async def ask(self, request: ApprovalRequest, *, expires_s: float, approval_id: str = "") -> Approval:
        """As `ApprovalStore.ask`."""
        now = self._clock()
        approval = Approval.ask(request, now, expires_s, approval_id)
        table = self._database.approvals

        def write(connection: sa.Connection) -> Approval:
            self._lock(connection)
            self._sweep(connection, now)
            known = self._find_equal(connection, approval, by_id=bool(approval_id))
            if known is not None:
                return known.seen_at(now)
            query = sa.text(
                f"SELECT record FROM {table} WHERE caller = :caller AND state = 'open' AND expires > :now"  # noqa: S608
            )
            waiting = _read_all(connection.execute(query, {"caller": request.caller, "now": now}))
            count = sum(each.state == "open" for each in self._see(connection, waiting, now))
            if count >= MAX_OPEN_PER_CALLER:
                raise BusyError(f"{MAX_OPEN_PER_CALLER} calls of this caller wait for approval", 60.0)
            insert = sa.text(
                f"INSERT INTO {table} (id, digest, caller, state, expires, record) "  # noqa: S608
                "VALUES (:id, :digest, :caller, :state, :expires, :record)"
            )
            connection.execute(insert, _columns(approval))
            return approval

        await self._database.prepare()
        return await self._database.write(write)

    async def find(self, approval_id: str) -> Approval | None:
        """As `ApprovalStore.find`."""
        await self._database.prepare()
        return await self._database.read(self._find_seen, approval_id, self._clock())

    async def list_all(self, *, state: ApprovalState | None = None) -> list[Approval]:
        """As `ApprovalStore.list_all`; at most `MAX_LISTED`."""
        now = self._clock()
        # pages ask for the open ones again and again: no other record is read for them
        where = " WHERE state = :state AND expires > :now" if state in ("open", "approved") else ""
        query = sa.text(f"SELECT record FROM {self._database.approvals}{where}")  # noqa: S608
        names = {"state": state, "now": now} if where else {}

        def read(connection: sa.Connection) -> list[Approval]:
            return self._see(connection, _read_all(connection.execute(query, names)), now)

        await self._database.prepare()
        approvals = sorted(await self._database.read(read), key=lambda each: each.asked_at, reverse=True)
        return [each for each in approvals if state in (None, each.state)][:MAX_LISTED]

    async def answer(self, approval_id: str, verdict: Verdict, by: str, comment: str = "") -> Approval:
        """As `ApprovalStore.answer`; a run that waits for the answer gets it as a signal."""
        now = self._clock()

        def write(connection: sa.Connection) -> Approval:
            self._lock(connection)
            known = self._find_seen(connection, approval_id, now)
            if known is None:
                raise UnknownApprovalError(approval_id)
            answered = known.answer(verdict, by, comment, now)
            self._update(connection, answered)
            if answered.request.awaits_signal:
                value = {"verdict": verdict, "by": by, "comment": comment}
                self._signals.insert(connection, answered.request.run, topic_of(approval_id), value)
            return answered

        await self._database.prepare()
        return await self._database.write(write)

    async def use(self, approval_id: str, digest: str, user: str = "", *, once: bool = False) -> bool:
        """As `ApprovalStore.use`."""
        now = self._clock()

        def write(connection: sa.Connection) -> bool:
            self._lock(connection)
            known = self._find(connection, approval_id)
            used = None if known is None else known.use(digest, user, now, once=once)
            if used is not None:
                self._update(connection, used)
            return used is not None

        await self._database.prepare()
        return await self._database.write(write)

    async def find_used(self, digest: str, user: str) -> Approval | None:
        """As `ApprovalStore.find_used`."""
        query = sa.text(
            f"SELECT record FROM {self._database.approvals} "  # noqa: S608
            "WHERE digest = :digest AND state = 'used' ORDER BY expires DESC"
        )
        await self._database.prepare()
        records = await self._database.read(lambda c: c.execute(query, {"digest": digest}).scalars().all())
        return next((used for used in map(_read, records) if used.used_by == user), None)

    async def keep_outcome(self, approval_id: str, user: str, outcome: Mapping[str, Any]) -> None:
        """As `ApprovalStore.keep_outcome`."""

        def write(connection: sa.Connection) -> None:
            self._lock(connection)
            known = self._find(connection, approval_id)
            if known is not None and known.used_by == user:
                self._update(connection, replace(known, outcome=outcome))

        await self._database.write(write)

    async def claim_notices(self) -> list[Notice]:
        """The notices to send now, each for one process; one that is not settled comes again later."""
        now = self._clock()
        # expired ones are told of for an hour
        query = sa.text(f"SELECT record FROM {self._database.approvals} WHERE expires > :since")  # noqa: S608

        def find_claims(connection: sa.Connection) -> list[tuple[Approval, Notice]]:
            stored = _read_all(connection.execute(query, {"since": now - TOLD_S}))
            return [
                # the question of an ended run stays open in the table, because the run may be resumed
                (replace(claim[0], state=known.state), claim[1])
                for known, seen in zip(stored, self._see(connection, stored, now), strict=True)
                if (claim := seen.claim_notice(now)) is not None
            ]

        def write(connection: sa.Connection) -> list[Notice]:
            self._lock(connection)
            claims = find_claims(connection)[:MAX_CLAIMED]
            for claimed, _ in claims:
                self._update(connection, claimed)
            return [notice for _, notice in claims]

        await self._database.prepare()
        # most looks find nothing, and read only
        return await self._database.write(write) if await self._database.read(find_claims) else []

    async def forget(self, roots: Sequence[str]) -> None:
        """Delete the questions of outermost runs and of their child runs, which hold arguments of calls."""
        run = (
            "json_extract(record, '$.request.run')"
            if self._database.is_sqlite
            else "CAST(record AS json) #>> '{request,run}'"
        )
        query = sa.text(f"SELECT id, {run} AS run FROM {self._database.approvals} WHERE {run} <> ''")  # noqa: S608
        delete = sa.text(f"DELETE FROM {self._database.approvals} WHERE id = :id")  # noqa: S608

        def write(connection: sa.Connection) -> None:
            for row in connection.execute(query).fetchall():
                if any(f"{row.run}/".startswith(f"{root}/") for root in roots):
                    connection.execute(delete, {"id": row.id})

        if roots:
            await self._database.write(write)

    def _see(self, connection: sa.Connection, approvals: Sequence[Approval], now: float) -> list[Approval]:
        """The approvals as they count now; those that wait in a run that has ended count as expired.

        A run that is not in this database is one of another hub, so its questions count until they expire.
        """
        seen = [each.seen_at(now) for each in approvals]
        runs = {each.request.run for each in seen if each.request.run and each.state in WAITING}
        if not runs:
            return seen
        going_on = self._database.client.list_going_on(connection, sorted(runs))
        return [
            replace(each, state="expired")
            if each.state in WAITING and not going_on.get(each.request.run, True)
            else each
            for each in seen
        ]

    def _find_seen(self, connection: sa.Connection, approval_id: str, now: float) -> Approval | None:
        known = self._find(connection, approval_id)
        return None if known is None else self._see(connection, [known], now)[0]

    async def settle_notice(self, notice: Notice) -> None:
        """Note that a notice was delivered."""

        def write(connection: sa.Connection) -> None:
            self._lock(connection)
            known = self._find(connection, notice.approval.id)
            if known is not None:
                self._update(connection, known.settle_notice(notice.kind))

        await self._database.write(write)

    def _find_equal(self, connection: sa.Connection, asked: Approval, *, by_id: bool) -> Approval | None:
        if by_id:
            return self._find(connection, asked.id)
        query = sa.text(
            f"SELECT record FROM {self._database.approvals} "  # noqa: S608
            "WHERE digest = :digest AND state IN ('open', 'approved', 'denied') AND expires > :now"
        )
        names = {"digest": asked.digest, "now": asked.asked_at}
        record = connection.execute(query, names).scalar()
        return None if record is None else _read(record)

    def _find(self, connection: sa.Connection, approval_id: str) -> Approval | None:
        query = sa.text(f"SELECT record FROM {self._database.approvals} WHERE id = :id")  # noqa: S608
        record = connection.execute(query, {"id": approval_id}).scalar()
        return None if record is None else _read(record)

    def _update(self, connection: sa.Connection, approval: Approval) -> None:
        update = sa.text(
            f"UPDATE {self._database.approvals} SET state = :state, record = :record WHERE id = :id"  # noqa: S608
        )
        connection.execute(update, _columns(approval))

    def _sweep(self, connection: sa.Connection, now: float) -> None:
        """Delete what ended long ago."""
        delete = sa.text(f"DELETE FROM {self._database.approvals} WHERE expires < :old")  # noqa: S608
        connection.execute(delete, {"old": now - KEPT_S})

    def _lock(self, connection: sa.Connection) -> None:
        """Change approvals one after another; SQLite has locked the database already."""
        if not self._database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('retinue approvals'))"))


def _columns(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "digest": approval.digest,
        "caller": approval.request.caller,
        "state": approval.state,
        "expires": approval.expires_at,
        "record": orjson.dumps(approval.to_json()).decode(),
    }


def _read_all(rows: sa.CursorResult[Any]) -> list[Approval]:
    return [_read(record) for record in rows.scalars()]


def _read(record: str) -> Approval:
    return Approval.from_json(orjson.loads(record))
