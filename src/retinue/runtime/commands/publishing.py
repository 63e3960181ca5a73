"""Publishes, pulls, removes, mirrors and finds cards and workflows in registries."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retinue.cards.pallet_card import parse_card
from retinue.cards.rows import render_skill_row
from retinue.cards.signatures import Verdict
from retinue.core.errors import (
    CardSignatureError,
    InvalidReferenceError,
    InvalidSettingError,
    ReferenceNotFoundError,
    RepositoryTakenError,
    RetinueError,
)
from retinue.mesh.directory.routing import select_candidates
from retinue.mesh.search.ranking import rank_skills
from retinue.oci.codec.artifacts import Artifact, find_card_name
from retinue.oci.codec.reference import DEFAULT_TAG, Reference, card_repository, default_tag, parse_reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.mirror import MirrorReport, mirror
from retinue.oci.registry import (
    Published,
    Registry,
    forget,
    index_change,
    publish_card,
    publish_policy,
    publish_prompt,
    publish_workflow,
)
from retinue.rpc.probe import find_trouble
from retinue.runtime.discovery import open_directory
from retinue.runtime.factories import (
    card_signer,
    card_verifier,
    configured_registry,
    named_registries,
)
from retinue.runtime.joined_mesh import notify_hub
from retinue.runtime.loading.publishables import Card, PolicyText, PromptText, Publishable
from retinue.settings import Settings
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

MESH_SCOPES = frozenset({"exposed", "mesh"})

KEPT = ("workflows/", "prompts/", "policies/")
"""The repositories of what stays published without an agent."""

_LOOK_S = 0.5
"""How long to look for another agent at the url of a published card; a publisher should not wait longer."""


@asynccontextmanager
async def open_catalog(
    settings: Settings, state: State, location: str | None
) -> AsyncIterator[RegistryCommands]:
    """Open a catalog of the registry at ``location`` (URL or folder), by default the state's."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        yield RegistryCommands(
            settings, state, http, check_location(location) if location is not None else None
        )


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pulled artifact, the name of its registry, and the verdict on the signature of a card."""

    artifact: Artifact
    registry: str
    verdict: Verdict = Verdict("none")  # noqa: RUF009 - it is frozen


class RegistryCommands:
    """Publishes to and removes from one registry; pulls from it or, without a location, from all."""

    def __init__(self, settings: Settings, state: State, http: HttpClient, location: str | None) -> None:
        self._settings = settings
        self._state = state
        self._http = http
        self._location = location

    async def publish(
        self,
        target: Publishable,
        *,
        tag: str | None = None,
        repository: str | None = None,
    ) -> Published:
        """Push a target and notify the hub; raises RegistryError and StateError."""
        registry, created = self._chosen(), datetime.now(UTC)
        signer = card_signer(self._settings.signatures, self._state)
        if isinstance(target, PromptText | PolicyText):
            publish_file = publish_policy if isinstance(target, PolicyText) else publish_prompt
            published = await publish_file(
                registry,
                target.name,
                target.content,
                created=created,
                signatures=() if signer is None else [signer.sign(target.content)],
                repository=repository,
                tag=tag or DEFAULT_TAG,
            )
        elif isinstance(target, Card):
            published = await publish_card(
                registry,
                target.name,
                target.content,
                version=target.version,
                skills=target.skills,
                created=created,
                repository=repository,
                tag=tag,
                signatures=() if signer is None else [signer.sign(target.content)],
            )
        else:
            published = await publish_workflow(
                registry,
                target.name,
                target.content,
                created=created,
                repository=repository,
                tag=tag or DEFAULT_TAG,
            )
        await notify_hub(self._http, self._state, None)
        return published

    async def find_replaced_agent(
        self,
        target: Publishable,
        *,
        tag: str | None = None,
        repository: str | None = None,
    ) -> str | None:
        """The url of an agent that answers and whose card a publication would replace; None without one.

        It has the name and the tag of this card, and another url.
        """
        if not isinstance(target, Card):
            return None
        place = Reference(repository or card_repository(target.name), tag=tag or default_tag(target.version))
        try:
            artifact = await self._chosen().pull(place)
            other = parse_card(artifact.content, reference=str(place))
        except RetinueError:
            return None  # publishing refuses or replaces what cannot be read
        own_url = parse_card(target.content, reference=target.name).url
        if other.url is None or other.url == own_url or other.name != target.name:
            return None
        trouble = await find_trouble(self._http, other.url, timeout_s=_LOOK_S, name=target.name)
        return other.url if trouble is None else None

    async def find_other_agent(self, target: Publishable) -> str | None:
        """The name of another agent that answers at the url of this card; None where none does."""
        if (
            not isinstance(target, Card)
            or (url := parse_card(target.content, reference=target.name).url) is None
        ):
            return None
        trouble = await find_trouble(self._http, url, timeout_s=_LOOK_S, name=target.name)
        return None if trouble is None else trouble.other

    async def pull(self, text: str) -> Pulled:
        """The verified artifact of a reference; raises CardSignatureError where the policy refuses the card.

        The registry is the one in the reference, else that of this catalog, else the first that has it.
        """
        reference = parse_reference(text)
        registries = self._candidates(reference)
        plain = Reference(reference.repository, tag=reference.tag, digest=reference.digest)
        failures: list[RetinueError] = []
        for registry in registries:
            try:
                artifact = await registry.pull(plain)
                if artifact.form in ("card", "prompt", "policy"):
                    verifier = card_verifier(self._settings.signatures, self._state)
                    verdict = verifier.check(artifact.signatures, (artifact.content,), reference=text)
                    return Pulled(artifact, registry.name, verdict)
                return Pulled(artifact, registry.name)
            except RetinueError as error:
                failures.append(error)
        # an unreachable registry is more informative than one that does not have the artifact
        raise next((e for e in failures if not isinstance(e, ReferenceNotFoundError)), failures[0])

    async def forget(self, name: str, *, repository: str | None = None) -> tuple[str, tuple[str, ...]]:
        """Delete every tag of an agent's card, of ``workflows/<name>`` or of ``prompts/<name>``.

        Returns repository and tags.

        ``name@tag`` deletes this tag of the agent only. No tags = no registry has it, and the running hub has
        released the name on its KOI network.
        """
        registry = self._chosen()
        tag = ""
        if not name.startswith(KEPT):
            name, _, tag = name.partition("@")
        missing: ReferenceNotFoundError | None = None
        try:
            if repository is None and name.startswith(KEPT):
                place, tags = name, await self._forget_kept(registry, name)
            else:
                place = repository or card_repository(name)
                tags = await forget(registry, name, repository=repository, tag=tag or None)
        except ReferenceNotFoundError as error:
            missing, place, tags = error, name, ()
        finally:
            # Also one that has withdrawn its card itself: it is not away any more.
            is_released = await notify_hub(self._http, self._state, None, forgotten=name)
        if missing is not None and not is_released:
            raise missing
        return place, tags

    def _chosen(self) -> Registry:
        if self._location is None:
            return LayoutRegistry(self._state.registry)
        return self._open(self._location)

    def _candidates(self, reference: Reference) -> Sequence[Registry]:
        if reference.registry is not None:
            return (self._open(with_scheme(reference.registry)),)
        if self._location is not None:
            return (self._open(self._location),)
        home = LayoutRegistry(self._state.registry)
        return tuple(named_registries(self._settings, home, self._http).values())

    def _open(self, location: str) -> Registry:
        return configured_registry(location, self._settings, self._http, self._state)

    @staticmethod
    async def _forget_kept(registry: Registry, repository: str) -> tuple[str, ...]:
        tags = await registry.list_tags(repository)
        if not tags:
            raise ReferenceNotFoundError(registry.name, repository)
        held = await registry.pull(Reference(repository, tag=tags[-1]))
        if held.form not in ("workflow", "prompt", "policy"):
            raise RepositoryTakenError(repository, find_card_name(held) or held.title, repository)
        for tag in tags:
            # a registry that deletes by digest removes several tags of a workflow at once
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
    """Find skills in these registries only; the reply has the form of the hub's ``find_skills``."""
    async with open_directory([check_location(location) for location in locations]) as directory:
        if skill is not None:
            offering = await directory.resolve_skill(skill, MESH_SCOPES, version_range=version)
            listings = directory.open_all(select_candidates(offering, labels=labels))
            offers = [(listing, listing.record.find_skill(skill)) for listing in listings]
            rows = [(listing, offer) for listing, offer in offers if offer is not None]
        else:
            candidates = select_candidates(directory.list_entries(), version_range=version, labels=labels)
            rows = list(rank_skills(query, directory.open_all(candidates), MESH_SCOPES))
        missing = [
            {"source": problem.source, "key": problem.key, "error": problem.error.message}
            for problem in directory.problems()
        ]
    return {"skills": [render_skill_row(listing, offer) for listing, offer in rows], "missing": missing}


def write_content(artifact: Artifact, output: str | None, *, force: bool = False) -> Path:
    """Write an artifact to ``output``, by default to its title in the working directory.

    Raises InvalidSettingError if the file exists and ``force`` is false.
    """
    path = Path(output) if output is not None else Path(_file_name(artifact.title))
    if path.is_dir():
        path = path / _file_name(artifact.title)
    if path.exists() and not force:
        raise InvalidSettingError(
            "output", f"{path} exists", remedy="overwrite it with --force, or choose another name with -o"
        )
    with storage_errors(path):
        replace_file(path, artifact.content, mode=0o644)
    return path


def install_policies(pulled: Pulled, reference: str, settings: Settings, state: State) -> Path:
    """Keep a pulled file of policies in the state folder, where it applies; returns its path.

    Its name is that of its repository and registry, so a newer version replaces it, and no file of the owner.
    Raises CardSignatureError unless a trusted key has signed it, and InvalidSettingError where the set would
    not be valid with it.
    """
    from retinue.runtime.loading.policy_files import PolicyFiles, store_policies

    if pulled.verdict.state != "valid":
        reason = pulled.verdict.reason or "no trusted key has signed it"
        raise CardSignatureError(
            reference,
            pulled.verdict.state,
            f"{reason}, and policies apply only with a signature that is trusted",
        )
    plain = parse_reference(reference)
    origin = sha256(f"{pulled.registry}\0{plain.repository}".encode()).hexdigest()[:8]
    name = plain.repository.removeprefix("policies/").replace("/", "-")
    try:
        text = pulled.artifact.content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidSettingError(reference, "it is not UTF-8", remedy="publish it anew") from None
    files = PolicyFiles.of(state.root, settings.policy)
    return store_policies(files, settings.policy, f"pulled-{name}-{origin}.cedar", text, replaces=True)


def check_location(text: str) -> str:
    """A registry's URL or folder, ``~`` expanded; raises InvalidSettingError for a URL without a scheme."""
    if "://" in text or text.startswith((".", "/", "~")):
        return str(Path(text).expanduser()) if text.startswith("~") else text
    host, colon, port = text.partition("/")[0].partition(":")
    if (colon and port.isdigit()) or host == "localhost":
        raise InvalidSettingError("--registry", f"{text!r} has no scheme", remedy=f"write http://{text}")
    return text


def with_scheme(registry: str) -> str:
    """The URL of the registry in a reference: HTTP for a loopback host, otherwise HTTPS."""
    if "://" in registry:
        return registry
    host = urlsplit(f"//{registry}").hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return f"http://{registry}" if local else f"https://{registry}"


def _file_name(title: str) -> str:
    """The title as a file name; a registry must not choose a folder."""
    name = Path(title).name
    if not name or name != title or name in {".", ".."}:
        raise InvalidReferenceError(title, "the artifact's title is not a file name; choose one with -o FILE")
    return name


async def mirror_registries(
    settings: Settings,
    state: State,
    source: str,
    target: str,
    *,
    repositories: Sequence[str] = (),
) -> MirrorReport:
    """Copy between two registries (URLs or folders) and notify the hub."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        report = await mirror(
            configured_registry(source, settings, http, state),
            configured_registry(target, settings, http, state),
            repositories=repositories,
        )
        if report.copied:
            await notify_hub(http, state, None)
    return report
