"""The entry of a listing in the directory's memory: enough to find, order and probe its agent.

The whole record is forty times as large and rarely needed; a store keeps it
(`retinue.mesh.directory.listings`). Strings that many agents have in common are stored once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import TypeVar, get_args

from retinue.core.record import (
    AgentRecord,
    Health,
    Listing,
    ListingKey,
    SignatureState,
    Visibility,
    health_of,
    is_visible,
    trust_of,
)
from retinue.core.trust import Trust

Scopes = frozenset[str]
T = TypeVar("T", bound=Hashable)

_KINDS: tuple[Visibility, ...] = get_args(Visibility)
_NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """One listing without its record.

    ``skills`` are ids; ``kinds`` holds the first letter of the visibility of each, a capital letter for an
    unlisted one. ``roles`` are the roles
    that skills name, each with such a letter. ``enabled`` and the fields after it are as in `Listing`.
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
    deprecated: bool = False
    weight: int = 100
    standby: bool = False
    """Set in the result of a look-up only (`retinue.mesh.directory.versions`)."""
    signature: SignatureState = "none"
    source_trust: Trust = field(default=Trust.OWN_MESH, compare=False)
    """Set by the directory, which knows the sources."""

    @property
    def source(self) -> str:
        return self.id.source

    @property
    def key(self) -> str:
        return self.id.key

    @property
    def trust(self) -> Trust:
        """As `Listing.trust`."""
        return trust_of(self.source_trust, self.signature)

    @property
    def health(self) -> Health:
        """The measurements of the agent."""
        return health_of(self.reachable, self.last_error)

    def offers(self, skill_id: str, scopes: Scopes) -> bool:
        """Whether a skill of this id is visible to these scopes."""
        kinds = _visible_kinds(scopes)
        return any(
            kind in kinds for skill, kind in zip(self.skills, self.kinds, strict=True) if skill == skill_id
        )

    def list_skills(self, scopes: Scopes) -> list[str]:
        """The ids of the skills that are visible to these scopes."""
        kinds = _visible_kinds(scopes)
        return [skill for skill, kind in zip(self.skills, self.kinds, strict=True) if kind in kinds]

    def count_skills(self, scopes: Scopes) -> int:
        """The number of skills that `list_skills` lists, at less cost."""
        return count_visible(self.kinds, scopes)

    def count_listed(self, scopes: Scopes) -> int:
        """The number of these skills that are in a list of tools."""
        return count_listed(self.kinds, scopes)

    def has_role(self, role: str, scopes: Scopes) -> bool:
        """Whether a skill that has this id, or names the role, is visible to these scopes."""
        kinds = _visible_kinds(scopes)
        held = (*zip(self.skills, self.kinds, strict=True), *self.roles)
        return any(name == role and kind in kinds for name, kind in held)

    def as_reachable(self, now: datetime) -> Entry:
        """The entry as healthy; itself where it is healthy already."""
        if self.health == "healthy":
            return self
        return replace(self, reachable=True, since=now, last_error=None)

    def as_unknown(self, reason: str, now: datetime) -> Entry:
        """The entry as not measured yet, and why not; itself where it is so for the same reason."""
        if self.reachable is None and self.last_error == reason:
            return self
        return replace(self, reachable=None, since=now, last_error=reason)

    def as_degraded(self, reason: str, now: datetime) -> Entry:
        """The entry as degraded; itself where it is so for the same reason. ``since`` is the first time."""
        if self.health != "degraded":
            return replace(self, reachable=True, since=now, last_error=reason)
        return self if self.last_error == reason else replace(self, last_error=reason)

    def as_unreachable(self, reason: str, now: datetime) -> Entry:
        """The entry as unreachable.

        Itself where it is so for the same reason. ``since`` is the first time.
        """
        if self.reachable is not False:
            return replace(self, reachable=False, since=now, last_error=reason)
        return self if self.last_error == reason else replace(self, last_error=reason)


def entry_of(listing: Listing) -> Entry:
    """The entry of a listing."""
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
        kinds_of(record),
        tuple(dict.fromkeys((role, skill.visibility[0]) for skill in record.skills for role in skill.roles)),
        record.labels,
        listing.enabled,
        listing.reachable,
        listing.since,
        listing.last_error,
        listing.deprecated,
        listing.weight,
        listing.signature,
        listing.source_trust,
    )


def kinds_of(record: AgentRecord) -> str:
    """The visibility of each skill, as in `Entry.kinds`."""
    letters = (
        skill.visibility[0] if skill.listed else skill.visibility[0].upper() for skill in record.skills
    )
    return "".join(letters)


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
    deprecated: bool = False,
    weight: int = 100,
    signature: SignatureState = "none",
    source_trust: Trust = Trust.OWN_MESH,
) -> Entry:
    """An entry whose strings are shared with other entries that have equal ones."""
    return Entry(
        ListingKey(_share(listing_id.source), listing_id.key, _share(listing_id.tag)),
        name,
        version and _share(version),
        url,
        tag and _share(tag),
        digest,
        owner and _share(owner),
        published_at,
        tuple([_share(skill) for skill in skills]),
        _share(kinds),
        _share(roles) if roles else (),
        labels or _NO_LABELS,
        enabled,
        reachable,
        since,
        last_error and _share(last_error),
        deprecated,
        weight,
        signature=signature,
        source_trust=source_trust,
    )


def _share(value: T) -> T:
    """An equal value that was seen recently, so that a hundred thousand agents share one.

    Not `sys.intern`, whose table would also keep strings that occur once.
    """
    return _seen(value)  # type: ignore[return-value]


@lru_cache(maxsize=8192)
def _seen(value: Hashable) -> Hashable:
    return value


@lru_cache(maxsize=1024)
def count_visible(kinds: str, scopes: Scopes) -> int:
    """How many skills of these `Entry.kinds` are visible to these scopes."""
    seen = _visible_kinds(scopes)
    return sum(kind in seen for kind in kinds)


@lru_cache(maxsize=1024)
def count_listed(kinds: str, scopes: Scopes) -> int:
    """How many of them are in a list of tools."""
    seen = _visible_kinds(scopes)
    return sum(kind in seen and kind.islower() for kind in kinds)


@lru_cache(maxsize=64)
def _visible_kinds(scopes: Scopes) -> str:
    letters = "".join(kind[0] for kind in _KINDS if is_visible(kind, scopes))
    return letters + letters.upper()
