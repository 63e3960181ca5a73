"""``retinue token``: tokens for other people, programs and machines."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import find_state
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.drivers.tokens import IssuedToken, TokenFile

MAX_LIFETIME_S = 3650 * 86400.0
_LIFETIME = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[mhdw])")
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.group()
def token() -> None:
    """Give out tokens, list them, take them back.

    Running hubs and agents of this state know a new token, and no longer know a revoked one, within a
    second.
    """


@token.command()
@click.option(
    "--scope", "scopes", metavar="S", multiple=True, help="exposed, mesh or runs_code; else exposed."
)
@click.option("--name", metavar="N", help="Who will send it, as lists and logs call it.")
@click.option("--expires", metavar="TIME", help="How long it is good, such as 30d, 12h or 90m.")
@click.option(
    "--agent", "agents", metavar="GLOB", multiple=True, help="Show these agents only; may be repeated."
)
@click.option("--join", is_flag=True, help="For another machine, whose agents will be of this mesh.")
@json_option
def new(
    scopes: tuple[str, ...],
    name: str | None,
    expires: str | None,
    agents: tuple[str, ...],
    join: bool,
    as_json: bool,
) -> None:
    """Make a token and print it, once.

    Scopes: exposed = the skills exposed to clients; mesh = those of the mesh as well; runs_code = also
    skills that run code. With --join it is all of them, and carries the key of the mesh: set it as
    RETINUE_JOIN on the other machine, for "retinue serve TARGET --join HUB", "retinue worker --join HUB"
    or "retinue hub --join HUB".
    """
    from retinue.drivers.joins import Join, render_join
    from retinue.drivers.tokens import SCOPES

    if join and (scopes or agents):
        raise click.UsageError(
            "--join goes without --scope and --agent: whoever joins has the mesh's own key."
        )
    wanted = SCOPES if join else _check_scopes(scopes)
    _check_name(name)
    kind: Literal["token", "join"] = "join" if join else "token"
    file = _tokens(prepare=True)
    issued, text = file.issue(wanted, name=name, agents=agents, lifetime_s=_read_lifetime(expires), kind=kind)
    if join:
        text = render_join(Join(text, find_state().mesh_key()))
    if as_json:
        print_json({**_row(issued, file), "token": text})
        return
    click.echo(text)
    note(f"token {issued.id} ({', '.join(issued.scopes)}); it is not shown again")


@token.command("list")
@json_option
def list_tokens(as_json: bool) -> None:
    """List the tokens, without the tokens themselves."""
    file = _tokens()
    rows = [_row(issued, file) for issued in file.list_all()]
    if as_json:
        print_json({"tokens": rows})
    elif rows:
        columns = ("ID", "CALLER", "SCOPES", "AGENTS", "CREATED", "LAST USED", "EXPIRES")
        keys = ("id", "caller", "scopes", "agents", "created", "last_used", "expires")
        print_table(columns, [[row[key] for key in keys] for row in rows])
    else:
        note("no tokens; make one: retinue token new")


@token.command()
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Take a token back; ID is the one in the list."""
    issued = _tokens().revoke(token_id)
    note(f"revoked: {issued.id}")
    if issued.kind == "join":
        note("that machine still has the mesh's key; see docs/security.md for how to change it")


def _tokens(*, prepare: bool = False) -> TokenFile:
    from retinue.drivers.tokens import TokenFile

    state = find_state()
    if prepare:
        state.prepare()
    return TokenFile(state.keys)


def _check_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    from retinue.drivers.tokens import SCOPES
    from retinue.mesh.suggest import suggest

    for scope in scopes:
        if scope not in SCOPES:
            near = suggest(scope, SCOPES)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(SCOPES)}"
            raise InvalidSettingError("--scope", f"{scope[:40]!r} is no scope", remedy=remedy)
    return scopes or ("exposed",)


def _check_name(name: str | None) -> None:
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidSettingError(
            "--name",
            "no name of a token",
            remedy="use up to 64 letters, digits, dots, dashes and underscores",
        )


def _read_lifetime(text: str | None) -> float | None:
    if text is None:
        return None
    found = _LIFETIME.fullmatch(text.strip())
    lifetime_s = float(found["count"]) * _UNITS_S[found["unit"]] if found else 0.0
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidSettingError(
            "--expires", f"{text[:40]!r} is no time", remedy="write a number with m, h, d or w, such as 30d"
        )
    return lifetime_s


def _row(issued: IssuedToken, file: TokenFile) -> dict[str, Any]:
    return {
        "id": issued.id,
        "name": issued.name,
        "kind": issued.kind,
        "caller": issued.principal.id,
        "scopes": list(issued.scopes),
        "agents": list(issued.agents),
        "created": _say_time(issued.created_at),
        "last_used": _say_time(file.last_used(issued.id)),
        "expires": _say_time(issued.expires_at),
    }


def _say_time(seconds: float | None) -> str | None:
    """To the minute, which is as exact as the last use is known."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
