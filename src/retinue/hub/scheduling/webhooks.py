"""Webhooks: takes a signed request for a trigger, and starts its run."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from retinue.core.errors import (
    BusyError,
    ExecutionFailedError,
    InvalidParametersError,
    NotAllowedError,
    NotAuthenticatedError,
    ParseError,
    RepeatedEventError,
    RetinueError,
    RunConflictError,
    StateError,
    TooLargeError,
    UnknownWebhookError,
)
from retinue.core.json_values import MAX_DEPTH, decode_json, is_nested_deeper
from retinue.hub.scheduling.events import EventStarter, StartedByEvent
from retinue.hub.scheduling.signatures import verify
from retinue.workflows.triggers import Event

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.triggers import TriggerTable

HOOK = re.compile(r"[0-9a-f]{32}")
"""The id of a webhook in its address, which nobody can guess."""

UNKNOWN_HOOKS = "webhooks"
"""The caller by which requests to ids that were not yet found are counted together."""

_log = structlog.get_logger("retinue.schedules")


class Webhooks:
    """The webhooks of a mesh. ``exists`` = whether there may be any, ``take`` limits the rate of one address,
    and of all unknown ones together.

    A sender learns no more of the hub than what its own request lacks.
    """

    def __init__(
        self,
        open_table: Callable[[], Awaitable[TriggerTable]],
        starter: EventStarter,
        *,
        exists: Callable[[], bool] = lambda: True,
        take: Callable[[str], None] = lambda hook: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_table = open_table
        self._starter = starter
        self._exists = exists
        self._take = take
        self._clock = clock
        self._known: set[str] = set()

    async def receive(self, hook: str, headers: Mapping[str, str], body: bytes) -> StartedByEvent:
        """Start the run of a request; ``headers`` have lower-case names.

        Raises UnknownWebhookError, TooLargeError, NotAuthenticatedError for a signature or time that is
        refused, ParseError, what `EventStarter.start` raises, and ExecutionFailedError where the reason is
        not for the sender.
        """
        if HOOK.fullmatch(hook) is None or not self._exists():
            raise UnknownWebhookError
        # a bucket of its own for each unknown id would push those of other callers out
        self._take(f"webhook:{hook}" if hook in self._known else UNKNOWN_HOOKS)
        try:
            return await self._receive(hook, headers, body)
        except _FOR_SENDER:
            raise
        except RetinueError as error:
            _log.warning("webhook started nothing", hook=hook[:8], error=error.message)
            raise _for_sender(error) from error

    async def _receive(self, hook: str, headers: Mapping[str, str], body: bytes) -> StartedByEvent:
        table = await self._open_table()
        trigger = await table.find_hook(hook)
        if trigger is None or trigger.rule.webhook is None:
            self._known.discard(hook)
            raise UnknownWebhookError
        self._known.add(hook)
        if len(body) > trigger.rule.webhook.max_bytes:
            raise TooLargeError("the payload", trigger.rule.webhook.max_bytes)
        delivery = verify(trigger.secret, headers, body, self._clock())
        event = Event(delivery.event, delivery.sent_at, _read_payload(body))
        return await self._starter.start(table, trigger, event, sent_at=delivery.sent_at)


_FOR_SENDER = (
    BusyError,
    InvalidParametersError,
    NotAuthenticatedError,
    ParseError,
    RepeatedEventError,
    RunConflictError,
    TooLargeError,
    UnknownWebhookError,
)
"""Errors that tell a sender what is wrong with its request, and nothing else."""


def _for_sender(error: RetinueError) -> RetinueError:
    """An error of the trigger, its workflow or this hub as its sender may see it."""
    if isinstance(error, NotAllowedError):
        return NotAllowedError(
            "this webhook starts nothing now", remedy="ask its owner, who sees the reason: retinue schedules"
        )
    if isinstance(error, StateError):
        return StateError("the event cannot be stored now", remedy="send it again later")
    return ExecutionFailedError(
        "the run of this event cannot be started",
        remedy="send it again later; its owner sees the reason: retinue schedules",
    )


def _read_payload(body: bytes) -> Any:
    try:
        payload = decode_json(body)
    except orjson.JSONDecodeError as error:
        raise ParseError(f"the payload is not JSON: {error}", remedy="send one JSON value") from None
    if is_nested_deeper(body, payload):
        raise ParseError(f"the payload has more than {MAX_DEPTH} levels", remedy="flatten it")
    return payload
