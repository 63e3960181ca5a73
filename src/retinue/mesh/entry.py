"""What a directory keeps in memory of a listing: enough to find, order and probe its agent.

The whole record is forty times as large and is wanted seldom; a store keeps it
(`retinue.mesh.listings`). Texts that many agents share are held once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Protocol, TypeVar, get_args

from retinue.core.record import Health, Listing, ListingKey, Skill, Visibility, say_health
from retinue.mesh.visibility import is_visible

Scopes = frozenset[str]

_KINDS: tuple[Visibility, ...] = get_args(Visibility)


class Candidate(Protocol):
    """Whoever may take a call: an entry of the directory, or a whole listing."""

    @property
    def id(self) -> ListingKey: ...
    @property
    def source(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def reachable(self) -> bool | None: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def health(self) -> Health: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One listing in short. ``skills`` are ids; ``kinds`` has the first letter of the visibility of each.

    ``roles`` are those that skills name, each with such a letter. ``enabled`` is a person's choice,
    and what follows was measured, all as in `Listing`.
    """

    id: ListingKey
    name: str
    version: str | None
    url: str | None
    tag: str | None
    digest: str | None
    owner: str | None
    published_at: datetime | None
    skills: tuple[str, ...]
    kinds: str
    roles: tuple[tuple[str, str], ...]
    labels: Mapping[str, str]
    enabled: bool
    reachable: bool | None
    since: datetime | None
    last_error: str | None

    @property
    def source(self) -> str:
        return self.id.source

    @property
    def key(self) -> str:
        return self.id.key

    @property
    def health(self) -> Health:
        """What was measured, in one word."""
        return say_health(self.reachable, self.last_error)

    def offers(self, skill_id: str, scopes: Scopes) -> bool:
        """Whether these scopes see a skill of this id."""
        kinds = _kinds_seen(scopes)
        return any(
            kind in kinds for one, kind in zip(self.skills, self.kinds, strict=True) if one == skill_id
        )

    def list_skills(self, scopes: Scopes) -> list[str]:
        """The ids of the skills that these scopes see."""
        kinds = _kinds_seen(scopes)
        return [one for one, kind in zip(self.skills, self.kinds, strict=True) if kind in kinds]

    def count_skills(self, scopes: Scopes) -> int:
        """How many `list_skills` lists, at less cost."""
        return _count_seen(self.kinds, scopes)

    def has_role(self, role: str, scopes: Scopes) -> bool:
        """Whether these scopes see a skill with this id, or one that names the role."""
        kinds = _kinds_seen(scopes)
        held = (*zip(self.skills, self.kinds, strict=True), *self.roles)
        return any(name == role and kind in kinds for name, kind in held)

    def as_reachable(self, now: datetime) -> Entry:
        """Itself, or with what was noted against it cleared."""
        if self.health == "healthy":
            return self
        return replace(self, reachable=True, since=now, last_error=None)

    def as_degraded(self, reason: str, now: datetime) -> Entry:
        """Itself where it is that already; ``since`` is when it became so."""
        if self.health != "degraded":
            return replace(self, reachable=True, since=now, last_error=reason)
        return self if self.last_error == reason else replace(self, last_error=reason)

    def as_unreachable(self, reason: str, now: datetime) -> Entry:
        """Itself where it is that already; ``since`` is when it became so."""
        if self.reachable is not False:
            return replace(self, reachable=False, since=now, last_error=reason)
        return self if self.last_error == reason else replace(self, last_error=reason)


def entry_of(listing: Listing) -> Entry:
    """The listing in short."""
    record = listing.record
    return make_entry(
        listing.id,
        record.name,
        record.version,
        record.url,
        listing.tag,
        listing.digest,
        listing.owner,
        listing.published_at,
        tuple(skill.id for skill in record.skills),
        "".join(skill.visibility[0] for skill in record.skills),
        tuple(dict.fromkeys((role, skill.visibility[0]) for skill in record.skills for role in skill.roles)),
        record.labels,
        listing.enabled,
        listing.reachable,
        listing.since,
        listing.last_error,
    )


def make_entry(
    listing_id: ListingKey,
    name: str,
    version: str | None,
    url: str | None,
    tag: str | None,
    digest: str | None,
    owner: str | None,
    published_at: datetime | None,
    skills: Iterable[str],
    kinds: str,
    roles: tuple[tuple[str, str], ...],
    labels: Mapping[str, str],
    enabled: bool,
    reachable: bool | None,
    since: datetime | None,
    last_error: str | None,
) -> Entry:
    """An entry whose texts are shared with others that have the same."""
    return Entry(
        ListingKey(_share(listing_id.source), listing_id.key),
        name,
        version and _share(version),
        url,
        tag and _share(tag),
        digest,
        owner and _share(owner),
        published_at,
        tuple([_share(one) for one in skills]),
        _share(kinds),
        _share(roles) if roles else (),
        labels or _NO_LABELS,
        enabled,
        reachable,
        since,
        last_error and _share(last_error),
    )


_NO_LABELS: Mapping[str, str] = {}


T = TypeVar("T", bound=Hashable)


def _share(value: T) -> T:
    """An equal value that was seen lately, so that a hundred thousand agents hold it once.

    Not `sys.intern`: its table would hold what nobody shares as well.
    """
    return _seen(value)  # type: ignore[return-value]


@lru_cache(maxsize=8192)
def _seen(value: Hashable) -> Hashable:
    return value


@lru_cache(maxsize=1024)
def _count_seen(kinds: str, scopes: Scopes) -> int:
    seen = _kinds_seen(scopes)
    return sum(kind in seen for kind in kinds)


@lru_cache(maxsize=64)
def _kinds_seen(scopes: Scopes) -> str:
    return "".join(kind[0] for kind in _KINDS if is_visible(Skill("", visibility=kind), scopes))
