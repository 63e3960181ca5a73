"""``retinue serve``: one agent in a process of its own."""

from __future__ import annotations

from functools import partial

import click

from retinue.cli.options import registry_option
from retinue.cli.session import accept_join, open_session


@click.command()
@click.argument("target")
@click.option("--host", metavar="H", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(1, 65535),
    help="The port to listen on; else the first free one from 8001 upward.",
)
@click.option("--no-publish", is_flag=True, help="Do not publish the agent's card.")
@click.option("--tag", metavar="TAG", default="v1", show_default=True, help="The tag to publish under.")
@registry_option("Publish there (http://host:port or a folder); else in the state folder.")
@click.option("--join", "hub_url", metavar="HUB", help="The hub's url; else the one of this state, if any.")
@click.option("--stdio", is_flag=True, help="Be an MCP server on standard input and output, and no other.")
@click.option("--reload", "reloads", is_flag=True, help="Start again whenever a file of the agent changes.")
@click.option("--insecure-bind", is_flag=True, help="Listen beyond this machine without asking for a token.")
@click.option("--port-may-move", is_flag=True, hidden=True)
def serve(
    target: str,
    host: str,
    port: int | None,
    no_publish: bool,
    tag: str,
    registry: str | None,
    hub_url: str | None,
    stdio: bool,
    reloads: bool,
    insecure_bind: bool,
    port_may_move: bool,
) -> int:
    """Serve an agent and publish it.

    TARGET is file.py[:name], module:name or an agent.json. The agent is published when it answers and
    forgotten when it stops (Ctrl-C). To join the hub of another machine, set RETINUE_JOIN to what
    "retinue token new --join" printed there, and give the hub's url to --join.
    """
    from retinue.apps.agent import ServeOptions, serve_agent
    from retinue.apps.catalog import check_location
    from retinue.apps.reloading import serve_reloading
    from retinue.apps.serving import run_loop
    from retinue.apps.targets import Target, load_target

    if stdio and (reloads or port is not None):
        raise click.UsageError("--stdio goes with neither --port nor --reload")
    session = open_session(log_level="info")
    if hub_url is not None:
        accept_join(session.state, hub_url)
    if stdio:
        from retinue.apps.stdio import claim_stdio, serve_on_stdio

        wire = claim_stdio()
        loaded = load_target(target)
        say = partial(click.echo, err=True)
        return run_loop(lambda: serve_on_stdio(loaded, wire, session.settings, session.state, hub_url, say))
    options = ServeOptions(
        host=host,
        port=port,
        port_may_move=port_may_move,
        publish=not no_publish,
        registry=None if registry is None else check_location(registry),
        tag=tag,
        hub_url=hub_url,
        insecure_bind=insecure_bind,
    )

    def serve_once(loaded: Target) -> int:
        return run_loop(lambda: serve_agent(loaded, options, session.settings, session.state, click.echo))

    if reloads:
        return serve_reloading(target, serve_once, click.echo)
    return serve_once(load_target(target))
