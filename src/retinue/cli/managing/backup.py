"""``retinue backup``: copy the state folder while its hub runs."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, warn
from retinue.cli.session import find_state


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def backup(folder: Path, as_json: bool) -> None:
    """Copy the state folder while its hub runs.

    Copies the registry, the databases, keys, tokens, stored workflows and retinue.toml into DIR, which must
    be new or empty. Only its owner can read it. To restore it: retinue restore DIR.
    """
    from retinue.settings import find_settings_file, load_settings
    from retinue.storage.backup import back_up

    state = find_state()
    names = back_up(state, folder.expanduser().absolute(), find_settings_file(Path.cwd()))
    if as_json:
        print_json({"folder": str(folder), "copied": names})
    else:
        click.echo(f"copied {', '.join(names) or 'nothing'} of {state.root} to {folder}")
        note(f"to restore it: retinue restore {folder}; to try it: RETINUE_HOME={folder} retinue hub")
    if load_settings().database is not None:
        warn("the runs are in the configured database: back it up with its own program, such as pg_dump")
