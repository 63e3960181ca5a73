"""Versions as people write them, and ranges of versions (SPEC 7, seed 001; P-30).

Parsing is lenient: an optional ``v``, one to three numbers, pre-releases before their release. Other text
sorts before versions. ``semver`` parses the part after the ``v``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import semver

from retinue.core.errors import InvalidSettingError

VersionKey = tuple[Any, ...]
"""Sort key of a version: absent < other text < numbers; build metadata is ignored."""

_PIECE = re.compile(r"(>=|<=|==|!=|>|<|=|\^|~)?\s*([vV]?[0-9*xX][0-9A-Za-z.+*-]*)")


@lru_cache(maxsize=8192)
def version_key(text: str | None) -> VersionKey:
    """The sort key of any version or tag; never raises."""
    if text is None:
        return (0,)
    version = _parse(text)
    return (1, text) if version is None else (2, *_numbers_key(version))


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
        given = 3 if bound.prerelease else numbers.count(".") + 1
        conditions.append(_condition(operator, bound, given))
    return VersionRange(text, tuple(conditions), frozenset(named))


def _condition(operator: str, bound: semver.Version, given: int) -> Callable[[semver.Version], bool]:
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
            return lambda v: not _begins(v, bound, given)
        case "^":
            kept = next((i for i, n in enumerate(_triple(bound)[:given]) if n), given - 1) + 1
            return lambda v: v >= bound and _triple(v)[:kept] == _triple(bound)[:kept]
        case "~":
            kept = min(given, 2)
            return lambda v: v >= bound and _triple(v)[:kept] == _triple(bound)[:kept]
    return lambda v: _begins(v, bound, given)


def _begins(version: semver.Version, bound: semver.Version, given: int) -> bool:
    if given == len(_triple(bound)):
        return version == bound
    return _triple(version)[:given] == _triple(bound)[:given]


def _invalid_range(text: str) -> InvalidSettingError:
    return InvalidSettingError(
        "version range", f"{text[:80]!r} is no range of versions", remedy="write it like '>=1.2,<2' or '1.2'"
    )


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
