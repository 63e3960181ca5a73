"""Parses versions and ranges of versions, and chooses among the versions of one agent.

Specification 7.2 and 7.9; P-30; decision 0031.

Parsing is lenient: an optional ``v``, one to three numbers, pre-releases before their release. Other text
sorts before versions. ``semver`` parses the part after the ``v``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import semver

from retinue.core.errors import InvalidSettingError
from retinue.core.record import Candidate, ListingKey
from retinue.mesh.entry import Entry
from retinue.mesh.health.breaker import UNREACHABLE_TIER, health_tier

C = TypeVar("C", bound=Candidate)

VersionKey = tuple[Any, ...]
"""Sort key of a version: absent < other text < numbers; build metadata is ignored."""

_STANDBY_TIER = 2

MAX_RANGE_LENGTH = 200
_VERSION_MARK = re.compile(r"[vV]?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?")

_PIECE = re.compile(r"(>=|<=|==|!=|>|<|=|\^|~)?\s*([vV]?[0-9*xX][0-9A-Za-z.+*-]*)")


@lru_cache(maxsize=8192)
def version_key(text: str | None) -> VersionKey:
    """The sort key of any version or tag; never raises."""
    if text is None:
        return (0,)
    version = _parse(text)
    return (1, text) if version is None else (2, *_numbers_key(version))


@lru_cache(maxsize=8192)
def is_stable(version: str | None) -> bool:
    """Whether this is not a pre-release."""
    parsed = _parse(version) if version is not None else None
    return parsed is None or parsed.prerelease is None


@lru_cache(maxsize=8192)
def major_of(version: str | None) -> int:
    """The major version; 1 for 0.x as well, and for a text that is no version."""
    parsed = _parse(version) if version is not None else None
    return 1 if parsed is None else max(1, parsed.major)


def is_version_named(version: str | None, mark: str) -> bool:
    """Whether ``mark``, the text behind the ``@`` of ``name@mark``, names this version.

    A number alone is a major version (see `major_of`); more numbers are the beginning of a version.
    """
    if len(mark) > MAX_RANGE_LENGTH or _VERSION_MARK.fullmatch(mark) is None:
        return False
    numbers = mark.lstrip("vV")
    if numbers.isdecimal():
        return major_of(version) == int(numbers)
    return parse_version_range(numbers).fits(version)


def name_version(chosen: Candidate, others: Iterable[Candidate]) -> str:
    """``name@1``, or ``name@1.2.0`` where another of ``others`` has the same major version."""
    major = major_of(chosen.version)
    same = any(other.id != chosen.id and major_of(other.version) == major for other in others)
    return f"{chosen.name}@{chosen.version if same and chosen.version else major}"


def version_preference(candidate: Candidate) -> tuple[bool, bool, bool, VersionKey]:
    """Sort key among the versions of one agent, greatest first: available ▸ supported ▸ stable ▸ newest."""
    version = candidate.version
    return (
        health_tier(candidate) < UNREACHABLE_TIER,
        not candidate.deprecated,
        is_stable(version),
        version_key(version),
    )


def folder_of(listing: ListingKey) -> str:
    """The folder of the repository ``agents/FOLDER/NAME``, which is that of a team; "" without one."""
    return listing.key.split("/")[1] if listing.key.count("/") == 2 else ""


def is_same_repository(candidate: Candidate, other: Candidate) -> bool:
    """Whether these are versions of one agent: of one name, from one repository of one source."""
    return candidate.id[:2] == other.id[:2] and candidate.name == other.name


def mark_standby(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, marked as ``standby`` where a better version of the same agent is among them.

    The tags of one repository are the versions of one agent. Deprecated agents are always standby.
    """
    agents: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        agent = (entry.id.source, entry.id.key, entry.name)
        best = agents.setdefault(agent, entry)
        if best is not entry and version_preference(entry) > version_preference(best):
            agents[agent] = entry
    marked = []
    for entry in entries:
        standby = entry.deprecated or agents[entry.id.source, entry.id.key, entry.name] is not entry
        marked.append(entry if entry.standby is standby else replace(entry, standby=standby))
    return marked


def choice_tier(candidate: Candidate) -> int:
    """The order of choice: healthy ▸ degraded ▸ standby ▸ unreachable ▸ both."""
    tier = health_tier(candidate)
    if candidate.standby:
        return tier + _STANDBY_TIER if tier == UNREACHABLE_TIER else _STANDBY_TIER
    return tier + 1 if tier == UNREACHABLE_TIER else tier


def share_by_weight(ordered: Sequence[C], draw: Callable[[], float]) -> Sequence[C]:
    """The order of choice for one call: the next older stable version first, where the draw falls on it.

    ``draw`` gives a number from 0 to 1. The first candidate keeps its ``weight`` in per cent.
    """
    newest = ordered[0]
    if draw() * 100 < newest.weight:
        return ordered
    older = [
        candidate
        for candidate in ordered[1:]
        if is_same_repository(candidate, newest)
        and is_stable(candidate.version)
        and not candidate.deprecated
        and health_tier(candidate) < UNREACHABLE_TIER
    ]
    if not older:
        return ordered
    chosen = max(older, key=lambda candidate: version_key(candidate.version))
    return [chosen, *(candidate for candidate in ordered if candidate is not chosen)]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Conditions that must all hold; made by `parse_version_range`."""

    text: str
    _conditions: tuple[Callable[[semver.Version], bool], ...]
    _pre_releases_of: frozenset[tuple[int, int, int]]

    def fits(self, version: str | None) -> bool:
        """Whether ``version`` is in the range.

        An absent version and text that is not a version never are. A pre-release is only where the range
        names a pre-release of the same number, as in cargo and npm.
        """
        parsed = _parse(version) if version is not None else None
        if parsed is None:
            return False
        if parsed.prerelease and _triple(parsed) not in self._pre_releases_of:
            return False
        return all(holds(parsed) for holds in self._conditions)


@lru_cache(maxsize=1024)
def parse_version_range(text: str) -> VersionRange:
    """Parse a range such as ``>=1.2,<2``: conditions joined by commas or spaces, which must all hold.

    The operators are ``>= > <= < == = != ^ ~``. A version alone, or with ``*``, means every version that
    begins with it (``1.2`` is 1.2.0 up to, not including, 1.3.0); ``*`` alone means any. Raises
    InvalidSettingError.
    """
    if len(text) > MAX_RANGE_LENGTH:  # what raises is not kept in the cache
        raise _invalid_range(text)
    pieces = _PIECE.findall(text)
    if not pieces or _PIECE.sub("", text).strip(" ,"):
        raise _invalid_range(text)
    conditions: list[Callable[[semver.Version], bool]] = []
    named: set[tuple[int, int, int]] = set()
    for operator, written in pieces:
        numbers = re.sub(r"(\.[*xX])+$", "", written)
        if numbers in {"*", "x", "X"}:
            continue
        bound = _parse(numbers)
        if bound is None:
            raise _invalid_range(text)
        if bound.prerelease:
            named.add(_triple(bound))
        parts = 3 if bound.prerelease else numbers.count(".") + 1
        conditions.append(_condition(operator, bound, parts))
    return VersionRange(text, tuple(conditions), frozenset(named))


def _condition(operator: str, bound: semver.Version, parts: int) -> Callable[[semver.Version], bool]:
    match operator:
        case ">=":
            return lambda v: v >= bound
        case ">":
            return lambda v: v > bound
        case "<=":
            return lambda v: v <= bound
        case "<":
            return lambda v: v < bound
        case "!=":
            return lambda v: not _begins(v, bound, parts)
        case "^":
            kept = next((i for i, n in enumerate(_triple(bound)[:parts]) if n), parts - 1) + 1
            return lambda v: v >= bound and _triple(v)[:kept] == _triple(bound)[:kept]
        case "~":
            kept = min(parts, 2)
            return lambda v: v >= bound and _triple(v)[:kept] == _triple(bound)[:kept]
    return lambda v: _begins(v, bound, parts)


def _begins(version: semver.Version, bound: semver.Version, parts: int) -> bool:
    if parts == len(_triple(bound)):
        return version == bound
    return _triple(version)[:parts] == _triple(bound)[:parts]


def _invalid_range(text: str) -> InvalidSettingError:
    problem = f"{text[:80]!r} is no range of versions"
    if len(text) > MAX_RANGE_LENGTH:
        problem = f"{len(text)} characters are too long for a range of versions, at most {MAX_RANGE_LENGTH}"
    return InvalidSettingError("version range", problem, remedy="write it like '>=1.2,<2' or '1.2'")


def _triple(version: semver.Version) -> tuple[int, int, int]:
    return version.major, version.minor, version.patch


def _numbers_key(version: semver.Version) -> VersionKey:
    if not version.prerelease:
        return (*_triple(version), 1)
    parts = tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in version.prerelease.split("."))
    return (*_triple(version), 0, parts)


@lru_cache(maxsize=8192)
def _parse(text: str) -> semver.Version | None:
    try:
        return semver.Version.parse(re.sub(r"^[vV](?=\d)", "", text.strip()), optional_minor_and_patch=True)
    except ValueError:
        return None
