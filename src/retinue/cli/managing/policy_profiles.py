"""``retinue policy profiles``, ``add``, ``remove`` and ``mode``: policies that are ready to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import ask_hub, find_state, open_session

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession


@click.command()
@json_option
def profiles(as_json: bool) -> None:
    """List the policies that are ready to use."""
    from retinue.policies.profiles import list_profiles

    known = list_profiles()
    if as_json:
        print_json({"profiles": [{"name": name, "description": text} for name, text in known.items()]})
    else:
        print_table(("PROFILE", "WHAT IT DOES"), list(known.items()))


@click.command()
@click.argument("profile")
@click.option(
    "--for", "caller", metavar="NAME", help="Only for this token, agent or id, such as jwt:ann@b.c."
)
@click.option("--watch", "is_watched", is_flag=True, help="Only record what the policies would decide.")
def add(profile: str, caller: str | None, is_watched: bool) -> None:
    """Store the policies of PROFILE in the state folder, where they apply within a second.

    The file is yours to edit. Without --for, they are for every caller.
    """
    file = store_profile(open_session(), profile, caller, is_watched=is_watched)
    click.echo(clean(file))


@click.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the file policies/NAME.cedar of the state folder."""
    from retinue.runtime.loading.policy_files import remove_policies

    click.echo(f"removed {clean(str(remove_policies(find_state().root, name)))}")


@click.command()
@click.argument("mode", required=False, type=click.Choice(["off", "watch", "enforce", "settings"]))
@hub_option
@json_option
def mode(mode: str | None, hub: str | None, as_json: bool) -> None:
    """Show or set what policies do: off, watch or enforce.

    The mode applies to all processes of the hub's state folder within a second, and over restarts, instead of
    policy.mode. With settings, policy.mode counts again.
    """
    reply = ask_hub("set_policy_mode", {} if mode is None else {"mode": mode}, hub, as_owner=True)
    if as_json:
        print_json(reply)
    else:
        click.echo(reply["mode"])
        note("set by retinue policy mode" if reply["is_set"] else "set by policy.mode")


def store_profile(
    session: CommandSession, profile: str, caller: str | None, *, is_watched: bool = False
) -> str:
    """Store a profile for a caller; returns the path of its file. Raises InvalidSettingError."""
    from retinue.runtime.loading.policy_files import PolicyFiles, check_library, store_policies

    check_library([])
    from retinue.policies.profiles import make_profile

    made = make_profile(profile, None if caller is None else name_caller(caller), is_watched=is_watched)
    table = session.settings.policy
    files = PolicyFiles.of(session.state.root, table)
    return str(store_policies(files, table, made.file, made.text))


def name_caller(name: str) -> str:
    """The id of a caller: that of the token with this name, if there is one; else the name is an id."""
    from retinue.web.issued_tokens import TokenFile

    is_token = ":" not in name and TokenFile(find_state().keys).identifies(f"token:{name}")
    return f"token:{name}" if is_token else name
