"""Delivery of later replies to the URL that a sender gave, and subscriptions to news.

Every URL passes the guard before it is accepted and again at each connection: private ranges are refused
unless the settings allow them, link-local addresses always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from retinue.core.call import new_id
from retinue.core.errors import BusyError, CallTimedOutError
from retinue.messages.codec.envelope import Envelope
from retinue.messages.codec.payloads import Reply
from retinue.web.transport import HttpRequester, TransportError

TIMEOUT_S = 10.0
PAUSES_S = (0.0, 1.0, 4.0)
"""Before each attempt to deliver one message."""

MAX_RESPONSE_BYTES = 64 * 1024
MAX_WAITING = 1_000
"""Messages that wait for their delivery; more are dropped, with a log line."""

MAX_SUBSCRIPTIONS = 500
MAX_FAILURES = 5
"""A subscription whose URL fails so often, one after the other, ends."""

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

    async def aclose(self) -> None:
        """Drop what is not delivered yet."""
        for sending in list(self._sending):
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


@dataclass(slots=True, eq=False)
class Subscription:
    """News that go to a URL; ``stop`` ends their source."""

    owner: str
    request: Envelope
    agent: str
    id: str = field(default_factory=new_id)
    stop: Callable[[], None] = lambda: None
    failures: int = 0
    last: Reply | None = None

    def names(self) -> tuple[str, ...]:
        """What it is known by."""
        ids = (self.id, self.request.message_id, self.request.reply_with)
        return tuple(dict.fromkeys(one for one in ids if one is not None))


class Subscriptions:
    """The subscriptions of one process; ``send`` delivers one reply to the request of a subscription."""

    def __init__(self, send: Callable[[Envelope, Reply, str, Callable[[bool], None]], None]) -> None:
        self._send = send
        self._all: dict[tuple[str, str], Subscription] = {}

    def add(self, owner: str, request: Envelope, agent: str) -> Subscription:
        """A new subscription to news of ``agent``; raises BusyError when there are too many."""
        if len({id(one) for one in self._all.values()}) >= MAX_SUBSCRIPTIONS:
            raise BusyError(f"{MAX_SUBSCRIPTIONS} subscriptions are open", 60.0)
        subscription = Subscription(owner, request, agent)
        for name in subscription.names():
            if (old := self._all.get((owner, name))) is not None:
                self.end(old)
            self._all[owner, name] = subscription
        return subscription

    def find(self, reference: str, owner: str) -> Subscription | None:
        """The subscription of this owner that an id names."""
        return self._all.get((owner, reference))

    def tell(self, subscription: Subscription, reply: Reply) -> None:
        """Send news, unless they are the same as the last."""
        if subscription.last == reply:
            return
        subscription.last = reply

        def note(arrived: bool) -> None:
            subscription.failures = 0 if arrived else subscription.failures + 1
            if subscription.failures >= MAX_FAILURES:
                self.end(subscription)

        self._send(subscription.request, reply, subscription.agent, note)

    def end(self, subscription: Subscription) -> None:
        """End one subscription."""
        subscription.stop()
        for name in subscription.names():
            if self._all.get((subscription.owner, name)) is subscription:
                del self._all[subscription.owner, name]

    def close(self) -> None:
        """End all."""
        for subscription in list(self._all.values()):
            self.end(subscription)
