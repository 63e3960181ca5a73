"""An OCI registry as a source of listings: reads every agent card, each digest once (specification 2).

`ReadAhead` fetches many artifacts per request from registries that support it (`retinue.oci.codec.bulk`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from math import inf

import structlog

from retinue.cards.card_checks import check_card
from retinue.cards.pallet_card import parse_card
from retinue.cards.signatures import CardVerifier
from retinue.core.errors import (
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryError,
    RetinueError,
    SchemaRefusedError,
)
from retinue.core.record import AgentRecord, Listing, SignatureState
from retinue.core.trust import Trust
from retinue.mesh.directory.sources import Give, Reading, Source, SourceProblem
from retinue.mesh.entry import Entry
from retinue.mesh.schema.checks import check_skill
from retinue.oci.codec.artifacts import Artifact
from retinue.oci.codec.catalog import Heads
from retinue.oci.codec.reference import (
    Reference,
    choose_version_tags,
    is_referrers_tag,
    is_repository,
)
from retinue.oci.registry import Registry, read_published

_log = structlog.get_logger("retinue.oci")

AGENTS = "agents/"
WORKFLOWS = "workflows/"
PROMPTS = "prompts/"
POLICIES = "policies/"
BATCH = 128
"""Repositories per bulk request: small enough that registry and hub work in parallel."""

CONCURRENT_READS = 16
GIVEN_AT_ONCE = 100
"""Listings passed to the directory together: about 10 ms of writing."""

GLANCED = 5_000
"""Repositories processed before yielding to the event loop: about 5 ms."""

TAGS_TTL_S = 300.0
"""How long a reading that is not thorough relies on the last list of tags (P-30): listing tags costs
docker-registry twice as much as confirming that a card is unchanged."""

FULL_READ_S = 60.0
"""How long an unchanged stamp is trusted: a layout copied in by hand does not change it."""

_MAY_EXPLODE = re.compile(
    rb'"(?:\$ref|\$dynamicRef|\$recursiveRef|allOf|anyOf|oneOf|not|if|dependentSchemas|dependencies)"'
)
"""Keywords without which a schema is harmless. Checking the schemas of a thousand cards would take longer
than reading them; a schema that escapes this filter is rejected when it is called."""


class ReadAhead:
    """Pulls artifacts from ``registry``: ``references`` (with digests) in batches, all others one by one.

    The first caller that needs a missing artifact fetches the next batch for all callers. Fewer than two
    batches of fetched artifacts are kept in memory, and the next batch is on its way while one is read.
    """

    def __init__(self, registry: Registry, references: Iterable[Reference]) -> None:
        self._registry = registry
        self._waiting = {reference.repository: reference for reference in references}
        self._fetched: dict[str, Artifact | RegistryError] = {}
        self._fetching = asyncio.Lock()

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """Like `Registry.pull_if_changed`, but an artifact fetched ahead is always returned.

        Also raises the error of an artifact that could not be opened.
        """
        repository = reference.repository
        if self._has_room and not self._fetching.locked():
            async with self._fetching:
                if self._has_room:
                    await self._fetch()
        while repository in self._waiting:
            async with self._fetching:
                if repository in self._waiting:
                    await self._fetch()
        # Without this, a caller that finds every artifact fetched would never yield to the event loop.
        await asyncio.sleep(0)
        artifact = self._fetched.pop(repository, None)
        if artifact is None:
            return await self._registry.pull_if_changed(reference, known_digest)
        if isinstance(artifact, RegistryError):
            raise artifact
        return artifact

    @property
    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._fetched) < BATCH

    async def _fetch(self) -> None:
        batch = list(islice(self._waiting.values(), BATCH))
        pulled = await self._registry.pull_many(batch)
        answered = [repository for repository in pulled if self._waiting.pop(repository, None) is not None]
        if not answered:
            self._waiting.clear()
        self._fetched |= {name: artifact for name in answered if (artifact := pulled[name]) is not None}


@dataclass(frozen=True, slots=True)
class _Known:
    """State of a tag at its last reading; the listing itself is kept by the directory."""

    tag: str
    digest: str
    is_card: bool = True
    error: MalformedArtifactError | None = None
    listed_at: float = -inf
    """When the tags of the repository were last listed, on the monotonic clock."""
    is_alias: bool = False
    """Whether another tag of the repository has the same digest, and stands for both."""

    @staticmethod
    def find(known: Iterable[_Known], tag: str, digest: str) -> _Known | None:
        """The state of this tag, where it still has this digest."""
        return next(
            (candidate for candidate in known if (candidate.tag, candidate.digest) == (tag, digest)), None
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of reading one repository: new listings, and the error of an unreadable card."""

    listings: tuple[Listing, ...] = ()
    error: MalformedArtifactError | None = None


class RegistrySource(Source):
    """The agent cards of any registry as a source.

    Cards are expected in ``agents/…`` at any depth (specification 2, doubt 10), and recognised elsewhere by
    artifact type. Each tag that is a version (``v1``, ``2.0``) is a version of the agent; other tags are read
    only where there is none, the best of them (doubt 7). ``tag`` reads only that tag. A card is read again
    only when its tag or digest has changed.
    """

    def __init__(
        self,
        name: str,
        registry: Registry,
        *,
        tag: str | None = None,
        verifier: CardVerifier | None = None,
        trust: Trust = Trust.IMPORTED,
        given_at_once: int = GIVEN_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self.trust = trust
        self._registry = registry
        self._tag = tag
        self._verifier = verifier
        self._given_at_once = given_at_once
        self._key_revision: object = None
        self._clock = clock
        self._now = now
        self._stamp: str | None = None
        self._full_read_at = 0.0
        self._problems: tuple[SourceProblem, ...] = ()
        self._known: dict[str, tuple[_Known, ...]] = {}

    def remember(self, held: Iterable[Entry]) -> None:
        """Take over stored entries of this source, so that unchanged cards are not read again."""
        if self._verifier is not None:
            self._key_revision = self._verifier.revision()
            if self._verifier.policy == "require":
                # they may have been taken in under another policy, or with a key that is trusted no more
                return
        for entry in held:
            if entry.source == self.name and entry.tag is not None and entry.digest is not None:
                held_before = self._known.get(entry.key, ())
                self._known[entry.key] = (*held_before, _Known(entry.tag, entry.digest))

    def changed(self) -> bool:
        """Whether the registry's generation differs from the last reading; False where it has none."""
        generation = self._registry.generation()
        return generation is not None and generation != self._stamp

    def _verify_anew(self) -> None:
        """Read every card again after a change of the trusted keys."""
        if self._verifier is None or (revision := self._verifier.revision()) == self._key_revision:
            return
        if self._key_revision is not None:
            self._known.clear()
            self._stamp = None
        self._key_revision = revision

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        """Every card of the registry; raises RegistryError when its repositories cannot be listed (doubt 5).

        Without ``thorough`` an unchanged card costs one small request, and a new tag next to the chosen one
        appears within `TAGS_TTL_S`; every other change appears at once.
        """
        self._verify_anew()
        began_at = self._clock()
        tags_since = inf if thorough else began_at - TAGS_TTL_S
        stamp = self._registry.generation()
        if stamp is not None and stamp == self._stamp and began_at - self._full_read_at < FULL_READ_S:
            return Reading((), self._problems, await self._list_unchanged(()))
        catalog = await read_published(self._registry)
        repositories = []
        for number, repository in enumerate(catalog.repositories):
            if repository in self._known or may_hold_card(repository):
                repositories.append(repository)
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        listings: dict[tuple[str, str], Listing] = {}
        problems: dict[str, SourceProblem] = {}
        waiting = iter(repositories)
        ahead = ReadAhead(self._registry, self._list_new(repositories, catalog.heads))

        async def work() -> None:
            for repository in waiting:
                try:
                    reading = await self._read(repository, catalog.heads.get(repository), tags_since, ahead)
                except RetinueError as error:
                    problems[repository] = SourceProblem(self.name, repository, error)
                else:
                    if reading.error is not None:
                        problems[repository] = SourceProblem(self.name, repository, reading.error)
                    listings.update(((listing.key, listing.id.tag), listing) for listing in reading.listings)
                    if give is not None and len(listings) >= self._given_at_once:
                        give(list(listings.values()))
                        listings.clear()

        await asyncio.gather(*(work() for _ in range(min(CONCURRENT_READS, len(repositories)))))
        listed = set(repositories)
        await asyncio.sleep(0)
        for gone in [key for key in self._known if key not in listed]:
            del self._known[gone]
        await asyncio.sleep(0)
        self._problems = tuple(problems[r] for r in sorted(problems))
        self._stamp, self._full_read_at = stamp, began_at
        ordered = tuple(listings[place] for place in sorted(listings))
        return Reading(ordered, self._problems, await self._list_unchanged(listings.keys()))

    async def _list_unchanged(self, references: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Digests by repository and tag of the cards that did not change.

        Those with a problem are reported as such.
        """
        unchanged: dict[tuple[str, str], str] = {}
        for number, key in enumerate(list(self._known)):
            for known in self._known.get(key, ()):
                is_listing = known.is_card and not known.is_alias and known.error is None
                if is_listing and (key, known.tag) not in references:
                    unchanged[key, known.tag] = known.digest
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        return unchanged

    async def read_key(self, key: str) -> tuple[Listing, ...]:
        """Read every version in the repository ``key``; () when it has no tag or holds no card.

        Raises MalformedArtifactError, ReferenceNotFoundError (the configured tag is missing) and what the
        registry raises.
        """
        reading = await self._read(key, again=True)
        if reading.error is not None and not reading.listings:
            raise reading.error
        return reading.listings

    def _list_new(self, repositories: Iterable[str], heads: Mapping[str, Heads]) -> Iterator[Reference]:
        """References with digest of the newest versions that the catalog reports as new or changed."""
        for key in repositories:
            tags = heads.get(key, {})
            tag = next(iter(self._choose_tags(tags)), None)
            if tag is not None and _Known.find(self._known.get(key, ()), tag, tags[tag]) is None:
                yield Reference(key, tag=tag, digest=tags[tag])

    async def _read(
        self,
        key: str,
        heads: Heads | None = None,
        tags_since: float = inf,
        ahead: ReadAhead | None = None,
        *,
        again: bool = False,
    ) -> _Found:
        """Read the cards that have changed, or all of them with ``again``.

        ``heads`` are the tags reported by the catalog, which save all requests except those of ``ahead``.
        """
        if heads is not None:
            return await self._read_tags(key, self._choose(key, heads), -inf, heads, ahead)
        known = self._known.get(key, ())
        listed_at = known[0].listed_at if known else -inf
        likely: tuple[str, ...] = ()
        if self._tag is not None:
            likely = (self._tag,)
        elif listed_at > tags_since:
            likely = tuple(version.tag for version in known)
        if likely:
            # These tags are configured or were chosen recently; if one is gone, choose among the others.
            with suppress(ReferenceNotFoundError):
                return await self._read_tags(key, likely, listed_at, again=again)
        listed_at = self._clock()
        tags = self._choose(key, await self._registry.list_tags(key))
        return await self._read_tags(key, tags, listed_at, again=again)

    def _choose_tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        if self._tag is None:
            return choose_version_tags(tags)
        return (self._tag,) if self._tag in tags else ()

    def _choose(self, key: str, tags: Iterable[str]) -> tuple[str, ...]:
        """The tags to read; () when there are no tags. Raises ReferenceNotFoundError."""
        held = [tag for tag in tags if not is_referrers_tag(tag)]
        chosen = self._choose_tags(held)
        if held and not chosen:
            raise ReferenceNotFoundError(self.name, f"{key}:{self._tag}")
        return chosen

    async def _read_tags(
        self,
        key: str,
        tags: Sequence[str],
        listed_at: float,
        heads: Heads | None = None,
        ahead: ReadAhead | None = None,
        *,
        again: bool = False,
    ) -> _Found:
        """Read the tags of one repository, newest first; tags of one digest are one listing."""
        before = {version.tag: version for version in self._known.get(key, ())}
        states: list[_Known] = []
        listings: list[Listing] = []
        seen: set[str] = set()
        error: MalformedArtifactError | None = None
        for tag in tags:
            held, reference = before.get(tag), Reference(key, tag=tag)
            digest = None if heads is None else heads[tag]
            if digest is not None and digest in seen:
                continue
            if held is not None and held.is_alias and held.digest not in seen:
                held = None
            listing: Listing | None = None
            if held is None or held.digest != digest:
                reader = ahead if ahead is not None and tag == tags[0] else self._registry
                try:
                    artifact = await self._pull(reference, None if again else held, reader)
                except MalformedArtifactError as malformed:
                    error = error or malformed
                    states += [] if held is None else [held]
                    continue
                if artifact is not None:
                    held, listing = self._open(reference, artifact)
                elif held is None or again:
                    continue
            is_alias = held.digest in seen
            states.append(replace(held, listed_at=listed_at, is_alias=is_alias))
            seen.add(held.digest)
            error = error or held.error
            if listing is not None and not is_alias:
                listings.append(listing)
        if states:
            self._known[key] = tuple(states)
        else:
            self._known.pop(key, None)
        return _Found(tuple(listings), error)

    async def _pull(
        self, reference: Reference, known: _Known | None, registry: Registry | ReadAhead
    ) -> Artifact | None:
        """Pull the artifact; None when it is unchanged or neither a card nor a workflow."""
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
            check_card(record, artifact.content, reference=str(reference))
            if _MAY_EXPLODE.search(artifact.content):
                _check_schemas(record, str(reference))
            signature = self._verify(reference, artifact)
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
            signature=signature,
        )
        return _Known(tag, artifact.digest), listing

    def _verify(self, reference: Reference, artifact: Artifact) -> SignatureState:
        if self._verifier is None:
            return "none"
        verdict = self._verifier.check(artifact.signatures, (artifact.content,), reference=str(reference))
        if verdict.state == "invalid":
            _log.warning("card badly signed", reference=str(reference), reason=verdict.reason)
        return verdict.state


def _check_schemas(record: AgentRecord, reference: str) -> None:
    try:
        for skill in record.skills:
            check_skill(skill)
    except SchemaRefusedError as error:
        raise MalformedArtifactError(reference, error.message) from None


def may_hold_card(repository: str) -> bool:
    """Whether a repository of this name may hold an agent card."""
    return is_repository(repository) and not repository.startswith((WORKFLOWS, PROMPTS, POLICIES))
