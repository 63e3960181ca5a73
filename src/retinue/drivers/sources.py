"""An OCI registry as a source of listings: every agent card in it, read once per digest (SPEC 2)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import Protocol, runtime_checkable

from retinue.core.errors import (
    MalformedArtifactError,
    ReferenceNotFoundError,
    RetinueError,
    SchemaRefusedError,
)
from retinue.core.record import AgentRecord, Listing
from retinue.drivers.read_ahead import ReadAhead
from retinue.drivers.registry import Registry, read_published
from retinue.mesh.entry import Entry
from retinue.mesh.schema import check_skill
from retinue.mesh.sources import Reading, SourceProblem
from retinue.protocols.oci.artifacts import Artifact
from retinue.protocols.oci.catalog import Heads
from retinue.protocols.oci.reference import Reference, choose_tag, is_repository
from retinue.protocols.pallet_card import parse_card

AGENTS = "agents/"
WORKFLOWS = "workflows/"
CONCURRENT_READS = 16

GIVEN_AT_ONCE = 100
"""Listings that are given to a directory together: some 10 ms of writing."""

GLANCED = 5_000
"""Repositories looked at before others may run: some 5 ms."""

TAGS_TTL_S = 300.0
"""How long `RegistrySource.revalidate` trusts that no better tag came (P-30): listing the tags costs a
docker-registry twice what it costs to say that a card is the same."""

FULL_READ_S = 60.0
"""An unchanged stamp is trusted this long: a layout that was copied in by hand bears none."""

_MAY_EXPLODE = re.compile(
    rb'"(?:\$ref|\$dynamicRef|\$recursiveRef|allOf|anyOf|oneOf|not|if|dependentSchemas|dependencies)"'
)
"""Words without which a schema is harmless. Checking all of a thousand cards would take longer than
reading them; what hides from this look is refused when it is called."""


@runtime_checkable
class Stamped(Protocol):
    """A registry that shows cheaply whether it changed, as an image layout on this disk does."""

    def generation(self) -> str:
        """A stamp that differs after each change."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a repository held when it was last read; the listing itself is with whoever asked for it."""

    tag: str
    digest: str
    is_card: bool = True
    error: MalformedArtifactError | None = None
    listed_at: float = -inf
    """When the tags were last listed."""


class RegistrySource:
    """Implements the ports of ``retinue.mesh.sources`` over any registry.

    Cards are looked for in ``agents/…`` at any depth (SPEC 2, doubt 10), and elsewhere by their
    artifact type. ``tag`` reads that one only, instead of the best (doubt 7). Of a card that was given
    its tag and digest are kept, and what still has them is not read again.
    """

    def __init__(
        self,
        name: str,
        registry: Registry,
        *,
        tag: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self._registry = registry
        self._tag = tag
        self._clock = clock
        self._now = now
        self._stamped = registry if isinstance(registry, Stamped) else None
        self._stamp: str | None = None
        self._full_read_at = 0.0
        self._problems: tuple[SourceProblem, ...] = ()
        self._take: Callable[[Sequence[Listing]], None] | None = None
        self._known: dict[str, _Known] = {}

    def remember(self, held: Iterable[Entry]) -> None:
        """What is held of this source from before: what still has its digest is not read again."""
        for entry in held:
            if entry.source == self.name and entry.tag is not None and entry.digest is not None:
                self._known[entry.key] = _Known(entry.tag, entry.digest)

    def give_to(self, take: Callable[[Sequence[Listing]], None]) -> None:
        """Give what is new to ``take`` as it is read: a hundred thousand listings are a gigabyte."""
        self._take = take

    def changed(self) -> bool:
        """Whether the registry's stamp is another than at the last reading; False where it has none."""
        return self._stamped is not None and self._stamped.generation() != self._stamp

    async def read_all(self) -> Reading:
        """Every card of the registry; raises RegistryError when nothing tells what is in it (doubt 5)."""
        return await self._read_all(inf)

    async def revalidate(self) -> Reading:
        """As `read_all`, at one small request for a card that did not change.

        A new tag beside the one that was chosen shows within `TAGS_TTL_S`, all else at once.
        """
        return await self._read_all(self._clock() - TAGS_TTL_S)

    async def _read_all(self, tags_since: float) -> Reading:
        """Every card; tags that were listed since then are not listed again."""
        began_at = self._clock()
        stamp = self._stamped.generation() if self._stamped is not None else None
        if stamp is not None and stamp == self._stamp and began_at - self._full_read_at < FULL_READ_S:
            return Reading((), self._problems, await self._list_unchanged(()))
        catalog = await read_published(self._registry)
        repositories = []
        for number, repository in enumerate(catalog.repositories):
            if repository in self._known or may_hold_card(repository):
                repositories.append(repository)
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        listings: dict[str, Listing] = {}
        problems: dict[str, SourceProblem] = {}
        waiting = iter(repositories)
        ahead = ReadAhead(self._registry, self._list_new(repositories, catalog.heads))

        async def work() -> None:
            for repository in waiting:
                try:
                    listing = await self._read(repository, catalog.heads.get(repository), tags_since, ahead)
                except RetinueError as error:
                    problems[repository] = SourceProblem(self.name, repository, error)
                else:
                    if listing is not None:
                        listings[repository] = listing
                    if self._take is not None and len(listings) >= GIVEN_AT_ONCE:
                        self._take(list(listings.values()))
                        listings.clear()

        await asyncio.gather(*(work() for _ in range(min(CONCURRENT_READS, len(repositories)))))
        listed = set(repositories)
        await asyncio.sleep(0)
        for gone in [key for key in self._known if key not in listed]:
            del self._known[gone]
        await asyncio.sleep(0)
        self._problems = tuple(problems[r] for r in sorted(problems))
        self._stamp, self._full_read_at = stamp, began_at
        given = tuple(listings[r] for r in sorted(listings))
        return Reading(given, self._problems, await self._list_unchanged(listings.keys()))

    async def _list_unchanged(self, given: Collection[str]) -> dict[str, str]:
        """The cards that are as they were given before; those with a problem are told as such."""
        unchanged: dict[str, str] = {}
        for number, key in enumerate(list(self._known)):
            known = self._known.get(key)
            if known is not None and known.is_card and known.error is None and key not in given:
                unchanged[key] = known.digest
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        return unchanged

    async def read_one(self, key: str) -> Listing | None:
        """The card in the repository ``key``; None where there is no tag, or nothing of ours.

        Raises MalformedArtifactError, ReferenceNotFoundError (without the tag asked for) and what
        the registry raises.
        """
        return await self._read(key, again=True)

    def _list_new(self, repositories: Iterable[str], heads: Mapping[str, Heads]) -> Iterator[Reference]:
        """What the catalog tells of and is not known yet, with its digests."""
        for key in repositories:
            told, known = heads.get(key, {}), self._known.get(key)
            tag = choose_tag(told, self._tag)
            if tag is not None and (known is None or (known.tag, known.digest) != (tag, told[tag])):
                yield Reference(key, tag=tag, digest=told[tag])

    async def _read(
        self,
        key: str,
        heads: Heads | None = None,
        tags_since: float = inf,
        ahead: ReadAhead | None = None,
        *,
        again: bool = False,
    ) -> Listing | None:
        """The card, where it is another than before or ``again`` is wanted.

        ``heads`` are the tags where the catalog told them, and spare every request but those of ``ahead``.
        """
        known = self._known.get(key)
        if heads is not None:
            tag = self._choose(key, heads)
            if known is not None and (known.tag, known.digest) == (tag, heads.get(tag or "")):
                _complain(known)
                return None
            return None if tag is None else await self._read_tag(key, tag, -inf, ahead)
        likely = self._tag
        if likely is None and known is not None and known.listed_at > tags_since:
            likely = known.tag
        if likely is not None:
            # Its tag is set or was chosen lately; one that is gone is looked for among the others.
            with suppress(ReferenceNotFoundError):
                listed_at = known.listed_at if known is not None else -inf
                return await self._read_tag(key, likely, listed_at, again=again)
        listed_at = self._clock()
        tag = self._choose(key, await self._registry.list_tags(key))
        return None if tag is None else await self._read_tag(key, tag, listed_at, again=again)

    def _choose(self, key: str, tags: Iterable[str]) -> str | None:
        """The tag to read; None where there is none at all. Raises ReferenceNotFoundError."""
        held = list(tags)
        if not held:
            self._known.pop(key, None)
            return None
        tag = choose_tag(held, self._tag)
        if tag is None:
            raise ReferenceNotFoundError(self.name, f"{key}:{self._tag}")
        return tag

    async def _read_tag(
        self, key: str, tag: str, listed_at: float, ahead: ReadAhead | None = None, *, again: bool = False
    ) -> Listing | None:
        known = None if again else self._known.get(key)
        if known is not None and known.tag != tag:
            known = None
        reference = Reference(key, tag=tag)
        artifact = await self._pull(reference, known, ahead or self._registry)
        listing: Listing | None = None
        if artifact is not None:
            known, listing = self._open(reference, artifact)
        elif known is None:
            self._known.pop(key, None)
            return None
        self._known[key] = replace(known, listed_at=listed_at)
        _complain(known)
        return listing

    async def _pull(
        self, reference: Reference, known: _Known | None, registry: Registry | ReadAhead
    ) -> Artifact | None:
        """What the registry holds; None where that is known, or is no artifact of ours."""
        try:
            return await registry.pull_if_changed(reference, known.digest if known else None)
        except MalformedArtifactError:
            if reference.repository.startswith(AGENTS):
                raise
            return None

    def _open(self, reference: Reference, artifact: Artifact) -> tuple[_Known, Listing | None]:
        tag = reference.tag or ""
        foreign = artifact.form != "card" and not reference.repository.startswith(AGENTS)
        if foreign or artifact.form == "index":
            return _Known(tag, artifact.digest, is_card=False), None
        try:
            record = parse_card(artifact.content, reference=str(reference))
            if _MAY_EXPLODE.search(artifact.content):
                _check_schemas(record, str(reference))
        except MalformedArtifactError as error:
            return _Known(tag, artifact.digest, error=error), None
        listing = Listing(
            record=record,
            source=self.name,
            key=reference.repository,
            tag=tag,
            digest=artifact.digest,
            raw=artifact.content,
            published_at=artifact.published_at,
            fetched_at=self._now(),
        )
        return _Known(tag, artifact.digest), listing


def _complain(known: _Known) -> None:
    """A card that cannot be read is a problem each time."""
    if known.error is not None:
        raise known.error


def _check_schemas(record: AgentRecord, reference: str) -> None:
    try:
        for skill in record.skills:
            check_skill(skill)
    except SchemaRefusedError as error:
        raise MalformedArtifactError(reference, error.message) from None


def may_hold_card(repository: str) -> bool:
    """Whether a repository of this name is worth a look."""
    return is_repository(repository) and not repository.startswith(WORKFLOWS)
