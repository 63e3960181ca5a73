"""``POST /hooks/registry``: receives registry notifications, so that the hub reads changed repositories.

The endpoint answers before anything is read, because docker-registry sends its notifications one after
another and waits for each response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.core.errors import (
    BusyError,
    NotAuthenticatedError,
    RetinueError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.oci.codec.notifications import EVENTS_TYPE, EVENTS_TYPES, RegistryEvent, parse_events
from retinue.oci.source import may_hold_card
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

HOOK_PATH = "/hooks/registry"
HOOK_SCOPE = "hooks"
HOOK_TOKEN = Principal("registry", "token", frozenset({HOOK_SCOPE}))
"""The sender of the token in ``hooks.token_env``: it may call this endpoint and sees no skill."""

MAX_BODY_BYTES = 1024 * 1024
MAX_WAITING = 2000
"""Repositories that may wait to be read; beyond that the registry is asked to retry."""

CONCURRENT_READS = 8
AGAIN_S = (0.02, 0.2, 2.0)
"""Delays before reading again while the event is not visible yet: docker-registry sends the notification of
a manifest before it writes the tag, and that of a deletion before it removes the tags."""

_RETRY_AFTER_S = 1.0

Place = tuple[str, str]
"""Source and repository."""

Take = Callable[[Sequence[RegistryEvent]], None]
"""Receives the events of one notification and returns at once.

Raises BusyError to have it sent again later.
"""

_log = structlog.get_logger("retinue.notified")


@dataclass(frozen=True, slots=True)
class _Expected:
    """The last event of a repository, and how many readings did not show it."""

    event: RegistryEvent
    looks: int = 0

    def is_visible(self, held: Entry | None) -> bool:
        """Whether the entry in the directory reflects the event."""
        digest = held.digest if held is not None else None
        if self.event.digest is None:
            return True
        return (digest == self.event.digest) == (self.event.action == "push")


class Notifications:
    """Reads changed repositories into ``directory``, each once for all events received while it waits.

    ``sources`` are names of sources; only urls of registries are considered. An event with an unknown host
    applies to all of them, because a registry may be known under another name to other clients.
    ``again_s`` are the delays before a repository is read again that does not show its event yet.
    """

    def __init__(
        self, directory: Directory, sources: Iterable[str], *, again_s: Sequence[float] = AGAIN_S
    ) -> None:
        self._directory = directory
        self._again_s = again_s
        self._by_host: dict[str, list[str]] = {}
        for name in sources:
            if "://" in name:
                self._by_host.setdefault(urlsplit(name).netloc.lower(), []).append(name)
        # in order of arrival
        self._waiting: dict[Place, _Expected] = {}
        self._reading: set[Place] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[None]] = set()

    def take(self, events: Sequence[RegistryEvent]) -> None:
        """Queue the repositories of these events. Raises BusyError when too many are queued."""
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
        """The running tasks; empty when everything queued has been read."""
        return frozenset(self._workers | self._later)

    async def aclose(self) -> None:
        """Stop reading; the next refresh finds the unread changes."""
        pending = self.pending
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _sources_of(self, event: RegistryEvent) -> list[str]:
        matched = [name for host in sorted(event.hosts) for name in self._by_host.get(host, ())]
        return matched or [name for names in self._by_host.values() for name in names]

    async def _work(self) -> None:
        """Read until the queue is empty, never the same repository twice at the same time."""
        while (place := next((p for p in self._waiting if p not in self._reading), None)) is not None:
            expected = self._waiting.pop(place)
            self._reading.add(place)
            try:
                held = await self._directory.reread_key(*place)
            except Exception:  # noqa: BLE001 - an error of one repository must not stop the others
                _log.exception("a notified repository was not read", source=place[0], repository=place[1])
            else:
                if expected.looks < len(self._again_s) and not expected.is_visible(held):
                    _start(self._look_again(place, expected), self._later)
            finally:
                self._reading.discard(place)

    async def _look_again(self, place: Place, expected: _Expected) -> None:
        await asyncio.sleep(self._again_s[expected.looks])
        # An event that arrived meanwhile is already queued and has retries of its own.
        self._waiting.setdefault(place, replace(expected, looks=expected.looks + 1))
        if len(self._workers) < CONCURRENT_READS:
            _start(self._work(), self._workers)


def hook_route(take: Take) -> Route:
    """Create the route of the webhook endpoint, which must run behind `SecurityMiddleware`.

    Responses: 202 when something was queued, 200 when no event is relevant, 401 without a token, 400, 413 or
    415 for an invalid notification, 429 when the queue is full.
    """

    async def answer(request: Request) -> Response:
        try:
            _check_sender(identity_of(request.scope).principal)
            _check_media_type(request.headers.get("content-type", ""))
            events = parse_events(await _read_body(request))
            if events:
                take(events)
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return JSONResponse({"accepted": len(events)}, 202 if events else 200)

    return Route(HOOK_PATH, answer, methods=["POST"])


def _start(work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work, name="read what a registry notified")
    running.add(task)
    task.add_done_callback(running.discard)


def _check_sender(principal: Principal) -> None:
    if principal.kind != "mesh" and HOOK_SCOPE not in principal.scopes:
        raise NotAuthenticatedError(
            "a registry notification needs a token",
            remedy="configure the registry to send the token of hooks.token_env, or keys/local.token",
        )


def _check_media_type(text: str) -> None:
    media_type = text.partition(";")[0].strip().lower()
    if media_type not in EVENTS_TYPES and media_type != "application/json":
        raise UnsupportedMediaTypeError(
            f"this endpoint accepts {EVENTS_TYPE}, not {media_type or 'a body without media type'}",
            remedy=f"send content-type: {EVENTS_TYPE}",
        )


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError("the notification", MAX_BODY_BYTES)
    return bytes(body)
