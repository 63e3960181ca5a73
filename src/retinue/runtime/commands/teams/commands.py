"""Packs, starts, stops and lists teams."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import semver

from retinue.core.errors import InvalidSettingError, RetinueError, TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import MANIFEST_TYPE, Descriptor
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.hub_start import ensure_hub
from retinue.runtime.commands.publishing import check_location
from retinue.runtime.commands.teams.entrance import pass_check, wait_until_ready
from retinue.runtime.commands.teams.places import PulledTeam, TeamPlace, parse_team_reference, pull_team
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.factories import card_keys, card_signer, configured_registry
from retinue.runtime.joined_mesh import notify_hub
from retinue.runtime.teams.environments import Environments, sweep
from retinue.runtime.teams.programs import CONFIG, FILES, SETTINGS, read_installed, render_settings
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.settings import Settings
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import HUB_VARIABLE, State
from retinue.team.consent import Consent, describe_consent
from retinue.team.layout_file import render_layout
from retinue.team.package import Team, open_team, pack_team, team_repository
from retinue.team.signature import pack_signatures, sign_team, signature_tag
from retinue.web.http_client import HttpClient

Echo = Callable[[str], None]
Ask = Callable[[Consent], bool]
"""Shows what a team does and returns whether it may run."""


@dataclass(frozen=True, slots=True)
class PackedTeam:
    """A packed team: where it is, its digest, and the id of the key that signed it."""

    team: Team
    place: str
    key: str


@dataclass(frozen=True, slots=True)
class StartedTeam:
    """A team that serves; ``programs`` and ``checks`` are how many were started and passed."""

    team: Team
    programs: int
    checks: int
    was_running: bool = False
    before: str | None = None


@dataclass(frozen=True, slots=True)
class UpOptions:
    """How a team is started."""

    is_agreed: bool = False
    downgrade: bool = False
    secrets_file: Path | None = None


@asynccontextmanager
async def open_teams(settings: Settings, state: State) -> AsyncIterator[TeamCommands]:
    """Open the commands of teams of a state folder."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        yield TeamCommands(settings, state, http)


class TeamCommands:
    """The commands of teams over one state folder."""

    def __init__(self, settings: Settings, state: State, http: HttpClient) -> None:
        self._settings = settings
        self._state = state
        self._http = http
        self._store = TeamStore(state)

    async def pack(self, folder: Path, *, registry: str | None, output: Path | None) -> PackedTeam:
        """Pack and sign the team in a folder, into the registry of the state, another one, or a file.

        Raises InvalidSettingError for a folder that is not as its lock says, or that holds a secret.
        """
        source = read_source(folder)
        lock = source.read_lock()
        source.check_secrets(os.environ)
        package = pack_team(source.definition, lock, source.files)
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

    async def up(self, text: str, options: UpOptions, ask: Ask, echo: Echo) -> StartedTeam:
        """Verify, show, install, start and check a team; one that fails leaves what ran before.

        Raises TeamRefusedError, InvalidSettingError for missing secrets and programs, BusyError.
        """
        if os.environ.get(HUB_VARIABLE):
            problem = "teams run on the hub of this state"
            raise InvalidSettingError(HUB_VARIABLE, problem, remedy=f"unset {HUB_VARIABLE}")
        reference = parse_team_reference(text)
        if options.is_agreed and not reference.is_pinned:
            raise InvalidSettingError(
                "--yes", "the reference has no digest", remedy="write REF@sha256:… to agree to one digest"
            )
        pulled = await pull_team(reference, self._settings, self._state, self._http)
        team = pulled.team
        with self._store.changing(team.name):
            row = self._store.read_rows().get(team.name, TeamRow(team.name))
            signer = self._check(pulled, row, options)
            values = self._find_secrets(team, options.secrets_file)
            self._check_names(team)
            if row.active == team.digest:
                return StartedTeam(team, 0, 0, was_running=True)
            is_agreed = options.is_agreed or team.digest in row.signers
            if not is_agreed and not ask(describe_consent(team, signer)):
                raise TeamRefusedError("not_consented", team.name, "nobody agreed to run it")
            await self._install(pulled, team, echo)
            started = replace(
                row,
                active=team.digest,
                version=team.version,
                since=_now(),
                reference=text,
                signer=signer,
                highest=max(row.highest or team.version, team.version, key=semver.Version.parse),
                before=row.active or row.before,
                failed={},
                versions={**row.versions, team.digest: team.version},
                signers={**row.signers, team.digest: signer},
            )
            return await self._switch(row, started, team, values, echo)

    async def back(self, name: str, echo: Echo) -> StartedTeam:
        """Start the digest that ran before, whose files are here. Raises TeamRefusedError."""
        with self._store.changing(name):
            row = self._store.read_rows().get(name, TeamRow(name))
            digest = row.before
            if digest is None or not self._store.has(name, digest):
                remedy = "name a digest: retinue up REF@sha256:…"
                raise TeamRefusedError("not_a_team", name, "no digest ran before this one", remedy=remedy)
            team = read_installed(self._store, name, digest)
            _check_data(team, self._read_active(row))
            started = replace(
                row,
                active=digest,
                version=team.version,
                since=_now(),
                signer=row.signers.get(digest, ""),
                before=row.active,
                failed={},
            )
            values = self._find_secrets(team, None)
            return await self._switch(row, started, team, values, echo)

    def down(self, name: str) -> TeamRow:
        """Stop the programs of a team; its files and data stay. Raises InvalidSettingError."""
        with self._store.changing(name):
            row = self._store.read_rows().get(name)
            if row is None or row.active is None:
                known = ", ".join(row.name for row in self._store.list_active()) or "none"
                raise InvalidSettingError(
                    "NAME", f"no team {name} runs; running: {known}", remedy="retinue team"
                )
            stopped = replace(row, active=None, before=row.active)
            self._store.write_row(stopped)
            return row

    def list_rows(self) -> list[TeamRow]:
        """All teams that were ever started here, by name."""
        return [row for _, row in sorted(self._store.read_rows().items())]

    def read(self, row: TeamRow) -> Team | None:
        """The team of a row; None for one that is down."""
        return None if row.active is None else read_installed(self._store, row.name, row.active)

    def read_children(self) -> Mapping[str, Any]:
        """What the hub says of the programs of teams."""
        return self._store.read_children()

    def _open_registry(self, location: str | None) -> Any:
        place = (
            str(self._state.registry) if location is None else check_location(location.removeprefix("oci://"))
        )
        return configured_registry(place, self._settings, self._http, self._state)

    def _check(self, pulled: PulledTeam, row: TeamRow, options: UpOptions) -> str:
        """The owner of the key that signed the team, which may run here. Raises TeamRefusedError."""
        team = pulled.team
        keys = card_keys(self._settings.signatures, self._state)
        signer = pulled.verify(keys.trusted()).owner
        if not options.downgrade:
            _check_version(team, row)
        _check_requires(team)
        _check_data(team, self._read_active(row))
        return signer

    def _read_active(self, row: TeamRow) -> Team | None:
        try:
            return self.read(row)
        except RetinueError:
            return None

    def _find_secrets(self, team: Team, file: Path | None) -> dict[str, str]:
        """The values of all declared secrets. Raises InvalidSettingError with all missing names."""
        places: list[Mapping[str, str]] = [os.environ, self._store.read_secrets(team.name)]
        if file is not None:
            places.insert(0, read_secrets_file(file))
        if folder := os.environ.get("CREDENTIALS_DIRECTORY"):
            places.append(_read_credentials(Path(folder), team.definition.secrets))
        values: dict[str, str] = {}
        for name in team.definition.secrets:
            if (value := next((place[name] for place in places if place.get(name)), None)) is not None:
                values[name] = value
        missing = [f"{name} ({text})" for name, text in team.definition.secrets.items() if name not in values]
        if missing:
            remedy = "set the variables, or write NAME=VALUE lines into a file of mode 0600: --secrets FILE"
            raise InvalidSettingError(team.name, f"secrets are missing: {', '.join(missing)}", remedy=remedy)
        return values

    def _check_names(self, team: Team) -> None:
        """Raise TeamRefusedError for a name of an agent or import that another team or the hub has."""
        own = {team.lock.agents[agent.target].name for agent in team.definition.agents} | {
            *team.definition.imports
        }
        for row in self._store.list_active():
            if row.name != team.name and (other := self._read_active(row)) is not None:
                names = {locked.name for locked in other.lock.agents.values()} | {*other.definition.imports}
                if clash := sorted(own & names):
                    problem = f"the team {row.name} has {clash[0]}, too"
                    raise TeamRefusedError(
                        "name_taken", team.name, problem, remedy=f"retinue down {row.name}"
                    )
        if clash := sorted({*team.definition.imports} & {*self._settings.imports.servers}):
            problem = f"retinue.toml has the import {clash[0]}, too"
            raise TeamRefusedError("name_taken", team.name, problem, remedy="rename one of them")

    async def _install(self, pulled: PulledTeam, team: Team, echo: Echo) -> None:
        """Fetch, check and unpack the files of a digest, and install the packages that it locked."""
        _check_tools(team)
        if not self._store.has(team.name, team.digest):
            files = await pulled.pull_files()
            config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
            content = {f"{FILES}/{file.path}": file.content for file in files}
            self._store.install(
                team.name, team.digest, {CONFIG: config, SETTINGS: render_settings(team), **content}
            )
            echo(f"unpacked {len(files)} files")
        sweep(self._store.root)
        environments = Environments(self._store.root, os.environ)
        place = self._store.folder_of(team.name, team.digest) / FILES
        for locked in team.lock.agents.values():
            if locked.lock is not None:
                environments.make_python((place / locked.lock).read_bytes())
        for name, table in team.definition.imports.items():
            lock = team.lock.imports[name].lock
            if table.npm is not None and lock is not None:
                from retinue.runtime.commands.teams.locking import check_package_lock

                npm_lock = (place / lock).read_bytes()
                check_package_lock(
                    npm_lock, table.package_name, table.npm.rpartition("@")[2], f"imports.{name}"
                )
                manifest = (place / lock).parent / "package.json"
                environments.make_npm(manifest.read_bytes(), npm_lock)
            elif table.pypi is not None and lock is not None:
                environments.make_python((place / lock).read_bytes())

    async def _switch(
        self, row: TeamRow, started: TeamRow, team: Team, values: Mapping[str, str], echo: Echo
    ) -> StartedTeam:
        """Let the hub run another digest; where that fails, let it run that of ``row`` again."""
        former = self._store.read_secrets(team.name)
        self._store.write_secrets(team.name, values)
        self._store.write_row(started)
        try:
            url = await ensure_hub(self._state, self._http, logs=self._settings.logs)
            async with open_client(self._settings, self._state, hub_url=url) as client:
                programs = await wait_until_ready(self._store, team, client)
                echo(f"started {programs} programs")
                checks = await pass_check(team, client, echo)
        except BaseException as error:
            self._store.write_secrets(team.name, former)
            reason = error.message if isinstance(error, RetinueError) else type(error).__name__
            failed = {"digest": team.digest, "version": team.version, "reason": reason, "at": _now()}
            self._store.write_row(replace(row, failed=failed))
            raise
        self._store.write_row(self._store.keep_only(started))
        return StartedTeam(team, programs, checks, before=row.active)


def _check_version(team: Team, row: TeamRow) -> None:
    """Raise TeamRefusedError for an older version, and for another digest of the version that runs."""
    version = semver.Version.parse(team.version)
    if row.highest and version < semver.Version.parse(row.highest):
        problem = f"version {team.version} is older than {row.highest}, which ran here"
        raise TeamRefusedError("downgrade", team.name, problem)
    if row.active not in (None, team.digest) and row.version == team.version:
        problem = f"version {team.version} runs with another digest, {str(row.active)[:19]}…"
        remedy = "give the new one a higher version, or replace it: --downgrade"
        raise TeamRefusedError("downgrade", team.name, problem, remedy=remedy)


def _check_requires(team: Team) -> None:
    """Raise TeamRefusedError unless this Retinue is one that the team requires."""
    own = version_of("retinue")
    required = team.definition.requires
    if required is None:
        return
    try:
        fits = all(semver.Version.parse(own).match(part.strip()) for part in required.split(","))
    except ValueError:
        fits = False
    if not fits:
        remedy = "install a Retinue that fits"
        raise TeamRefusedError(
            "requires", team.name, f"it requires Retinue {required}; this is {own}", remedy=remedy
        )


def _check_data(team: Team, active: Team | None) -> None:
    """Raise TeamRefusedError for a team that reads the data of the running one in another form."""
    if active is not None and team.definition.data < active.definition.data:
        problem = (
            f"its data has form {team.definition.data}, that of the running one {active.definition.data}"
        )
        remedy = "stop the team, and move its data folder away: retinue down"
        raise TeamRefusedError("data", team.name, problem, remedy=remedy)


def _check_tools(team: Team) -> None:
    """Raise InvalidSettingError for missing programs, before anything is fetched."""
    missing = []
    if any(table.npm for table in team.definition.imports.values()):
        missing += [tool for tool in ("npm", "node") if shutil.which(tool) is None]
    needs_python = any(locked.lock for locked in team.lock.agents.values()) or any(
        table.pypi for table in team.definition.imports.values()
    )
    if needs_python and shutil.which("uv") is None:
        from importlib.util import find_spec

        if find_spec("ensurepip") is None:
            missing.append("uv (or Python with ensurepip)")
    if missing:
        remedy = "install them: pip install uv; npm and node with Node.js"
        raise InvalidSettingError(team.name, f"missing programs: {', '.join(missing)}", remedy=remedy)


def read_secrets_file(path: Path) -> dict[str, str]:
    """The ``NAME=VALUE`` lines of a file that only its owner reads. Raises InvalidSettingError."""
    try:
        if path.stat().st_mode & 0o077:
            problem = f"others may read {path}"
            raise InvalidSettingError("--secrets", problem, remedy=f"chmod 600 {path}")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("--secrets", f"{path} cannot be read", remedy="check the file") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, mark, value in pairs if mark}


def _read_credentials(folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """The credentials that systemd gives this process, by the names of secrets."""
    values = {}
    for name in names:
        try:
            values[name] = (folder / name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return values


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
