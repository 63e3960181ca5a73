"""Listings, and directories of them under a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.errors import RegistryUnreachableError
from retinue.core.record import AgentRecord, Candidate, Endpoint, Listing, Skill, Visibility
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.limits import DEFAULT_LIMITS, DirectoryLimits
from retinue.mesh.directory.listings import Listings, MemoryListings
from tests.support.memory_source import MemorySource

MESH = frozenset({"exposed", "mesh"})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN = RegistryUnreachableError("home", "connection refused")


def listing(
    name: str,
    *skills: str,
    source: str = "home",
    key: str | None = None,
    url: str | None = None,
    version: str | None = "1.0.0",
    published_at: datetime | None = None,
    owner: str | None = None,
    visibility: Visibility = "mesh",
) -> Listing:
    offered = tuple(Skill(s, visibility=visibility) for s in skills or ("create_plan",))
    address = url or f"http://{name}.example:8001"
    record = AgentRecord(name, version=version, endpoints=(Endpoint("execute", address),), skills=offered)
    raw = encode_card(render_card(record, scopes=MESH))
    return Listing(
        record,
        source,
        key or f"agents/{name}",
        tag="v1",
        digest=f"sha256:{name}:{version}:{address}:{offered}",
        raw=raw,
        published_at=published_at,
        owner=owner,
    )


@dataclass
class Clock:
    """Seconds for the directory, moved by hand."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)


def directory_of(
    clock: Clock,
    *sources: MemorySource,
    store: Listings | None = None,
    limits: DirectoryLimits = DEFAULT_LIMITS,
) -> Directory:
    return Directory(store or MemoryListings(), sources, clock=clock, now=clock.now, limits=limits)


async def filled(
    clock: Clock,
    *listings: Listing,
    sources: Sequence[str] = ("home", "far"),
    limits: DirectoryLimits = DEFAULT_LIMITS,
) -> Directory:
    """A directory over sources that list these."""
    directory = directory_of(
        clock, *(MemorySource(s, [a for a in listings if a.source == s]) for s in sources), limits=limits
    )
    await directory.refresh()
    return directory


def keys(listings: Sequence[Candidate]) -> list[str]:
    return [one.key for one in listings]
