"""``retinue serve``, ``hub``, ``worker`` and ``mcp``: start a long-running process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from retinue.cli.options import (
    CommandOfParts,
    advertise_option,
    database_option,
    insecure_bind_option,
    join_option,
    registry_option,
    weight_option,
)
from retinue.cli.output import command_line, note, working
from retinue.cli.session import accept_join, open_session, run_command
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession
    from retinue.runtime.hub_process import HubOptions
    from retinue.storage.state import HubAddress


@contextmanager
def _loading_program() -> Iterator[None]:
    """Import the modules of a long-running process without garbage collections.

    Collections during the imports find almost nothing and take a tenth of the start. What the imports made
    lives as long as the process, so later collections leave it out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@click.command(cls=CommandOfParts, kind="agent")
@click.argument("target", required=False)
@click.option("--llm", "model", metavar="NAME", help="Serve the language model NAME instead of a target.")
@click.option("--host", metavar="H", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(1, 65535),
    help="Port to listen on; default: the first free one from 8001.",
)
@click.option("--no-publish", is_flag=True, help="Do not publish the agent's card.")
@click.option(
    "--tag", metavar="TAG", help="Tag to publish under; default: v and the major version, such as v1."
)
@weight_option
@registry_option("Registry to publish to (http://host:port or a folder); default: the state folder.")
@click.option(
    "--join", "hub_url", metavar="HUB", help="URL of the hub; default: the hub of this state, if any."
)
@click.option("--stdio", is_flag=True, help="Serve MCP on standard input and output only.")
@click.option("--reload", "reloads", is_flag=True, help="Restart when a file of the agent changes.")
@insecure_bind_option
@advertise_option
@click.option("--port-may-move", is_flag=True, hidden=True)
@click.option("--team", hidden=True)
def serve(
    target: str | None,
    model: str | None,
    host: str,
    port: int | None,
    no_publish: bool,
    tag: str | None,
    weight: int | None,
    registry: str | None,
    hub_url: str | None,
    part_flags: Mapping[str, Any],
    stdio: bool,
    reloads: bool,
    insecure_bind: bool,
    advertise: str | None,
    port_may_move: bool,
    team: str | None,
) -> int:
    """Serve an agent and publish it.

    TARGET is file.py[:name], module:name, an agent.json, an ElizaOS character file, an agent in Markdown, or
    a folder of agents in Markdown. These follow their files while they run; each one has a port of its own.
    With --llm it is a language model: claude, gemini or one that retinue.toml names in [llm.NAME]. The agent
    is published when it is ready and forgotten when it stops (Ctrl-C). To join the hub of another machine,
    set RETINUE_JOIN to the token that "retinue token new --join" prints there, and pass the hub's URL with
    --join.
    """
    with _loading_program():
        from retinue.runtime.access import check_advertised
        from retinue.runtime.agent_core import OwnTeam
        from retinue.runtime.agent_process import ServeOptions, serve_agent
        from retinue.runtime.commands.publishing import check_location
        from retinue.runtime.launch import Address
        from retinue.runtime.loading.markdown_files import is_folder_of_agents
        from retinue.runtime.loading.reloading import serve_reloading
        from retinue.runtime.loading.targets import Target, load_target
        from retinue.runtime.serving import FIRST_AGENT_PORT, run_loop

    if (target is None) == (model is None):
        raise click.UsageError(
            "name a TARGET, or a model with --llm" if target is None else "--llm takes no TARGET"
        )
    if stdio and (reloads or port is not None):
        raise click.UsageError("--stdio cannot be combined with --port or --reload")
    if model is not None and reloads:
        raise click.UsageError("--llm cannot be combined with --reload")
    session = open_session(part_flags, log_level="info", with_parts=not stdio)
    settings, reread = session.settings, session.reread
    if model is not None:
        # imported here, because other agents need nothing of it
        from retinue.runtime.models import accept_conversations

        settings, reread = accept_conversations(settings), lambda: accept_conversations(session.reread())
    if hub_url is not None:
        accept_join(session.state, hub_url)

    def load() -> Target:
        if model is None:
            return load_target(target or "")
        from retinue.runtime.models import open_model_agent

        return Target(open_model_agent(session.settings, session.state, model), ())

    is_folder = target is not None and is_folder_of_agents(Path(target))
    if is_folder and (port is not None or advertise is not None or stdio or reloads):
        raise click.UsageError(
            "a folder takes no --port, --advertise, --stdio or --reload, because each of its agents has a "
            "port of its own and follows its file; serve one file with them"
        )
    if stdio:
        from retinue.mcp.stdio.server_wire import claim_stdio
        from retinue.runtime.stdio.agent import serve_on_stdio

        wire = claim_stdio()
        loaded = load()
        echo = partial(click.echo, err=True)
        return run_loop(lambda: serve_on_stdio(loaded, wire, session.settings, session.state, hub_url, echo))
    address = Address(
        host,
        port or FIRST_AGENT_PORT,
        search=port is None or port_may_move,
        advertise=check_advertised(advertise),
        insecure_bind=insecure_bind,
    )
    options = ServeOptions(
        address,
        publish=not no_publish,
        registry=None if registry is None else check_location(registry),
        tag=tag,
        weight=weight,
        hub_url=hub_url,
        team=None if team is None else OwnTeam.parse(team),
    )

    def serve_once(loaded: Target, leave: Callable[[int], None] = os._exit) -> int:
        return run_loop(
            lambda: serve_agent(loaded, options, settings, session.state, click.echo, reread),
            leave=leave,
        )

    if is_folder:
        from retinue.runtime.folder_process import serve_folder

        folder = Path(target or "")
        return run_loop(lambda: serve_folder(folder, options, settings, session.state, click.echo, reread))
    if reloads and target is not None:
        return serve_reloading(target, serve_once, click.echo)
    return serve_once(load())


@click.command(cls=CommandOfParts, kind="hub")
@click.option("--host", metavar="H", help="Address to listen on; 127.0.0.1 unless configured.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 9000 unless configured, 0 for any free port.",
)
@registry_option("Also find agents in this registry; repeatable.", multiple=True)
@click.option(
    "--processes",
    metavar="N",
    help="Number of processes that serve at the address; auto: one for each processor. Default: 1.",
)
@click.option("--bare", is_flag=True, help="Do not start the agents of installed packages.")
@click.option(
    "--detach", "-d", is_flag=True, help="Run in the background; see retinue status, logs and stop."
)
@database_option
@join_option
@insecure_bind_option
@advertise_option
@click.option("--port-may-move", is_flag=True, hidden=True)
def hub(
    host: str | None,
    port: int | None,
    registries: tuple[str, ...],
    processes: str | None,
    bare: bool,
    detach: bool,
    database: str | None,
    hub_url: str | None,
    part_flags: Mapping[str, Any],
    insecure_bind: bool,
    advertise: str | None,
    port_may_move: bool,
) -> int:
    """Run the hub of this mesh.

    The hub finds agents by skill, forwards calls, runs workflows and serves the state's registry at /v2/.
    Settings come from retinue.toml; options override them. To add another hub to a mesh, set RETINUE_JOIN
    once to the token that "retinue token new --join" prints at the first hub, and pass its URL with --join.
    """
    with _loading_program():
        from retinue.runtime.access import check_advertised
        from retinue.runtime.commands.publishing import check_location
        from retinue.runtime.hub_process import HubOptions, run_hub
        from retinue.runtime.launch import Address
        from retinue.runtime.serving import run_loop
        from retinue.storage.state import HUB_PLACE_VARIABLE

    arguments = {n: v for n, v in click.get_current_context().params.items() if n != "detach"}
    if detach:
        return _detach_hub(arguments)
    flags: dict[str, Any] = dict(part_flags)
    if registries:
        flags["registries"] = tuple(check_location(registry) for registry in registries)
    if database:
        flags["database"] = database
    session = open_session(flags, log_level="info", joins=hub_url)
    configured = session.settings.hub
    address = Address(
        configured.host if host is None else host,
        configured.port if port is None else port,
        search=port_may_move,
        advertise=check_advertised(advertise) or configured.advertise,
        insecure_bind=insecure_bind,
    )
    options = HubOptions(address, bare, _next_step() if sys.stdout.isatty() else None)
    number = processes or configured.processes
    if number not in (1, "1") or HUB_PLACE_VARIABLE in os.environ:
        return _run_hub_processes(number, _render_arguments(arguments), options, session)
    return run_loop(lambda: run_hub(options, session.settings, session.state, click.echo, session.reread))


def _run_hub_processes(
    number: int | str, arguments: Sequence[str], options: HubOptions, session: CommandSession
) -> int:
    """Run the parent of a hub with several processes, or one of them."""
    from retinue.cli.program import run_arguments
    from retinue.runtime.hub_process import run_hub
    from retinue.runtime.hub_processes.fork_server import forking
    from retinue.runtime.hub_processes.parent import count_processes, run_hub_parent
    from retinue.runtime.hub_processes.place import take_place
    from retinue.runtime.hub_processes.running import run_hub_process
    from retinue.runtime.serving import run_loop

    settings, state = session.settings, session.state
    place = take_place()
    if place is not None:
        return run_loop(lambda: run_hub_process(place, options, settings, state, click.echo, session.reread))
    count = count_processes(number)
    if count == 1:
        return run_loop(lambda: run_hub(options, settings, state, click.echo, session.reread))
    command = ("hub", *arguments)
    with forking(run_arguments) as server:
        return run_loop(lambda: run_hub_parent(count, command, options, settings, state, click.echo, server))


def _next_step() -> str:
    """What a person does with a new hub."""
    return f"connect an MCP client: {command_line()} connect claude"


def _detach_hub(arguments: dict[str, Any]) -> int:
    """Start the hub with the same arguments in the background and wait until it answers."""
    from retinue.runtime.commands.hub_start import detach_hub
    from retinue.web.http_client import HttpClient

    session = open_session()
    configured = session.settings.hub
    port = configured.port if arguments["port"] is None else arguments["port"]

    async def start() -> HubAddress:
        async with HttpClient() as http:
            return await detach_hub(
                session.state,
                http,
                _render_arguments(arguments),
                host=arguments["host"] or configured.host,
                port=0 if arguments["port_may_move"] else port,
                probe_timeout_s=session.settings.timeouts.probe_s,
                logs=session.settings.logs,
            )

    with working("starting the hub …"):
        address = run_command(start())
    click.echo(f"hub at {address.url} (pid {address.pid}, state {session.state.root})")
    note(f"its log: {session.state.hub_log}, or retinue logs -f; stop it: retinue stop")
    note(_next_step())
    if not address.is_ready:
        note("its agents are still starting; see retinue status")
    return 0


def _render_arguments(values: Mapping[str, Any]) -> list[str]:
    """The options of the command that is running, as they were given."""
    words = []
    context = click.get_current_context()
    for option in context.command.get_params(context):
        value = values.get(option.name or "")
        for item in value if isinstance(value, tuple) else (value,):
            if item is True:
                words.append(option.opts[0])
            elif item is not None and item is not False:
                words += [option.opts[0], str(item)]
    return words


@click.command()
@click.argument("modules", metavar="[FILE]…", nargs=-1)
@click.option("--host", metavar="H", help="Address of the probes; 127.0.0.1 unless configured.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Serve /health, /ready and /metrics at this port; 0 for any free port.",
)
@database_option
@join_option
@insecure_bind_option
@advertise_option
def worker(
    modules: tuple[str, ...],
    host: str | None,
    port: int | None,
    database: str | None,
    hub_url: str | None,
    insecure_bind: bool,
    advertise: str | None,
) -> int:
    """Run workflows in an additional process.

    FILE is a Python file with workflows that it executes besides those of workflows.modules. It replaces
    modules with workflows of the same names, so that a worker can keep older code.

    A worker takes no calls; with --port it serves probes and metrics. It shares the database of runs with
    hubs and other workers: new runs go to the least loaded node, and surviving nodes take over the runs of
    failed ones. On another machine than the hub, set RETINUE_JOIN once to the token that
    "retinue token new --join" prints there, and pass the hub's URL with --join.
    """
    with _loading_program():
        from retinue.runtime.access import check_advertised
        from retinue.runtime.launch import Address
        from retinue.runtime.serving import run_loop
        from retinue.runtime.worker_process import run_worker

    session = open_session({"database": database} if database else {}, log_level="info", joins=hub_url)
    settings = session.settings
    if modules:
        # imported here, because most workers execute workflows in YAML alone
        from retinue.flows.modules import add_files

        hosted = add_files(settings.workflows.modules, modules)
        settings = settings.model_copy(
            update={"workflows": settings.workflows.model_copy(update={"modules": hosted})}
        )
    configured = settings.worker
    wanted_port = configured.port if port is None else port
    url = check_advertised(advertise) or configured.advertise
    address = None
    if wanted_port is not None:
        wanted_host = configured.host if host is None else host
        address = Address(wanted_host, wanted_port, advertise=url, insecure_bind=insecure_bind)
    elif url is not None:
        raise InvalidSettingError(
            "worker.advertise", "a worker without a port serves nothing", remedy="add --port N"
        )
    return run_loop(lambda: run_worker(address, settings, session.state, click.echo, session.reread))


@click.command()
@click.option("--agent", metavar="NAME", help="Serve only this agent's tools, under their own names.")
def mcp(agent: str | None) -> int:
    """Serve MCP on standard input and output, for clients that start a program.

    All messages go through the hub of this state. If none runs, one is started and keeps running. Standard
    output carries only the protocol.
    """
    from retinue.runtime.serving import run_loop
    from retinue.runtime.stdio.bridge import run_bridge

    session = open_session(log_level="warning", with_parts=False)
    path = "/mcp" if agent is None else f"/agents/{quote(agent, safe='')}/mcp"
    return run_loop(lambda: run_bridge(session.settings, session.state, path))
