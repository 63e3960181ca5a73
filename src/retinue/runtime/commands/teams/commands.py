"""Packs, starts, stops and lists teams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import semver

from retinue.cards.signatures import TrustedKeys
from retinue.core.errors import InvalidSettingError, RetinueError, TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import MANIFEST_TYPE, Descriptor
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.hub_start import ensure_hub
from retinue.runtime.commands.publishing import check_location
from retinue.runtime.commands.teams.acceptance import (
    check_data,
    check_programs,
    check_requires,
    check_version,
)
from retinue.runtime.commands.teams.entrance import pass_check, wait_until_ready
from retinue.runtime.commands.teams.import_tools import check_tools, read_tools
from retinue.runtime.commands.teams.installed import (
    check_files,
    make_environments,
    plan_installations,
    verify_signature,
)
from retinue.runtime.commands.teams.names import (
    check_import_names,
    check_mesh_names,
    check_workflow_names,
)
from retinue.runtime.commands.teams.places import PulledTeam, TeamPlace, parse_team_reference, pull_team
from retinue.runtime.commands.teams.policies import (
    check_installed_policies,
    check_team_policies,
    compare_policies,
)
from retinue.runtime.commands.teams.secret_values import find_secrets
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.commands.teams.upgrading import (
    RolloutOptions,
    ask_for_rollout,
    find_open_rollout,
    follow_rollout,
    refuse_other_nodes,
    refuse_other_rollout,
    wait_for_drain,
)
from retinue.runtime.commands.teams.vendoring import vendor_packages
from retinue.runtime.factories import card_keys, card_signer, configured_registry
from retinue.runtime.joined_mesh import notify_hub
from retinue.runtime.teams.programs import (
    CONFIG,
    FILES,
    MANIFEST,
    SETTINGS,
    SIGNATURES,
    find_renewed,
    import_table,
    read_installed,
    render_settings,
)
from retinue.runtime.teams.schedules import list_schedule_names, remove_schedules, renew_schedules
from retinue.runtime.teams.store import TeamRow, TeamStore, read_clock
from retinue.settings import Settings
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import HUB_VARIABLE, State
from retinue.team.consent import Consent, describe_consent
from retinue.team.definition import DATA, TeamImport
from retinue.team.difference import Change, TeamContent, compare_teams, exit_status
from retinue.team.files import ARCHIVES_LAYER, WHEELS_LAYER
from retinue.team.layout_file import render_layout
from retinue.team.package import Team, list_names, open_team, pack_team, team_repository
from retinue.team.signature import pack_signatures, sign_team, signature_tag
from retinue.team.vendored import check_vendored
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
class Comparison:
    """The differences of two digests."""

    old: Team
    new: Team
    changes: Sequence[Change]

    @property
    def status(self) -> int:
        """The exit status: 0 the same, 1 different, 3 wider."""
        return exit_status(self.changes)

    def as_json(self) -> dict[str, Any]:
        """The differences as JSON."""
        results = {0: "same", 1: "different", 3: "wider"}
        return {
            "from": {"team": self.old.name, "version": self.old.version, "digest": self.old.digest},
            "to": {"team": self.new.name, "version": self.new.version, "digest": self.new.digest},
            "result": results[self.status],
            "changes": [change.as_json() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class UpOptions:
    """How a team is started."""

    is_agreed: bool = False
    downgrade: bool = False
    secrets_file: Path | None = None
    rollout: RolloutOptions = field(default_factory=RolloutOptions)


@asynccontextmanager
async def open_teams(
    settings: Settings, state: State, hub_arguments: Sequence[str] = ()
) -> AsyncIterator[TeamCommands]:
    """Open the commands of teams of a state folder; a hub that they start gets these arguments."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        yield TeamCommands(settings, state, http, hub_arguments)


class TeamCommands:
    """The commands of teams over one state folder."""

    def __init__(
        self, settings: Settings, state: State, http: HttpClient, hub_arguments: Sequence[str] = ()
    ) -> None:
        self._settings = settings
        self._state = state
        self._http = http
        self._hub_arguments = hub_arguments
        self._store = TeamStore(state)

    async def pack(
        self, folder: Path, *, registry: str | None, output: Path | None, vendor: bool = False
    ) -> PackedTeam:
        """Pack and sign the team in a folder, into the registry of the state, another one, or a file.

        With ``vendor`` the packages of its locks are in the digest, too. Raises InvalidSettingError for a
        folder that is not as its lock says, or that holds a secret.
        """
        source = await asyncio.to_thread(read_source, folder)
        lock = source.read_lock()
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

    async def up(self, text: str, options: UpOptions, ask: Ask, echo: Echo) -> StartedTeam:
        """Verify, show, install, start and check a team; one that fails leaves what ran before.

        Raises TeamRefusedError, InvalidSettingError for missing secrets and programs, BusyError.
        """
        if os.environ.get(HUB_VARIABLE):
            problem = "teams run on the hub of this state"
            raise InvalidSettingError(HUB_VARIABLE, problem, remedy=f"unset {HUB_VARIABLE}")
        if self._hub_arguments and (hub := self._state.read_hub()) is not None:
            remedy = "leave these options out, or end that hub first"
            raise InvalidSettingError(
                self._hub_arguments[0], f"a hub already runs at {hub.url}", remedy=remedy
            )
        reference = parse_team_reference(text)
        if options.is_agreed and not reference.is_pinned:
            raise InvalidSettingError(
                "--yes", "the reference has no digest", remedy="write REF@sha256:… to agree to one digest"
            )
        pulled = await pull_team(reference, self._settings, self._state, self._http)
        team = pulled.team
        await wait_for_drain(self._store, self._state, team, options.rollout, echo)
        with self._store.changing(team.name) as row:
            refuse_other_rollout(row, team.digest)
            is_asked = find_open_rollout(row) is not None
            if not is_asked and (started := await self._start(pulled, row, text, options, ask, echo)):
                return started
        return await self._follow(row, team, echo)

    async def _start(
        self, pulled: PulledTeam, row: TeamRow, reference: str, options: UpOptions, ask: Ask, echo: Echo
    ) -> StartedTeam | None:
        """Start a digest, or ask for its rollout beside the one that runs: then None."""
        team = pulled.team
        signer = self._check(pulled, row, options)
        values = find_secrets(self._store, row, team, options.secrets_file)
        check_import_names(team, self._settings, self._state)
        check_workflow_names(team, self._state)
        if row.active == team.digest:
            await self._install(pulled, team, echo, is_running=True)
            return await self._renew_secrets(row, team, values, echo)
        with self._store.starting(row, team.claims):
            await self._check_mesh(team)
            is_agreed = options.is_agreed or team.digest in row.signers
            if not is_agreed and not ask(
                describe_consent(team, signer, await self._describe_change(pulled, row))
            ):
                raise TeamRefusedError("not_consented", team.name, "nobody agreed to run it")
            await self._install(pulled, team, echo)
            if row.active is not None:
                await self._ask_for_rollout(row, team, values, signer, options.rollout, reference, echo)
                return None
            started = replace(
                row,
                active=team.digest,
                version=team.version,
                since=read_clock(),
                reference=reference,
                signer=signer,
                highest=max(row.highest or team.version, team.version, key=semver.Version.parse),
                before=row.active or row.before,
                failed={},
                versions={**row.versions, team.digest: team.version},
                signers={**row.signers, team.digest: signer},
            )
            return await self._switch(row, started, team, values, echo)

    async def _renew_secrets(
        self, row: TeamRow, team: Team, values: Mapping[str, str], echo: Echo
    ) -> StartedTeam:
        """Let the hub start the programs of the running digest again whose secrets have other values now.

        Each answers before the one with the former values is stopped. Where one does not start, or the check
        fails, ``starting`` of the store puts the former values back.
        """
        former = self._store.read_secrets(row, team.digest)
        await self._add_schedules(team)
        if all(former.get(name) == value for name, value in values.items()):
            return StartedTeam(team, 0, 0, was_running=True)
        with self._store.starting(row, team.claims):
            await self._check_imports(team, values)
            kept = self._store.keep_secrets(team.name, values)
            secrets = dict.fromkeys(find_renewed(team, former, values), kept)
            self._store.change_row(
                team.name,
                lambda current: replace(current, secrets={**current.secrets, team.digest: kept}),
            )
            url = await self._ensure_hub()
            async with open_client(self._settings, self._state, hub_url=url) as client:
                await wait_until_ready(self._store, team, client, secrets)
                echo(f"programs with other secrets: {len(secrets)}")
                checks = await pass_check(team, client, echo)
            self._store.change_row(team.name, lambda current: replace(current, names=row.names, undo=None))
        return StartedTeam(team, len(secrets), checks)

    async def back(self, name: str, echo: Echo) -> StartedTeam:
        """Start the digest that ran before, whose files are here, with the checks of ``up``.

        Raises TeamRefusedError, InvalidSettingError for missing secrets and programs, BusyError.
        """
        with self._store.changing(name) as row:
            digest = row.before
            if digest is None or not self._store.has(name, digest):
                remedy = "name a digest: retinue up REF@sha256:…"
                raise TeamRefusedError("not_a_team", name, "no digest ran before this one", remedy=remedy)
            team = read_installed(self._store, name, digest)
            signer = verify_signature(self._store, team, self._trusted_keys()).owner
            await asyncio.to_thread(check_files, self._store, team)
            check_requires(team)
            check_data(team, self._read_active(row))
            check_programs(team)
            values = find_secrets(self._store, row, team, None)
            check_import_names(team, self._settings, self._state)
            check_workflow_names(team, self._state)
            refuse_other_rollout(row, digest)
            if find_open_rollout(row) is not None:
                return await self._follow(row, team, echo)
            with self._store.starting(row, team.claims):
                await self._check_mesh(team)
                await asyncio.to_thread(make_environments, self._store, team, os.environ)
                if row.active is None:
                    started = replace(
                        row,
                        active=digest,
                        version=team.version,
                        since=read_clock(),
                        signer=signer,
                        before=None,
                        failed={},
                    )
                    return await self._switch(row, started, team, values, echo)
                at_once = RolloutOptions(steps=(100,), hold_s=0.0)
                await self._ask_for_rollout(row, team, values, signer, at_once, row.reference, echo)
        return await self._follow(row, team, echo)

    def down(self, name: str) -> TeamRow:
        """Stop the programs of a team; its files and data stay. Raises InvalidSettingError, BusyError."""
        former = self._store.read_rows().get(name)
        with self._store.changing(name) as row:
            if row.active is not None:
                self._store.write_row(replace(row, active=None, before=row.active, names=(), rollout={}))
                return row
            if former is not None and former.active is not None:
                return former  # a killed command had started it for the first time, and it was put back
            known = ", ".join(row.name for row in self._store.list_active()) or "none"
            raise InvalidSettingError("NAME", f"no team {name} runs; running: {known}", remedy="retinue team")

    async def remove_schedules(self, name: str) -> None:
        """Remove the schedules of a team that is down."""
        if list_schedule_names(self._store, name):
            async with open_client(self._settings, self._state) as client:
                await remove_schedules(client.get, self._store, name)

    async def _add_schedules(self, team: Team) -> None:
        """Add the schedules of the digest that serves which are missing or do not fire."""
        if list_schedule_names(self._store, team.name):
            async with open_client(self._settings, self._state) as client:
                await renew_schedules(client.get, self._store, team, only_missing=True)

    def list_rows(self) -> list[TeamRow]:
        """All teams that were ever started here, by name; those of killed commands are put back first."""
        self._store.mend()
        return self._store.list_settled()

    def read(self, row: TeamRow) -> Team | None:
        """The team of a row; None for one that is down."""
        return None if row.active is None else read_installed(self._store, row.name, row.active)

    def find_signer_problem(self, row: TeamRow) -> str:
        """Why ``up`` would refuse the digest that runs now, such as a withdrawn key; "" if it would not."""
        if row.active is None:
            return ""
        try:
            verify_signature(
                self._store, read_installed(self._store, row.name, row.active), self._trusted_keys()
            )
        except RetinueError as error:
            return error.message
        return ""

    def read_children(self) -> Mapping[str, Any]:
        """What the hub says of the programs of teams."""
        return self._store.read_children()

    def _open_registry(self, location: str | None) -> Any:
        place = (
            str(self._state.registry) if location is None else check_location(location.removeprefix("oci://"))
        )
        return configured_registry(place, self._settings, self._http, self._state)

    def _trusted_keys(self) -> TrustedKeys:
        return card_keys(self._settings.signatures, self._state).trusted()

    def _check(self, pulled: PulledTeam, row: TeamRow, options: UpOptions) -> str:
        """The owner of the key that signed the team, which may run here. Raises TeamRefusedError."""
        team = pulled.team
        signer = pulled.verify(self._trusted_keys()).owner
        if not options.downgrade:
            check_version(team, row)
        check_requires(team)
        check_data(team, self._read_active(row))
        return signer

    async def _describe_change(self, pulled: PulledTeam, row: TeamRow) -> list[str]:
        """The differences to the digest that runs, as lines; [] where none runs, or it cannot be read."""
        active = self._read_active(row)
        if active is None or active.digest == pulled.team.digest:
            return []
        folder = self._store.folder_of(active.name, active.digest) / FILES
        files = await asyncio.to_thread(_read_files, folder, active)
        changes = compare_content(TeamContent(active, files), await read_content(pulled))
        return [line for change in changes for line in change.render()]

    def _read_active(self, row: TeamRow) -> Team | None:
        try:
            return self.read(row)
        except RetinueError:
            return None

    async def _ensure_hub(self) -> str:
        return await ensure_hub(self._state, self._http, self._hub_arguments, logs=self._settings.logs)

    async def _check_mesh(self, team: Team) -> None:
        """Raise TeamRefusedError for a name of an agent that answers in the mesh and is not of this team."""
        if self._state.read_hub() is not None:
            async with open_client(self._settings, self._state) as client:
                await check_mesh_names(self._store, team, client)

    async def _install(self, pulled: PulledTeam, team: Team, echo: Echo, *, is_running: bool = False) -> None:
        """Fetch, check and unpack the files of a digest, and install the packages that it locked."""
        check_programs(team)
        if not self._store.has(team.name, team.digest):
            files = await pulled.pull_files()
            contents = {file.path: file.content for file in files}
            check_vendored(team.files, team.lock, contents, where=pulled.place)
            config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
            content = {f"{FILES}/{path}": file for path, file in contents.items()}
            proof = {MANIFEST: pulled.manifest_bytes, SIGNATURES: orjson.dumps(list(pulled.signatures))}
            content |= {CONFIG: config, SETTINGS: render_settings(team), **proof}
            await asyncio.to_thread(self._store.install, team.name, team.digest, content)
            echo(f"files unpacked: {len(files)}")
        has_packages = bool(plan_installations(self._store, team, os.environ))
        making = asyncio.to_thread(make_environments, self._store, team, os.environ)
        if is_running or not has_packages:
            await making
            return
        # the hub starts meanwhile; the step that needs it raises why it does not
        starting = asyncio.create_task(self._ensure_hub())
        try:
            await making
        finally:
            await asyncio.gather(starting, return_exceptions=True)

    async def _check_imports(self, team: Team, values: Mapping[str, str]) -> None:
        """Start the program of each import once, and compare its tools with the locked ones."""
        folder = self._store.data_folder(team.name)
        texts = {**values, DATA: str(folder)}

        async def check(name: str, table: TeamImport) -> None:
            made = import_table(self._store, team, name, table, texts)
            command = (made.command or "", *made.args)
            tools = await read_tools(name, command, made.env, os.environ, folder, within_s=table.start_s)
            check_tools(team.name, name, team.lock.imports[name].tools, tools)

        try:
            async with asyncio.TaskGroup() as group:
                for name, table in team.definition.imports.items():
                    if table.package is not None:
                        group.create_task(check(name, table))
        except* RetinueError as errors:
            raise errors.exceptions[0] from None

    async def _ask_for_rollout(
        self,
        row: TeamRow,
        team: Team,
        values: Mapping[str, str],
        signer: str,
        options: RolloutOptions,
        reference: str,
        echo: Echo,
    ) -> None:
        """Let the hub start another digest beside the one that runs, and move the chains of calls over."""
        check_installed_policies(self._store, team)
        await self._check_imports(team, values)
        url = await self._ensure_hub()
        async with open_client(self._settings, self._state, hub_url=url) as client:
            await refuse_other_nodes(client, team, options.steps or team.definition.rollout.steps, echo)
        known = replace(
            row,
            names=sorted(team.claims | {*row.names}),
            versions={**row.versions, team.digest: team.version},
            signers={**row.signers, team.digest: signer},
            secrets={**row.secrets, team.digest: self._store.keep_secrets(team.name, values)},
        )
        ask_for_rollout(self._store, known, team, team.definition.rollout, options, reference)

    async def _follow(self, row: TeamRow, team: Team, echo: Echo) -> StartedTeam:
        await follow_rollout(self._store, self._state, team.name, team.digest, echo)
        check = team.definition.check
        checks = len(check.calls) + (check.workflow is not None)
        programs = len(team.definition.agents) + len(team.definition.imports)
        return StartedTeam(team, programs, checks, before=row.active)

    async def _switch(
        self, row: TeamRow, started: TeamRow, team: Team, values: Mapping[str, str], echo: Echo
    ) -> StartedTeam:
        """Check the imports of a digest, let the hub run it, and check it.

        Where that raises, ``starting`` of the store puts back what ran before.
        """
        check_installed_policies(self._store, team)
        await self._check_imports(team, values)
        kept = self._store.keep_secrets(team.name, values)
        started = replace(started, secrets={**row.secrets, team.digest: kept})
        unsettled = self._store.read_rows()[team.name]
        self._store.write_row(replace(started, names=unsettled.names, undo=unsettled.undo))
        url = await self._ensure_hub()
        async with open_client(self._settings, self._state, hub_url=url) as client:
            programs = await wait_until_ready(self._store, team, client)
            echo(f"programs that answer: {programs}")
            checks = await pass_check(team, client, echo)
            self._store.settle(started, team.claims)
            await renew_schedules(client.get, self._store, team)
        return StartedTeam(team, programs, checks, before=row.active)


def _read_files(folder: Path, team: Team) -> dict[str, bytes]:
    """The installed files of a digest but its packages, which no difference looks at."""
    return {
        file.path: (folder / file.path).read_bytes()
        for file in team.files
        if file.layer not in (WHEELS_LAYER, ARCHIVES_LAYER)
    }


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise InvalidSettingError for a file in no folder, and for one that exists unless ``force`` is true."""
    if not path.parent.is_dir():
        remedy = f"make it: mkdir -p {path.parent}, or choose another name with -o"
        raise InvalidSettingError("output", f"{path.parent} is no folder", remedy=remedy)
    if path.exists() and not force:
        remedy = "overwrite it with --force, or choose another name with -o"
        raise InvalidSettingError("output", f"{path} exists", remedy=remedy)


def compare_content(old: TeamContent, new: TeamContent) -> list[Change]:
    """The differences of two teams by ability, with those of their policies.

    What gives more comes first, then what callers have to follow.
    """
    changes = [*compare_teams(old, new), *compare_policies(old, new)]
    return sorted(changes, key=lambda change: (not change.is_wider, not change.is_breaking))


async def read_content(pulled: PulledTeam) -> TeamContent:
    """A team with its checked files, in memory."""
    return TeamContent(pulled.team, {file.path: file.content for file in await pulled.pull_files()})
