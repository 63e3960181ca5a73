"""The interface of a source: a place where the directory reads agents, such as an OCI registry."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from retinue.core.errors import RetinueError
from retinue.core.record import Health, Listing, ListingKey
from retinue.core.trust import Trust
from retinue.mesh.entry import Entry


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Something that a source could not read; ``key`` is None when the source itself failed."""

    source: str
    key: str | None
    error: RetinueError


@dataclass(frozen=True, slots=True)
class Reading:
    """The listings of a source at one time, except the keys that ``problems`` name.

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

    ``name`` is unique in a directory; each listing carries it as ``source``. ``trust`` is that of its agents
    for calls that name no agent.
    """

    name: str
    trust: Trust = Trust.IMPORTED

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
        """Note the stored listings of this source, so that it need not return them again.

        By default every reading gives everything.
        """
        return


OnChange = Callable[[Listing, Health, str], None]
"""Called with a changed listing, its health and, where it is not healthy, the reason.

Of one that is new the health is unknown, and the reason says what is waited for.
"""


@dataclass(frozen=True, slots=True)
class MemberId:
    """Which member of a source: its name and, of what a team brings, the team and the tag of its digest.

    So two teams may have an import of one name, and two digests of a team run theirs beside each other.
    """

    name: str
    team: str = ""
    tag: str = ""

    @property
    def key(self) -> str:
        """The key of its listing; that of a team is as the repository of an agent of the team."""
        return f"agents/{self.team}/{self.name}" if self.team else self.name

    @property
    def full_name(self) -> str:
        """The name that no other team has: ``NAME@TEAM``."""
        return f"{self.name}@{self.team}" if self.team else self.name

    @property
    def pinned(self) -> str:
        """The name under which its tools are accepted; each digest of a team has its own."""
        return f"{self.full_name}:{self.tag}" if self.tag else self.full_name

    def __str__(self) -> str:
        """The text by which a source finds the member."""
        return name_member(ListingKey("", self.key, self.tag))


def name_member(listing: ListingKey) -> str:
    """The text by which a source finds the member with this listing."""
    return f"{listing.key}:{listing.tag}" if listing.tag else listing.key


class LiveMember(ABC):
    """Something that this process runs and lists as an agent; ``fingerprint`` changes with its settings.

    ``reason`` says why it does not answer, or not yet.
    """

    id: MemberId
    fingerprint: str
    reason: str

    @property
    @abstractmethod
    def listing(self) -> Listing:
        """The member as an agent, in its present state."""

    @abstractmethod
    async def stop(self) -> None:
        """End it."""


M = TypeVar("M", bound=LiveMember)


class LiveSource(Source, Generic[M]):
    """A source whose agents this process runs itself, by the texts of their ids."""

    def __init__(self) -> None:
        self._members: dict[str, M] = {}
        self._on_change: OnChange = lambda listing, health, reason: None
        self._is_dirty = False

    def subscribe(self, on_change: OnChange) -> None:
        """Call ``on_change`` after each change from now on."""
        self._on_change = on_change

    def list_members(self) -> tuple[M, ...]:
        """The agents of this source."""
        return tuple(self._members.values())

    def find_member(self, listing: ListingKey) -> M | None:
        """The member with this listing; None where it is gone."""
        return self._members.get(name_member(listing))

    async def aclose(self) -> None:
        """Stop every member."""
        await asyncio.gather(*(member.stop() for member in self._members.values()))

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self._is_dirty = False
        return Reading(tuple(member.listing for member in self._members.values()))

    async def read_key(self, key: str) -> tuple[Listing, ...]:
        return tuple(member.listing for member in self._members.values() if member.id.key == key)

    def changed(self) -> bool:
        return self._is_dirty

    async def _replace(self, fingerprints: Mapping[str, str], make: Callable[[str], M]) -> None:
        """Create new entries, stop removed entries, and replace entries with another fingerprint."""
        for name, member in list(self._members.items()):
            if fingerprints.get(name) != member.fingerprint:
                del self._members[name]
                self._is_dirty = True
                await member.stop()
        for name in fingerprints:
            if name not in self._members:
                self._members[name] = member = make(name)
                self._is_dirty = True
                self._change(member.listing, "unknown", member.reason)

    def _change(self, listing: Listing, health: Health, reason: str) -> None:
        self._on_change(listing, health, reason)
