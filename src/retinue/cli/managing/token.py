"""``retinue token``: manage tokens of other people, programs and machines."""

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
    from retinue.web.issued_tokens import IssuedToken, TokenFile

MAX_LIFETIME_S = 3650 * 86400.0
_LIFETIME = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[mhdw])")
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.group()
def token() -> None:
    """Create, list and revoke tokens.

    Running hubs and agents of this state accept a new token, and reject a revoked one, within a second.
    """


@token.command()
@click.option(
    "--scope",
    "scopes",
    metavar="S",
    multiple=True,
    help="exposed, mesh, runs_code or approves; default: exposed.",
)
@click.option("--name", metavar="N", help="Name of the holder, shown in lists and logs.")
@click.option("--expires", metavar="TIME", help="Lifetime, such as 30d, 12h or 90m.")
@click.option("--agent", "agents", metavar="GLOB", multiple=True, help="Only these agents; repeatable.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Group in policies; repeatable.")
@click.option("--join", is_flag=True, help="Create a join token for another machine of this mesh.")
@json_option
def new(
    scopes: tuple[str, ...],
    name: str | None,
    expires: str | None,
    agents: tuple[str, ...],
    groups: tuple[str, ...],
    join: bool,
    as_json: bool,
) -> None:
    """Create a token and print it once.

    Scopes: exposed = skills exposed to clients; mesh = also skills of the mesh; runs_code = also skills
    that run code; approves = with mesh, also the answers to approvals. A --join token has all scopes and
    carries the key of the mesh: set RETINUE_JOIN to it on the other machine, then run "retinue serve
    TARGET --join HUB", "retinue worker --join HUB" or "retinue hub --join HUB" there.
    """
    from retinue.storage.mesh_key import Join, render_join
    from retinue.web.codec.peer_requests import MAX_GLOB_LENGTH
    from retinue.web.issued_tokens import JOIN_SCOPES

    if join and (scopes or agents or groups):
        raise click.UsageError(
            "--join cannot be combined with --scope, --agent or --group: a join token has all scopes."
        )
    wanted = JOIN_SCOPES if join else _check_scopes(scopes)
    _check_name(name)
    for glob in agents:
        if len(glob) > MAX_GLOB_LENGTH:
            raise click.BadParameter(
                f"{len(glob)} characters, the limit is {MAX_GLOB_LENGTH}; give several shorter globs.",
                param_hint="--agent",
            )
    for group in groups:
        if not _NAME.fullmatch(group):
            problem = "not a name; use up to 64 letters, digits, dots, dashes and underscores."
            raise click.BadParameter(problem, param_hint="--group")
    kind: Literal["token", "join"] = "join" if join else "token"
    file = _tokens(prepare=True)
    issued, text = file.issue(
        wanted, name=name, agents=agents, lifetime_s=_read_lifetime(expires), kind=kind, groups=groups
    )
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
    """List tokens, without their secrets."""
    file = _tokens()
    rows = [_row(issued, file) for issued in file.list_all()]
    if as_json:
        print_json({"tokens": rows})
    elif rows:
        columns = ("ID", "CALLER", "SCOPES", "AGENTS", "CREATED", "LAST USED", "EXPIRES")
        keys = ("id", "caller", "scopes", "agents", "created", "last_used", "expires")
        print_table(columns, [[row[key] for key in keys] for row in rows])
    else:
        note("no tokens; create one: retinue token new")


@token.command()
@click.argument("token_id", metavar="ID")
@click.option("--keep-published", is_flag=True, help="Leave the cards and workflows of a join token listed.")
def revoke(token_id: str, keep_published: bool) -> None:
    """Revoke a token by its ID in the list.

    With a join token, the cards and workflows that its machine published in the registry of this state are
    removed, so that no call goes there any more, unless another valid token has the same name.
    """
    from retinue.oci.layout.folder_registry import LayoutRegistry

    tokens = _tokens()
    issued = tokens.revoke(token_id)
    note(f"revoked: {issued.id}")
    if issued.kind != "join":
        return
    if not keep_published and not tokens.identifies(issued.principal.id):
        registry = LayoutRegistry(find_state().registry)
        for reference in registry.remove_published_by(issued.principal.id):
            note(f"removed {reference}, which it published")
    note("that machine still has the key of the mesh; to change the key, read: retinue docs security")


def _tokens(*, prepare: bool = False) -> TokenFile:
    from retinue.web.issued_tokens import TokenFile

    state = find_state()
    if prepare:
        state.prepare()
    return TokenFile(state.keys)


def _check_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    from retinue.core.text import suggest
    from retinue.web.issued_tokens import SCOPES

    for scope in scopes:
        if scope not in SCOPES:
            near = suggest(scope, SCOPES)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(SCOPES)}"
            raise InvalidSettingError("--scope", f"{scope[:40]!r} is not a scope", remedy=remedy)
    return scopes or ("exposed",)


def _check_name(name: str | None) -> None:
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidSettingError(
            "--name",
            "not a valid name of a token",
            remedy="use up to 64 letters, digits, dots, dashes and underscores",
        )


def _read_lifetime(text: str | None) -> float | None:
    if text is None:
        return None
    match = _LIFETIME.fullmatch(text.strip())
    lifetime_s = float(match["count"]) * _UNITS_S[match["unit"]] if match else 0.0
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidSettingError(
            "--expires",
            f"{text[:40]!r} is not a duration",
            remedy="write a number with m, h, d or w, such as 30d",
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
        "groups": list(issued.groups),
        "created": _render_time(issued.created_at),
        "last_used": _render_time(file.last_used(issued.id)),
        "expires": _render_time(issued.expires_at),
    }


def _render_time(seconds: float | None) -> str | None:
    """A time in UTC, to the minute, which is the resolution of the last use."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
