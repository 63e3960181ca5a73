"""Reading many repositories of a registry that gives many artifacts in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

from retinue.core.errors import RegistryError
from retinue.drivers.registry import Registry
from retinue.protocols.oci.artifacts import Artifact
from retinue.protocols.oci.bulk import Pulled
from retinue.protocols.oci.reference import Reference

BATCH = 128
"""Repositories in one request: so few that both ends work at the same time, and neither for long."""


@runtime_checkable
class BulkRegistry(Protocol):
    """A registry that may give many artifacts at once (``drivers.http_registry.HttpRegistry``)."""

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        """Artifacts by repository; what is left out may be asked again. Empty where it cannot."""
        ...


class ReadAhead:
    """Pulls from ``registry``: the ``references``, each with a digest, many at a time, all else singly.

    Whoever asks for one that is not here yet fetches the next batch for all who ask; what was fetched
    and not asked for stays below two batches.
    """

    def __init__(self, registry: Registry, references: Iterable[Reference]) -> None:
        self._registry = registry
        self._bulk = registry if isinstance(registry, BulkRegistry) else None
        self._waiting = {one.repository: one for one in references} if self._bulk is not None else {}
        self._here: dict[str, Artifact | RegistryError] = {}
        self._fetching = asyncio.Lock()

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """As ``Registry.pull_if_changed``; what was fetched ahead is always given.

        Raises as well why it could not be opened.
        """
        repository = reference.repository
        if self._has_room and not self._fetching.locked():
            async with self._fetching:
                if self._has_room:
                    await self._fetch()
        while repository in self._waiting:
            async with self._fetching:
                if repository in self._waiting:
                    await self._fetch()
        # Whoever finds everything at hand would keep the loop from all others.
        await asyncio.sleep(0)
        found = self._here.pop(repository, None)
        if found is None:
            return await self._registry.pull_if_changed(reference, known_digest)
        if isinstance(found, RegistryError):
            raise found
        return found

    @property
    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._here) < BATCH // 2

    async def _fetch(self) -> None:
        batch = list(islice(self._waiting.values(), BATCH))
        pulled = await self._bulk.pull_many(batch) if self._bulk is not None else {}
        answered = [repository for repository in pulled if self._waiting.pop(repository, None) is not None]
        if not answered:
            self._waiting.clear()
        self._here |= {name: found for name in answered if (found := pulled[name]) is not None}
