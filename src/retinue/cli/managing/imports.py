"""``retinue imports``: list the imports, accept their changes, log in and out, remove one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError
from retinue.core.text import hide_argument_secrets, hide_url_secrets

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession
    from retinue.runtime.commands.imports import ImportOutcome
    from retinue.settings_tables import ImportTable

_SHOWN_LINES = 400
_SHOWN_NAMES = 8


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def imports(context: click.Context, as_json: bool) -> None:
    """List the imported servers, accept their changes, log in and out, remove them."""
    if context.invoked_subcommand is None:
        _list(as_json)


@imports.command()
@click.argument("name")
@click.option("--show", is_flag=True, help="Show the changes, and accept nothing.")
def accept(name: str, show: bool) -> None:
    """Accept the tools of NAME that have changed or are new."""
    from retinue.mesh.pins import describe_change
    from retinue.runtime.commands.imports import unknown_import
    from retinue.runtime.imports.files import find_members, open_pins

    session = open_session()
    members = find_members(session.settings, session.state, name)
    if not members:
        raise unknown_import(name)
    pins = open_pins(session.settings, session.state)
    changes = [change for member in members for change in pins.list_changes(member.pinned).items()]
    if show and changes:
        for tool, (before, after) in changes:
            say(f"{tool}, {'new' if before is None else 'changed'}:")
            for line in describe_change(before, after, lines=_SHOWN_LINES).splitlines():
                say(line)
        return
    names = [] if show else [tool for member in members for tool in pins.accept(member.pinned)]
    say(f"accepted: {', '.join(map(clean, names))}" if names else "nothing waits to be accepted")


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
    from retinue.runtime.commands.imports import unknown_import
    from retinue.runtime.imports.browser_login import log_in, show_page
    from retinue.runtime.imports.files import read_import
    from retinue.runtime.imports.logins import LoginFile
    from retinue.settings import environment
    from retinue.storage.state import find_hub_url

    session = open_session()
    known = read_import(session.settings, session.state, name)
    if known is None:
        raise unknown_import(name)
    member, table = known
    if table.url is None:
        raise InvalidSettingError(name, "it has no url", remedy="only servers over HTTP ask for a login")
    if any(key.lower() == "authorization" for key in table.headers):
        raise InvalidSettingError(
            name, "its headers have a token already", remedy="import it again without the header"
        )
    file = LoginFile(session.state, member.full_name, table.url)
    rows = run_command(
        log_in(
            name,
            table,
            session.settings,
            environment(),
            show=lambda page: show_page(page, say, browser=not no_browser),
            timeout_s=timeout,
            scope=None if scope is None else file.add_scopes(scope),
        )
    )
    if find_hub_url(session.state) is None:
        file.write(rows)
        say(f"logged in at {name}; start the hub to use it: retinue hub")
        return

    async def keep() -> Sequence[ImportOutcome]:
        from retinue.runtime.commands.imports import list_rows, wait_for_hub

        async with session.client() as client:
            before = await list_rows(client)
            file.write(rows)
            return await wait_for_hub(client, {name: table}, before, say_slow({name: table}))

    say_outcomes(session, run_command(keep()))


@imports.command()
@click.argument("name")
def logout(name: str) -> None:
    """Log out at the server of NAME.

    The tokens are revoked where the server offers that (RFC 7009), and removed from this machine. The import
    stays; log in again: retinue imports login NAME
    """
    from retinue.runtime.commands.imports import unknown_import
    from retinue.runtime.imports.files import read_import

    session = open_session()
    known = read_import(session.settings, session.state, name)
    if known is None:
        raise unknown_import(name)
    member, table = known
    if not _log_out(session, member.full_name, table):
        say(f"there was no login at {name}")


@imports.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove an import; its program is stopped, and a login is ended."""
    from retinue.runtime.commands import imported_agents
    from retinue.runtime.commands.imports import remove_import
    from retinue.runtime.imports.files import read_imports

    session = open_session()
    if imported_agents.remove(session.state, name):
        say(f"removed {name}")
        return
    table = read_imports(session.settings, session.state).get(name)
    remove_import(session.settings, session.state, name)
    if table is not None:
        _log_out(session, name, table)
    say(f"removed {name}")


def _log_out(session: CommandSession, name: str, table: ImportTable) -> bool:
    """Log out, and say what became of the tokens; whether there was a login."""
    from retinue.runtime.imports.logins import LoginFile
    from retinue.runtime.imports.logout import log_out

    file = LoginFile(session.state, name, table.url or "")
    revocation = run_command(log_out(file, session.settings))
    if revocation is None:
        return False
    if revocation.problem:
        warn(
            f"the login at {name} is removed here, but its tokens may be valid until they expire: "
            f"{revocation.problem}; remove Retinue in your account there"
        )
    else:
        say(f"logged out at {name}: its tokens are revoked")
    return True


def _list(as_json: bool) -> None:
    from retinue.runtime.commands.imported_agents import list_kept
    from retinue.runtime.imports.files import list_waiting, read_imports
    from retinue.storage.state import find_hub_url

    session = open_session()
    kept = read_imports(session.settings, session.state)
    places = {name: describe(table) for name, table in kept.items()} | list_kept(session.state)
    waiting = list_waiting(session.settings, session.state)
    runs = find_hub_url(session.state) is not None
    states, left_out = run_command(_read_states(session)) if places and runs else ({}, {})
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "connects_to": place,
            "status": states.get(name, ("-", ""))[0],
            "problem": states.get(name, ("-", ""))[1],
            "waiting": waiting.get(name, []),
            "left_out": left_out.get(name, {}),
        }
        for name, place in places.items()
    ]
    if as_json:
        print_json({"imports": rows})
    elif not rows:
        say("no imports; add one: retinue import mcp-server NAME -- COMMAND")
    else:
        shown = [
            (
                row["name"],
                row["connects_to"],
                row["problem"] or row["status"],
                _shorten(row["waiting"]) or "-",
            )
            for row in rows
        ]
        print_table(("NAME", "CONNECTS TO", "STATUS", "TO ACCEPT"), shown)
        for row in rows:
            for tool, reason in row["left_out"].items():
                say(f"{row['name']}: {tool} is left out: {reason}")


async def _read_states(
    session: CommandSession,
) -> tuple[dict[str, tuple[str, str]], dict[str, dict[str, str]]]:
    """Status and problem of every agent, and the tools that each import leaves out with the reason."""
    from retinue.runtime.commands.imports import list_rows

    async with session.client() as client:
        rows = await list_rows(client)
        listed = (await client.get("list_imports", {}))["imports"]
    states = {name: (str(row["status"]), str(row.get("last_error") or "")) for name, row in rows.items()}
    left_out = {
        str(row["name"]): {str(tool["tool"]): str(tool["reason"]) for tool in row.get("left_out", ())}
        for row in listed
    }
    return states, left_out


def say_outcomes(session: CommandSession, outcomes: Sequence[ImportOutcome]) -> None:
    """Print the tools of each import, or why it has none, and what waits to be accepted.

    Ends the command with the exit status of the first import that does not run.
    """
    from retinue.runtime.imports.files import open_pins

    pins = open_pins(session.settings, session.state)
    for outcome in outcomes:
        if outcome.problem:
            note(f"{outcome.name} is kept, but does not run: {outcome.problem}")
        elif not outcome.is_listed:
            note(f"{outcome.name}: the hub does not list it yet; look again: retinue imports")
        else:
            say(f"{outcome.name}: {len(outcome.skills)} skills: {clean(_shorten(outcome.skills))}")
            for skill, agents in list(outcome.shared.items())[:_SHOWN_NAMES]:
                say(
                    f"{outcome.name}: {skill} is offered by {_shorten(agents)} already; calls that name no "
                    f"agent go by trust: retinue find {skill} --why {outcome.name}"
                )
            if (more := len(outcome.shared) - _SHOWN_NAMES) > 0:
                say(f"{outcome.name}: {more} more of its skills are offered by others already")
        if waiting := pins.list_waiting(outcome.name):
            say(
                f"{outcome.name}: waits to be accepted: {clean(_shorten(list(waiting)))}; "
                f"see it: retinue imports accept {outcome.name} --show"
            )
    if failures := [kind for outcome in outcomes if (kind := outcome.failure) is not None]:
        from retinue.web.error_table import row_of

        raise click.exceptions.Exit(row_of(failures[0]).exit_code)


def say_slow(tables: Mapping[str, ImportTable]) -> Callable[[Sequence[str]], None]:
    """Prints which servers are still starting, and how long that may take."""

    def say(names: Sequence[str]) -> None:
        most_s = max(tables[name].start_s for name in names)
        note(
            f"waiting for {', '.join(names)}, which may take {most_s:g} s to start; "
            "Ctrl-C leaves it to the hub"
        )

    return say


def place_of(table: ImportTable) -> str:
    """The target of an import: a url, or a command with its arguments. It may hold secrets."""
    return table.url or table.openapi or table.a2a or " ".join([table.command or "", *table.args])


def describe(table: ImportTable) -> str:
    """The target of an import, with ``***`` in place of passwords and keys."""
    if table.command is not None:
        return " ".join([table.command, *hide_argument_secrets(table.args)])
    return hide_url_secrets(place_of(table))


def _shorten(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN_NAMES])}{' …' * (len(names) > _SHOWN_NAMES)}"


def say(text: str) -> None:
    """Print text of a server without its control characters."""
    click.echo(clean(text))
