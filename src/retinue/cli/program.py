"""The program ``retinue``: a table of commands, each imported when it is used.

``retinue --help`` and the completion of command names read only the table and the names of entry points
(`retinue.plugins`), so both are fast. For the same reason a command's module imports its dependencies inside
the command.
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
from retinue.cli.options import HUB_PARAMETER
from retinue.core.errors import InvalidSettingError, StateError
from retinue.plugins import COMMANDS, Plugin, find_plugin, how_to_install, list_plugins

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look around": {
        "demo": ("retinue[demo]", "Let three agents write tests for a Python module."),
        "doctor": ("managing.doctor:doctor", "Check what works on this machine and print remedies."),
        "docs": ("managing.docs:docs", "Show a page of the documentation, or list the pages."),
        "dashboard": ("managing.dashboard:dashboard", "Open the dashboard of the running hub in a browser."),
        "backup": ("managing.backup:backup", "Copy the state folder while its hub runs."),
        "restore": ("managing.restore:restore", "Restore the state folder from a backup."),
    },
    "Agents": {
        "new": ("serving.new:new", "Create the folder of a new agent, or a workflow."),
        "serve": ("serving.serve:serve", "Serve an agent and publish it."),
        "publish": (
            "managing.registry:publish",
            "Publish an agent card, a workflow, an agent in Markdown or policies.",
        ),
        "pull": (
            "managing.registry:pull",
            "Fetch an agent card, a workflow, an agent in Markdown or policies.",
        ),
        "forget": ("managing.registry:forget", "Remove an agent or a workflow from a registry."),
        "mirror": ("managing.registry:mirror", "Copy agents and workflows to another registry."),
    },
    "Teams": {
        "lock": ("teams.packing:lock", "Write the hashes of everything that a team runs into team.lock."),
        "pack": ("teams.packing:pack", "Pack a team into one digest and sign it."),
        "up": ("teams.running:up", "Verify a team, show what it does, and run it."),
        "down": ("teams.running:down", "Stop the programs of a team."),
        "team": ("teams.running:team", "List the teams of this state, or show one."),
        "diff": ("teams.packing:diff", "Compare two digests of a team by what they can do."),
        "record-team": (
            "teams.replaying:record_team",
            "Record the calls that you make to a running team, and the runs of its workflows that you start.",
        ),
        "replay-team": (
            "teams.replaying:replay_team",
            "Play recorded calls against a digest of a team, and show what it answers differently.",
        ),
    },
    "The mesh": {
        "hub": ("serving.serve:hub", "Run the hub of this mesh."),
        "status": ("managing.control:status", "Show whether the hub of this state runs."),
        "stop": ("managing.control:stop", "Stop the hub of this state."),
        "mcp": (
            "serving.serve:mcp",
            "Serve MCP on standard input and output, for clients that start a program.",
        ),
        "top": ("calling.top:top", "Show agents, calls and runs as they are now."),
        "context": (
            "managing.context:context",
            "Choose the hub that commands use, on this machine or another.",
        ),
        "logs": ("managing.logs:logs", "Show calls, and what the hub and its agents printed."),
        "agents": ("calling.agents:agents", "List the agents."),
        "show": ("calling.agents:show", "Show one agent and its skills."),
        "find": ("calling.skills:find", "Find skills by words or by id."),
        "history": (
            "calling.history:history",
            "Show what came of calls that were found by words, and rate the last one.",
        ),
        "wishes": (
            "calling.history:wishes",
            "List what was asked for and not found, similar requests together.",
        ),
        "receipts": (
            "calling.receipts:receipts",
            "Show what other hubs measured of AGENT, or of all agents.",
        ),
        "call": ("calling.skills:call", "Call a skill on any agent that offers it."),
        "stubs": ("calling.stubs:stubs", "Make a Python module with a typed function for each skill."),
        "ask": ("calling.ask:ask", "Ask agents what they can do now."),
        "artifacts": (
            "calling.artifacts:artifacts",
            "List, save, fetch, show and delete artifacts: files that agents and people pass on by links.",
        ),
        "connect": ("managing.connect:connect", "Connect an MCP client to the hub."),
        "import": ("managing.add_imports:import_", "Import an MCP server, an HTTP API or an A2A agent."),
        "imports": (
            "managing.imports:imports",
            "List the imported servers, accept their changes, log in and out, remove them.",
        ),
        "koi": ("retinue[koi]", "Run agents and a coordinator on a KOI network."),
    },
    "Tasks": {
        "chat": ("chat.command:chat", "Talk with an agent that thinks."),
        "orchestrate": ("calling.orchestrate:orchestrate", "Hand a task to the agents of the mesh."),
        "capabilities": ("calling.orchestrate:capabilities", "Rank the agents for a task."),
        "cache": ("calling.orchestrate:cache", "Forget cached answers."),
    },
    "Workflows": {
        "run": ("calling.run:run", "Run a workflow and show its steps."),
        "worker": ("serving.serve:worker", "Run workflows in an additional process."),
        "workflows": ("calling.workflows:workflows", "List the workflows, or check files."),
        "runs": ("calling.runs:runs", "List runs, or show one as a tree of its steps."),
        "schedules": (
            "calling.schedules:schedules",
            "List the schedules and triggers of workflows, add, pause, resume, remove and run them.",
        ),
        "approvals": (
            "calling.approvals:approvals",
            "List, show, approve and deny the calls that wait for a person.",
        ),
        "resume": ("calling.runs:resume", "Resume a run."),
        "cancel": ("calling.runs:cancel", "Cancel a run, its branches and the calls in flight."),
        "rerun": ("calling.runs:rerun", "Run again from a step, as a new run."),
        "signal": ("calling.runs:signal", "Send a signal to a step that waits, such as an approval."),
    },
    "Access": {
        "policy": ("managing.policy:policy", "Check, test and explain the policies of this mesh."),
        "token": ("managing.token:token", "Create, list and revoke tokens."),
        "keys": (
            "managing.keys:keys",
            "List the keys for signatures of agent cards; trust or forget those of others.",
        ),
    },
    "Your shell": {
        "completion": ("completion:completion", "Print the completion script for a shell."),
    },
}
"""Heading → command → its place (below ``retinue.cli``) and its line of help.

A place without a colon is the requirement whose installation adds the command as a plugin.
"""

_PACKAGES = {"retinue[demo]": "retinue-testwriter", "retinue[koi]": "retinue-koi"}
"""The distribution that each of these requirements adds."""

TABLE = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

OF_THIS_MACHINE = frozenset(
    (
        "status",
        "stop",
        "top",
        "logs",
        "connect",
        "import",
        "imports",
        "publish",
        "pull",
        "forget",
        "token",
        "keys",
    )
) | {"backup", "restore", "lock", "pack", "up", "down", "team", "diff", "record-team", "replay-team"}
"""The commands that could be taken for commands of the hub that the context in use names."""

NO_WINDOWS = "error: Retinue runs on Linux and macOS — on Windows, run it in WSL: wsl --install"

PIPE_CLOSED = 141
"""The status that a shell reports for a program ended by SIGPIPE."""


class Program(click.Group):
    """The group of all commands; prints any failure as one line and sets the exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*TABLE, *_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place, _ = TABLE.get(cmd_name, ("", ""))
        module, _, attribute = place.partition(":")
        if not attribute:
            return _load_plugin(cmd_name, place, complete=ctx.resilient_parsing)
        command: click.Command = getattr(import_module(f"retinue.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            known = self.list_commands(ctx)
            raise click.NoSuchCommand(error.command_name, possibilities=known, ctx=ctx) from None
        if command is not None and not ctx.resilient_parsing and not _takes_hub(command):
            if ctx.params.get(HUB_PARAMETER) is not None or _has_hub(rest):
                raise InvalidSettingError(
                    "--hub", f"{name} works on this machine only", remedy="run it on the machine of that hub"
                )
            if name in OF_THIS_MACHINE:
                _note_other_hub(name)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {
            heading: [(name, line) for name, (_, line) in rows.items()] for heading, rows in SECTIONS.items()
        }
        for plugin in _plugins().values():
            heading = plugin.qualifier.replace("-", " ").capitalize() or "Plugins"
            lines.setdefault(heading, []).append((plugin.name, plugin.summary))
        width = max(len(name) for rows in lines.values() for name, _ in rows)
        for heading, rows in lines.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        lines = {name: line for name, (_, line) in TABLE.items()}
        lines |= {name: plugin.summary for name, plugin in _plugins().items()}
        names = [
            CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)
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
        """Run one command and exit with its status; raises SystemExit only."""
        arguments = list(sys.argv[1:] if args is None else args)
        # None if the shell closed the stream: retinue … >&-
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
        except Exception as error:  # noqa: BLE001 - every failure is printed as one line
            failure = describe(error)
            with suppress(OSError, ValueError):  # standard error cannot be written either
                show(failure, as_json="--json" in arguments)
            _drop_output()
            sys.exit(failure.exit_code)
        sys.exit(status if isinstance(status, int) else 0)


def _takes_hub(command: click.Command) -> bool:
    """Whether the command, or one below it, has the option ``--hub``."""
    if any(parameter.name == HUB_PARAMETER for parameter in command.params):
        return True
    return isinstance(command, click.Group) and any(map(_takes_hub, command.commands.values()))


def _has_hub(arguments: Sequence[str]) -> bool:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(word == "--hub" or word.startswith("--hub=") for word in before)


def _note_other_hub(name: str) -> None:
    """Say that a command is about this machine although another hub is chosen for other commands."""
    from retinue.core.errors import RetinueError
    from retinue.storage.contexts import ContextFile, find_configuration_folder

    with suppress(RetinueError):  # the commands that use it say so
        if (current := ContextFile(find_configuration_folder(os.environ)).read().current) is not None:
            click.echo(f"the context {current} is in use; {name} is about this machine", err=True)


def _plugins() -> dict[str, Plugin]:
    """The commands of other distributions; a command of the table is never replaced."""
    return {plugin.name: plugin for plugin in list_plugins(COMMANDS) if plugin.name not in TABLE}


def _load_plugin(name: str, requirement: str, *, complete: bool) -> click.Command | None:
    plugin = find_plugin(COMMANDS, name)
    if plugin is not None:
        command: click.Command = plugin.load(COMMANDS)
        return command
    if not requirement or complete:
        return None
    remedy = how_to_install(requirement, _PACKAGES[requirement])
    raise InvalidSettingError(name, "it is not installed", remedy=remedy)


def _open_nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _check_place() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise StateError("the current folder was deleted", remedy="change to an existing folder") from None


def _drop_output() -> None:
    """Redirect unwritable output to the null device; otherwise the interpreter reports the closed pipe."""
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
    epilog="Run retinue COMMAND --help for the options of a command.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option(
    "--hub",
    HUB_PARAMETER,
    metavar="HUB",
    help="Call this hub, a URL or the name of a context; also after COMMAND.",
)
@click.pass_context
def program(ctx: click.Context, hub: str | None) -> None:
    """An agent mesh: publish agents, find them by skill, call them with validated arguments."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """The entry point of ``retinue`` and of ``python -m retinue``."""
    if sys.platform == "win32":
        sys.exit(NO_WINDOWS)
    program.main(prog_name="retinue")


def run_arguments(arguments: Sequence[str]) -> NoReturn:
    """Run the program with these arguments in place of those of this process, and exit."""
    sys.argv[1:] = arguments
    program.main(list(arguments), prog_name="retinue")
