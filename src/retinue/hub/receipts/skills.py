"""The hub's skills about receipts: show those that are known, and issue own ones now."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.receipts import Receipt
from retinue.core.call import Principal
from retinue.core.errors import InsufficientScopeError
from retinue.hub.receipts.book import ReceiptBook
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import is_mesh_itself

Json = dict[str, Any]

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Issued:
    """What came of issuing a receipt for one version; ``reason`` says why there is none, "" for success."""

    agent: str
    registry: str
    repository: str
    calls: int
    reason: str = ""


Publish = Callable[[str | None], Awaitable[Sequence[Issued]]]
"""Issues receipts for the versions of one agent, None = of all agents."""


Read = Callable[[Sequence[Entry]], Awaitable[None]]
"""Reads the receipts of these agents now."""


def add_receipt_skills(
    agent: Agent, directory: Directory, book: ReceiptBook, read: Read, publish: Publish
) -> None:
    """Add ``show_receipts`` and ``publish_receipts`` to the hub's agent."""

    @agent.skill(read_only=True, listed=False)
    async def show_receipts(
        ctx: Context,
        agent: Annotated[str, Field(description="Only this agent; empty for all")] = "",
        fetch: Annotated[bool, Field(description="Read the registry of this agent first")] = True,
    ) -> Json:
        """Shows what other hubs measured of agents, and what each of these receipts weighs."""
        _check_owner(ctx.principal)
        await directory.ensure_fresh()
        if not agent:
            pages = directory.iterate_pages()
            return {
                "receipts": [
                    row async for page in pages for entry in page for row in _render_entry(entry, book)
                ]
            }
        entries = _list_entries(directory, agent)
        if fetch:
            await read(entries)
        return {"receipts": [row for entry in entries for row in _render_entry(entry, book)]}

    @agent.skill(listed=False, idempotent=True)
    async def publish_receipts(
        ctx: Context, agent: Annotated[str, Field(description="Only for this agent; empty for all")] = ""
    ) -> Json:
        """Signs what this hub measured of agents of registries, and attaches it to their cards there."""
        _check_owner(ctx.principal)
        await directory.ensure_fresh()
        if agent:
            directory.get(agent)
        return {
            "published": [
                {
                    "agent": issued.agent,
                    "registry": issued.registry,
                    "repository": issued.repository,
                    "calls": issued.calls,
                    **({"error": issued.reason} if issued.reason else {}),
                }
                for issued in await publish(agent or None)
            ]
        }


def _list_entries(directory: Directory, name: str) -> Sequence[Entry]:
    """The entries of an agent; raises UnknownAgentError."""
    directory.get(name)
    return directory.list_named(name)


def _render_entry(entry: Entry, book: ReceiptBook) -> list[Json]:
    weighed, refused = book.find(entry)
    rows = [
        {
            **_render(receipt.receipt, entry),
            "issuer": receipt.owner or receipt.receipt.issuer,
            "weight": round(receipt.weight, 3),
            **({"reason": receipt.reason} if receipt.reason else {}),
            **({"earlier": True} if receipt.is_earlier else {}),
        }
        for receipt in weighed
    ]
    return rows + [
        {
            "agent": entry.name,
            "source": entry.source,
            "issuer": refusal.issuer,
            "weight": 0.0,
            "reason": refusal.reason,
        }
        for refusal in refused
    ]


def _render(receipt: Receipt, entry: Entry) -> Json:
    return {
        "agent": entry.name,
        "source": entry.source,
        "key": receipt.issuer,
        "calls": receipt.calls,
        "failures": dict(receipt.failures),
        "schema_breaks": receipt.schema_breaks,
        "latency_ms": dict(receipt.latency_ms),
        "exam": receipt.exam,
        "issued_at": receipt.issued_at,
        "age_days": round(max(0.0, time.time() - receipt.ends_at) / _DAY_S, 1),
    }


def _check_owner(principal: Principal) -> None:
    if not is_mesh_itself(principal):
        raise InsufficientScopeError(
            "receipts are the affair of the owner",
            scopes=("mesh",),
            remedy="use the command line of the owner: retinue receipts",
        )
