"""What ``publish``, ``pull``, ``forget`` and ``find --registry`` do: cards and workflows in registries."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retinue.apps.discovery import open_directory
from retinue.apps.joined import tell_hub
from retinue.apps.parts import configured_registry, named_registries
from retinue.apps.publishable import Card, WorkflowText
from retinue.core.errors import (
    InvalidReferenceError,
    InvalidSettingError,
    ReferenceNotFoundError,
    RepositoryTakenError,
    RetinueError,
)
from retinue.drivers.files import replace_file, storage_errors
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.registry import (
    Published,
    Registry,
    forget,
    index_change,
    publish_card,
    publish_workflow,
)
from retinue.drivers.state import State
from retinue.mesh.routing import select_candidates
from retinue.mesh.search.ranking import rank_skills
from retinue.protocols.agent_row import render_skill_row
from retinue.protocols.oci.artifacts import Artifact, find_card_name
from retinue.protocols.oci.reference import DEFAULT_TAG, Reference, card_repository, parse_reference
from retinue.settings import Settings

MESH_SCOPES = frozenset({"exposed", "mesh"})
WORKFLOWS = "workflows/"


@asynccontextmanager
async def open_catalog(settings: Settings, state: State, location: str | None) -> AsyncIterator[Catalog]:
    """The registry at ``location`` (url or folder), without one the one in the state folder."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        yield Catalog(settings, state, http, check_location(location) if location is not None else None)


class Catalog:
    """Publishes, pulls and forgets in one registry, or over all that are configured."""

    def __init__(self, settings: Settings, state: State, http: HttpClient, location: str | None) -> None:
        self._settings = settings
        self._state = state
        self._http = http
        self._location = location

    async def publish(
        self, target: Card | WorkflowText, *, tag: str = DEFAULT_TAG, repository: str | None = None
    ) -> Published:
        """Push a target, then let the hub know; raises RegistryErrors and StateErrors."""
        registry, created = self._chosen(), datetime.now(UTC)
        if isinstance(target, Card):
            published = await publish_card(
                registry,
                target.name,
                target.content,
                version=target.version,
                skills=target.skills,
                created=created,
                repository=repository,
                tag=tag,
            )
        else:
            published = await publish_workflow(
                registry, target.name, target.content, created=created, repository=repository, tag=tag
            )
        await tell_hub(self._http, self._state, None)
        return published

    async def pull(self, text: str) -> tuple[Artifact, str]:
        """The verified artifact of a reference, and the registry it was found in.

        The registry is the one in the reference, else the chosen one, else the first that has it.
        """
        reference = parse_reference(text)
        registries = self._candidates(reference)
        plain = Reference(reference.repository, tag=reference.tag, digest=reference.digest)
        failures: list[RetinueError] = []
        for registry in registries:
            try:
                return await registry.pull(plain), registry.name
            except RetinueError as error:
                failures.append(error)
        # That one registry does not have it says less than that another could not be asked.
        raise next((e for e in failures if not isinstance(e, ReferenceNotFoundError)), failures[0])

    async def forget(self, name: str, *, repository: str | None = None) -> tuple[str, tuple[str, ...]]:
        """Delete every tag of an agent's card, or of ``workflows/<name>``; gives repository and tags."""
        registry = self._chosen()
        if repository is None and name.startswith(WORKFLOWS):
            place, tags = name, await self._forget_workflow(registry, name)
        else:
            place = repository or card_repository(name)
            tags = await forget(registry, name, repository=repository)
        await tell_hub(self._http, self._state, None)
        return place, tags

    def _chosen(self) -> Registry:
        if self._location is None:
            return LayoutRegistry(self._state.registry)
        return self._open(self._location)

    def _candidates(self, reference: Reference) -> Sequence[Registry]:
        if reference.registry is not None:
            return (self._open(_with_scheme(reference.registry)),)
        if self._location is not None:
            return (self._open(self._location),)
        home = LayoutRegistry(self._state.registry)
        return tuple(named_registries(self._settings, home, self._http).values())

    def _open(self, location: str) -> Registry:
        return configured_registry(location, self._settings, self._http, self._state)

    @staticmethod
    async def _forget_workflow(registry: Registry, repository: str) -> tuple[str, ...]:
        tags = await registry.list_tags(repository)
        if not tags:
            raise ReferenceNotFoundError(registry.name, repository)
        held = await registry.pull(Reference(repository, tag=tags[-1]))
        if held.form != "workflow":
            raise RepositoryTakenError(repository, find_card_name(held) or held.title, repository)
        for tag in tags:
            # A registry that deletes by digest takes several tags of one workflow at once.
            with suppress(ReferenceNotFoundError):
                await registry.delete(repository, tag)
        await index_change(registry, gone={repository})
        return tuple(tags)


async def find_in_registries(
    locations: Sequence[str],
    *,
    query: str = "",
    skill: str | None = None,
    version: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What these registries alone offer, in the form of the hub's ``find_skills``."""
    async with open_directory([check_location(location) for location in locations]) as directory:
        if skill is not None:
            offering = await directory.resolve_skill(skill, MESH_SCOPES, version_range=version)
            listings = directory.open_all(select_candidates(offering, labels=labels))
            offers = [(one, one.record.find_skill(skill)) for one in listings]
            found = [(one, offer) for one, offer in offers if offer is not None]
        else:
            await directory.ensure_fresh()
            candidates = select_candidates(directory.list_entries(), version_range=version, labels=labels)
            found = list(rank_skills(query, directory.open_all(candidates), MESH_SCOPES))
        missing = [
            {"source": problem.source, "key": problem.key, "error": problem.error.message}
            for problem in directory.problems()
        ]
    return {"skills": [render_skill_row(one, offer) for one, offer in found], "missing": missing}


def write_content(artifact: Artifact, output: str | None, *, force: bool = False) -> Path:
    """Write what was pulled to ``output``, else to its own title in the working directory.

    Raises InvalidSettingError where a file stands already and ``force`` is not given.
    """
    path = Path(output) if output is not None else Path(_file_name(artifact.title))
    if path.is_dir():
        path = path / _file_name(artifact.title)
    if path.exists() and not force:
        raise InvalidSettingError(
            "output", f"{path} exists", remedy="give --force to replace it, or another name with -o"
        )
    with storage_errors(path):
        replace_file(path, artifact.content)
    return path


def check_location(text: str) -> str:
    """A registry's url or folder as given; raises InvalidSettingError for ``host:port`` without scheme."""
    if "://" in text or text.startswith((".", "/", "~")):
        return str(Path(text).expanduser()) if text.startswith("~") else text
    host, colon, port = text.partition("/")[0].partition(":")
    if (colon and port.isdigit()) or host == "localhost":
        raise InvalidSettingError("--registry", f"{text!r} has no scheme", remedy=f"write http://{text}")
    return text


def _with_scheme(registry: str) -> str:
    """The url of the registry in a reference: plain HTTP on this machine, else HTTPS."""
    if "://" in registry:
        return registry
    host = urlsplit(f"//{registry}").hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return f"http://{registry}" if local else f"https://{registry}"


def _file_name(title: str) -> str:
    """The title as a name in one folder: a registry's word must not choose another one."""
    name = Path(title).name
    if not name or name != title or name in {".", ".."}:
        raise InvalidReferenceError(title, "the artifact's title is no file name; choose one with -o FILE")
    return name
