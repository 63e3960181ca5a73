"""``retinue koi``: the programs of seed 003, also installed as ``koi-mcp-coordinator`` and so on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from retinue.cli.options import insecure_bind_option
from retinue.cli.session import open_session

_config = click.option("--config", metavar="FILE", help="The configuration, a JSON file.")


@click.group()
def koi() -> None:
    """Run agents and a coordinator on a KOI network.

    A coordinator lists the agents of the network and their tools, over REST and over MCP.
    """


@koi.command()
@_config
@insecure_bind_option
def coordinator(config: str | None, insecure_bind: bool) -> int:
    """Run the coordinator that FILE describes."""
    from retinue.runtime.serving import run_loop
    from retinue_koi.programs.config import CONFIGS
    from retinue_koi.programs.processes import serve_coordinator

    session = open_session(log_level="info")
    path = Path(config) if config is not None else CONFIGS / "coordinator.json"
    return run_loop(
        lambda: serve_coordinator(
            path, session.settings, session.state, click.echo, insecure_bind=insecure_bind
        )
    )


@koi.command()
@_config
@insecure_bind_option
def agent(config: str | None, insecure_bind: bool) -> int:
    """Run the agent that FILE describes."""
    from retinue.runtime.serving import run_loop
    from retinue_koi.programs.config import CONFIGS
    from retinue_koi.programs.processes import serve_agent

    session = open_session(log_level="info")
    path = Path(config) if config is not None else CONFIGS / "agent1.json"
    return run_loop(
        lambda: serve_agent(path, session.settings, session.state, click.echo, insecure_bind=insecure_bind)
    )


@koi.command()
def demo() -> int:
    """Run a coordinator and two agents in processes of their own, until Ctrl-C."""
    from retinue.runtime.serving import run_loop
    from retinue_koi.programs.processes import serve_demo

    open_session()
    return run_loop(lambda: serve_demo(click.echo))


def main() -> NoReturn:
    """The program of seed 003: ``coordinator``, ``agent`` and ``demo`` as subcommands."""
    from retinue.cli.program import program

    program.main(["koi", *sys.argv[1:]], prog_name="retinue")
