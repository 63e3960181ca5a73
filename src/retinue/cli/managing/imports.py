"""``retinue import`` and ``retinue imports``: MCP servers, HTTP APIs and A2A agents in this state's hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, print_json, print_table
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.cli.session import Session
    from retinue.mcp.client_configs.servers import FoundServer
    from retinue.runtime.commands.importing import Outcome
    from retinue.settings_tables import ImportTable

CLIENTS = ("claude", "claude-desktop", "cursor", "vscode", "gemini", "codex", "zed")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@click.group("import")
def import_() -> None:
    """Import an MCP server, an HTTP API or an A2A agent.

    The hub runs the server, and its tools become skills. mcp-server imports one by its command or URL,
    openapi an HTTP API by its document, a2a an agent by the URL of its A2A card. claude, claude-desktop,
    cursor, vscode, gemini, codex and zed list the servers in the configuration of that client, and import
    those that are named, or --all.
    """


@import_.command("mcp-server", context_settings={"ignore_unknown_options": True})
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
@click.option("--private", is_flag=True, help="Offer the tools to the mesh only, not to MCP clients.")
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
    private: bool,
) -> None:
    """Import one MCP server as the agent NAME.

    \b
    retinue import mcp-server files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
    retinue import mcp-server docs --url https://mcp.example.com/mcp --header 'Authorization=Bearer ${TOKEN}'

    ${VARIABLE} in a header or variable is read from the hub's environment when the server is started. A
    server that asks for a login gets it from: retinue imports login NAME
    """
    if (url is None) == (not command):
        raise click.UsageError("give either --url URL or a command after --")
    if command and command[0].startswith(("http://", "https://")):
        raise click.UsageError(f"{command[0]} is a URL, not a command: give it as --url {command[0]}")
    found: dict[str, Any] = {"visibility": "mesh" if private else "exposed"}
    if url is not None:
        found |= {"url": url, "headers": _pairs("--header", headers)}
        found |= {"client_id": client_id, "client_secret": client_secret}
        found |= {"client_metadata_url": client_metadata_url}
    else:
        found |= {"command": command[0], "args": list(command[1:]), "env": _pairs("--env", environ)}
        found["folder"] = str((folder or Path.cwd()).expanduser().absolute())
    _add({_check_name(name): found})


@import_.command()
@click.argument("document", metavar="DOCUMENT")
@click.option(
    "--name", help="Name of the agent; default: from the host or the file name, unless another import has it."
)
@click.option("--server", metavar="URL", help="Server to call instead of those of the document.")
@click.option(
    "--strict", is_flag=True, help="Refuse a response that differs from the document, instead of a warning."
)
@click.option("--private", is_flag=True, help="Offer the operations to the mesh only, not to MCP clients.")
def openapi(document: str, name: str | None, server: str | None, strict: bool, private: bool) -> None:
    """Import an HTTP API by its OpenAPI document, a URL or a file.

    Each operation becomes a skill. Credentials are read from variables of the hub's environment that begin
    with the name of the agent: a call without them names the variable.
    """
    is_url = "://" in document
    place = document if is_url else str(Path(document).expanduser().absolute())
    if not is_url and not Path(place).is_file():
        raise InvalidSettingError("DOCUMENT", f"no file {place}", remedy="give a URL or a file")
    if name is None:
        stem = (urlsplit(document).hostname or "") if is_url else Path(document).stem
        name = _name_for(place, stem.lower())
    found = {
        "openapi": place,
        "server": server,
        "strict": strict,
        "visibility": "mesh" if private else "exposed",
    }
    _add({_check_name(name): found})


@import_.command()
@click.argument("url", metavar="URL")
@click.option("--name", help="Name of the agent; default: from the host, unless another import has it.")
@click.option("--header", "headers", metavar="K=V", multiple=True, help="Header for every request.")
@click.option("--token-env", metavar="VARIABLE", help="Variable of the hub with the bearer token to send.")
@click.option("--private", is_flag=True, help="Offer the skills to the mesh only, not to MCP clients.")
def a2a(url: str, name: str | None, headers: tuple[str, ...], token_env: str | None, private: bool) -> None:
    """Import an agent that speaks A2A (Agent2Agent), 1.x or 0.3, by its URL.

    The card is read from URL/.well-known/agent-card.json, or from URL itself if it ends with .json. Its
    skills become skills of the mesh. Headers are sent to the origin of URL only; ${VARIABLE} in them is read
    from the hub's environment.
    """
    host = _host_of(url)
    if name is None:
        name = _name_for(url, host)
    pairs = _pairs("--header", headers)
    if token_env is not None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", token_env):
            problem = f"{token_env[:40]!r} is not the name of a variable"
            raise InvalidSettingError("--token-env", problem, remedy="give its name, without $")
        pairs["Authorization"] = f"Bearer ${{{token_env}}}"
    found = {"a2a": url, "headers": pairs, "visibility": "mesh" if private else "exposed"}
    _add({_check_name(name): found})


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        host = None
    if host is None:
        raise InvalidSettingError(
            "URL", f"{url[:60]!r} is no http or https url", remedy="give one such as http://127.0.0.1:8001"
        )
    return host.lower()


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


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def imports(context: click.Context, as_json: bool) -> None:
    """List the imported servers, accept their changes, remove them."""
    if context.invoked_subcommand is None:
        _list(as_json)


@imports.command()
@click.argument("name")
def accept(name: str) -> None:
    """Accept the tools of NAME that have changed or are new."""
    from retinue.runtime.commands.importing import unknown_import
    from retinue.runtime.importing.imports import open_pins, read_imports

    session = open_session()
    if name not in read_imports(session.settings, session.state):
        raise unknown_import(name)
    names = open_pins(session.settings, session.state).accept(name)
    _say(f"accepted: {', '.join(map(clean, names))}" if names else "nothing waits to be accepted")


@imports.command()
@click.argument("name")
@click.option("--no-browser", is_flag=True, help="Print the address of the login only.")
@click.option(
    "--timeout", type=float, default=300.0, show_default=True, metavar="S", help="Time for the login."
)
@click.option(
    "--scope",
    metavar="SCOPES",
    help="Rights to ask for, besides those of the present login; separated by spaces.",
)
def login(name: str, no_browser: bool, timeout: float, scope: str | None) -> None:
    """Log in at the server of NAME with the browser (OAuth).

    The address of the login is printed, and opened where there is a browser. The browser comes back to a
    port of this machine; on a remote machine, forward it: ssh -L PORT:127.0.0.1:PORT
    """
    from retinue.runtime.commands.importing import unknown_import
    from retinue.runtime.importing.browser_login import log_in, show_page
    from retinue.runtime.importing.imports import read_imports
    from retinue.runtime.importing.logins import LoginFile
    from retinue.settings import environment
    from retinue.storage.state import find_hub_url

    session = open_session()
    table = read_imports(session.settings, session.state).get(name)
    if table is None:
        raise unknown_import(name)
    if table.url is None:
        raise InvalidSettingError(name, "it has no url", remedy="only servers over HTTP ask for a login")
    if any(key.lower() == "authorization" for key in table.headers):
        raise InvalidSettingError(
            name, "its headers have a token already", remedy="import it again without the header"
        )
    file = LoginFile(session.state, name, table.url)
    found = run_command(
        log_in(
            name,
            table,
            session.settings,
            environment(),
            show=lambda page: show_page(page, _say, browser=not no_browser),
            timeout_s=timeout,
            scope=None if scope is None else file.add_scopes(scope),
        )
    )
    if find_hub_url(session.state) is None:
        file.write(found)
        _say(f"logged in at {name}; start the hub to use it: retinue hub")
        return

    async def keep() -> None:
        from retinue.runtime.commands.importing import list_rows, wait_for_hub

        async with session.client() as client:
            before = await list_rows(client)
            file.write(found)
            _say_outcomes(await wait_for_hub(client, {name: table}, before))

    run_command(keep())


@imports.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove an import; its program is stopped."""
    from retinue.runtime.commands.importing import remove_import

    session = open_session()
    remove_import(session.settings, session.state, name)
    _say(f"removed {name}")


def _add(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep imports, and show what a running hub makes of them."""
    from pydantic import ValidationError

    from retinue.runtime.importing.imports import write_import
    from retinue.settings_tables import ImportTable
    from retinue.storage.state import find_hub_url

    session = open_session()
    read: dict[str, ImportTable] = {}
    for name, found in tables.items():
        try:
            read[name] = ImportTable.model_validate(found)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise InvalidSettingError(f"import {name}", problem, remedy="see --help") from None
    if find_hub_url(session.state) is not None:
        run_command(_keep_and_wait(session, read))
        return
    for name, table in read.items():
        write_import(session.state, name, table)
    _say(f"kept: {', '.join(tables)}; start the hub to run it: retinue hub")


async def _keep_and_wait(session: Session, tables: Mapping[str, ImportTable]) -> None:
    """Keep new imports in the state, and print the tools of each, or why there are none."""
    from retinue.runtime.commands.importing import keep_and_wait

    async with session.client() as client:
        _say_outcomes(await keep_and_wait(client, session.state, tables))


def _say_outcomes(outcomes: Sequence[Outcome]) -> None:
    for one in outcomes:
        if one.problem:
            _say(f"{one.name} is kept, but does not run: {clean(one.problem)}")
        elif not one.is_listed:
            _say(f"{one.name}: the hub does not list it yet; look again: retinue imports")
        else:
            shown = f"{', '.join(one.skills[:8])}{' …' * (len(one.skills) > 8)}"
            _say(f"{one.name}: {len(one.skills)} skills: {clean(shown)}")


def _import_from(client: str, names: Sequence[str], project: Path | None, *, every: bool) -> None:
    from retinue.runtime.commands.connect import list_servers
    from retinue.runtime.commands.moved_servers import import_name_of

    found = list_servers(client, project)
    if not found:
        _say(f"{client} has no MCP servers besides this hub")
        return
    if missing := sorted(set(names) - {one.name for one in found}):
        raise InvalidSettingError(
            "NAMES",
            f"{client} has no server {missing[0]!r}",
            remedy=f"one of {', '.join(one.name for one in found)}",
        )
    chosen = [one for one in found if every or one.name in names]
    for one in chosen:
        if one.table is None:
            if not every:
                raise InvalidSettingError(
                    "NAMES", f"{one.name!r}: {one.stays}", remedy="import it with retinue import mcp-server"
                )
            _say(f"{one.name} is left out: {one.stays}")
    tables = {import_name_of(one.name): one.table for one in chosen if one.table is not None}
    if tables:
        _add(tables)
    elif not chosen:
        print_table(("NAME", "CONNECTS TO"), [(one.name, _place_of(one)) for one in found])
        _say(f"import them: retinue import {client} --all, or with their names")


def _place_of(server: FoundServer) -> str:
    if server.table is None:
        return f"- ({server.stays})"
    return str(server.table.get("url") or " ".join([server.table["command"], *server.table["args"]]))


def _list(as_json: bool) -> None:
    from retinue.runtime.importing.imports import open_pins, read_imports
    from retinue.storage.state import find_hub_url

    session = open_session()
    kept = read_imports(session.settings, session.state)
    pins = open_pins(session.settings, session.state)
    runs = find_hub_url(session.state) is not None
    states = run_command(_read_states(session)) if kept and runs else {}
    rows = [
        {
            "name": name,
            "connects_to": _describe(table),
            "status": states.get(name, ("-", ""))[0],
            "problem": states.get(name, ("-", ""))[1],
            "waiting": list(pins.list_waiting(name)),
        }
        for name, table in kept.items()
    ]
    if as_json:
        print_json({"imports": rows})
    elif not rows:
        _say("no imports; add one: retinue import mcp-server NAME -- COMMAND")
    else:
        shown = [
            (
                row["name"],
                row["connects_to"],
                row["problem"] or row["status"],
                ", ".join(row["waiting"]) or "-",
            )
            for row in rows
        ]
        print_table(("NAME", "CONNECTS TO", "STATUS", "TO ACCEPT"), shown)


async def _read_states(session: Session) -> dict[str, tuple[str, str]]:
    """Status and problem of every agent, as the running hub knows them."""
    from retinue.runtime.commands.importing import list_rows

    async with session.client() as client:
        rows = await list_rows(client)
    return {name: (str(row["status"]), str(row.get("last_error") or "")) for name, row in rows.items()}


def _describe(table: ImportTable) -> str:
    return table.url or table.openapi or table.a2a or " ".join([table.command or "", *table.args])


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        key, mark, value = pair.partition("=")
        if not mark or not key.strip():
            raise InvalidSettingError(
                option, f"{pair[:40]!r} is not K=V", remedy=f"write {option} NAME=value"
            )
        found[key.strip()] = value.strip()
    return found


def _name_for(place: str, text: str) -> str:
    """The name for an import of ``place`` that nobody named; raises if it is that of another one."""
    from retinue.runtime.importing.imports import read_imports

    name = re.sub(r"[^a-z0-9_-]+", "-", text).strip("-")[:40]
    session = open_session()
    table = read_imports(session.settings, session.state).get(name)
    if table is not None and _describe(table) != place:
        raise InvalidSettingError(
            "NAME",
            f"{name!r}, the default here, is the import of {_describe(table)[:200]}",
            remedy="give another name with --name",
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


def _say(text: str) -> None:
    click.echo(clean(text))
