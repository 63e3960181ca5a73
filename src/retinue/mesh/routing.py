"""Which agents may take a call, and in which order they are tried.

The directory says who offers a skill, its order included; here the wishes of one call narrow that
down, and a strategy arranges what is left. Workflows and doors share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from retinue.core.record import Listing
from retinue.mesh.versions import parse_version_range


class Strategy(Protocol):
    """Arranges the live candidates of one call, best first; it drops and adds none."""

    def __call__(self, candidates: Sequence[Listing]) -> Sequence[Listing]: ...


def first(candidates: Sequence[Listing]) -> Sequence[Listing]:
    """Keep the directory's order: the same call goes to the same agent (SPEC 2, doubt 8)."""
    return candidates


def select_candidates(
    listings: Sequence[Listing], *, agent: str | None = None, version_range: str | None = None
) -> tuple[Listing, ...]:
    """Those of ``listings`` that are enabled, called ``agent`` and of a version in the range.

    ``agent`` is a name, or ``name@source``. Raises InvalidSettingError for text that is no range.
    """
    wanted = parse_version_range(version_range) if version_range is not None else None
    return tuple(
        listing
        for listing in listings
        if listing.enabled
        and (agent is None or is_called(listing, agent))
        and (wanted is None or wanted.fits(listing.record.version))
    )


def is_called(listing: Listing, agent: str) -> bool:
    """Whether ``agent`` is the listing's name, bare or with its source."""
    name = listing.record.name
    return agent in (name, f"{name}@{listing.source}")


def order_candidates(listings: Sequence[Listing], strategy: Strategy = first) -> tuple[Listing, ...]:
    """The order in which to try ``listings``: the strategy's, then those measured as unreachable.

    These are kept, since what was unreachable may be back, and nobody else may offer the skill.
    """
    live = [listing for listing in listings if listing.reachable is not False]
    return (*strategy(live), *(listing for listing in listings if listing.reachable is False))
