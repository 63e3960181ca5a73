"""Listings by identity, by name and by skill, in the order in which agents are preferred.

Same names are one agent only where the url's origin or the owner's key is equal; otherwise they
stand side by side (DESIGN 2). Look-ups by skill are kept ready made per skill and scopes, so that
they cost the same among ten agents and a hundred thousand; a change drops those it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from urllib.parse import urlsplit

from retinue.core.record import Listing, ListingKey
from retinue.mesh.access import AgentView, within
from retinue.mesh.health import tier_of
from retinue.mesh.suggest import suggest
from retinue.mesh.versions import version_key
from retinue.mesh.visibility import is_visible

_DEFAULT_PORTS = {"http": 80, "https": 443}

Scopes = frozenset[str]


class ListingIndex:
    """``source_rank`` gives the place of a source by its name, lowest first."""

    def __init__(self, source_rank: Callable[[str], int]) -> None:
        self._rank = source_rank
        self._listings: dict[ListingKey, Listing] = {}
        self._by_name: dict[str, dict[ListingKey, None]] = {}
        self._by_skill: dict[str, dict[ListingKey, None]] = {}
        self._offers: dict[str, dict[Scopes, tuple[Listing, ...]]] = {}

    def __len__(self) -> int:
        return len(self._listings)

    def __iter__(self) -> Iterator[Listing]:
        return iter(self._listings.values())

    def find(self, listing_id: ListingKey) -> Listing | None:
        return self._listings.get(listing_id)

    def put(self, listing: Listing) -> None:
        """Add the listing, or replace the one of the same identity."""
        self.remove(listing.id)
        self._listings[listing.id] = listing
        self._by_name.setdefault(listing.record.name, {})[listing.id] = None
        for skill in listing.record.skills:
            self._by_skill.setdefault(skill.id, {})[listing.id] = None
        self._drop_offers(listing)

    def remove(self, listing_id: ListingKey) -> None:
        """Take the listing out, if it is there."""
        listing = self._listings.get(listing_id)
        if listing is None:
            return
        self._drop_offers(listing)
        del self._listings[listing_id]
        _take_out(self._by_name, listing.record.name, listing_id)
        for skill in listing.record.skills:
            _take_out(self._by_skill, skill.id, listing_id)

    def list_agents(self) -> tuple[Listing, ...]:
        """One listing per agent, by source and key."""
        best = [listing for name in self._by_name for listing in self.list_named(name)]
        return tuple(sorted(best, key=lambda a: (self._rank(a.source), a.source, a.key)))

    def list_named(self, name: str, *, source: str | None = None) -> list[Listing]:
        """The agents of one name, preferred first: enabled ▸ health ▸ source order ▸ version."""
        ids = self._by_name.get(name, ())
        listings = [self._listings[i] for i in ids if source is None or i.source == source]
        listings.sort(key=lambda a: a.key)
        listings.sort(key=lambda a: version_key(a.record.version), reverse=True)
        listings.sort(key=lambda a: (not a.enabled, tier_of(a), self._rank(a.source)))
        return merge_same_agents(listings) if len(listings) > 1 else listings

    def list_offering(self, skill_id: str, scopes: Scopes) -> tuple[Listing, ...]:
        """Enabled agents with a visible skill of this id: health ▸ source order ▸ key ▸ version."""
        if skill_id not in self._by_skill:
            return ()
        offers = self._offers.setdefault(skill_id, {})
        found = offers.get(scopes)
        if found is None:
            found = offers[scopes] = tuple(self._list_offering(skill_id, scopes))
        return found

    def skill_ids(self) -> Iterable[str]:
        """Every skill id, visible or not."""
        return self._by_skill.keys()

    def names(self) -> Iterable[str]:
        return self._by_name.keys()

    def list_at_same_url(self, listing: Listing) -> list[Listing]:
        """The held listings of this name at the same origin: where one is dead, all are.

        Empty when the listing has moved since or is gone.
        """
        current = self._listings.get(listing.id)
        if current is None or current.record.url != listing.record.url:
            return []
        origin = url_origin(listing.record.url)
        same_name = (self._listings[i] for i in self._by_name[listing.record.name])
        return [
            other
            for other in same_name
            if other.id == listing.id or (origin is not None and url_origin(other.record.url) == origin)
        ]

    def find_named(self, name: str) -> Listing | None:
        """The preferred listing of a bare name or ``name@source``."""
        named = self.list_named(name)
        if not named:
            parts = (name[:at] for at, character in enumerate(name) if character == "@")
            named = [one for part in parts for one in self.list_named(part, source=name[len(part) + 1 :])]
        return named[0] if named else None

    def suggest_names(self, name: str, view: AgentView | None) -> tuple[str, ...]:
        """At most three names near to ``name``, of agents within the view."""
        return suggest(name, [one for one in self.names() if view is None or view(one)])

    def suggest_skills(self, skill_id: str, scopes: Scopes, view: AgentView | None) -> tuple[str, ...]:
        """At most three ids near to ``skill_id``, of skills that such a caller can call."""
        near = suggest(skill_id, self.skill_ids(), limit=30)
        return tuple(i for i in near if within(view, self.list_offering(i, scopes)))[:3]

    def _list_offering(self, skill_id: str, scopes: Scopes) -> list[Listing]:
        found = []
        for listing_id in self._by_skill[skill_id]:
            listing = self._listings[listing_id]
            skill = listing.record.find_skill(skill_id)
            if skill is None or not listing.enabled or not is_visible(skill, scopes):
                continue
            if len(self._by_name[listing.record.name]) == 1 or listing in self.list_named(
                listing.record.name
            ):
                found.append(listing)
        found.sort(key=lambda a: version_key(a.record.version), reverse=True)
        found.sort(key=lambda a: (tier_of(a), self._rank(a.source), a.key))
        return found

    def _drop_offers(self, listing: Listing) -> None:
        for listing_id in self._by_name[listing.record.name]:
            for skill in self._listings[listing_id].record.skills:
                self._offers.pop(skill.id, None)


def merge_same_agents(listings: Iterable[Listing]) -> list[Listing]:
    """One listing per agent out of listings of one name, whose order is kept.

    The first of an agent stands for it, unless another of its listings was published later.
    """
    agents: list[list[Listing]] = []
    for listing in listings:
        same = next((a for a in agents if any(is_same_agent(listing, known) for known in a)), None)
        if same is None:
            agents.append([listing])
        else:
            same.append(listing)
    return [_latest(agent) for agent in agents]


def _latest(agent: list[Listing]) -> Listing:
    best = agent[0]
    for other in agent[1:]:
        alike = other.enabled == best.enabled and (other.reachable is False) == (best.reachable is False)
        if alike and is_older(best, other):
            best = other
    return best


def is_same_agent(one: Listing, other: Listing) -> bool:
    """Whether two listings of one name are one agent: equal url origin, or equal owner key."""
    if one.owner is not None and one.owner == other.owner:
        return True
    origin = url_origin(one.record.url)
    return origin is not None and origin == url_origin(other.record.url)


def is_older(one: Listing, other: Listing) -> bool:
    """Whether ``one`` was published before ``other``; False where either time is unknown."""
    if one.published_at is None or other.published_at is None:
        return False
    return one.published_at < other.published_at


@lru_cache(maxsize=4096)
def url_origin(url: str | None) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None without a host."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)


def _take_out(index: dict[str, dict[ListingKey, None]], key: str, listing_id: ListingKey) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(listing_id, None)
        if not entries:
            del index[key]


def says_the_same(new: Listing, held: Listing) -> bool:
    """Whether ``new`` tells nothing that ``held`` does not."""
    if new.reachable is not None and new.reachable != held.reachable:
        return False
    same_bytes = new.digest is not None and new.digest == held.digest
    return new.tag == held.tag and (same_bytes or (new.digest == held.digest and new.record == held.record))


def carry_over(new: Listing, before: Listing) -> Listing:
    """``new`` with what was chosen and, while it is at the same place, measured before."""
    kept = replace(new, enabled=before.enabled, stats=before.stats)
    moved = new.digest != before.digest or new.record.url != before.record.url
    if moved or new.reachable is not None:
        return kept
    return replace(kept, reachable=before.reachable, since=before.since, last_error=before.last_error)
