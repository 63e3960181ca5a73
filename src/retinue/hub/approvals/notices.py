"""Sends notices of approvals to a chat system: a call waits, is about to expire, was answered or has expired.

A notice is a POST in the form of Standard Webhooks, whose id is the same in each delivery. All hubs of a
database share the notices, so each is sent by one of them. A delivery that fails is repeated a few times.
Secrets and personal data in the arguments are masked, because chat systems keep what they get.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import structlog

from retinue.approvals.records import Approval, Notice
from retinue.core.errors import RetinueError
from retinue.guards.masking import mask_value
from retinue.hub.approvals.book import render
from retinue.hub.scheduling.signatures import ID_HEADER, SIGNATURE_HEADER, TIME_HEADER, sign

LOOK_S = 1.0
"""Seconds between two looks for notices to send."""

MAX_ARGUMENTS_BYTES = 16 * 1024
"""Longer arguments are left out of a notice; ``retinue approvals show`` has them."""

_log = structlog.get_logger("retinue.approvals")

Post = Callable[[Mapping[str, str], bytes], Awaitable[str]]
"""Sends a body with headers to the chat system; returns why that failed, "" for a delivery."""


Claim = Callable[[], Awaitable[list[Notice]]]
"""Gives the notices to send now, each to one process; one that is not settled comes again later."""

Settle = Callable[[Notice], Awaitable[None]]
"""Notes that a notice was delivered."""


class ApprovalNotices:
    """The notices of a mesh. ``exists`` = whether there may be approvals; ``secret`` begins with whsec_."""

    def __init__(
        self,
        claim: Claim,
        settle: Settle,
        post: Post,
        secret: str,
        *,
        exists: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._claim = claim
        self._settle = settle
        self._post = post
        self._secret = secret
        self._exists = exists
        self._clock = clock

    async def run(self, look_s: float = LOOK_S) -> None:
        """Send notices until it is cancelled."""
        while True:
            await asyncio.sleep(look_s)
            try:
                if self._exists():
                    await self.send_due()
            except RetinueError as error:
                _log.warning("notices of approvals wait", reason=error.message)

    async def send_due(self) -> None:
        """Send the notices that are due."""
        await asyncio.gather(*(self._send(notice) for notice in await self._claim()))

    async def _send(self, notice: Notice) -> None:
        now = self._clock()
        event, sent_at = f"{notice.approval.id}-{notice.kind}", int(now)
        body = orjson.dumps(render_notice(notice, now))
        headers = {
            "Content-Type": "application/json",
            ID_HEADER: event,
            TIME_HEADER: str(sent_at),
            SIGNATURE_HEADER: sign(self._secret, event, sent_at, body),
        }
        problem = await self._post(headers, body)
        if not problem:
            await self._settle(notice)
            return
        level = _log.error if notice.is_last else _log.warning
        level(
            "notice of an approval not delivered",
            approval=notice.approval.id,
            kind=notice.kind,
            tries=notice.tries,
            reason=problem,
            given_up=notice.is_last,
        )


def render_notice(notice: Notice, now: float) -> dict[str, Any]:
    """The body of a notice: the approval as skills show it, with masked arguments."""
    shown = render(notice.approval, now)
    arguments = mask_value(shown["arguments"])
    shown["arguments"] = arguments.value
    if arguments.is_changed:
        shown["masked"] = list(arguments.paths)
    if len(orjson.dumps(arguments.value)) > MAX_ARGUMENTS_BYTES:
        shown["arguments"] = None
        shown["omitted"] = f"arguments of over {MAX_ARGUMENTS_BYTES:,} bytes"
    if shown["state"] == "open":
        shown["answer"] = _commands(notice.approval)
    return {"type": f"approval.{notice.kind}", "timestamp": shown["asked_at"], "data": shown}


def _commands(approval: Approval) -> dict[str, str]:
    return {
        "yes": f"retinue approvals approve {approval.id}",
        "no": f"retinue approvals deny {approval.id} --reason TEXT",
    }
