"""The limits of a directory: how long look-ups wait, and how much it keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLimits:
    """How long look-ups wait for sources, and how much is cached or processed at once."""

    expired_wait_s: float = 1.0
    """How long a look-up waits for sources whose time to live is over before it uses what is listed."""

    miss_wait_s: float = 2.0
    """How long a look-up that finds nothing waits for a slow source, which is read on in the background."""

    cached_listings: int = 2_048
    """Whole listings kept in memory, about 20 MB, because reading one from a store takes about 100 µs."""

    page_entries: int = 5_000
    """Entries of a page, after which other tasks run: about 5 ms."""


DEFAULT_LIMITS = DirectoryLimits()
