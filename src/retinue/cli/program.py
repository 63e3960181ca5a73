"""The program ``retinue``: a static table of commands, each imported when it is asked for.

``retinue --help`` and the completion of a command's name read the table only, so that both are there
at once. For the same reason a command's module imports what it works with inside the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from retinue.cli.failures import describe, show
from retinue.core.errors import StateError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look around": {
        "demo": ("demo:demo", "Let three agents write tests for a Python module."),
        "doctor": ("doctor:doctor", "Say what works here, what does not, and how to mend it."),
    },
    "Agents": {
        "new": ("new:new", "Make the folder of a new agent."),
        "serve": ("serve:serve", "Serve an agent and publish it."),
        "publish": ("publish:publish", "Publish an agent card or a workflow in a registry."),
        "pull": ("publish:pull", "Fetch a card or a workflow out of a registry."),
        "forget": ("publish:forget", "Take an agent or a workflow out of a registry."),
        "mirror": ("mirror:mirror", "Copy agents and workflows into another registry."),
    },
    "The mesh": {
        "hub": ("hub:hub", "Run the hub of this mesh."),
        "mcp": ("mcp:mcp", "Be an MCP server on standard input and output, for clients that start programs."),
        "agents": ("agents:agents", "List the agents."),
        "show": ("agents:show", "Show one agent and its skills."),
        "find": ("find:find", "Find skills by words or by id."),
        "call": ("call:call", "Call a skill, whoever offers it."),
        "connect": ("connect:connect", "Connect an MCP client to the hub."),
    },
    "Workflows": {
        "run": ("run:run", "Run a workflow and watch its steps."),
        "worker": ("worker:worker", "Run workflows beside the hub."),
        "workflows": ("workflows:workflows", "List the workflows."),
        "runs": ("runs:runs", "List the runs, or show one as a tree of its steps."),
        "resume": ("runs:resume", "Go on with a run where it stopped."),
        "cancel": ("runs:cancel", "Stop a run, its branches and the calls in flight."),
        "rerun": ("runs:rerun", "Run again from a step on, as a new run."),
        "signal": ("runs:signal", "Answer a step that waits, such as for an approval."),
    },
    "Access": {
        "token": ("token:token", "Give out tokens, list them, take them back."),
    },
    "Your shell": {
        "completion": ("completion:completion", "Print the completion script for a shell."),
    },
}
"""Heading → command → where it is (below ``retinue.cli``), and its line of help."""

TABLE = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

PIPE_CLOSED = 141
"""As a shell says it of a program that SIGPIPE ended."""


class Program(click.Group):
    """The group of all commands, and the one place where their failures become a line and a status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in TABLE:
            return None
        module, _, attribute = TABLE[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"retinue.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=TABLE, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in TABLE)
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in TABLE.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        _check_place()
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            return PIPE_CLOSED
        return status

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command and leave with its exit status; nothing but SystemExit comes out."""
        arguments = list(sys.argv[1:] if args is None else args)
        # closed before the start: retinue … >&-
        sys.stdout = sys.stdout or _open_nowhere()
        sys.stderr = sys.stderr or _open_nowhere()
        try:
            status = super().main(
                arguments,
                prog_name or self.name,
                complete_var,
                standalone_mode=False,
                **extra,
            )
        except Exception as error:  # noqa: BLE001 - the last place that can say it in a line
            failure = describe(error)
            show(failure, as_json="--json" in arguments)
            _drop_output()
            sys.exit(failure.exit_code)
        sys.exit(status if isinstance(status, int) else 0)


def _open_nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _check_place() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise StateError("the current folder was deleted", remedy="cd to one that is there") from None


def _drop_output() -> None:
    """Send what cannot be written nowhere: its reader is gone, and the interpreter would complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"retinue {version('retinue')}")
        ctx.exit()


@click.group(
    "retinue",
    cls=Program,
    no_args_is_help=False,
    invoke_without_command=True,
    subcommand_metavar="COMMAND …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="retinue COMMAND --help says more of one command.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def program(ctx: click.Context) -> None:
    """An agent mesh: agents published by what they can do, found by skill, called with checks."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """The entry point of ``retinue`` and of ``python -m retinue``."""
    program.main(prog_name="retinue")
