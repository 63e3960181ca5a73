"""``retinue keys``: show the key that signs the cards of this state, and manage trusted keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.storage.card_keys import CardKeys

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.group(invoke_without_command=True)
@click.option("--jwks", is_flag=True, help="Print this state's public key as JWK set, for others to trust.")
@json_option
@click.pass_context
def keys(context: click.Context, jwks: bool, as_json: bool) -> None:
    """List the keys for signatures of agent cards; trust or forget those of others.

    Cards are signed with the key of the state that publishes them. A mesh that trusts this key verifies them.
    The hub and its agents publish the key at /.well-known/jwks.json.
    """
    if context.invoked_subcommand is not None:
        return
    held = _open()
    own = held.signing_key()
    if jwks:
        print_json({"keys": [own.public]})
        return
    rows = [
        {"name": name, "kid": row["kid"], "type": row.get("crv") or row.get("kty")}
        for name, row in held.trusted().list_keys()
    ]
    if as_json:
        print_json({"signing": own.kid, "trusted": rows})
    else:
        shown = [(clean(row["name"]), clean(row["kid"]), clean(str(row["type"]))) for row in rows]
        print_table(("NAME", "KEY", "TYPE"), shown)


@keys.command()
@click.argument("name")
@click.argument("source", metavar="JWKS")
def trust(name: str, source: str) -> None:
    """Trust the keys of a publisher under NAME; JWKS is a URL or a file.

    The keys are copied: a later change at the URL needs this command again. For a hub the URL is
    http://HOST:PORT/.well-known/jwks.json. Compare the printed ids with those of the publisher.
    """
    if not _NAME.fullmatch(name):
        raise InvalidSettingError("NAME", f"{name[:60]!r} is not a name", remedy="use letters, digits, . _ -")
    document = run_command(_fetch(source)) if "://" in source else _read(Path(source).expanduser())
    for kid in _open().trust(name, document):
        click.echo(clean(kid))
    note(f"trusted as {name}")


@keys.command()
@click.argument("name")
def forget(name: str) -> None:
    """Stop trusting the keys of NAME."""
    if not _open().forget(name):
        raise InvalidSettingError("NAME", f"no keys of {name[:60]!r}", remedy="list them: retinue keys")
    click.echo(f"{name} is trusted no more")


def _open() -> CardKeys:
    from retinue.runtime.factories import card_keys

    session = open_session()
    session.state.prepare()
    return card_keys(session.settings.signatures, session.state)


def _read(path: Path) -> Any:
    import orjson

    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        problem = f"{path}: {error}"
        raise InvalidSettingError("JWKS", problem, remedy="give a file with a JWK set") from error


async def _fetch(url: str) -> Any:
    import orjson

    from retinue.web.http_client import HttpClient
    from retinue.web.transport import TransportError

    settings = open_session().settings
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        try:
            reply = await http.request(
                "GET", url, timeout_s=10, max_response_bytes=256 * 1024, what="the keys"
            )
            if reply.status != 200:
                raise InvalidSettingError("JWKS", f"{url} answers {reply.status}", remedy="check the URL")
            return orjson.loads(reply.body)
        except (TransportError, ValueError) as error:
            raise InvalidSettingError("JWKS", f"{url}: {error}", remedy="check the URL") from error
