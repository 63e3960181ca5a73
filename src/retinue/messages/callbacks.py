"""Delivers later replies to the callback URL of a sender.

Every URL passes the guard before it is accepted and again at each connection: private ranges are refused
unless the settings allow them, link-local addresses always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import structlog

from retinue.core.errors import CallTimedOutError
from retinue.web.transport import HttpRequester, TransportError

TIMEOUT_S = 10.0
PAUSES_S = (0.0, 1.0, 4.0)
"""The pauses before the attempts to deliver one message."""

MAX_RESPONSE_BYTES = 64 * 1024
MAX_WAITING = 1_000
"""Messages that wait for their delivery; more are dropped, with a log line."""

CLOSE_S = 2.0
"""How long the end of the process waits for deliveries."""

_log = structlog.get_logger(__name__)

CheckUrl = Callable[[str], Awaitable[None]]
"""Raises UrlRefusedError for a URL to which no message may be sent."""


class Callbacks:
    """Sends messages to callback URLs; ``check`` is the guard of the same client."""

    def __init__(self, http: HttpRequester, check: CheckUrl) -> None:
        self._http = http
        self.check = check
        self._sending: set[asyncio.Task[None]] = set()

    def deliver(
        self, url: str, message: Mapping[str, Any], done: Callable[[bool], None] | None = None
    ) -> None:
        """Send a message in the background, with retries; ``done`` learns whether it arrived."""
        if len(self._sending) >= MAX_WAITING:
            _log.warning("message dropped: too many wait for their delivery", url=url)
            return
        sending = asyncio.create_task(self._deliver(url, message, done))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _deliver(
        self, url: str, message: Mapping[str, Any], done: Callable[[bool], None] | None
    ) -> None:
        arrived = False
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            problem = await self._send(url, message)
            if problem is None:
                arrived = True
                break
        else:
            _log.warning("message not delivered", url=url, problem=problem)
        if done is not None:
            done(arrived)

    async def _send(self, url: str, message: Mapping[str, Any]) -> str | None:
        """One attempt; why it failed, None when the message arrived."""
        try:
            response = await self._http.request(
                "POST",
                url,
                headers={"content-type": "application/json"},
                body=orjson.dumps(message),
                timeout_s=TIMEOUT_S,
                max_response_bytes=MAX_RESPONSE_BYTES,
                what="the callback",
            )
        except (TransportError, CallTimedOutError) as error:
            return str(error)
        return None if response.status < 400 else f"the callback answered {response.status}"

    async def aclose(self, within_s: float = CLOSE_S) -> None:
        """Wait a moment for deliveries that are under way, then drop the others."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=within_s)
        for sending in list(self._sending):
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
