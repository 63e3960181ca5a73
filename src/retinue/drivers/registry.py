"""Registries: one protocol over a folder of layouts and over any OCI registry, and publishing to either.

``pull`` and ``push`` move artifacts; ``publish_*`` and ``forget`` know about agents and workflows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from retinue.core.errors import (
    CallTimedOutError,
    InvalidSettingError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
    RepositoryTakenError,
)
from retinue.drivers.http import HttpClient, TransportError
from retinue.drivers.layout import LayoutRegistry
from retinue.protocols.oci import flows
from retinue.protocols.oci.artifacts import (
    Artifact,
    Guard,
    NewArtifact,
    card_artifact,
    find_card_name,
    workflow_artifact,
)
from retinue.protocols.oci.reference import (
    DEFAULT_TAG,
    Reference,
    card_repository,
    choose_tag,
    workflow_repository,
)

REGISTRY_TIMEOUT_S = 10.0
"""Default time limit of one request to a registry (DESIGN 7)."""

T = TypeVar("T")


class Registry(Protocol):
    """Where artifacts live. Unknown repositories have no tags; a missing reference is an error.

    Every method may raise the RegistryErrors and StateErrors of its kind of registry:
    RegistryUnreachableError and RegistryRefusedError over HTTP, StateDamagedError on disk.
    """

    @property
    def name(self) -> str:
        """What errors and lists call this registry: its url or folder."""
        ...

    async def list_repositories(self) -> list[str]:
        """All repositories, in lexical order; some may have no tag left."""
        ...

    async def list_tags(self, repository: str) -> list[str]:
        """All tags, in lexical order; empty for an unknown repository."""
        ...

    async def find_digest(self, reference: Reference) -> str | None:
        """The digest that a reference means now; None when there is nothing."""
        ...

    async def pull(self, reference: Reference) -> Artifact:
        """The artifact, verified. A reference without tag and digest takes the best tag.

        Raises ReferenceNotFoundError, MalformedArtifactError, DigestMismatchError.
        """
        ...

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """As ``pull``; None, at the cost of one cheap request, while it is still ``known_digest``."""
        ...

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        """Store an artifact under a tag; gives its digest. ``guard`` may refuse what it would replace."""
        ...

    async def delete(self, repository: str, target: str) -> None:
        """Delete a tag or digest. Raises ReferenceNotFoundError."""
        ...


class HttpRegistry:
    """Any OCI registry at ``base_url``, asked through flows.

    Authentication has its place in ``_run``: a flow around the flow that answers a 401.
    """

    def __init__(self, base_url: str, client: HttpClient, *, timeout_s: float = REGISTRY_TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        self._client = client
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """The url, without credentials."""
        parts = urlsplit(self._base_url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    async def list_repositories(self) -> list[str]:
        return await self._run(flows.list_repositories())

    async def list_tags(self, repository: str) -> list[str]:
        return await self._run(flows.list_tags(repository))

    async def find_digest(self, reference: Reference) -> str | None:
        return await self._run(flows.find_digest(reference))

    async def pull(self, reference: Reference) -> Artifact:
        found = await self._run(flows.pull(reference))
        assert found is not None
        return found

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        return await self._run(flows.pull(reference, known_digest=known_digest))

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        if guard is not None:
            guard(await self._held(repository, tag))
        return await self._run(flows.push(repository, tag, artifact))

    async def delete(self, repository: str, target: str) -> None:
        await self._run(flows.delete(Reference(repository).at(target)))

    async def _held(self, repository: str, tag: str) -> Artifact | None:
        """What a guard is asked about; what cannot be read may be published over."""
        tags = await self.list_tags(repository)
        chosen = choose_tag(tags, tag) or choose_tag(tags)
        if chosen is None:
            return None
        try:
            return await self.pull(Reference(repository, tag=chosen))
        except (MalformedArtifactError, ReferenceNotFoundError):
            return None

    async def _run(self, flow: Generator[flows.Request, flows.Response, T]) -> T:
        """Carry a flow's requests out one after the other."""
        try:
            request = next(flow)
            while True:
                request = flow.send(await self._ask(request))
        except StopIteration as finished:
            value: T = finished.value
            return value

    async def _ask(self, request: flows.Request) -> flows.Response:
        url = request.url if "://" in request.url else self._base_url + request.url
        try:
            answer = await self._client.request(
                request.method,
                url,
                headers=request.headers,
                body=request.body,
                timeout_s=self._timeout_s,
                max_response_bytes=request.max_response_bytes,
                layer="registry request",
                setting="the registry's timeout",
            )
        except TransportError as error:
            raise RegistryUnreachableError(self.name, error.cause) from error
        except CallTimedOutError as error:
            raise RegistryUnreachableError(self.name, error.message) from error
        headers = {key.lower(): value for key, value in answer.headers.items()}
        return flows.Response(answer.status, headers, answer.body, url)


@dataclass(frozen=True, slots=True)
class Published:
    """Where something was published."""

    registry: str
    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


def open_registry(
    location: str | Path, client: HttpClient, *, timeout_s: float = REGISTRY_TIMEOUT_S
) -> Registry:
    """The registry at an http(s) url, else the one in a folder. Raises InvalidSettingError."""
    text = str(location)
    if isinstance(location, str) and "://" in text:
        parts = urlsplit(text)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSettingError(
                "registry", f"{text!r} is no registry", remedy="write http://host:port or a folder"
            )
        return HttpRegistry(text, client, timeout_s=timeout_s)
    return LayoutRegistry(Path(location))


async def publish_card(
    registry: Registry,
    name: str,
    card: bytes,
    *,
    version: str | None,
    skills: Sequence[str],
    created: datetime,
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish an agent card, byte for byte, as ``oras push`` would (SPEC 2, formats).

    ``skills`` are the ids that others may see; ``repository`` overrides ``agents/<short name>``.
    Raises RepositoryTakenError when the repository holds something else than a card of this name.
    """
    place = repository or card_repository(name)
    artifact = card_artifact(name, card, version=version, skills=skills, created=created)
    digest = await registry.push(place, tag, artifact, guard=only_card_of(name, place))
    return Published(registry.name, place, tag, digest)


async def publish_workflow(
    registry: Registry,
    workflow_id: str,
    definition: bytes,
    *,
    created: datetime,
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish a workflow definition (YAML bytes) as ``workflows/<id>`` (P-29).

    Raises RepositoryTakenError when the repository holds something else than a workflow.
    """
    place = repository or workflow_repository(workflow_id)
    artifact = workflow_artifact(workflow_id, definition, created=created)

    def guard(held: Artifact | None) -> None:
        if held is not None and held.form != "workflow":
            raise RepositoryTakenError(place, find_card_name(held) or held.title, workflow_id)

    digest = await registry.push(place, tag, artifact, guard=guard)
    return Published(registry.name, place, tag, digest)


async def forget(registry: Registry, name: str, *, repository: str | None = None) -> tuple[str, ...]:
    """Delete every tag of an agent's card; gives the tags that went.

    Raises ReferenceNotFoundError when there are none, RepositoryTakenError when they are of another name.
    """
    place = repository or card_repository(name)
    tags = await registry.list_tags(place)
    if not tags:
        raise ReferenceNotFoundError(registry.name, place)
    best = choose_tag(tags)
    # What cannot be read is nobody's card any more; forgetting it is the remedy.
    with suppress(MalformedArtifactError):
        only_card_of(name, place)(await registry.pull(Reference(place, tag=best)))
    for tag in tags:
        try:
            await registry.delete(place, tag)
        except ReferenceNotFoundError:
            # A registry that deletes by digest takes all tags of a card at once.
            continue
    return tuple(tags)


def only_card_of(name: str, repository: str) -> Guard:
    """The rule that a repository belongs to the first card name in it (SPEC 7, seed 001).

    The guard raises RepositoryTakenError when something else is held; nothing, or a card without a
    readable name, may be replaced.
    """

    def guard(held: Artifact | None) -> None:
        if held is None:
            return
        holder = find_card_name(held) if held.form == "card" else held.title or "another artifact"
        if holder is not None and holder != name:
            raise RepositoryTakenError(repository, holder, name)

    return guard
