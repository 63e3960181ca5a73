"""Push notifications: sends the events of a task to the url of its client.

A url is checked when it is given, its address again when it is asked (`web.http_client`). Deliveries of one
task keep their order; a failed one is repeated a few times and then left out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog

from retinue.a2a.codec.requests import PushConfig
from retinue.a2a.codec.tasks import Event, Task
from retinue.a2a.codec.v03 import downgrade_task
from retinue.core.errors import RetinueError
from retinue.web.transport import HttpRequester, TransportError, UrlRefusedError

_log = structlog.get_logger(__name__)

TIMEOUT_S = 10.0
WAITS_S = (0.5, 2.0, 8.0)
"""Pauses before the repetitions of a failed delivery."""

MAX_WAITING = 1000
"""Deliveries that wait at once, of all tasks; further ones are left out."""

_MAX_RESPONSE_BYTES = 64 * 1024
_REPEATED_STATUS = 500
_TOO_MANY = 429


class PushSender:
    """Sends the events of tasks; ``http`` refuses the addresses that are not allowed."""

    def __init__(self, http: HttpRequester, *, waits_s: tuple[float, ...] = WAITS_S) -> None:
        self._http = http
        self._waits_s = waits_s
        self._last: dict[tuple[str, str], asyncio.Task[None]] = {}

    def send(self, task: Task, event: Event, config_id: str, config: PushConfig) -> None:
        """Send an event soon, after the earlier ones to the same receiver."""
        if len(self._last) >= MAX_WAITING:
            _log.warning("push notification left out", task=task["id"], reason="too many wait")
            return
        body = orjson.dumps(downgrade_task(task) if config.legacy else event)
        key = (str(task["id"]), config_id)
        sending = asyncio.create_task(self._deliver(self._last.get(key), key[0], config, body))
        self._last[key] = sending
        sending.add_done_callback(lambda done: self._forget(key, done))

    async def aclose(self, within_s: float = 2.0) -> None:
        """Wait a moment for deliveries that are under way, then give up the others."""
        pending = list(self._last.values())
        if pending:
            await asyncio.wait(pending, timeout=within_s)
            for delivery in pending:
                delivery.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _forget(self, key: tuple[str, str], done: asyncio.Task[None]) -> None:
        if self._last.get(key) is done:
            del self._last[key]

    async def _deliver(
        self, before: asyncio.Task[None] | None, task_id: str, config: PushConfig, body: bytes
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        problem: Any = None
        for pause_s in (0.0, *self._waits_s):
            await asyncio.sleep(pause_s)
            try:
                response = await self._http.request(
                    "POST",
                    config.url,
                    timeout_s=TIMEOUT_S,
                    headers=_headers(config),
                    body=body,
                    max_response_bytes=_MAX_RESPONSE_BYTES,
                )
            except UrlRefusedError as error:
                _log.warning("push notification refused", task=task_id, reason=str(error))
                return
            except (TransportError, RetinueError) as error:
                problem = str(error)
                continue
            if response.status < _REPEATED_STATUS and response.status != _TOO_MANY:
                if response.status >= 300:
                    _log.warning("push notification refused", task=task_id, status=response.status)
                return
            problem = f"HTTP status {response.status}"
        _log.warning("push notification failed", task=task_id, reason=problem)


def _headers(config: PushConfig) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if config.token is not None:
        headers["X-A2A-Notification-Token"] = config.token
    if config.scheme is not None and config.credentials is not None:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    return headers
