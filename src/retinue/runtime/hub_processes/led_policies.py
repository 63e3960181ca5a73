"""What the policies of the processes of a hub share: counts of calls, approvals, figures and records.

Each process has loaded the policies and decides by itself, while the leader has the same ones. The leader
keeps what is counted, asked and recorded, so limits and approvals hold over all processes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retinue.approvals.records import Approval, ApprovalRequest, ApprovalState, ApprovalStore, Verdict
from retinue.core.errors import BusyError
from retinue.policies.counts import CallCounts, Count, Refusal
from retinue.runtime.hub_processes.follower import Leader
from retinue.runtime.hub_processes.leader import (
    APPROVALS_PATH,
    COUNTS_PATH,
    INPUTS_PATH,
    LeaderExchange,
)

if TYPE_CHECKING:
    from retinue.storage.audit_store import SqliteAudit

RETRY_AFTER_S = 1.0


class LedCounts:
    """The `CallCounts` of the leader, as another process uses them."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def take(self, counts: Sequence[Count]) -> Refusal | None:
        """As `CallCounts.take`; raises BusyError while no process leads."""
        return await self._look("take", counts)

    async def find_refusal(self, counts: Sequence[Count]) -> Refusal | None:
        """As `CallCounts.find_refusal`."""
        return await self._look("find_refusal", counts)

    async def give_back(self, counts: Sequence[Count]) -> None:
        """As `CallCounts.give_back`."""
        await _ask(self._leader, COUNTS_PATH, ["give_back", _render(counts)])

    async def _look(self, method: str, counts: Sequence[Count]) -> Refusal | None:
        answer = await _ask(self._leader, COUNTS_PATH, [method, _render(counts)])
        return None if answer is None else Refusal(counts[answer[0]], answer[1])


class LedApprovals:
    """The `ApprovalStore` of the leader, as another process uses it. Methods raise BusyError as well."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def ask(self, request: ApprovalRequest, *, expires_s: float, approval_id: str = "") -> Approval:
        """As `ApprovalStore.ask`."""
        asked = Approval.ask(request, time.time(), expires_s, approval_id).to_json()
        return Approval.from_json(await self._call("ask", asked, expires_s, approval_id))

    async def find(self, approval_id: str) -> Approval | None:
        """As `ApprovalStore.find`."""
        return _read(await self._call("find", approval_id))

    async def list_all(self, *, state: ApprovalState | None = None) -> list[Approval]:
        """As `ApprovalStore.list_all`."""
        return [Approval.from_json(stored) for stored in await self._call("list_all", state)]

    async def answer(self, approval_id: str, verdict: Verdict, by: str, comment: str = "") -> Approval:
        """As `ApprovalStore.answer`."""
        return Approval.from_json(await self._call("answer", approval_id, verdict, by, comment))

    async def use(self, approval_id: str, digest: str, user: str = "", *, once: bool = False) -> bool:
        """As `ApprovalStore.use`."""
        return bool(await self._call("use", approval_id, digest, user, once))

    async def find_used(self, digest: str, user: str) -> Approval | None:
        """As `ApprovalStore.find_used`."""
        return _read(await self._call("find_used", digest, user))

    async def keep_outcome(self, approval_id: str, user: str, outcome: Mapping[str, Any]) -> None:
        """As `ApprovalStore.keep_outcome`."""
        await self._call("keep_outcome", approval_id, user, dict(outcome))

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await _ask(self._leader, APPROVALS_PATH, [method, *arguments])


def answer_policies(
    exchange: LeaderExchange,
    open_counts: Callable[[], Awaitable[CallCounts]],
    open_approvals: Callable[[], Awaitable[ApprovalStore]],
    audit: SqliteAudit,
) -> None:
    """Let the leader answer what the policies of the other processes ask."""

    async def answer_counts(asked: Sequence[Any]) -> Any:
        method, rows = asked
        counts, kept = [Count(*row) for row in rows], await open_counts()
        if method == "give_back":
            return await kept.give_back(counts)
        refusal = await (kept.find_refusal(counts) if method == "find_refusal" else kept.take(counts))
        return None if refusal is None else [counts.index(refusal.count), refusal.wait_s]

    async def answer_approvals(asked: Sequence[Any]) -> Any:
        method, *arguments = asked
        return await _METHODS[method](await open_approvals(), *arguments)

    async def keep_inputs(rows: Sequence[str]) -> None:
        for row in rows:
            audit.append_rendered_inputs(row.encode())

    exchange.answers |= {
        COUNTS_PATH: answer_counts,
        APPROVALS_PATH: answer_approvals,
        INPUTS_PATH: keep_inputs,
    }


async def _ask(leader: Leader, path: str, value: Any) -> Any:
    try:
        return await leader.ask(path, value)
    except (OSError, TimeoutError):
        raise BusyError("the leading process of this hub starts again", RETRY_AFTER_S) from None


def _render(counts: Sequence[Count]) -> list[list[Any]]:
    return [[count.key, count.calls, count.window_s] for count in counts]


def _read(stored: Any) -> Approval | None:
    return None if stored is None else Approval.from_json(stored)


async def _asked(store: ApprovalStore, asked: Mapping[str, Any], expires_s: float, approval_id: str) -> Any:
    request = Approval.from_json(asked).request
    return (await store.ask(request, expires_s=expires_s, approval_id=approval_id)).to_json()


async def _found(store: ApprovalStore, approval_id: str) -> Any:
    approval = await store.find(approval_id)
    return None if approval is None else approval.to_json()


async def _listed(store: ApprovalStore, state: ApprovalState | None) -> Any:
    return [approval.to_json() for approval in await store.list_all(state=state)]


async def _answered(store: ApprovalStore, approval_id: str, verdict: Verdict, by: str, comment: str) -> Any:
    return (await store.answer(approval_id, verdict, by, comment)).to_json()


async def _used(store: ApprovalStore, approval_id: str, digest: str, user: str, once: bool) -> Any:
    return await store.use(approval_id, digest, user, once=once)


async def _found_used(store: ApprovalStore, digest: str, user: str) -> Any:
    approval = await store.find_used(digest, user)
    return None if approval is None else approval.to_json()


async def _kept(store: ApprovalStore, approval_id: str, user: str, outcome: Mapping[str, Any]) -> Any:
    await store.keep_outcome(approval_id, user, outcome)


_METHODS: Mapping[str, Callable[..., Awaitable[Any]]] = {
    "ask": _asked,
    "find": _found,
    "list_all": _listed,
    "answer": _answered,
    "use": _used,
    "find_used": _found_used,
    "keep_outcome": _kept,
}
