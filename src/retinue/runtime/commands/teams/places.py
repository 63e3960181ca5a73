"""Where teams are: in the registry of the state, in another one, in a file; pulled with their signatures."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from retinue.cards.signatures import TrustedKeys, Verdict
from retinue.core.errors import (
    ContentMissingError,
    DigestMismatchError,
    InvalidReferenceError,
    InvalidSettingError,
    ReferenceNotFoundError,
    RegistryRefusedError,
    RegistryUnreachableError,
    RetinueError,
    TeamRefusedError,
)
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.exchange import BlobSink
from retinue.oci.codec.manifest import Descriptor, Manifest, StoredManifest, parse_manifest
from retinue.oci.codec.reference import Reference, choose_tag, digest_of, is_digest, parse_reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import CopyableRegistry
from retinue.runtime.commands.publishing import with_scheme
from retinue.runtime.factories import configured_registry
from retinue.runtime.teams.programs import CONFIG, MANIFEST, SETTINGS, SIGNATURES, render_settings
from retinue.runtime.teams.staging import Staging
from retinue.runtime.teams.store import TeamStore
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.consent import list_documents
from retinue.team.files import ARCHIVES_LAYER, LAYERS, WHEELS_LAYER, FileRow, TeamFile
from retinue.team.layers import LayerReader, layer_size_bytes
from retinue.team.layout_file import LayoutFile
from retinue.team.package import (
    PREFIX,
    Team,
    check_manifest,
    layers_by_kind,
    open_team,
    read_files,
    render_config,
)
from retinue.team.signature import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE_TYPE,
    merge_signatures,
    pack_signatures,
    read_signatures,
    signature_tag,
    verify_team,
)
from retinue.team.vendored import check_vendored
from retinue.web.http_client import HttpClient

SCHEME = "oci://"
FILE_ENDINGS = (".tar", ".oci")


@dataclass(frozen=True, slots=True)
class TeamReference:
    """A reference as a person writes it; ``file`` is the path of a layout, ``plain`` one in a registry.

    ``is_pinned`` says whether the person has named the digest.
    """

    text: str
    file: Path | None = None
    plain: Reference | None = None
    digest: str | None = None

    @property
    def is_pinned(self) -> bool:
        return self.digest is not None


def parse_team_reference(text: str) -> TeamReference:
    """Parse ``oci://HOST/teams/NAME[:TAG][@sha256:…]``, ``NAME[:TAG]``, ``sha256:…`` or a layout file.

    Raises InvalidReferenceError.
    """
    if is_digest(text):
        return TeamReference(text, digest=text)
    if text.startswith("sha256:"):
        raise InvalidReferenceError(text[:200], "a digest is sha256: and 64 lower-case hex digits")
    head, _, digest = text.partition("@")
    if digest and not is_digest(digest):
        raise InvalidReferenceError(text[:200], "a digest is sha256: and 64 lower-case hex digits")
    if head.endswith(FILE_ENDINGS) and "://" not in head:
        return TeamReference(text, file=Path(head).expanduser(), digest=digest or None)
    plain = parse_reference(text.removeprefix(SCHEME))
    if plain.registry is None and "/" not in plain.repository:
        plain = Reference(PREFIX + plain.repository, plain.tag, plain.digest)
    return TeamReference(text, plain=plain, digest=plain.digest)


@dataclass(frozen=True, slots=True)
class PulledTeam:
    """A team whose manifest and config are here and checked; its layers are not."""

    team: Team
    manifest: Manifest
    manifest_bytes: bytes
    signatures: tuple[Mapping[str, str], ...]
    place: str
    source: TeamPlace
    repository: str

    def verify(self, keys: TrustedKeys) -> Verdict:
        """The verdict on its signatures. Raises TeamRefusedError."""
        return verify_team(self.team, self.signatures, keys, where=self.place)

    async def pull_package(self) -> Package:
        """The whole artifact, each file of it checked."""
        layers = await self._pull_layers()
        read_files(self.team, layers, where=self.place)
        config = await self.source.pull_blob(self.repository, self.manifest.config)
        blobs = {digest_of(content): content for content in (config, *layers.values())}
        return Package(self.manifest, self.manifest_bytes, self.team.digest, blobs)

    async def pull_files(self) -> list[TeamFile]:
        """All files but packages, in memory, each checked.

        Raises TeamRefusedError for any byte that the digest does not name.
        """
        kinds = [kind for kind in LAYERS if kind not in (WHEELS_LAYER, ARCHIVES_LAYER)]
        return read_files(self.team, await self._pull_layers(kinds), where=self.place, kinds=kinds)

    async def pull_documents(self) -> dict[str, bytes]:
        """The documents that say to which hosts imports send requests, by path, in memory, each checked."""
        paths = list_documents(self.team)
        if not paths:
            return {}
        layers = await self._pull_layers(["documents"])
        files = read_files(self.team, layers, where=self.place, kinds=["documents"])
        return {file.path: file.content for file in files if file.path in paths}

    async def unpack(self, staging: Staging) -> None:
        """Give all files to a staging while they come, each checked; no layer is in memory as a whole.

        Raises TeamRefusedError at the first byte that the digest does not name, StateError.
        """
        for kind, blob in layers_by_kind(self.manifest).items():
            rows = [row for row in self.team.files if row.layer == kind]
            sink = _LayerSink(blob, rows, staging, where=self.place)
            await self.source.copy_blob(self.repository, blob, sink)
            sink.finish()

    async def _pull_layers(self, kinds: Sequence[str] = LAYERS) -> dict[str, bytes]:
        layers: dict[str, bytes] = {}
        for kind, blob in layers_by_kind(self.manifest).items():
            if kind not in kinds:
                continue
            content = await self.source.pull_blob(self.repository, blob)
            if digest_of(content) != blob.digest:
                raise TeamRefusedError("changed", self.place, f"its layer {kind} has other content")
            layers[kind] = content
        return layers


class _LayerSink:
    """Checks a layer while it comes, and gives its files to a staging: `retinue.oci.registry.BlobSink`."""

    def __init__(self, blob: Descriptor, rows: Sequence[FileRow], staging: Staging, *, where: str) -> None:
        self._blob = blob
        self._rows = rows
        self._staging = staging
        self._where = where
        self._kind = rows[0].layer if rows else "?"
        if blob.size_bytes != layer_size_bytes(rows):
            raise self._refuse("does not have the size of its files")
        staging.begin_layer()
        self.begin()

    def begin(self) -> None:
        self._staging.drop_layer()
        self._reader = LayerReader(self._rows, self._staging, where=self._where)
        self._sha256 = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        self._sha256.update(piece)
        self._reader.feed(piece)

    def finish(self) -> None:
        """Check that the layer has ended, and its digest."""
        self._reader.finish()
        if f"sha256:{self._sha256.hexdigest()}" != self._blob.digest:
            raise self._refuse("has other content")

    def _refuse(self, problem: str) -> TeamRefusedError:
        return TeamRefusedError("changed", self._where, f"its layer {self._kind} {problem}")


class TeamPlace:
    """A registry or a layout file, as teams are read from and written to it."""

    def __init__(self, registry: CopyableRegistry | LayoutFile) -> None:
        self._registry = registry
        self.name = registry.name

    async def find_digest(self, reference: Reference) -> str | None:
        """The digest of a reference, without a target that of the highest version."""
        if isinstance(self._registry, LayoutFile):
            tags = [tag for tag in self._registry.list_tags() if not _is_signature(tag)]
            target = reference.target or choose_tag(tags)
            return None if target is None else self._registry.find_digest(target)
        if reference.target is None:
            tags = [
                tag for tag in await self._registry.list_tags(reference.repository) if not _is_signature(tag)
            ]
            tag = choose_tag(tags)
            if tag is None:
                return None
            reference = reference.at(tag)
        return await self._registry.find_digest(reference)

    async def pull_manifest(self, repository: str, target: str) -> StoredManifest:
        """A stored manifest. Raises ReferenceNotFoundError."""
        if isinstance(self._registry, LayoutFile):
            return self._registry.pull_manifest(target)
        return await self._registry.pull_manifest(Reference(repository).at(target))

    async def pull_blob(self, repository: str, blob: Descriptor) -> bytes:
        """Checked content. Raises TeamRefusedError for content that is missing or changed."""
        if isinstance(self._registry, LayoutFile):
            return self._registry.read_blob(blob.digest)
        with _pull_errors(repository):
            return await self._registry.pull_blob(repository, blob)

    async def copy_blob(self, repository: str, blob: Descriptor, sink: BlobSink) -> None:
        """Give content to a sink, which checks it. Raises TeamRefusedError for content that is missing."""
        if isinstance(self._registry, LayoutFile):
            sink.begin()
            for piece in self._registry.read_pieces(blob.digest):
                sink.add(piece)
            return
        with _pull_errors(repository):
            await self._registry.copy_blob(repository, blob, sink)

    async def pull(self, reference: Reference) -> PulledTeam:
        """Resolve a reference once, and read manifest, config and signatures of its digest."""
        place = f"{self.name}: {reference}" if not isinstance(self._registry, LayoutFile) else self.name
        digest = reference.digest or await self.find_digest(reference)
        if digest is None:
            raise _not_found(self.name, str(reference))
        stored = await self.pull_manifest(reference.repository, digest)
        if digest_of(stored.content) != digest:
            raise TeamRefusedError("changed", place, "its manifest does not have its digest")
        manifest = parse_manifest(stored.content, where=place)
        check_manifest(manifest, where=place)
        config = await self.pull_blob(reference.repository, manifest.config)
        team = open_team(manifest, config, digest=digest, where=place)
        signatures = await self.find_signatures(reference.repository, digest)
        return PulledTeam(
            team, manifest, stored.content, tuple(signatures), place, self, reference.repository
        )

    async def find_signatures(self, repository: str, digest: str) -> list[dict[str, str]]:
        """The signatures beside a digest, by tag and by the referrers API where there is one."""
        signatures: list[dict[str, str]] = []
        targets = [signature_tag(digest), *await self._list_referrers(repository, digest)]
        for target in targets:
            try:
                stored = await self.pull_manifest(repository, target)
                manifest = parse_manifest(stored.content, where=repository)
                if manifest.artifact_type != SIGNATURE_TYPE or len(manifest.layers) != 1:
                    continue
                layer = manifest.layers[0]
                if layer.size_bytes <= MAX_SIGNATURE_BYTES:
                    content = await self.pull_blob(repository, layer)
                    signatures = merge_signatures(signatures, read_signatures(content))
            except (ReferenceNotFoundError, TeamRefusedError, RegistryRefusedError):
                continue
        return signatures

    async def _list_referrers(self, repository: str, digest: str) -> list[str]:
        list_referrers: Any = getattr(self._registry, "list_referrers", None)
        if list_referrers is None:
            return []
        try:
            rows: Sequence[Descriptor] = await list_referrers(repository, digest, SIGNATURE_TYPE)
        except RetinueError:
            return []
        return [row.digest for row in rows]

    async def push(self, repository: str, tag: str, package: Package) -> None:
        """Store a team or its signatures under a tag."""
        if isinstance(self._registry, LayoutFile):
            raise InvalidReferenceError(self.name, "a file is written by retinue pack --output")
        await self._registry.push_package(repository, tag, package)

    async def push_signatures(
        self, repository: str, subject: Descriptor, signatures: Sequence[Mapping[str, str]]
    ) -> None:
        """Store signatures beside a digest, with those that are there."""
        held = await self.find_signatures(repository, subject.digest)
        merged = merge_signatures(signatures, held)
        await self.push(repository, signature_tag(subject.digest), pack_signatures(merged, subject))

    async def find_repository(self, digest: str) -> str | None:
        """The repository of teams that has a digest; None where none has."""
        if isinstance(self._registry, LayoutFile):
            return PREFIX + "file" if self._registry.find_digest(digest) else None
        for repository in await self._registry.list_repositories():
            if not repository.startswith(PREFIX):
                continue
            if await self._registry.find_digest(Reference(repository, digest=digest)) is not None:
                return repository
        return None


@contextmanager
def _pull_errors(repository: str) -> Iterator[None]:
    """Say of content that is missing or changed that the team is refused, and what to do without network."""
    try:
        yield
    except (ContentMissingError, DigestMismatchError) as error:
        raise TeamRefusedError("changed", repository, error.message) from error
    except RegistryUnreachableError as error:
        error.remedy = "nothing was changed; check the network, then run the command again"
        raise


def _not_found(place: str, reference: str) -> ReferenceNotFoundError:
    error = ReferenceNotFoundError(place, reference)
    error.remedy = "pack it: retinue pack FOLDER; or name its registry: oci://HOST/teams/NAME, or a file .tar"
    return error


async def pull_team(
    reference: TeamReference, settings: Settings, state: State, http: HttpClient
) -> PulledTeam:
    """The team of a reference, from its file, its registry, or the registry of the state."""
    if reference.file is not None:
        place = TeamPlace(await asyncio.to_thread(_open_layout, reference.file))
        return await place.pull(Reference(PREFIX + "file", digest=reference.digest))
    if reference.plain is None:
        place = TeamPlace(LayoutRegistry(state.registry))
        repository = await place.find_repository(reference.digest or "")
        if repository is None:
            raise _not_found(place.name, reference.text)
        return await place.pull(Reference(repository, digest=reference.digest))
    return await open_place(reference.plain, settings, state, http).pull(
        Reference(reference.plain.repository, reference.plain.tag, reference.plain.digest)
    )


def open_place(reference: Reference, settings: Settings, state: State, http: HttpClient) -> TeamPlace:
    """The registry that a reference names, else that of the state."""
    if reference.registry is None:
        return TeamPlace(LayoutRegistry(state.registry))
    return TeamPlace(configured_registry(with_scheme(reference.registry), settings, http, state))


def _open_layout(path: Path) -> LayoutFile:
    try:
        return LayoutFile(lambda: path.open("rb"), str(path))
    except FileNotFoundError:
        raise InvalidSettingError("REF", f"no file {path}", remedy="check the path") from None
    except OSError as error:
        raise InvalidSettingError("REF", f"{path}: {error.strerror}", remedy="check the file") from error


def _is_signature(tag: str) -> bool:
    return tag.startswith("sha256-")


async def unpack(store: TeamStore, pulled: PulledTeam, team: Team | None = None) -> None:
    """Unpack the files of a digest where they are not there; ``team`` is the one to run, if it is another.

    Raises TeamRefusedError for a byte that the digest does not name and for a package that no lock names,
    StateError. Then nothing of it is left.
    """
    packed = pulled.team
    if store.has(packed.name, packed.digest):
        return
    with store.staging(packed.name, packed.digest) as staging:
        await pulled.unpack(staging)
        check_vendored(packed.files, packed.lock, staging.open_file, where=pulled.place)
        if team is None:
            staging.write(CONFIG, await pulled.source.pull_blob(pulled.repository, pulled.manifest.config))
            staging.write(MANIFEST, pulled.manifest_bytes)
            staging.write(SIGNATURES, orjson.dumps(list(pulled.signatures)))
        else:
            staging.write(CONFIG, render_config(team.definition, team.lock, team.files))
        staging.write(SETTINGS, render_settings(team or packed))
        staging.publish()
