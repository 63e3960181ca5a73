"""Starts and stops teams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from retinue.core.errors import InvalidSettingError, RetinueError, TeamRefusedError
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.hub_start import ensure_hub
from retinue.runtime.commands.teams.acceptance import (
    check_data,
    check_programs,
    check_requires,
    check_version,
)
from retinue.runtime.commands.teams.comparing import describe_change
from retinue.runtime.commands.teams.entrance import pass_check, wait_until_ready
from retinue.runtime.commands.teams.import_tools import check_imports
from retinue.runtime.commands.teams.installed import (
    check_files,
    make_environments,
    plan_installations,
    verify_signature,
)
from retinue.runtime.commands.teams.names import (
    check_import_names,
    check_mesh_names,
)
from retinue.runtime.commands.teams.places import PulledTeam, parse_team_reference, pull_team, unpack
from retinue.runtime.commands.teams.policies import (
    check_installed_policies,
)
from retinue.runtime.commands.teams.secret_values import find_secrets
from retinue.runtime.commands.teams.showing import TeamViews
from retinue.runtime.commands.teams.upgrading import (
    RolloutOptions,
    ask_for_rollout,
    find_open_rollout,
    follow_rollout,
    refuse_other_nodes,
    refuse_other_rollout,
    wait_for_drain,
)
from retinue.runtime.teams.programs import (
    find_renewed,
    read_installed,
)
from retinue.runtime.teams.schedules import list_schedule_names, remove_schedules, renew_schedules
from retinue.runtime.teams.store import TeamRow
from retinue.settings import Settings
from retinue.storage.state import HUB_VARIABLE, State
from retinue.team.consent import Consent, describe_consent
from retinue.team.package import Team
from retinue.web.http_client import HttpClient

Echo = Callable[[str], None]
Ask = Callable[[Consent], bool]
"""Shows what a team does and returns whether it may run."""


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
    rollout: RolloutOptions = field(default_factory=RolloutOptions)


@asynccontextmanager
async def open_teams(
    settings: Settings, state: State, hub_arguments: Sequence[str] = ()
) -> AsyncIterator[TeamCommands]:
    """Open the commands of teams of a state folder; a hub that they start gets these arguments."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        yield TeamCommands(settings, state, http, hub_arguments)


class TeamCommands(TeamViews):
    """The commands of teams over one state folder."""

    def __init__(
        self, settings: Settings, state: State, http: HttpClient, hub_arguments: Sequence[str] = ()
    ) -> None:
        super().__init__(settings, state, http)
        self._hub_arguments = hub_arguments

    async def up(self, text: str, options: UpOptions, ask: Ask, echo: Echo) -> StartedTeam:
        """Verify, show, install, start and check a team; one that fails leaves what ran before.

        Raises TeamRefusedError, InvalidSettingError for missing secrets and programs, BusyError.
        """
        self._check_hub()
        reference = parse_team_reference(text)
        if options.is_agreed and not reference.is_pinned:
            raise InvalidSettingError(
                "--yes", "the reference has no digest", remedy="write REF@sha256:… to agree to one digest"
            )
        pulled = await pull_team(reference, self._settings, self._state, self._http)
        team = pulled.team
        pulled.verify(self._trusted_keys())  # before the state gets a folder of its name
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
        if row.active == team.digest:
            await self._install(pulled, team, echo, is_running=True)
            return await self._renew_secrets(row, team, values, echo)
        with self._store.starting(row, team.claims):
            await self._check_mesh(team)
            is_agreed = options.is_agreed or team.digest in row.signers
            if not is_agreed:
                active = self._read_active(row)
                change = [] if active is None else await describe_change(self._store, active, pulled)
                is_agreed = ask(describe_consent(team, signer, change, await pulled.pull_documents()))
            if not is_agreed:
                raise TeamRefusedError("not_consented", team.name, "nobody agreed to run it")
            await self._install(pulled, team, echo)
            if row.active is not None:
                await self._ask_for_rollout(row, team, values, signer, options.rollout, reference, echo)
                return None
            return await self._switch(row, team, values, signer, reference, echo)

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
            await check_imports(self._store, team, values)
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

    async def back(self, name: str, options: UpOptions, echo: Echo) -> StartedTeam:
        """Start the digest that ran before, whose files are here, with the checks of ``up``.

        Without options of the rollout all calls move over at once.
        Raises TeamRefusedError, InvalidSettingError for missing secrets and programs, BusyError.
        """
        self._check_hub()
        self._store.mend()
        team = self._read_before(self._store.read_rows().get(name, TeamRow(name)))
        await wait_for_drain(self._store, self._state, team, options.rollout, echo)
        with self._store.changing(name) as row:
            team = self._read_before(row)
            signer = verify_signature(self._store, team, self._trusted_keys()).owner
            await asyncio.to_thread(check_files, self._store, team)
            self._check_here(team, row)
            values = find_secrets(self._store, row, team, options.secrets_file)
            check_import_names(team, self._settings, self._state)
            refuse_other_rollout(row, team.digest)
            if find_open_rollout(row) is not None:
                return await self._follow(row, team, echo)
            with self._store.starting(row, team.claims):
                await self._check_mesh(team)
                await asyncio.to_thread(make_environments, self._store, team, os.environ)
                reference = row.find_reference(team.digest)
                if row.active is None:
                    return await self._switch(row, team, values, signer, reference, echo)
                rollout = options.rollout
                if rollout.steps is None:
                    hold_s = 0.0 if rollout.hold_s is None else rollout.hold_s
                    rollout = replace(rollout, steps=(100,), hold_s=hold_s)
                await self._ask_for_rollout(row, team, values, signer, rollout, reference, echo)
        return await self._follow(row, team, echo)

    def _read_before(self, row: TeamRow) -> Team:
        if row.before is None or not self._store.has(row.name, row.before):
            remedy = "name a digest: retinue up REF@sha256:…"
            raise TeamRefusedError("not_a_team", row.name, "no digest ran before this one", remedy=remedy)
        return read_installed(self._store, row.name, row.before)

    def down(self, name: str) -> TeamRow:
        """Stop the programs of a team; its files and data stay. Raises InvalidSettingError, BusyError."""
        former = self._store.read_rows().get(name)
        if former is None:
            raise self._refuse_unknown(name)
        with self._store.changing(name) as row:
            if row.active is not None:
                self._store.write_row(row.down())
                return row
            if former.active is not None:
                return former  # a killed command had started it for the first time, and it was put back
            raise self._refuse_unknown(name)

    def _refuse_unknown(self, name: str) -> InvalidSettingError:
        known = ", ".join(row.name for row in self._store.list_active()) or "none"
        return InvalidSettingError("NAME", f"no team {name} runs; running: {known}", remedy="retinue team")

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

    def _check(self, pulled: PulledTeam, row: TeamRow, options: UpOptions) -> str:
        """The owner of the key that signed the team, which may run here. Raises TeamRefusedError."""
        team = pulled.team
        signer = pulled.verify(self._trusted_keys()).owner
        if not options.downgrade:
            check_version(team, row)
        self._check_here(team, row)
        return signer

    def _check_here(self, team: Team, row: TeamRow) -> None:
        """Raise TeamRefusedError unless a team fits this state, InvalidSettingError for missing programs."""
        check_requires(team)
        folder = self._store.find_data_folder(team.name)
        check_data(team, self._find_data_form(row, folder), is_down=row.active is None, folder=folder)
        check_programs(team)

    def _find_data_form(self, row: TeamRow, folder: Path) -> int:
        """The form of the data of the digest that runs, or has run last; 0 where its data was moved away."""
        if (active := self._read_active(row)) is not None:
            return active.definition.data
        if row.active is None and not folder.exists():
            return 0
        if row.data or row.before is None:
            return row.data
        try:  # an earlier Retinue wrote the row
            return read_installed(self._store, row.name, row.before).definition.data
        except RetinueError:
            return 0

    def _check_hub(self) -> None:
        """Raise InvalidSettingError where this command cannot start or use the hub as it is told to."""
        if os.environ.get(HUB_VARIABLE):
            problem = "teams run on the hub of this state"
            raise InvalidSettingError(HUB_VARIABLE, problem, remedy=f"unset {HUB_VARIABLE}")
        if self._hub_arguments and (hub := self._state.read_hub()) is not None:
            remedy = "leave these options out, or end that hub first"
            raise InvalidSettingError(
                self._hub_arguments[0], f"a hub already runs at {hub.url}", remedy=remedy
            )

    async def _ensure_hub(self) -> str:
        return await ensure_hub(self._state, self._http, self._hub_arguments, logs=self._settings.logs)

    async def _check_mesh(self, team: Team) -> None:
        """Raise TeamRefusedError for a name of an agent that answers in the mesh and is not of this team."""
        if self._state.read_hub() is not None:
            async with open_client(self._settings, self._state) as client:
                await check_mesh_names(self._store, team, client)

    async def _install(self, pulled: PulledTeam, team: Team, echo: Echo, *, is_running: bool = False) -> None:
        """Fetch, check and unpack the files of a digest, and install the packages that it locked."""
        if not self._store.has(team.name, team.digest):
            await unpack(self._store, pulled)
            echo(f"files unpacked: {len(team.files)}")
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
        await check_imports(self._store, team, values)
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
        self,
        row: TeamRow,
        team: Team,
        values: Mapping[str, str],
        signer: str,
        reference: str,
        echo: Echo,
    ) -> StartedTeam:
        """Check the imports of a digest, let the hub run it, and check it.

        Where that raises, ``starting`` of the store puts back what ran before.
        """
        check_installed_policies(self._store, team)
        await check_imports(self._store, team, values)
        kept = self._store.keep_secrets(team.name, values)
        data = team.definition.data
        started = row.serving(team.digest, team.version, reference=reference, signer=signer, data=data)
        started = replace(started, secrets={**row.secrets, team.digest: kept})
        unsettled = self._store.read_rows()[team.name]
        self._store.write_row(replace(started, names=unsettled.names, undo=unsettled.undo))
        url = await self._ensure_hub()
        async with open_client(self._settings, self._state, hub_url=url) as client:
            programs = await wait_until_ready(self._store, team, client)
            echo(f"programs that answer: {programs}")
            checks = await pass_check(team, client, echo)
            # if this command is killed now, the hub adds the schedules
            has_schedules = bool(list_schedule_names(self._store, team.name))
            self._store.settle(replace(started, is_unscheduled=has_schedules), team.claims)
            if has_schedules:
                await renew_schedules(client.get, self._store, team)
                self._store.change_row(team.name, lambda current: replace(current, is_unscheduled=False))
        return StartedTeam(team, programs, checks, before=row.active)
