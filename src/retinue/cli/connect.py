"""``retinue connect``: add the hub of this state to an MCP client's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import open_session

if TYPE_CHECKING:
    from retinue.runtime.commands.connect import Hub

NAMES = ("claude", "claude-desktop", "cursor", "vscode", "gemini", "codex", "zed")


@click.command()
@click.argument("client", type=click.Choice(NAMES), required=False, metavar="CLIENT")
@click.option("--list", "only_list", is_flag=True, help="List the clients found on this machine.")
@click.option("--print", "only_print", is_flag=True, help="Print the change without writing it.")
@click.option("--stdio", is_flag=True, help="Let the client start retinue mcp, which connects to the hub.")
@click.option("--remove", is_flag=True, help="Remove the entry.")
@click.option("--url", metavar="URL", help="URL of the hub; default: the hub of this state.")
@click.option(
    "--name", metavar="NAME", default="retinue", show_default=True, help="Name of the entry in the client."
)
@json_option
def connect(
    client: str | None,
    only_list: bool,
    only_print: bool,
    stdio: bool,
    remove: bool,
    url: str | None,
    name: str,
    as_json: bool,
) -> None:
    """Connect an MCP client to the hub.

    CLIENT is claude, claude-desktop, cursor, vscode, gemini, codex or zed. The hub is added to the
    client's configuration file. The rest of the file is left as it is, and a backup is kept next to it.
    """
    from retinue.core.errors import InvalidSettingError

    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise InvalidSettingError(
            "--name",
            f"{name[:80]!r} is not a name that every client accepts",
            remedy="use letters, digits, - and _",
        )
    if only_list:
        _list(name, as_json)
    elif client is None:
        raise click.UsageError("CLIENT is missing; list clients: retinue connect --list")
    elif as_json:
        raise click.UsageError("--json requires --list")
    elif remove:
        _remove(client, name)
    else:
        _connect(client, name, url, stdio=stdio, only_print=only_print)


def _list(name: str, as_json: bool) -> None:
    from retinue.runtime.commands.connect import list_clients

    rows = [(seen.client.name, seen.client.title, seen.status, str(seen.file)) for seen in list_clients(name)]
    if as_json:
        keys = ("client", "title", "status", "file")
        print_json({"clients": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(("CLIENT", "IS", "STATUS", "FILE"), rows)


def _remove(client_name: str, name: str) -> None:
    from retinue.mcp.client_configs.clients import get_client
    from retinue.runtime.commands.connect import disconnect, find_config

    client = get_client(client_name)
    file = find_config(client)
    changed = disconnect(client, file, name)
    if not changed.changed:
        click.echo(f"{client.title} has no entry {name!r}; nothing was changed: {clean(file)}")
        return
    click.echo(f"removed {name!r} from {client.title}: {clean(file)}")
    if changed.backup:
        note(f"backup: {changed.backup}")


def _connect(client_name: str, name: str, url: str | None, *, stdio: bool, only_print: bool) -> None:
    from retinue.mcp.client_configs.clients import get_client
    from retinue.runtime.commands.connect import (
        connect,
        find_config,
        find_hub,
        has_token,
        is_seen,
        keep_token,
        render_entry,
    )

    client = get_client(client_name)
    stdio = stdio or client.url_key is None
    if stdio and url is not None:
        raise click.UsageError("--url is for clients that connect by URL; retinue mcp finds the hub itself")
    session = open_session()
    hub = None if stdio else find_hub(session.settings, session.state, url)
    entry, file = render_entry(client, session.state, hub), find_config(client)
    if only_print:
        click.echo(client.write_entry("", name, entry, ""), nl=False)
        note(f"add this to {file}")
        if has_token(entry):
            warn("the entry contains the token of this state, which gives access to the hub; keep it secret")
        return
    if hub is not None and not hub.own:
        entry = keep_token(client, file, name, entry, session.state)
    seen = is_seen(client, file)
    changed = connect(client, file, name, entry)
    address = hub.url if hub else " ".join([entry["command"], *entry["args"]])
    if changed.changed:
        click.echo(f"added {name!r} to {client.title} ({clean(address)}): {clean(file)}")
        if changed.backup:
            note(f"backup: {changed.backup}")
    else:
        click.echo(
            f"{client.title} already has {name!r} ({clean(address)}); nothing was changed: {clean(file)}"
        )
    if not seen:
        note(f"{client.title} was not found on this machine; it reads the entry once it is installed")
    _echo_next(client.next_step, hub, has_token=has_token(entry))


def _echo_next(step: str, hub: Hub | None, *, has_token: bool) -> None:
    """Print the next steps, here and in the client."""
    if hub is not None and not hub.own:
        if not has_token:
            warn(
                "the hub is not the hub of this state; no token was written: add the hub's token to the entry"
            )
    elif hub is not None and not hub.running:
        click.echo("start the hub: retinue hub")
    click.echo(f"then: {step}")
