"""Unpacks a team into a state: each file is checked while it comes, and all of them appear at once."""

from __future__ import annotations

import orjson

from retinue.runtime.commands.teams.places import PulledTeam
from retinue.runtime.teams.programs import CONFIG, MANIFEST, SETTINGS, SIGNATURES, render_settings
from retinue.runtime.teams.store import TeamStore
from retinue.team.package import Team, render_config
from retinue.team.vendored import check_vendored


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
