"""Publishes the card of a served agent, keeps it published, and withdraws it at the end.

A tag of an agent's repository holds one card. If two processes serve the same name and major version, the
later one replaces the card of the earlier one; other major versions have tags of their own. When the later
one stops answering, the earlier one publishes its card again. A card that a person removes from the registry
is not published again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from math import inf

import structlog

from retinue.cards.card_checks import check_card
from retinue.cards.pallet_card import encode_card, parse_card, render_card
from retinue.cards.signatures import CardSigner
from retinue.core.errors import ReferenceNotFoundError, RetinueError
from retinue.core.record import AgentRecord
from retinue.oci.codec.reference import Reference, card_repository, default_tag
from retinue.oci.registry import Published, Registry, publish_card, publish_prompt, withdraw
from retinue.parts.process import Echo
from retinue.rpc.probe import find_trouble
from retinue.runtime.loading.publishables import PUBLISHED_SCOPES
from retinue.web.http_client import HttpClient

_log = structlog.get_logger("retinue.card_publication")

_REPLACE_AFTER = 2
"""Number of consecutive failed probes of a successor before its card is replaced."""

_SIGN_AGAIN = 0.75
"""Part of the life of a signature after which a card that is still served is signed again."""


class CardPublication:
    """The publication of one agent's card in one registry, under one tag; ``folder`` as `card_repository`."""

    def __init__(
        self,
        registry: Registry,
        read_record: Callable[[], AgentRecord],
        tag: str | None,
        http: HttpClient,
        echo: Echo,
        *,
        probe_timeout_s: float,
        signer: CardSigner | None = None,
        folder: str = "",
    ) -> None:
        self._registry = registry
        self._read_record = read_record
        self._record = read_record()
        self._tag = tag or default_tag(self._record.version)
        repository = card_repository(self._record.name, folder)
        self.reference = Reference(repository, tag=self._tag)
        self._http = http
        self._echo = echo
        self._probe_timeout_s = probe_timeout_s
        self._signer = signer
        self._sign_again_at = inf
        self._published: Published | None = None
        self._pushes: set[asyncio.Task[Published]] = set()
        self._failed_probes = 0
        self._is_replaced = False
        """Whether the tag holds the card of another process."""

    async def publish(self) -> None:
        """Publish and print so; names the agent whose card is replaced, if any.

        Raises RegistryError, such as TagTakenError where the tag holds another major version.
        """
        before = await self._find_other()
        published = await self._push()
        if before is not None and await self._answers(before):
            self._echo(f"another {before.name} answers at {before.url}; this card replaces that one's")
            _log.warning("card of a living agent replaced", agent=before.name, url=before.url)
        self._echo(f"published {published} in {published.registry}")

    async def publish_file(self, file: bytes) -> None:
        """Publish the Markdown file of the agent as ``prompts/NAME``; it stays when the card is withdrawn.

        Raises RegistryError.
        """
        signatures = [] if self._signer is None else [self._signer.sign(file)]
        name, created = self._record.name, datetime.now(UTC)
        await publish_prompt(self._registry, name, file, created=created, signatures=signatures)

    async def renew(self) -> None:
        """Publish the current record, unless another process has replaced the card; raises RegistryError."""
        self._record = self._read_record()
        if not self._is_replaced:
            await self._push()

    async def keep(self, every_s: float, on_return: Callable[[], Awaitable[object]]) -> None:
        """Check the card until cancelled; ``on_return`` is called after it was published again."""
        while True:
            await asyncio.sleep(every_s)
            try:
                if await self.check():
                    await on_return()
            except RetinueError as error:
                _log.debug("card not looked after", error=error.message)

    async def check(self) -> bool:
        """Check once; returns whether a successor stopped answering and the card was published again."""
        published = self._published
        if published is None:
            return False
        current = await self._registry.find_digest(self.reference)
        if current == published.digest:
            self._is_replaced, self._failed_probes = False, 0
            if self._signer is not None and self._signer.clock() >= self._sign_again_at:
                await self._push()
            return False
        if current is not None:
            other = await self._find_other()
            if not self._is_replaced:
                self._is_replaced = True
                place = f" at {other.url}" if other is not None else ""
                self._echo(
                    f"another {self._record.name}{place} has replaced this card: give one another name"
                )
            if other is None or await self._answers(other):
                self._failed_probes = 0
                return False
            self._failed_probes += 1
            if self._failed_probes < _REPLACE_AFTER:
                return False
        elif not self._is_replaced:
            return False
        pushed = await self._push()
        self._is_replaced, self._failed_probes = False, 0
        self._echo(f"published {pushed} again: the agent that replaced it is gone")
        return True

    async def withdraw(self) -> None:
        """Remove the card on a clean exit; by digest, so that a successor's card is kept."""
        # a push whose caller was cancelled may still replace the card that is withdrawn here
        await asyncio.gather(*self._pushes, return_exceptions=True)
        if self._published is None:
            return
        try:
            await withdraw(self._registry, self._published)
        except ReferenceNotFoundError:
            _log.debug("already forgotten", reference=str(self._published))
        except RetinueError as error:
            remedy = f" — {error.remedy}" if error.remedy else ""
            self._echo(f"could not remove {self._published}: {error.message}{remedy}")

    async def _push(self) -> Published:
        """Push the current record; a push goes on to its end where the caller is cancelled."""
        push = asyncio.create_task(self._push_record())
        self._pushes.add(push)
        push.add_done_callback(self._pushes.discard)
        return await asyncio.shield(push)

    async def _push_record(self) -> Published:
        card = render_card(self._record, scopes=PUBLISHED_SCOPES)
        content = encode_card(card)
        check_card(self._record, content, reference=self._record.name)
        signatures = []
        if self._signer is not None:
            signatures = [self._signer.sign(content)]
            valid_s = self._signer.valid_s
            self._sign_again_at = inf if valid_s is None else self._signer.clock() + valid_s * _SIGN_AGAIN
        self._published = await publish_card(
            self._registry,
            self._record.name,
            content,
            version=self._record.version,
            skills=[skill["id"] for skill in card["skills"]],
            created=datetime.now(UTC),
            repository=self.reference.repository,
            tag=self._tag,
            signatures=signatures,
        )
        return self._published

    async def _find_other(self) -> AgentRecord | None:
        """The agent of this name that is published under the tag with another URL; None if there is none."""
        try:
            artifact = await self._registry.pull(self.reference)
            other = parse_card(artifact.content, reference=str(self.reference))
        except RetinueError:
            # publishing rejects or replaces an unreadable artifact
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
