"""``retinue worker``: more capacity for runs."""

from __future__ import annotations

import click

from retinue.cli.options import database_option, join_option
from retinue.cli.session import open_session


@click.command()
@database_option
@join_option
def worker(database: str | None, hub_url: str | None) -> int:
    """Run workflows beside the hub.

    A worker has no doors. It shares the database of the runs with hubs and other workers: new runs
    go to whoever has least to do, and those of one that died go to the others. On another machine than
    the hub, set RETINUE_JOIN once to what "retinue token new --join" printed there, and give the hub's
    url to --join.
    """
    from retinue.apps.serving import run_loop
    from retinue.apps.worker import run_worker

    session = open_session({"database": database} if database else {}, log_level="info", joins=hub_url)
    return run_loop(lambda: run_worker(session.settings, session.state, click.echo))
