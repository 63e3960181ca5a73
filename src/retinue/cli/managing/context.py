"""``retinue context``: the hubs elsewhere that commands can use."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table, warn
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.storage.contexts import ContextFile

_MAX_TOKEN_CHARACTERS = 8192


@click.group()
def context() -> None:
    """Choose the hub that commands use, on this machine or another.

    A context is the name of a hub, with its URL and a token. The context in use is the hub of all commands
    with the option --hub, unless that option or RETINUE_HUB names another. The context local is the hub of
    the state folder.
    """


@context.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--token-stdin",
    "reads_token",
    is_flag=True,
    help="Read a token of the hub from standard input; a terminal asks for it.",
)
def add(name: str, url: str, reads_token: bool) -> None:
    """Add the hub at URL under NAME.

    Name and token are kept in contexts.json in your configuration folder, readable by you only.
    """
    from retinue.storage.contexts import HubContext
    from retinue.web.addresses import is_loopback_url

    token = _read_token() if reads_token else None
    _open_file().add(name, HubContext(url, token))
    click.echo(f"{name}  {url}")
    if token is not None and url.startswith("http://") and not is_loopback_url(url):
        warn("the token goes to that hub unencrypted: use https where others can read the network")
    note(f"use it: retinue context use {name}")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME; local is the hub of the state folder."""
    chosen = _open_file().use(name)
    click.echo(f"{name}  {chosen.url if chosen is not None else 'the hub of the state folder'}")


@context.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the contexts; tokens are not shown."""
    from retinue.cli.session import find_state
    from retinue.storage.contexts import LOCAL

    contexts = _open_file().read()
    hub = find_state().read_hub()
    rows: list[dict[str, Any]] = [
        {"name": LOCAL, "url": hub and hub.url, "token": True, "in_use": contexts.current is None},
        *(
            {
                "name": name,
                "url": context.url,
                "token": context.token is not None,
                "in_use": name == contexts.current,
            }
            for name, context in contexts.by_name.items()
        ),
    ]
    if as_json:
        print_json({"contexts": rows})
        return
    print_table(
        ("NAME", "URL", "TOKEN", "IN USE"),
        [
            (
                row["name"],
                row["url"] or "no hub is running",
                "yes" if row["token"] else "no",
                "yes" if row["in_use"] else "",
            )
            for row in rows
        ],
    )


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the context NAME and its token."""
    is_current = _open_file().remove(name)
    click.echo(f"removed {name}")
    if is_current:
        note("it was in use; commands use the hub of the state folder again")


def _open_file() -> ContextFile:
    from retinue.storage.contexts import ContextFile, find_configuration_folder

    return ContextFile(find_configuration_folder(os.environ))


def _read_token() -> str:
    if sys.stdin.isatty():
        token = str(click.prompt("Token", hide_input=True, err=True)).strip()
    else:
        token = sys.stdin.read(_MAX_TOKEN_CHARACTERS + 1).strip()
    if not token or len(token) > _MAX_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise InvalidSettingError(
            "--token-stdin",
            "standard input holds no token",
            remedy="print one on the hub's machine: retinue token new --scope mesh",
        )
    return token
