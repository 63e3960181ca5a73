"""The artifacts of a state folder as its process has them, opened at the first use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from retinue.mesh.lazy_artifacts import LazyArtifacts

if TYPE_CHECKING:  # most processes save no file
    from retinue.storage.artifacts.store import FindHeld, StoredArtifacts


class StateArtifacts(LazyArtifacts["StoredArtifacts"]):
    """The artifacts of a state folder: an `ArtifactStore`.

    ``make`` opens them with a function that tells which of them stored runs hold. ``exists`` tells whether
    anything was ever saved. `find_held` is set by who has the runs; a process without it takes every artifact
    as held where ``may_have_runs`` says that there are some.
    """

    def __init__(
        self,
        make: Callable[[FindHeld], StoredArtifacts],
        exists: Callable[[], bool],
        may_have_runs: Callable[[], bool],
    ) -> None:
        super().__init__(lambda: make(self._find_held))
        self.exists = exists
        self._may_have_runs = may_have_runs
        self.find_held: FindHeld | None = None

    async def release(self, runs: Sequence[str], digests: Sequence[str]) -> None:
        """End the holds of deleted runs, as `StoredArtifacts.release`."""
        if self.exists():
            await self.store.release(runs, digests)

    def close(self) -> None:
        """Close the index; nothing if it was never opened."""
        if self.made is not None:
            self.made.close()

    async def _find_held(self, digests: Collection[str]) -> Collection[str]:
        if self.find_held is not None:
            return await self.find_held(digests)
        return digests if self._may_have_runs() else ()
