"""``retinue policy replay`` and ``suggest``: policies against the calls that the audit has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import ask_hub, open_session
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.policies.policy_set import Default
    from retinue.runtime.loading.policy_files import Draft

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_TITLES = {
    "denied": "denied",
    "asked": "asked",
    "limited": "limited",
    "redacted": "redacted",
    "allowed": "allowed",
    "cannot_tell": "cannot tell",
}

since_option = click.option(
    "--since", metavar="TIME", default="1d", show_default=True, help="How far back: 90m, 12h, 7d."
)
default_option = click.option(
    "--default",
    type=click.Choice(["allow", "deny"]),
    help="What happens to calls that no policy names; default: policy.default.",
)
paths_argument = click.argument(
    "paths", nargs=-1, metavar="NEW…", required=True, type=click.Path(exists=True, path_type=Path)
)


@click.command()
@paths_argument
@since_option
@default_option
@click.option("--with-current", is_flag=True, help="Replay the policies in force together with NEW.")
@click.option("--strict", is_flag=True, help="Exit with 1 also where a call cannot be told.")
@hub_option
@json_option
def replay(
    paths: tuple[Path, ...],
    since: str,
    default: Default | None,
    with_current: bool,
    strict: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """Show what the policies NEW would have decided about the calls of the audit.

    NEW are files *.cedar or folders. Nothing is changed. Exits with 1 if a call would be denied, asked about
    or limited that was not, and with 2 for files that are not valid. The audit has no arguments. With
    policy.record = "inputs" those are kept that a policy in force, or one with @mode("watch"), has read. A
    policy that reads other arguments cannot be replayed for a call, and the report says so.
    """
    draft, in_force = read_drafts(paths)
    request = {
        "files": dict(draft.files),
        "groups": {name: list(globs) for name, globs in draft.groups.items()},
        "default": default or in_force,
        "since_s": read_duration(since, "--since"),
        "with_current": with_current,
    }
    reply = ask_hub("replay_policies", request, hub, as_owner=True)
    counts = reply["counts"]
    if as_json:
        print_json(reply)
    else:
        _show(reply)
    if counts["denied"] or counts["asked"] or counts["limited"] or (strict and counts["cannot_tell"]):
        raise click.exceptions.Exit(1)


@click.command()
@click.option("--from-audit", is_flag=True, help="From the calls of the audit, which is the default.")
@since_option
@hub_option
@json_option
def suggest(from_audit: bool, since: str, hub: str | None, as_json: bool) -> None:
    """Write the narrowest policies that permit what was called.

    The policies are printed as a file of Cedar, with a permit for each skill and its callers. They are for
    policy.default = "deny". Check them before: retinue policy replay --default deny FILE.
    """
    session = open_session()
    from retinue.runtime.loading.policy_files import PolicyFiles

    table = session.settings.policy
    groups = PolicyFiles.of(session.state.root, table).load_all(table).groups
    request = {
        "groups": {name: list(globs) for name, globs in groups.items()},
        "since_s": read_duration(since, "--since"),
    }
    reply = ask_hub("suggest_policies", request, hub, as_owner=True)
    if as_json:
        print_json(reply)
        return
    click.echo(reply["cedar"], nl=False)
    if reply["gone"]:
        note(f"{len(reply['gone'])} skills that were used are in no card now; the file names them")


def _show(reply: dict[str, Any]) -> None:
    rows = [
        (
            _TITLES[row["change"]],
            str(row["calls"]),
            clean(row["caller"]),
            clean(row["skill"]),
            clean(", ".join(row["policies"]) or "–"),
            clean(row["reason"] or "–"),
            row["last_at"],
        )
        for row in reply["rows"]
    ]
    if rows:
        print_table(("WOULD BE", "CALLS", "CALLER", "SKILL", "POLICIES", "REASON", "LAST"), rows)
    if reply["further_rows"]:
        note(f"and {reply['further_rows']} further rows")
    counts = reply["counts"]
    summary = ", ".join(f"{counts[key]} {title}" for key, title in _TITLES.items() if counts[key])
    since = f"{reply['calls']} calls since {reply['since']}"
    note(f"{since}: {counts['same']} as before, {summary or 'none changed'}")
    if reply["assumed"]:
        note(f"{reply['assumed']} calls are told by the hints and tags that the card of their agent has now")


def read_drafts(paths: tuple[Path, ...]) -> tuple[Draft, Default]:
    """The policies in these files, and ``policy.default``."""
    from retinue.runtime.loading.policy_files import Draft, PolicyFiles, read_draft

    session = open_session()
    table = session.settings.policy
    files = PolicyFiles.of(session.state.root, table)
    current = Draft(files.read_texts(), files.load_all(table).groups)
    return read_draft(paths, current), table.default


def read_duration(text: str, option: str) -> float:
    """The seconds of a duration such as 12h; raises InvalidSettingError."""
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    if match is None or not int(match[1]):
        raise InvalidSettingError(
            option, f"{text[:40]!r} is not a duration", remedy="write a number with m, h, d or w, such as 7d"
        )
    return int(match[1]) * _UNITS_S[match[2]]
