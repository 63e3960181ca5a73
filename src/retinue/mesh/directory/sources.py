"""Sources: where the directory reads agents from, such as an OCI registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from retinue.core.errors import RetinueError
from retinue.core.record import Listing
from retinue.mesh.entry import Entry


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Something that a source could not read; ``key`` is None when the source itself failed."""

    source: str
    key: str | None
    error: RetinueError


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source lists at one time, except the keys that ``problems`` name.

    ``unchanged`` maps keys with their tags to digests: listings that are the same as when the source last
    gave them, in a reading, by ``read_key``, or in an earlier process (`Source.remember`).
    """

    listings: tuple[Listing, ...]
    problems: tuple[SourceProblem, ...] = ()
    unchanged: Mapping[tuple[str, str], str] = field(default_factory=dict)


Give = Callable[[Sequence[Listing]], None]
"""Receives listings while a source is still being read."""


class Source(ABC):
    """A place that lists agents.

    ``name`` is unique in a directory; each listing carries it as ``source``.
    """

    name: str

    @abstractmethod
    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        """Everything that is listed now.

        ``give`` receives new listings in batches while the source is read, so that they need not all be in
        memory at once; `Reading.listings` then holds the rest. Without ``thorough`` the source may skip for
        some minutes what rarely changes and is expensive to read.

        Raises RetinueError when the source cannot be read at all; a single listing that cannot be read is a
        problem of the Reading instead.
        """

    @abstractmethod
    async def read_key(self, key: str) -> Sequence[Listing]:
        """The whole listings of this key, changed or not: one for each version. Raises RetinueError."""

    def changed(self) -> bool:
        """Whether something may have changed since the last `read_all` began.

        Must be cheap and must not wait. False for a source that cannot tell.
        """
        return False

    def remember(self, held: Iterable[Entry]) -> None:
        """Note what the directory has kept of this source, so that it need not be given again.

        By default every reading gives everything.
        """
        return
