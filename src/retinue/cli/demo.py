"""``retinue demo``: a real job through three agents, offline."""

from __future__ import annotations

import click

from retinue.cli.session import open_session


@click.command()
@click.argument("module", default="textwrap")
@click.option(
    "--python",
    metavar="EXE",
    help="The interpreter that knows the module and runs its tests; else the one of this program.",
)
@click.option("--keep", is_flag=True, help="Leave the hub and its agents running until Ctrl-C.")
def demo(module: str, python: str | None, keep: bool) -> int:
    """Let three agents write tests for a Python module.

    MODULE is an importable name or a path. A hub and the agents that plan, build and test start as
    processes of their own, do the job in rounds, and stop again. Nothing leaves this machine.
    """
    from retinue.apps.demo import DemoOptions, run_demo
    from retinue.apps.serving import run_loop

    open_session()
    options = DemoOptions(module=module, python=python, keep=keep)
    return run_loop(lambda: run_demo(options, click.echo))
