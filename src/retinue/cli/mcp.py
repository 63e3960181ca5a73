"""``retinue mcp``: this mesh as an MCP server on standard input and output."""

from __future__ import annotations

from urllib.parse import quote

import click

from retinue.cli.session import open_session


@click.command()
@click.option("--agent", metavar="NAME", help="Only this agent's tools, under their own names.")
def mcp(agent: str | None) -> int:
    """Be an MCP server on standard input and output, for clients that start programs.

    Everything goes through the hub of this state; one is started where none runs, and stays. Nothing but
    the protocol is printed on standard output.
    """
    from retinue.apps.serving import run_loop
    from retinue.apps.stdio_bridge import run_bridge

    session = open_session(log_level="warning")
    path = "/mcp" if agent is None else f"/agents/{quote(agent, safe='')}/mcp"
    return run_loop(lambda: run_bridge(session.settings, session.state, path))
