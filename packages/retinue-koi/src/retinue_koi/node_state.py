"""The state of a node: identity, cache, graph and memory, all below one folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retinue_koi.codec.bundles import Bundle, to_instant
from retinue_koi.codec.profiles import NodeProfile, NodeType
from retinue_koi.codec.rids import type_name
from retinue_koi.graph import GRAPH_TYPES, NetworkGraph
from retinue_koi.identity import Identity, check_name, load_identity, load_key
from retinue_koi.memory import NodeMemory
from retinue_koi.storage.cache import KoiCache
from retinue_koi.storage.journal import JOURNAL_BYTES


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """RID types, as texts or classes; a node provides ``event`` and ``state``, subscribes to ``interest``."""

    event: Iterable[Any] = ()
    state: Iterable[Any] = ()
    interest: Iterable[Any] = ()


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node. ``interest`` are the RID types that it subscribes to."""

    identity: Identity
    cache: KoiCache
    graph: NetworkGraph
    memory: NodeMemory
    interest: tuple[str, ...]
    now: Callable[[], datetime]

    @classmethod
    def of(
        cls,
        name: str,
        types: NodeTypes,
        *,
        base_url: str | None = None,
        folder: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        journal_bytes: int = JOURNAL_BYTES,
    ) -> NodeState:
        """The state of the node ``name``, whose cache is not loaded yet.

        ``base_url`` is where the node answers, with the path: ``http://127.0.0.1:9000/koi-net``. Without it
        the node is PARTIAL and polls. ``folder`` is by default ``.koi/{name}`` below the working directory.
        Raises InvalidSettingError and StateError.
        """
        check_name(name)
        folder = folder or Path(".koi") / name
        key = load_key(folder)
        profile = NodeProfile(
            NodeType.FULL if base_url else NodeType.PARTIAL,
            base_url.rstrip("/") if base_url else None,
            _names_of(types.event),
            _names_of(types.state),
            key.public_key,
        )
        identity = load_identity(folder, name, key, profile)
        cache = KoiCache(folder / "cache", journal_bytes=journal_bytes)
        graph, memory = NetworkGraph(identity.rid), NodeMemory(identity.rid, cache)
        return cls(identity, cache, graph, memory, _names_of(types.interest), now)

    @property
    def rid(self) -> str:
        return self.identity.rid

    @property
    def is_partial(self) -> bool:
        """Whether the node has no address, so that it polls."""
        return self.identity.profile.node_type is NodeType.PARTIAL

    def list_kept_types(self) -> frozenset[str]:
        """The RID types that the node keeps."""
        profile = self.identity.profile
        return frozenset({*GRAPH_TYPES, *profile.event, *profile.state, *self.interest})

    def now_us(self) -> int:
        """The present time as the instant of a manifest."""
        return to_instant(self.now())

    async def load(self) -> None:
        """Open the cache, and read from it what graph and memory hold. Raises StateError."""
        await asyncio.to_thread(self.cache.open)
        self.graph.load(self.cache)
        self.memory.load()

    def generate_bundle(self, rid: object, contents: dict[str, Any]) -> Bundle:
        """A bundle of these contents that is later than the one in the cache."""
        entry = self.cache.find_entry(rid)
        return Bundle.generate(rid, contents, now=self.now(), after_us=entry.instant_us if entry else 0)


def _names_of(types: Iterable[Any]) -> tuple[str, ...]:
    return tuple(type_name(rid_type) for rid_type in types)
