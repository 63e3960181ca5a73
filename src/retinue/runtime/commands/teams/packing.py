"""Packs teams, and carries them between registries and files."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import MANIFEST_TYPE, Descriptor
from retinue.runtime.commands.publishing import check_location
from retinue.runtime.commands.teams.comparing import Comparison, compare_content, read_content
from retinue.runtime.commands.teams.places import PulledTeam, TeamPlace, parse_team_reference, pull_team
from retinue.runtime.commands.teams.policies import check_team_policies
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.commands.teams.vendoring import vendor_packages
from retinue.runtime.factories import card_signer, configured_registry
from retinue.runtime.joined_mesh import notify_hub
from retinue.settings import Settings
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import State
from retinue.team.layout_file import render_layout
from retinue.team.lock import check_access
from retinue.team.package import Team, list_names, open_team, pack_team, team_repository
from retinue.team.signature import pack_signatures, sign_team, signature_tag
from retinue.web.http_client import HttpClient


@dataclass(frozen=True, slots=True)
class PackedTeam:
    """A packed team: where it is, its digest, and the id of the key that signed it."""

    team: Team
    place: str
    key: str


class TeamPackages:
    """The commands that pack, carry and compare teams, which run nothing."""

    def __init__(self, settings: Settings, state: State, http: HttpClient) -> None:
        self._settings = settings
        self._state = state
        self._http = http

    async def pack(
        self, folder: Path, *, registry: str | None, output: Path | None, vendor: bool = False
    ) -> PackedTeam:
        """Pack and sign the team in a folder, into the registry of the state, another one, or a file.

        With ``vendor`` the packages of its locks are in the digest, too. Raises InvalidSettingError for a
        folder that is not as its lock says, or that holds a secret.
        """
        source = await asyncio.to_thread(read_source, folder)
        lock = source.read_lock()
        check_access(source.definition, lock)
        source.check_secrets(os.environ)
        check_team_policies(source.definition.name, list_names(source.definition, lock), source.files)
        files = list(source.files)
        if vendor:
            files += await asyncio.to_thread(vendor_packages, source, lock, os.environ)
        package = await asyncio.to_thread(pack_team, source.definition, lock, files)
        config = package.blobs[package.manifest.config.digest]
        team = open_team(package.manifest, config, digest=package.digest, where=source.definition.name)
        signer = card_signer(self._settings.signatures, self._state)
        signatures = [] if signer is None else [sign_team(team, signer)]
        subject = Descriptor(MANIFEST_TYPE, package.digest, len(package.manifest_bytes))
        if output is not None:
            packages: dict[str, Package] = {team.version: package}
            if signatures:
                packages[signature_tag(team.digest)] = pack_signatures(signatures, subject)
            with storage_errors(output):
                replace_file(output, render_layout(packages), mode=0o644)
            place = str(output)
        else:
            repository = team_repository(team.name)
            target = TeamPlace(self._open_registry(registry))
            await target.push(repository, team.version, package)
            if signatures:
                await target.push_signatures(repository, subject, signatures)
            place = f"{target.name}: {repository}:{team.version}"
            await notify_hub(self._http, self._state, None)
        return PackedTeam(team, place, "" if signer is None else signer.key.kid)

    async def pull(self, text: str) -> PulledTeam:
        """The team of a reference, whose layers are not fetched; its digest and config are checked."""
        return await pull_team(parse_team_reference(text), self._settings, self._state, self._http)

    async def save(self, pulled: PulledTeam, output: Path, *, force: bool) -> None:
        """Write a team and its signatures to a file, as `pack` with an output does.

        Raises InvalidSettingError for a file that exists unless ``force`` is true.
        """
        refuse_existing(output, force=force)
        packages = {pulled.team.version: await pulled.pull_package()}
        if pulled.signatures:
            subject = Descriptor(MANIFEST_TYPE, pulled.team.digest, len(pulled.manifest_bytes))
            packages[signature_tag(pulled.team.digest)] = pack_signatures(pulled.signatures, subject)
        with storage_errors(output):
            replace_file(output, render_layout(packages), mode=0o644)

    async def publish(self, text: str, registry: str | None) -> PackedTeam:
        """Store a team with its signatures in the registry of the state, or in another one."""
        pulled = await self.pull(text)
        team, repository = pulled.team, team_repository(pulled.team.name)
        target = TeamPlace(self._open_registry(registry))
        await target.push(repository, team.version, await pulled.pull_package())
        if pulled.signatures:
            subject = Descriptor(MANIFEST_TYPE, team.digest, len(pulled.manifest_bytes))
            await target.push_signatures(repository, subject, pulled.signatures)
        return PackedTeam(team, f"{target.name}: {repository}:{team.version}", "")

    async def compare(self, old: str, new: str) -> Comparison:
        """The differences of two teams by ability. Their files are checked, and nothing is run."""
        before, after = [await read_content(await self.pull(text)) for text in (old, new)]
        return Comparison(before.team, after.team, compare_content(before, after))

    def _open_registry(self, location: str | None) -> Any:
        place = (
            str(self._state.registry) if location is None else check_location(location.removeprefix("oci://"))
        )
        return configured_registry(place, self._settings, self._http, self._state)


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise InvalidSettingError for a file in no folder, and for one that exists unless ``force`` is true."""
    if not path.parent.is_dir():
        remedy = f"make it: mkdir -p {path.parent}, or choose another name with -o"
        raise InvalidSettingError("output", f"{path.parent} is no folder", remedy=remedy)
    if path.exists() and not force:
        remedy = "overwrite it with --force, or choose another name with -o"
        raise InvalidSettingError("output", f"{path} exists", remedy=remedy)
