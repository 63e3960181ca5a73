"""``retinue hub``: the directory, the doors and the shipped agents of this mesh."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli.options import database_option, join_option, registry_option
from retinue.cli.session import open_session


@click.command()
@click.option("--host", metavar="H", help="The address to listen on; 127.0.0.1 unless configured.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="The port to listen on; 9000 unless configured, 0 for any.",
)
@registry_option("Find agents in this registry too; may be given several times.", multiple=True)
@click.option("--bare", is_flag=True, help="Do not start the agents that ship with Retinue.")
@database_option
@join_option
@click.option("--insecure-bind", is_flag=True, help="Listen beyond this machine without asking for a token.")
@click.option("--port-may-move", is_flag=True, hidden=True)
def hub(
    host: str | None,
    port: int | None,
    registries: tuple[str, ...],
    bare: bool,
    database: str | None,
    hub_url: str | None,
    insecure_bind: bool,
    port_may_move: bool,
) -> int:
    """Run the hub of this mesh.

    It finds agents by skill, forwards calls, runs workflows, and serves the state's registry at /v2/.
    Settings come from retinue.toml; what is given here wins. To be a further hub of a mesh, set
    RETINUE_JOIN once to what "retinue token new --join" printed at the first, and give its url to --join.
    """
    from retinue.apps.catalog import check_location
    from retinue.apps.hub import HubOptions, run_hub
    from retinue.apps.serving import run_loop

    flags: dict[str, Any] = {}
    if registries:
        flags["registries"] = tuple(check_location(registry) for registry in registries)
    if database:
        flags["database"] = database
    session = open_session(flags, log_level="info", joins=hub_url)
    configured = session.settings.hub
    options = HubOptions(
        host=configured.host if host is None else host,
        port=configured.port if port is None else port,
        port_may_move=port_may_move,
        bare=bare,
        insecure_bind=insecure_bind,
    )
    return run_loop(lambda: run_hub(options, session.settings, session.state, click.echo))
