"""The budget of a team: what all its models together may spend on one day (UTC).

Each model of a team is a process of its own, and a team that changes its digest has each model twice. They
count in one file: what was spent, and the most that each call in flight may spend. What a process reserved
that was killed lapses after the time that a call may take, counted since the machine was started, because the
clock may be set back; a start of the machine has ended all calls.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from retinue.core.errors import StateDamagedError
from retinue.llm.completion import Usage
from retinue.storage.files import file_mode, hold_lock, replace_file, storage_errors

OF_TEAM = "budget."
"""How the settings of these limits begin, which are those of ``team.toml``."""


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_uptime() -> tuple[str, float]:
    """The id of this start of the machine, and the seconds since then; where it has no such id, "" and the
    seconds since 1970.
    """
    try:
        return _BOOT_ID.read_text().strip(), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return "", time.time()


@dataclass(frozen=True, slots=True)
class TeamLimits:
    """What the models of a team may spend on one day; None = no limit."""

    team: str
    tokens_per_day: int | None = None
    cost_per_day: float | None = None


class TeamBudget:
    """The budget of a team in the file ``path``; a reservation lapses after ``lapse_s``."""

    def __init__(
        self,
        path: Path,
        limits: TeamLimits,
        *,
        lapse_s: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        uptime: Callable[[], tuple[str, float]] = read_uptime,
    ) -> None:
        self.limits = limits
        self._path = path
        self._lapse_s = lapse_s
        self._clock = clock
        self._uptime = uptime

    @contextmanager
    def changing(self) -> Iterator[OpenBudget]:
        """The budget as it is now, while no other process changes it. Raises StateError."""
        with storage_errors(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = file_mode(self._path.parent)
        with storage_errors(self._path), hold_lock(Path(f"{self._path}.lock"), mode=mode):
            boot, up_s = self._uptime()
            document = self._read(self._clock(), boot, up_s)
            yield OpenBudget(self.limits, document, boot, up_s, self._lapse_s)
            replace_file(self._path, orjson.dumps(document), mode=0o600)

    def _read(self, now: datetime, boot: str, up_s: float) -> dict[str, Any]:
        """The spending of today, and the calls in flight, which may have begun yesterday."""
        try:
            stored = orjson.loads(self._path.read_bytes()) if self._path.exists() else {}
            is_today = stored.get("date") == now.date().isoformat()
            rows: dict[str, dict[str, Any]] = {
                key: {
                    "tokens": int(row["tokens"]),
                    "cost_usd": float(row["cost_usd"]),
                    "boot": str(row.get("boot", "")),
                    "until": float(row["until"]),
                    "lapse_s": float(row.get("lapse_s", 0.0)),
                }
                for key, row in stored.get("open", {}).items()
            }
            return {
                "date": now.date().isoformat(),
                "tokens": int(stored["tokens"]) if is_today else 0,
                "cost_usd": float(stored["cost_usd"]) if is_today else 0.0,
                "open": {
                    key: row
                    for key, row in rows.items()
                    if row["boot"] == boot and 0 < row["until"] - up_s <= row["lapse_s"]
                },
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            remedy = "delete it: the budget of the day then begins anew"
            raise StateDamagedError(
                str(self._path), "it is not a record of spending", remedy=remedy
            ) from error


@dataclass(frozen=True, slots=True)
class OpenBudget:
    """The budget of a team while it is changed, ``up_s`` seconds after the start ``boot`` of the machine."""

    limits: TeamLimits
    document: dict[str, Any]
    boot: str
    up_s: float
    lapse_s: float

    def list_limits(self) -> list[tuple[str, float, float]]:
        """Each limit: the setting, the limit itself, and the spent or reserved part."""
        rows = (
            (f"{OF_TEAM}max_tokens_per_day", self.limits.tokens_per_day, "tokens"),
            (f"{OF_TEAM}max_cost_per_day", self.limits.cost_per_day, "cost_usd"),
        )
        reserved = self.document["open"].values()
        return [
            (name, limit, self.document[key] + sum(row[key] for row in reserved))
            for name, limit, key in rows
            if limit is not None
        ]

    def reserve(self, most: Usage) -> str:
        """Reserve the most that a call may spend; returns the id of the reservation."""
        reservation = secrets.token_hex(8)
        row = {
            "tokens": most.tokens,
            "cost_usd": most.cost_usd or 0.0,
            "boot": self.boot,
            "until": self.up_s + self.lapse_s,
            "lapse_s": self.lapse_s,
        }
        self.document["open"][reservation] = row
        return reservation

    def settle(self, reservation: str, used: Usage | None) -> None:
        """End a reservation, and count what was spent; None = nothing."""
        self.document["open"].pop(reservation, None)
        if used is not None:
            self.document["tokens"] += used.tokens
            self.document["cost_usd"] += used.cost_usd or 0.0
