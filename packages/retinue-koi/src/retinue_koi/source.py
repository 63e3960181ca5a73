"""The personalities of a network as a source of the directory.

A key is the RID without the version, and the version is the tag: so the versions of one agent stand next to
each other, as those of a registry do. A change reaches the directory at once, without a reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

from retinue.core.record import Listing, ListingKey
from retinue.core.trust import Trust
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue_koi.adapter import Held, MCPAdapter
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.codec.profile_records import parse_profile

KOI_SOURCE = "koi"
"""The name of the source."""


class PersonalitySource(Source):
    """The personalities of an adapter, except the ones of this process, which ``is_own`` names."""

    name = KOI_SOURCE
    trust = Trust.NETWORK_MEMBER

    def __init__(
        self, adapter: MCPAdapter, is_own: Callable[[PersonalityProfile], bool] = lambda _: False
    ) -> None:
        self._adapter = adapter
        self._is_own = is_own

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        return Reading(tuple(self._list(self._adapter.list_held())))

    async def read_key(self, key: str) -> tuple[Listing, ...]:
        name = AgentPersonality.from_string(f"{key}/any").name
        return tuple(self._list(self._adapter.list_versions(name)))

    def feed(self, directory: Directory) -> Callable[[], None]:
        """Tell the directory of every change from now on; returns the function that ends it."""

        def tell(rid: AgentPersonality, held: Held | None) -> None:
            if held is None or self._is_own(held.profile):
                # one of this node's own may replace that of a node that had the name before
                directory.remove(listing_key(rid))
            else:
                directory.upsert(as_listing(held))

        return self._adapter.subscribe(tell)

    def _list(self, held: list[Held]) -> list[Listing]:
        return [as_listing(personality) for personality in held if not self._is_own(personality.profile)]


def mark_members(directory: Directory, node: str, reason: str | None) -> None:
    """Mark the personalities of a node as unreachable for this reason, as reachable without one."""
    for entry in directory.list_entries():
        if entry.source != KOI_SOURCE or entry.owner != node:
            continue
        if reason is None:
            directory.mark_reachable(entry)
        else:
            directory.mark_unreachable(entry, reason)


def listing_key(rid: AgentPersonality) -> ListingKey:
    """The id of the listing of a RID."""
    return ListingKey(KOI_SOURCE, f"orn:{AgentPersonality.namespace}:{rid.name}", rid.version)


def as_listing(held: Held) -> Listing:
    """The listing of a personality; its owner is the node that it comes from."""
    key = listing_key(held.profile.rid)
    content = json.dumps(held.profile.model_dump(), sort_keys=True).encode()
    return Listing(
        record=parse_profile(held.profile),
        source=key.source,
        key=key.key,
        tag=key.tag,
        digest=f"sha256:{sha256(content).hexdigest()}",
        published_at=held.timestamp,
        fetched_at=datetime.now(UTC),
        owner=str(held.profile.node_rid),
    )
