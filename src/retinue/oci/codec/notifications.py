"""Parses notifications of registries: the envelope ``{"events": […]}`` of CNCF distribution.

docker-registry 2.8 sends one event per blob and manifest, and deletions without a tag (CNCF distribution,
"Work with notifications").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from retinue.core.errors import InvalidRequestError, ParseError, TooLargeError
from retinue.oci.codec.reference import is_digest, is_repository, is_tag

EVENTS_TYPE = "application/vnd.docker.distribution.events.v2+json"
EVENTS_TYPES = frozenset({EVENTS_TYPE, "application/vnd.docker.distribution.events.v1+json"})
"""docker-registry sends v1 up to 2.8 and v2 since; the events have the same form."""

MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class RegistryEvent:
    """A manifest was pushed or deleted.

    ``hosts`` are the ``host[:port]`` values of the registry in the event.
    """

    action: Literal["push", "delete"]
    repository: str
    tag: str | None = None
    digest: str | None = None
    hosts: frozenset[str] = frozenset()


def parse_events(body: bytes) -> tuple[RegistryEvent, ...]:
    """Parse the events that may change the target of a tag, in order.

    Pulls, blobs and events without a valid repository are skipped instead of rejected, because a registry
    repeats a rejected notification and sends nothing else meanwhile. Raises ParseError, InvalidRequestError
    (not an envelope) and TooLargeError (over `MAX_EVENTS`).
    """
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseError(f"the notification is not JSON: {error}") from error
    events = envelope.get("events") if isinstance(envelope, dict) else None
    if not isinstance(events, list):
        raise InvalidRequestError("a notification is an object with a list of events")
    if len(events) > MAX_EVENTS:
        raise TooLargeError("the notification", MAX_EVENTS, "events")
    return tuple(event for event in map(_parse_event, events) if event is not None)


def _parse_event(event: Any) -> RegistryEvent | None:
    target = event.get("target") if isinstance(event, dict) else None
    if not isinstance(target, dict):
        return None
    action, repository, url = event.get("action"), target.get("repository"), _text(target.get("url"))
    if action not in ("push", "delete") or not isinstance(repository, str) or not is_repository(repository):
        return None
    if action == "push" and "/blobs/" in url:
        return None
    tag, digest = _text(target.get("tag")), _text(target.get("digest"))
    return RegistryEvent(
        action,
        repository,
        tag if is_tag(tag) else None,
        digest if is_digest(digest) else None,
        frozenset(_hosts(url, event.get("request"))),
    )


def _hosts(url: str, request: Any) -> Iterator[str]:
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    named = _text(request.get("host")) if isinstance(request, dict) else ""
    yield from (name.lower() for name in (host, named) if name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
