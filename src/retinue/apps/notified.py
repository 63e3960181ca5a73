"""What the hub does about a registry's notifications: it reads what changed again, once for many."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import structlog

from retinue.core.errors import BusyError
from retinue.drivers.sources import may_hold_card
from retinue.mesh.directory import Directory
from retinue.mesh.entry import Entry
from retinue.protocols.oci.events import RegistryEvent

_log = structlog.get_logger("retinue.notified")

MAX_WAITING = 2000
"""Repositories that may wait for being read; beyond that the registry is asked to come again."""

CONCURRENT_READS = 8
AGAIN_S = (0.02, 0.2, 2.0)
"""When to look again where the event is not to be seen yet: docker-registry tells of a manifest before
it writes the tag, and of a deletion before it takes the tags away."""

_RETRY_AFTER_S = 1.0

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the last event said, and how often it was looked for."""

    event: RegistryEvent
    looks: int = 0

    def is_seen(self, held: Entry | None) -> bool:
        digest = held.digest if held is not None else None
        if self.event.digest is None:
            return True
        return (digest == self.event.digest) == (self.event.action == "push")


class Notifications:
    """Reads repositories of ``directory`` again, each once for all events that came while it waited.

    ``sources`` are names of sources; those that are urls of registries are meant. An event whose host
    is that of none of them is read again in all: the registry may have another name for others.
    """

    def __init__(self, directory: Directory, sources: Iterable[str]) -> None:
        self._directory = directory
        self._by_host: dict[str, list[str]] = {}
        for name in sources:
            if "://" in name:
                self._by_host.setdefault(urlsplit(name).netloc.lower(), []).append(name)
        # In the order in which the places came.
        self._waiting: dict[Place, _Expected] = {}
        self._reading: set[Place] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[None]] = set()

    def take(self, events: Sequence[RegistryEvent]) -> None:
        """Note what is to be read again, and return; raises BusyError when too much is noted already."""
        places = {
            (source, event.repository): _Expected(event)
            for event in events
            if may_hold_card(event.repository)
            for source in self._sources_of(event)
        }
        new = places.keys() - self._waiting.keys()
        if len(self._waiting) + len(self._later) + len(new) > MAX_WAITING:
            raise BusyError("too many notifications", _RETRY_AFTER_S)
        self._waiting.update(places)
        for _ in range(min(len(places), CONCURRENT_READS - len(self._workers))):
            _start(self._work(), self._workers)

    @property
    def pending(self) -> frozenset[asyncio.Task[None]]:
        """The work in flight; empty when everything noted has been read."""
        return frozenset(self._workers | self._later)

    async def aclose(self) -> None:
        """Stop reading; what was not read is found by the next refresh."""
        pending = self.pending
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _sources_of(self, event: RegistryEvent) -> list[str]:
        matched = [name for host in sorted(event.hosts) for name in self._by_host.get(host, ())]
        return matched or [name for names in self._by_host.values() for name in names]

    async def _work(self) -> None:
        """Read until nothing waits, but never one place twice at the same time."""
        while (place := next((p for p in self._waiting if p not in self._reading), None)) is not None:
            expected = self._waiting.pop(place)
            self._reading.add(place)
            try:
                held = await self._directory.reread_key(*place)
            except Exception:  # noqa: BLE001 - one place must not keep the others from being read
                _log.exception("a notified repository was not read", source=place[0], repository=place[1])
            else:
                if expected.looks < len(AGAIN_S) and not expected.is_seen(held):
                    _start(self._look_again(place, expected), self._later)
            finally:
                self._reading.discard(place)

    async def _look_again(self, place: Place, expected: _Expected) -> None:
        await asyncio.sleep(AGAIN_S[expected.looks])
        # An event that came meanwhile stands there already, and is looked for as often.
        self._waiting.setdefault(place, replace(expected, looks=expected.looks + 1))
        if len(self._workers) < CONCURRENT_READS:
            _start(self._work(), self._workers)


def _start(work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work, name="read what a registry notified")
    running.add(task)
    task.add_done_callback(running.discard)
