"""``retinue import`` and ``retinue imports``: MCP servers and HTTP APIs as agents of this state's hub."""

from __future__ import annotations

import asyncio
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
    from retinue.runtime.commands.client import Client
    from retinue.settings import ImportTable

CLIENTS = ("claude", "claude-desktop", "cursor", "vscode", "gemini", "codex", "zed")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_WAIT_S = 60.0
"""How long the command waits for the hub to connect to a new import."""
_NOTICED_WITHIN_S = 3.0
"""After this time the hub has seen the file, even if the server looks the same as before."""
_PAGE = 100


@click.group("import")
def import_() -> None:
    """Import an MCP server or an HTTP API as an agent.

    The hub runs the server, and its tools become skills. mcp-server imports one by its command or URL,
    openapi an HTTP API by its document. claude, claude-desktop, cursor, vscode, gemini, codex and zed list
    the servers in the configuration of that client, and import those that are named, or --all.
    """


@import_.command("mcp-server", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", metavar="URL", help="URL of a server that runs already, instead of a command.")
@click.option("--header", "headers", metavar="K=V", multiple=True, help="Header for every request.")
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
    environ: tuple[str, ...],
    folder: Path | None,
    private: bool,
) -> None:
    """Import one MCP server as the agent NAME.

    \b
    retinue import mcp-server files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
    retinue import mcp-server docs --url https://mcp.example.com/mcp --header 'Authorization=Bearer ${TOKEN}'

    ${VARIABLE} in a header or variable is read from the hub's environment when the server is started.
    """
    if (url is None) == (not command):
        raise click.UsageError("give either --url URL or a command after --")
    found: dict[str, Any] = {"visibility": "mesh" if private else "exposed"}
    if url is not None:
        found |= {"url": url, "headers": _pairs("--header", headers)}
    else:
        found |= {"command": command[0], "args": list(command[1:]), "env": _pairs("--env", environ)}
        found["folder"] = str((folder or Path.cwd()).expanduser().absolute())
    _add({_check_name(name): found})


@import_.command()
@click.argument("document", metavar="DOCUMENT")
@click.option("--name", help="Name of the agent; default: from the host or the file name.")
@click.option("--server", metavar="URL", help="Server to call instead of those of the document.")
@click.option("--private", is_flag=True, help="Offer the operations to the mesh only, not to MCP clients.")
def openapi(document: str, name: str | None, server: str | None, private: bool) -> None:
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
        name = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-")[:40]
    found = {"openapi": place, "server": server, "visibility": "mesh" if private else "exposed"}
    _add({_check_name(name): found})


def _from_client(client: str) -> click.Command:
    @click.command(
        client, hidden=True, help=f"Import servers from the configuration of {client}; NAMES, or --all."
    )
    @click.argument("names", nargs=-1)
    @click.option("--all", "every", is_flag=True, help="Import every server.")
    def command(names: tuple[str, ...], every: bool) -> None:
        _import_from(client, names, every=every)

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
    from retinue.runtime.imports import open_pins, read_imports

    session = open_session()
    if name not in read_imports(session.settings, session.state):
        raise _unknown(name)
    names = open_pins(session.settings, session.state).accept(name)
    _say(f"accepted: {', '.join(map(clean, names))}" if names else "nothing waits to be accepted")


@imports.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove an import; its program is stopped."""
    from retinue.runtime.imports import open_pins, read_imports, write_import

    session = open_session()
    if name not in read_imports(session.settings, session.state):
        raise _unknown(name)
    if name in session.settings.imports.servers:
        raise InvalidSettingError(
            f"imports.{name}", "it is set in retinue.toml", remedy="remove the table there"
        )
    write_import(session.state, name, None)
    open_pins(session.settings, session.state).forget(name)
    _say(f"removed {name}")


def _add(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep imports, and show what a running hub makes of them."""
    from pydantic import ValidationError

    from retinue.runtime.imports import write_import
    from retinue.settings import ImportTable
    from retinue.storage.state import find_hub_url

    session = open_session()
    runs = find_hub_url(session.state) is not None
    for name, found in tables.items():
        try:
            table = ImportTable.model_validate(found)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise InvalidSettingError(f"import {name}", problem, remedy="see --help") from None
        if runs:
            run_command(_keep_and_wait(session, name, table))
        else:
            write_import(session.state, name, table)
    if not runs:
        _say(f"kept: {', '.join(tables)}; start the hub to run it: retinue hub")


async def _read_row(client: Client, name: str) -> dict[str, Any] | None:
    found = await client.get("list_agents", {"query": "", "limit": _PAGE})
    return next((one for one in found["agents"] if one["name"] == name), None)


async def _keep_and_wait(session: Session, name: str, table: ImportTable) -> None:
    """Keep a new import in the state, and print its tools, or why there are none."""
    from retinue.runtime.imports import write_import

    async with session.client() as client:
        before = await _read_row(client, name)
        write_import(session.state, name, table)
        began = asyncio.get_running_loop().time()
        while True:
            row = await _read_row(client, name)
            waited_s = asyncio.get_running_loop().time() - began
            is_news = row != before or waited_s > _NOTICED_WITHIN_S
            if is_news and row is not None and row["status"] in ("available", "unavailable"):
                break
            if waited_s > _WAIT_S:
                break
            await asyncio.sleep(0.2)
    if row is None:
        _say(f"{name}: the hub does not list it yet; look again: retinue imports")
    elif row["status"] == "unavailable":
        _say(f"{name} is kept, but does not run: {clean(str(row.get('last_error') or 'no reason given'))}")
    else:
        skills = [str(one) for one in row.get("skills", ())]
        _say(f"{name}: {len(skills)} skills: {clean(', '.join(skills[:8]))}{' …' * (len(skills) > 8)}")


def _import_from(client: str, names: Sequence[str], *, every: bool) -> None:
    from retinue.runtime.commands.connect import list_servers

    found = list_servers(client)
    if not found:
        _say(f"{client} has no MCP servers besides this hub")
        return
    chosen = {name: table for name, table in found.items() if every or name in names}
    if missing := [name for name in names if name not in found]:
        raise InvalidSettingError(
            "NAMES", f"{client} has no server {missing[0]!r}", remedy=f"one of {', '.join(found)}"
        )
    if not chosen:
        rows = [
            (name, table.get("url") or " ".join([table["command"], *table["args"]]))
            for name, table in found.items()
        ]
        print_table(("NAME", "CONNECTS TO"), rows)
        _say(f"import them: retinue import {client} --all, or with their names")
        return
    _add({_check_name(re.sub(r"[^a-z0-9_-]", "-", name.lower())): table for name, table in chosen.items()})


def _list(as_json: bool) -> None:
    from retinue.runtime.imports import open_pins, read_imports

    session = open_session()
    kept = read_imports(session.settings, session.state)
    pins = open_pins(session.settings, session.state)
    waiting = {name: list(pins.list_waiting(name)) for name in kept}
    rows = [
        {"name": name, "connects_to": _describe(table), "waiting": waiting[name]}
        for name, table in kept.items()
    ]
    if as_json:
        print_json({"imports": rows})
    elif not rows:
        _say("no imports; add one: retinue import mcp-server NAME -- COMMAND")
    else:
        shown = [(row["name"], row["connects_to"], ", ".join(row["waiting"]) or "-") for row in rows]
        print_table(("NAME", "CONNECTS TO", "TO ACCEPT"), shown)


def _describe(table: ImportTable) -> str:
    return table.url or table.openapi or " ".join([table.command or "", *table.args])


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


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSettingError(
            "NAME", f"{name[:60]!r} is not a name of an agent", remedy="use lower case, digits, - and _"
        )
    if name == "pin":
        raise InvalidSettingError("NAME", "'pin' is the name of a setting", remedy="choose another")
    return name


def _unknown(name: str) -> InvalidSettingError:
    return InvalidSettingError(
        "NAME", f"no import is called {name[:60]!r}", remedy="list them: retinue imports"
    )


def _say(text: str) -> None:
    click.echo(clean(text))
