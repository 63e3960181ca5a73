"""The times of a cron expression in a time zone, and of a length of time that repeats; no I/O.

Times are seconds since 1970. Days on which clocks change have one rule: what happens at a local time that is
missing, because clocks are set forward, happens when they are set; a local time that comes twice counts once,
the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

FIELDS = 5
"""Minute, hour, day of the month, month, day of the week."""

_MINUTE = timedelta(minutes=1)

_NAMES = "mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"

_FIELD = re.compile(rf"(?:[0-9*,/#L-]|{_NAMES})+", re.IGNORECASE | re.ASCII)
"""The library's random and hashed times are left out: they are others at each node."""


class CronTimes:
    """The times of a cron expression of five fields in the time zone of a name of the IANA.

    Raises ValueError for a wrong expression, one that never happens, and an unknown time zone.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        # 60 ms, only for workflows with a schedule
        from croniter import CroniterError, croniter

        self._iterate = croniter
        self._expression = expression
        self._zone = read_timezone(timezone)
        fields = expression.split()
        if len(fields) != FIELDS:
            raise ValueError(
                f"{expression[:80]!r} has {len(fields)} fields: write minute, hour, day of the month, month, "
                "day of the week, as in 0 3 * * mon-fri"
            )
        try:
            if not all(_FIELD.fullmatch(field) for field in fields):
                raise ValueError("another character")
            self.next_after(0.0)
        except (CroniterError, ValueError):
            raise ValueError(
                f"{expression[:80]!r} is no cron expression that ever happens: write it as in 0 3 * * mon-fri"
            ) from None

    def next_after(self, at: float) -> float:
        """The first time after ``at``."""
        local = datetime.fromtimestamp(int(at), self._zone)
        times = self._iterate(self._expression, local.replace(tzinfo=None, fold=0))
        while True:
            found = self._to_time(times.get_next(datetime))
            # in the second of two equal hours the times of the first one come again
            if found > at:
                return found

    def last_until(self, at: float) -> float:
        """The last time that is not after ``at``."""
        local = datetime.fromtimestamp(int(at), self._zone)
        start = local.replace(tzinfo=None, fold=0) + _MINUTE
        if local.fold:
            # in the second of two equal hours all times of the first one are over
            start += _offset(local.replace(fold=0)) - _offset(local)
        times = self._iterate(self._expression, start)
        while True:
            found = self._to_time(times.get_prev(datetime))
            if found <= at:
                return found

    def _to_time(self, local: datetime) -> float:
        """The first time at which clocks show this, or, if they never do, at which they jump over it."""
        time = local.replace(tzinfo=self._zone, fold=0)
        at = time.timestamp()
        if datetime.fromtimestamp(at, self._zone).replace(tzinfo=None, fold=0) == local:
            return at
        # with the offset after the change it is before the change, with the one before it is after it
        low, high = time.replace(fold=1).timestamp(), at
        before = _offset(datetime.fromtimestamp(low, self._zone))
        while high - low > 1:
            middle = (low + high) // 2
            if _offset(datetime.fromtimestamp(middle, self._zone)) == before:
                low = middle
            else:
                high = middle
        return high


class RepeatedTimes:
    """The times ``every_s`` seconds apart, from ``began_at`` on, which is none of them itself."""

    def __init__(self, every_s: float, began_at: float) -> None:
        self._every_s = every_s
        self._began_at = began_at

    def next_after(self, at: float) -> float:
        """The first time after ``at``."""
        count = (at - self._began_at) // self._every_s
        return self._began_at + max(1.0, count + 1) * self._every_s

    def last_until(self, at: float) -> float:
        """The last time that is not after ``at``; ``began_at`` or earlier if there is none."""
        return self._began_at + (at - self._began_at) // self._every_s * self._every_s


Times = CronTimes | RepeatedTimes


def iterate_back(times: Times, until: float, after: float) -> Iterator[float]:
    """The times that are not after ``until`` and after ``after``, the last one first."""
    at = times.last_until(until)
    while at > after:
        yield at
        at = times.last_until(at - 1)


@lru_cache(maxsize=64)
def read_timezone(name: str) -> tzinfo:
    """The time zone of this name; raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(
            f"{name[:80]!r} is no time zone: write its name, as in Europe/Berlin or UTC"
        ) from None


def _offset(time: datetime) -> timedelta:
    offset = time.utcoffset()
    assert offset is not None
    return offset
