"""The card of a served agent in its registry: published, kept there while it is served, and withdrawn.

The tag of an agent's name holds one card. Where two processes serve one name, the later one replaces the
card of the earlier; when the later one is gone, the earlier publishes its own again. What a person takes
out of the registry stays out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from retinue.apps.publishable import PUBLISHED_SCOPES
from retinue.core.errors import ReferenceNotFoundError, RetinueError
from retinue.core.record import AgentRecord
from retinue.drivers.http import HttpClient
from retinue.drivers.probes import find_trouble
from retinue.drivers.registry import Published, Registry, publish_card, withdraw
from retinue.protocols.oci.reference import Reference, card_repository
from retinue.protocols.pallet_card import encode_card, parse_card, render_card

_log = structlog.get_logger("retinue.standing")

_GONE_AFTER = 2
"""How often in a row a successor must not answer before its card is replaced."""


class Standing:
    """One agent's place in one registry, under one tag."""

    def __init__(
        self,
        registry: Registry,
        record: AgentRecord,
        tag: str,
        http: HttpClient,
        say: Callable[[str], None],
        *,
        probe_timeout_s: float,
    ) -> None:
        self._registry = registry
        self._record = record
        self._reference = Reference(card_repository(record.name), tag=tag)
        self._http = http
        self._say = say
        self._probe_timeout_s = probe_timeout_s
        self._published: Published | None = None
        self._unanswered = 0
        self._succeeded = False
        """Whether another card took the place of ours."""

    async def publish(self) -> None:
        """Publish, and say so; also whose card is replaced by that. Raises RegistryError."""
        before = await self._find_other()
        if before is not None and await self._answers(before):
            self._say(f"another {before.name} answers at {before.url}; this card replaces that one's")
        self._published = await self._push()
        self._say(f"published {self._published} in {self._published.registry}")

    async def keep(self, every_s: float, on_return: Callable[[], Awaitable[None]]) -> None:
        """Look after the card until cancelled; ``on_return`` is called when it was published again."""
        while True:
            await asyncio.sleep(every_s)
            try:
                if await self.look():
                    await on_return()
            except RetinueError as error:
                _log.debug("card not looked after", error=error.message)

    async def look(self) -> bool:
        """Look once; whether a successor is gone and the card was published again."""
        published = self._published
        if published is None:
            return False
        standing = await self._registry.find_digest(self._reference)
        if standing == published.digest:
            self._succeeded, self._unanswered = False, 0
            return False
        if standing is not None:
            self._succeeded = True
            other = await self._find_other()
            if other is None or await self._answers(other):
                self._unanswered = 0
                return False
            self._unanswered += 1
            if self._unanswered < _GONE_AFTER:
                return False
        elif not self._succeeded:
            return False
        self._published = await self._push()
        self._succeeded, self._unanswered = False, 0
        self._say(f"published {self._published} again: the agent that replaced it is gone")
        return True

    async def withdraw(self) -> None:
        """Forget the card on a clean exit; by digest, so that a successor's card is not taken away."""
        if self._published is None:
            return
        try:
            await withdraw(self._registry, self._published)
        except ReferenceNotFoundError:
            _log.debug("already forgotten", reference=str(self._published))
        except RetinueError as error:
            self._say(f"{self._published} stays in {self._published.registry}: {error.message}")

    async def _push(self) -> Published:
        card = render_card(self._record, scopes=PUBLISHED_SCOPES)
        return await publish_card(
            self._registry,
            self._record.name,
            encode_card(card),
            version=self._record.version,
            skills=[skill["id"] for skill in card["skills"]],
            created=datetime.now(UTC),
            tag=self._reference.tag or "",
        )

    async def _find_other(self) -> AgentRecord | None:
        """The agent of this name that stands there and answers elsewhere; None when there is none."""
        try:
            artifact = await self._registry.pull(self._reference)
            other = parse_card(artifact.content, reference=str(self._reference))
        except RetinueError:
            # what cannot be read is for publishing to refuse or to replace
            return None
        return (
            other if other.name == self._record.name and other.url not in (None, self._record.url) else None
        )

    async def _answers(self, other: AgentRecord) -> bool:
        assert other.url is not None
        trouble = await find_trouble(
            self._http, other.url, timeout_s=self._probe_timeout_s, name=self._record.name
        )
        return trouble is None
