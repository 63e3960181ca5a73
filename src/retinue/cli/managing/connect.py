"""``retinue connect``: add the hub of this state to an MCP client's configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import find_state, open_session, run_command

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession
    from retinue.mcp.client_configs.clients import Client
    from retinue.runtime.commands.connect import HubTarget
    from retinue.runtime.commands.moved_servers import MovePlan, RestoredFile

DEFAULT_NAME = "retinue"
NO_POLICY = "none"
"""In the place of a profile: without policies of its own."""

NAMES = ("claude", "claude-desktop", "cursor", "vscode", "gemini", "codex", "zed")


@click.command()
@click.argument("client", type=click.Choice(NAMES), required=False, metavar="CLIENT")
@click.option("--list", "only_list", is_flag=True, help="List the clients found on this machine.")
@click.option("--print", "only_print", is_flag=True, help="Print the change without writing it.")
@click.option("--stdio", is_flag=True, help="Let the client start retinue mcp, which connects to the hub.")
@click.option(
    "--replace", is_flag=True, help="Move the client's servers into the mesh: import them, and leave the hub."
)
@click.option(
    "--keep", metavar="NAME", multiple=True, help="With --replace: leave this server in the client."
)
@click.option(
    "--project",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --replace: move the servers of the project in this folder, too.",
)
@click.option("--yes", is_flag=True, help="With --replace: do not ask.")
@click.option("--remove", is_flag=True, help="Remove the entry, and put moved servers back.")
@click.option(
    "--policy",
    "policies",
    metavar="PROFILE",
    multiple=True,
    help="Give the client a token of its own and these policies (retinue policy profiles); repeatable. "
    "none takes both away.",
)
@click.option("--url", metavar="URL", help="URL of the hub; default: the hub of this state.")
@click.option(
    "--name", metavar="NAME", default=DEFAULT_NAME, show_default=True, help="Name of the entry in the client."
)
@json_option
def connect(
    client: str | None,
    only_list: bool,
    only_print: bool,
    stdio: bool,
    replace: bool,
    keep: tuple[str, ...],
    project: Path | None,
    yes: bool,
    remove: bool,
    policies: tuple[str, ...],
    url: str | None,
    name: str,
    as_json: bool,
) -> None:
    """Connect an MCP client to the hub.

    CLIENT is claude, claude-desktop, cursor, vscode, gemini, codex or zed. The hub is added to the
    client's configuration file. The rest of the file is left as it is, and a backup is kept next to it.
    --replace imports the client's other servers into the mesh and leaves the client with the hub alone;
    --remove puts everything back.
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
    elif NO_POLICY in policies and len(policies) > 1:
        raise click.UsageError("--policy none goes with no other profile")
    elif policies and (stdio or remove or replace or url is not None):
        raise click.UsageError("--policy goes with none of --stdio, --remove, --replace and --url")
    elif not replace and (keep or project or yes):
        raise click.UsageError("--keep, --project and --yes are for --replace")
    elif replace:
        if remove or url is not None:
            raise click.UsageError("--replace goes with neither --remove nor --url")
        _replace(client, name, project, keep, stdio=stdio, only_print=only_print, yes=yes)
    elif remove:
        _remove(client, name)
    else:
        _connect(client, name, url, stdio=stdio, only_print=only_print, policies=policies)


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
    from retinue.runtime.commands.connect import disconnect, drop_needless_backups, find_config, moves_file

    client = get_client(client_name)
    file = find_config(client)
    restored: list[RestoredFile] = []
    imports: list[str] = []
    if moves_file(find_state(), client).exists():
        # imported here: it loads what imports need, and most clients were only connected
        from retinue.runtime.commands.moved_servers import list_names, restore

        session = open_session()
        for other in list_names(session.state, client):
            if other != name:
                warn(
                    f"servers were moved under the name {other!r}; they come back with: "
                    f"retinue connect {client.name} --remove --name {other}"
                )
        restored, imports = restore(session.settings, session.state, client, name)
    for server in restored:
        if server.names:
            click.echo(f"put back {clean(', '.join(server.names))}: {clean(server.file)}")
        if server.kept:
            click.echo(f"kept as added since: {clean(', '.join(server.kept))}: {clean(server.file)}")
    if imports:
        click.echo(f"removed from the mesh: {clean(', '.join(imports))}")
    _revoke_token(client, file, name)
    changed = disconnect(client, file, name)
    if changed.changed or restored:
        click.echo(f"removed {name!r} from {client.title}: {clean(file)}")
    else:
        click.echo(f"{client.title} has no entry {name!r}; nothing was changed: {clean(file)}")
    for path in {file, *(server.file for server in restored)}:
        drop_needless_backups(client, path)


def _revoke_token(client: Client, file: Path, name: str) -> None:
    """Revoke the token in an entry that is to be removed; the policies of the client stay."""
    from retinue.runtime.commands.client_policies import list_client_profiles, revoke_client_token

    state = find_state()
    issued = revoke_client_token(client, file, name, state)
    if issued is not None:
        click.echo(f"revoked token {issued.id} of token:{client.name}")
        for profile in list_client_profiles(state, client):
            note(f"its policy stays: retinue policy remove {profile}-token-{client.name}")


def _replace(
    client_name: str,
    name: str,
    project: Path | None,
    keep: tuple[str, ...],
    *,
    stdio: bool,
    only_print: bool,
    yes: bool,
) -> None:
    """Move the servers of a client into the mesh, after showing what happens."""
    from retinue.mcp.client_configs.clients import get_client
    from retinue.runtime.commands.connect import find_config, find_hub, render_entry

    client = get_client(client_name)
    session = open_session()
    hub = None if stdio or client.url_key is None else find_hub(session.settings, session.state)
    entry = render_entry(client, session.state, hub)
    if (token := _find_own_token(session, client, find_config(client), name, hub)) and hub is not None:
        entry = client.render_http(hub.url, token)

    async def work() -> bool:
        from retinue.core.errors import StateError
        from retinue.runtime.commands.moved_servers import move, plan_move

        async with session.client() as mesh:
            if mesh.hub_url is None:
                raise StateError(
                    "no hub runs, and a server is moved only after it has started in the mesh",
                    remedy="start it: retinue hub; then try again",
                )
            plan = await plan_move(
                mesh,
                session.settings,
                session.state,
                client,
                hub_name=name,
                hub_entry=entry,
                project=project,
                keep=keep,
            )
            _show_plan(plan)
            if only_print or not plan.moving or not _ask(yes=yes):
                return bool(not plan.moving and not only_print)
            for changed in await move(mesh, session.settings, session.state, plan):
                click.echo(f"changed: {clean(changed.path)}")
                if changed.backup:
                    note(f"backup: {changed.backup}")
            named = "" if name == DEFAULT_NAME else f" --name {name}"
            click.echo(f"put everything back with: retinue connect {client.name} --remove{named}")
            click.echo(f"then: {client.next_step}")
            note(
                "with more than 40 tools the list shows the hub's own only: a permission of the client for "
                "call_read_only_skill is for every skill marked read-only, one for call_skill for every "
                "skill; keep tools in the list with hub.listed in retinue.toml"
            )
            return False

    if run_command(work()):
        _connect(client_name, name, None, stdio=stdio, only_print=False)


def _show_plan(plan: MovePlan) -> None:
    rows = []
    for server in plan.moving:
        how = server.table.url or " ".join([server.table.command or "", *server.table.args])
        rows.append(
            (server.name, f"agent {server.import_name}{'' if server.is_new else ' (imported already)'}", how)
        )
    rows += [(name, f"stays: {reason}", "-") for name, reason in plan.stays]
    if rows:
        print_table(("SERVER", "BECOMES", "CONNECTS TO"), rows)
    if not plan.moving:
        click.echo(f"{plan.client.title} has no server to move")
        return
    for file in plan.files:
        click.echo(f"changes: {clean(file)}")
    if len(plan.files) > 1 and any(server.place.folder for server in plan.moving):
        note("the file of a project may be shared with others; the hub stands in your own configuration only")


def _ask(*, yes: bool) -> bool:
    """Whether to go on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("--replace asks before it changes something; without a terminal, add --yes")
    return click.confirm("Move them?", default=False)


def _connect(
    client_name: str,
    name: str,
    url: str | None,
    *,
    stdio: bool,
    only_print: bool,
    policies: tuple[str, ...] = (),
) -> None:
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
    if stdio and policies:
        raise click.UsageError(f"{client.title} starts programs only, which have the token of this state")
    session = open_session()
    hub = None if stdio else find_hub(session.settings, session.state, url)
    entry, file = render_entry(client, session.state, hub), find_config(client)
    if NO_POLICY in policies:
        _drop_policies(session, client, file, name, only_print=only_print)
    elif hub is not None and policies:
        token = _give_policies(session, client, file, name, policies, only_print=only_print)
        entry = client.render_http(hub.url, token)
    elif own := _find_own_token(session, client, file, name, hub, only_print=only_print):
        assert hub is not None
        entry = client.render_http(hub.url, own)
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


def _give_policies(
    session: CommandSession,
    client: Client,
    file: Path,
    name: str,
    policies: tuple[str, ...],
    *,
    only_print: bool,
) -> str:
    """The client's own token, after its policies are stored; a command that only prints stores nothing."""
    from retinue.cli.managing.policy_profiles import store_profile
    from retinue.runtime.commands.client_policies import take_client_token

    if only_print:
        return "TOKEN"
    # before the token, so that no client is without its policies
    for profile in policies:
        stored = store_profile(session, profile, f"token:{client.name}")
        click.echo(f"policy {profile}: {clean(stored)}")
    token, issued = take_client_token(client, file, name, session.state)
    if issued is not None:
        click.echo(f"token {issued.id} for token:{client.name}")
    return token


def _find_own_token(
    session: CommandSession,
    client: Client,
    file: Path,
    name: str,
    hub: HubTarget | None,
    *,
    only_print: bool = False,
) -> str:
    """The client's own token, which it keeps with its policies; "" for a client without policies.

    Raises UsageError for an entry that would have the token of this state instead.
    """
    from retinue.runtime.commands.client_policies import (
        find_client_token,
        list_client_profiles,
        take_client_token,
    )

    if hub is not None and not hub.own:
        return ""
    profiles = list_client_profiles(session.state, client)
    token = find_client_token(client, file, name, session.state)
    if not profiles and token is None:
        return ""
    shown = f"{clean(', '.join(profiles)) or 'a token of its own'}"
    if hub is None:
        raise click.UsageError(
            f"{client.title} has {shown}, and a program has the token of this state; "
            f"take it away first: retinue connect {client.name} --policy {NO_POLICY}"
        )
    note(f"{client.title} keeps {shown}; take it away with --policy {NO_POLICY}")
    if only_print:
        return "TOKEN"
    return token or take_client_token(client, file, name, session.state)[0]


def _drop_policies(
    session: CommandSession, client: Client, file: Path, name: str, *, only_print: bool
) -> None:
    from retinue.runtime.commands.client_policies import drop_client_policies

    if only_print:
        return
    for profile in drop_client_policies(client, file, name, session.state):
        click.echo(f"removed policy {profile} of token:{client.name}")


def _echo_next(step: str, hub: HubTarget | None, *, has_token: bool) -> None:
    """Print the next steps, here and in the client."""
    if hub is not None and not hub.own:
        if not has_token:
            warn(
                "the hub is not the hub of this state; no token was written: add the hub's token to the entry"
            )
    elif hub is not None and not hub.running:
        click.echo("start the hub: retinue hub")
    click.echo(f"then: {step}")
