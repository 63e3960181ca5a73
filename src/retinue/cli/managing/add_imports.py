"""``retinue import``: import MCP servers, HTTP APIs and A2A agents into this state's hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from retinue.cli.managing.imports import describe, place_of, say, say_outcomes, say_slow
from retinue.cli.output import clean, print_table
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError
from retinue.core.text import hide_argument_secrets, hide_url_secrets

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession
    from retinue.mcp.client_configs.servers import FoundServer
    from retinue.runtime.commands.imports import ImportOutcome
    from retinue.settings_tables import ImportTable

CLIENTS = ("claude", "claude-desktop", "cursor", "vscode", "gemini", "codex", "zed")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")

_replace_option = click.option(
    "--replace", is_flag=True, help="Replace another import of that name without a question."
)


class _ImportGroup(click.Group):
    """The kinds of imports; a name in the place of a kind is told the form to write."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if error.possibilities:
                raise
            form = f"retinue import mcp-server {args[0]} -- COMMAND"
            raise click.UsageError(f"no such command {args[0]}; for an MCP server: {form}", ctx) from None


@click.group("import", cls=_ImportGroup)
def import_() -> None:
    """Import an MCP server, an HTTP API or an A2A agent.

    The hub runs the server, and its tools become skills. mcp-server imports one by its command or URL,
    openapi an HTTP API by its document, a2a an agent by the URL of its A2A card, claude-agents agents in
    Markdown of .claude/agents. claude, claude-desktop,
    cursor, vscode, gemini, codex and zed list the servers in the configuration of that client, and import
    those that are named, or --all.
    """


@import_.command("mcp-server")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", metavar="URL", help="URL of a server that runs already, instead of a command.")
@click.option("--header", "headers", metavar="K=V", multiple=True, help="Header for every request.")
@click.option("--client-id", metavar="ID", help="Client of a login that you have registered yourself.")
@click.option("--client-secret", metavar="TEXT", help="Its secret, as '${VARIABLE}'.")
@click.option(
    "--client-metadata-url", metavar="URL", help="Your document of the client, for servers that read it."
)
@click.option("--env", "environ", metavar="K=V", multiple=True, help="Environment variable of the program.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Working directory of the program; default: this one."
)
@click.option(
    "--start-s", type=float, metavar="S", help="Time in which the server must have answered; default: 60."
)
@click.option("--private", is_flag=True, help="Offer the tools to the mesh only, not to MCP clients.")
@_replace_option
def mcp_server(
    name: str,
    command: tuple[str, ...],
    url: str | None,
    headers: tuple[str, ...],
    client_id: str | None,
    client_secret: str | None,
    client_metadata_url: str | None,
    environ: tuple[str, ...],
    folder: Path | None,
    start_s: float | None,
    private: bool,
    replace: bool,
) -> None:
    """Import one MCP server as the agent NAME.

    \b
    retinue import mcp-server files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
    retinue import mcp-server docs --url https://mcp.example.com/mcp --header 'Authorization=Bearer ${TOKEN}'

    ${VARIABLE} in a header or variable is read from the hub's environment when the server is started. A
    server that asks for a login gets it from: retinue imports login NAME

    The options of this command stand before --, those of the program behind it. The exit status is 7 if the
    hub cannot connect, and 4 if the server asks for a login.
    """
    if (url is None) == (not command):
        raise click.UsageError("give either --url URL or a command after --")
    if command and command[0].startswith(("http://", "https://")):
        raise click.UsageError(f"{command[0]} is a URL, not a command: give it as --url {command[0]}")
    if len(command) == 1 and " " in command[0] and not Path(command[0]).exists():
        raise click.UsageError(f"the command is one word: give its words one by one: -- {command[0]}")
    fields: dict[str, Any] = {"visibility": "mesh" if private else "exposed"}
    if start_s is not None:
        fields["start_s"] = start_s
    if url is not None:
        _check_url("--url", url)
        fields |= {"url": url, "headers": _pairs("--header", headers)}
        fields |= {"client_id": client_id, "client_secret": client_secret}
        fields |= {"client_metadata_url": client_metadata_url}
    else:
        fields |= {"command": command[0], "args": list(command[1:]), "env": _pairs("--env", environ)}
        fields["folder"] = str((folder or Path.cwd()).expanduser().absolute())
    _add({_check_name(name): fields}, replace=replace)


@import_.command()
@click.argument("document", metavar="DOCUMENT")
@click.option(
    "--name", help="Name of the agent; default: from the host or the file name, unless another import has it."
)
@click.option("--server", metavar="URL", help="Server to call instead of those of the document.")
@click.option(
    "--key-origin",
    "key_origins",
    metavar="URL",
    multiple=True,
    help="Origin that gets the credentials as well, beside the first server of the document.",
)
@click.option(
    "--strict", is_flag=True, help="Refuse a response that differs from the document, instead of a warning."
)
@click.option("--private", is_flag=True, help="Offer the operations to the mesh only, not to MCP clients.")
@_replace_option
def openapi(
    document: str,
    name: str | None,
    server: str | None,
    key_origins: tuple[str, ...],
    strict: bool,
    private: bool,
    replace: bool,
) -> None:
    """Import an HTTP API by its OpenAPI document, a URL or a file.

    Each operation becomes a skill. Credentials are read from variables of the hub's environment that begin
    with the name of the agent: a call without them names the variable. They go to the origin of the first
    server only, unless --key-origin names another one.
    """
    is_url = "://" in document
    place = document if is_url else str(Path(document).expanduser().absolute())
    if not is_url and not Path(place).is_file():
        raise InvalidSettingError("DOCUMENT", f"no file {place}", remedy="give a URL or a file")
    if name is None:
        stem = (urlsplit(document).hostname or "") if is_url else Path(document).stem
        name = _name_for(place, stem.lower(), replace=replace)
    fields: dict[str, Any] = {
        "openapi": place,
        "server": server,
        "strict": strict,
        "visibility": "mesh" if private else "exposed",
    }
    for url in key_origins:
        _check_url("--key-origin", url)
    if key_origins:
        fields["key_origins"] = key_origins
    _add({_check_name(name): fields}, replace=replace)


@import_.command()
@click.argument("url", metavar="URL")
@click.option("--name", help="Name of the agent; default: from the host, unless another import has it.")
@click.option("--header", "headers", metavar="K=V", multiple=True, help="Header for every request.")
@click.option("--token-env", metavar="VARIABLE", help="Variable of the hub with the bearer token to send.")
@click.option("--private", is_flag=True, help="Offer the skills to the mesh only, not to MCP clients.")
@_replace_option
def a2a(
    url: str,
    name: str | None,
    headers: tuple[str, ...],
    token_env: str | None,
    private: bool,
    replace: bool,
) -> None:
    """Import an agent that speaks A2A (Agent2Agent), 1.x or 0.3, by its URL.

    The card is read from URL/.well-known/agent-card.json, or from URL itself if it ends with .json. Its
    skills become skills of the mesh. Headers are sent to the origin of URL only; ${VARIABLE} in them is read
    from the hub's environment.
    """
    _check_url("URL", url)
    if name is None:
        name = _name_for(url, (urlsplit(url).hostname or "").lower(), replace=replace)
    pairs = _pairs("--header", headers)
    if token_env is not None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token_env):
            problem = f"{token_env[:40]!r} is not the name of a variable"
            raise InvalidSettingError("--token-env", problem, remedy="give its name, without $")
        pairs["Authorization"] = f"Bearer ${{{token_env}}}"
    fields = {"a2a": url, "headers": pairs, "visibility": "mesh" if private else "exposed"}
    _add({_check_name(name): fields}, replace=replace)


@import_.command("claude-agents")
@click.argument("names", nargs=-1, metavar="[FOLDER] [NAMES]…")
@click.option("--all", "every", is_flag=True, help="Import every agent.")
@click.option("--replace", is_flag=True, help="Replace imports of other folders that have the same names.")
def claude_agents(names: tuple[str, ...], every: bool, replace: bool) -> None:
    """List the agents in Markdown of .claude/agents, and import those that are named, or --all.

    FOLDER is a project, or the folder of the files; by default they are those of this project and of your
    home. The hub serves a copy of each, which follows the file when it is imported again.
    """
    from retinue.cli.managing.import_agents import import_agents

    import_agents(names, _list_agents, every=every, replace=replace)


def _from_client(client: str) -> click.Command:
    @click.command(
        client, hidden=True, help=f"Import servers from the configuration of {client}; NAMES, or --all."
    )
    @click.argument("names", nargs=-1)
    @click.option("--all", "every", is_flag=True, help="Import every server.")
    @click.option(
        "--project",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The servers of the project in this folder, too.",
    )
    def command(names: tuple[str, ...], every: bool, project: Path | None) -> None:
        _import_from(client, names, project, every=every)

    return command


for _client in CLIENTS:
    import_.add_command(_from_client(_client))


def _add(tables: Mapping[str, Mapping[str, Any]], *, replace: bool = False) -> None:
    """Keep imports, and show what a running hub makes of them."""
    from retinue.runtime.commands.imports import check_names
    from retinue.runtime.imports.files import read_imports, write_import
    from retinue.storage.state import find_hub_url

    session = open_session()
    read = {name: _read_table(name, fields) for name, fields in tables.items()}
    kept = read_imports(session.settings, session.state)
    check_names(session.settings, session.state, read, _list_agents(session) - kept.keys())
    for name, table in read.items():
        if name in kept and kept[name] != table:
            if not replace:
                _confirm(name, describe(kept[name]))
            say(f"{name} replaces the import of {describe(kept[name])}")
    if find_hub_url(session.state) is not None:
        say_outcomes(session, run_command(_keep_and_wait(session, read)))
        return
    for name, table in read.items():
        write_import(session.state, name, table)
    say(f"kept: {', '.join(tables)}; start the hub to run it: retinue hub")


def _confirm(name: str, former: str) -> None:
    """Ask whether an import is replaced. Raises InvalidSettingError where there is no terminal to ask at."""
    if not sys.stdin.isatty():
        raise InvalidSettingError(
            "NAME",
            f"{name!r} is the import of {former} already",
            remedy="choose another name, or replace it with --replace",
        )
    click.confirm(f"{name} is the import of {clean(former)} already. Replace it?", abort=True)


def _read_table(name: str, fields: Mapping[str, Any]) -> ImportTable:
    from pydantic import ValidationError

    from retinue.settings_tables import ImportTable

    try:
        return ImportTable.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["imports", name, *map(str, first["loc"])])
        raise InvalidSettingError(field, first["msg"], remedy="see --help") from None


def _list_agents(session: CommandSession) -> set[str]:
    """The agents of the running hub, imports included; none if no hub runs."""
    from retinue.runtime.commands.imports import list_rows
    from retinue.storage.state import find_hub_url

    async def read() -> set[str]:
        async with session.client() as client:
            return set(await list_rows(client))

    return set() if find_hub_url(session.state) is None else run_command(read())


async def _keep_and_wait(
    session: CommandSession, tables: Mapping[str, ImportTable]
) -> Sequence[ImportOutcome]:
    """Keep new imports in the state, and wait for what the hub makes of them."""
    from retinue.runtime.commands.imports import keep_and_wait

    async with session.client() as client:
        return await keep_and_wait(client, session.state, tables, say_slow(tables))


def _import_from(client: str, names: Sequence[str], project: Path | None, *, every: bool) -> None:
    from retinue.runtime.commands.connect import list_servers
    from retinue.runtime.imports.files import find_own_url

    session = open_session()
    servers = list_servers(client, project, find_own_url(session.settings, session.state))
    if not servers and not names:
        say(f"{client} has no MCP servers besides this hub")
        return
    if missing := sorted(set(names) - {server.name for server in servers}):
        raise InvalidSettingError(
            "NAMES",
            f"{client} has no server {missing[0]!r}",
            remedy=f"one of {', '.join(server.name for server in servers)}" if servers else "it has none",
        )
    chosen = [server for server in servers if every or server.name in names]
    for server in chosen:
        if server.table is None:
            if not every:
                raise InvalidSettingError(
                    "NAMES",
                    f"{server.name!r}: {server.stays}",
                    remedy="import it with retinue import mcp-server",
                )
            say(f"{server.name} is left out: {server.stays}")
    if tables := _choose_names(session, client, chosen):
        _add(tables)
    elif not chosen:
        print_table(("NAME", "CONNECTS TO"), [(server.name, _place_of(server)) for server in servers])
        say(f"import them: retinue import {client} --all, or with their names")


def _choose_names(
    session: CommandSession, client: str, chosen: Sequence[FoundServer]
) -> dict[str, Mapping[str, Any]]:
    """The new imports by name; says where a name is not that of the server, and what is imported already."""
    from retinue.runtime.commands.imports import choose_name, import_name_of
    from retinue.runtime.imports.files import read_imports

    imports = dict(read_imports(session.settings, session.state))
    agents = _list_agents(session) - imports.keys() if chosen else set()
    tables: dict[str, Mapping[str, Any]] = {}
    for server in chosen:
        if server.table is None:
            continue
        table = _read_table(server.name, server.table)
        name, is_new = choose_name(server.name, table, client, imports, agents)
        if not is_new:
            say(f"{server.name} is imported already, as {name}")
            continue
        if name != (usual := import_name_of(server.name)):
            of = f"the import of {describe(imports[usual])}" if usual in imports else "an agent"
            say(f"{server.name} becomes {name}: {usual} is {of}")
        imports[name], tables[name] = table, server.table
    return tables


def _place_of(server: FoundServer) -> str:
    if server.table is None:
        return f"- ({server.stays})"
    if url := server.table.get("url"):
        return hide_url_secrets(str(url))
    return " ".join([server.table["command"], *hide_argument_secrets(server.table["args"])])


def _check_url(field: str, url: str) -> None:
    from retinue.mcp.client_configs.servers import is_web_url

    if not is_web_url(url):
        problem = f"{url[:60]!r} is not an http or https url"
        raise InvalidSettingError(field, problem, remedy="give one such as https://mcp.example.com/mcp")


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for pair in texts:
        key, mark, value = pair.partition("=")
        if not mark or not key.strip():
            raise InvalidSettingError(
                option, f"{pair[:40]!r} is not K=V", remedy=f"write {option} NAME=value"
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _name_for(place: str, text: str, *, replace: bool) -> str:
    """The default name of an import of ``place``. Raises InvalidSettingError if another import has it."""
    from retinue.runtime.imports.files import read_imports

    name = re.sub(r"[^a-z0-9_-]+", "-", text).strip("-")[:40]
    session = open_session()
    table = read_imports(session.settings, session.state).get(name)
    if table is not None and place_of(table) != place and not replace:
        raise InvalidSettingError(
            "NAME",
            f"{name!r}, the default here, is the import of {describe(table)[:200]}",
            remedy="give another name with --name, or replace it with --replace",
        )
    return name


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSettingError(
            "NAME", f"{name[:60]!r} is not a name of an agent", remedy="use lower case, digits, - and _"
        )
    if name == "pin":
        raise InvalidSettingError("NAME", "'pin' is the name of a setting", remedy="choose another")
    return name
