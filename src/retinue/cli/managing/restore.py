"""``retinue restore``: replace the state folder by a backup; revoked access stays revoked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table, warn
from retinue.cli.session import find_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.storage.state import State
    from retinue.web.issued_tokens import IssuedToken

_NEW_KEYS = ("mesh.key", "local.token", "owner.token", "card-signing.json")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Move a state folder that is not empty away first.")
@click.option("--keys-of-backup", is_flag=True, help="Also restore tokens, keys, logins and imports.")
@click.option(
    "--revoke", "revoked", metavar="ID", multiple=True, help="Revoke this token, or all; repeatable."
)
@click.option("--new-keys", is_flag=True, help="Replace mesh key, state token and signing key.")
@click.option("--forget-logins", is_flag=True, help="Remove the logins at imported servers.")
@json_option
def restore(
    folder: Path,
    replace: bool,
    keys_of_backup: bool,
    revoked: tuple[str, ...],
    new_keys: bool,
    forget_logins: bool,
    as_json: bool,
) -> None:
    """Restore the state folder from a backup.

    DIR is the folder of the backup. Stop the hub, the agents and the workers first. A state that is replaced
    stays beside the new one, and its tokens, keys, logins and imports are kept, because those of the backup
    may have been revoked or replaced since. Without them those of the backup are valid again: at a terminal
    the command lists the tokens and asks which to revoke. Cards that a revoked join token had published are
    removed.
    """
    from retinue.settings import load_settings
    from retinue.storage.restore import restore as restore_state
    from retinue.web.issued_tokens import TokenFile

    state = find_state()
    result = restore_state(
        folder.expanduser().absolute(), state, replace=replace, keys_of_backup=keys_of_backup
    )
    tokens = TokenFile(state.keys).list_all()
    asks = not (result.current or revoked or as_json) and sys.stdin.isatty()
    if asks and tokens:
        revoked = _ask(tokens)
    ids = [token.id for token in tokens if "all" in revoked or token.id in revoked]
    for token_id in ids:
        TokenFile(state.keys).revoke(token_id)
    for token_id in {*revoked} - {"all", *ids}:
        warn(f"there is no token {token_id[:60]}")
    removed = _remove_cards(state)
    if new_keys:
        for name in _NEW_KEYS:
            (state.keys / name).unlink(missing_ok=True)
    if forget_logins:
        for login in (state.keys / "imports").glob("*"):
            login.unlink()
    valid = TokenFile(state.keys).list_all()
    if as_json:
        print_json(
            {
                "folder": str(state.root),
                "restored": result.names,
                "kept": result.current,
                "former": None if result.former is None else str(result.former),
                "revoked": ids,
                "removed": removed,
                "tokens": [token.id for token in valid],
            }
        )
        return
    click.echo(f"restored {', '.join(result.names)} to {state.root}")
    if result.former is not None:
        note(f"the replaced state is in {result.former}")
    if result.current:
        note(f"not restored, but kept as they were: {', '.join(result.current)}")
    for token_id in ids:
        note(f"revoked: {token_id}")
    for reference in removed:
        note(f"removed {reference}: no valid token published it")
    if valid and not result.current:
        listed = ", ".join(f"{token.id} ({token.principal.id})" for token in valid)
        warn(f"tokens of the backup are valid again: {listed}; revoke one: retinue token revoke ID")
    if new_keys:
        note("the keys are made anew by the next hub: machines join again, retinue connect is repeated")
    elif not result.current:
        warn("keys, logins and accepted tools are those of the backup: read: retinue docs backup")
    if load_settings().database is not None:
        warn("the runs are in the configured database: restore it with its own program")


def _ask(tokens: Sequence[IssuedToken]) -> tuple[str, ...]:
    """Ask which tokens of the backup to revoke, until the answer holds known ids only."""
    print_table(
        ("ID", "CALLER", "SCOPES"), [(token.id, token.principal.id, list(token.scopes)) for token in tokens]
    )
    known = {"all", *(token.id for token in tokens)}
    while True:
        answer: str = click.prompt(
            "Revoke which tokens (ids, all, or nothing)", default="", show_default=False, err=True
        )
        ids = tuple(answer.replace(",", " ").split())
        unknown = [token_id for token_id in ids if token_id not in known]
        if not unknown:
            return ids
        note(f"no token {unknown[0][:60]}")


def _remove_cards(state: State) -> list[str]:
    """Remove what callers published whose tokens are not valid any more; returns the references."""
    from retinue.oci.layout.folder_registry import LayoutRegistry
    from retinue.web.issued_tokens import TokenFile

    registry, tokens = LayoutRegistry(state.registry), TokenFile(state.keys)
    return [
        str(reference)
        for publisher in sorted(registry.list_publishers())
        if not tokens.identifies(publisher)
        for reference in registry.remove_published_by(publisher)
    ]
