"""``retinue up``, ``down`` and ``team``: run one digest of a team, stop it, and show what runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, print_table, working
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.runtime.commands.teams.commands import StartedTeam, UpOptions
    from retinue.runtime.teams.store import TeamRow
    from retinue.team.consent import Consent

NOT_AGREED = 2
"""The exit status where nobody can be asked."""

WHOLE = 100
"""The last step of a rollout, in per cent."""


@click.command()
@click.argument("reference", metavar="REF", required=False)
@click.option("--yes", "is_agreed", is_flag=True, help="Do not ask; REF must end with @sha256:…")
@click.option("--back", metavar="NAME", help="Start the digest of this team that ran before.")
@click.option("--downgrade", is_flag=True, help="Accept an older version than the one that ran here.")
@click.option(
    "--secrets",
    "secrets_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="NAME=VALUE lines in a file of mode 0600; default: the environment.",
)
@click.option(
    "--steps",
    metavar="5,25,100",
    callback=lambda context, parameter, text: parse_steps(text),
    help="Shares in per cent of the new chains of calls; default: [rollout] of the team.",
)
@click.option("--hold", metavar="S", type=click.FloatRange(0), help="Seconds of each step.")
@click.option(
    "--drain", metavar="S", type=click.FloatRange(0), help="Seconds that runs of the digest before may last."
)
@click.option("--host", metavar="H", help="Address of a hub that this command starts.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="Its port; 0: any free one.")
@click.option("--processes", metavar="N", help="Its processes, as of retinue hub.")
@json_option
def up(
    reference: str | None,
    is_agreed: bool,
    back: str | None,
    downgrade: bool,
    secrets_file: Path | None,
    steps: tuple[int, ...] | None,
    hold: float | None,
    drain: float | None,
    host: str | None,
    port: int | None,
    processes: str | None,
    as_json: bool,
) -> None:
    """Verify a team, show what it does, and run it.

    REF is a team packed in this state (NAME, NAME:VERSION, sha256:…), oci://HOST/teams/NAME@sha256:… or a
    file of retinue pack --output. It must be signed with a key that this state trusts (retinue keys). What
    it runs, reaches and gets is shown first; nothing is unpacked before somebody agrees. The team runs on
    the hub of this state, which is started if needed. Where another digest of the team runs, both
    run for a while: the new one is checked, and then gets a growing share of the new calls. If a program
    does not answer or ends, [check] fails, or calls fail more often, last longer or cost more, all calls
    go back to the digest before, and the exit status is 1. The hub does this also if this command is
    stopped. Secrets are kept in a file of the state that only its owner reads.
    """
    from retinue.runtime.commands.teams.commands import UpOptions
    from retinue.runtime.commands.teams.upgrading import RolloutOptions

    if (reference is None) == (back is None):
        raise click.UsageError("name a REF, or a team with --back")
    if back is not None:
        for name, is_given in (("--yes", is_agreed), ("--downgrade", downgrade)):
            if is_given:
                raise click.UsageError(f"{name} does not go with --back: it starts what ran here before")
    options = UpOptions(is_agreed, downgrade, secrets_file, RolloutOptions(steps, hold, drain))
    hub_options = {"--host": host, "--port": port, "--processes": processes}
    hub_arguments = [
        text for name, value in hub_options.items() if value is not None for text in (name, str(value))
    ]
    started = run_command(_up(reference, back, options, hub_arguments))
    team = started.team
    if as_json:
        print_json(
            {
                "team": team.name,
                "version": team.version,
                "digest": team.digest,
                "programs": started.programs,
                "checks": started.checks,
                "was_running": started.was_running,
            }
        )
        return
    click.echo(clean(f"{team.name} {team.version} serves  {team.digest}"))
    if started.was_running:
        note("it was running")
    else:
        note(f"programs started: {started.programs}, checks passed: {started.checks}")


@click.command()
@click.argument("name")
def down(name: str) -> None:
    """Stop the programs of a team.

    Its files and its data stay; retinue up --back NAME starts it again.
    """
    from retinue.runtime.commands.teams.commands import open_teams

    async def stop() -> str:
        session = open_session()
        async with open_teams(session.settings, session.state) as teams:
            version = teams.down(name).version
            await teams.remove_schedules(name)
            return version

    click.echo(clean(f"{name} {run_command(stop())} is down"))


@click.command()
@click.argument("name", required=False)
@json_option
def team(name: str | None, as_json: bool) -> None:
    """List the teams of this state, or show one.

    Shows which digest runs, since when, who signed it, whether its key is still trusted, and why the last
    digest that failed did not serve.
    """
    rows = run_command(_list(name))
    if as_json:
        print_json({"teams": rows})
        return
    if name is None and not rows:
        note("no team was started here; start one: retinue up REF")
        return
    if name is None:
        shown = [
            (
                clean(row["name"]),
                row["version"],
                (row["active"] or "down")[:19],
                clean(row["signer"]) + (" (no longer trusted)" if row["problem"] else ""),
                row["since"],
            )
            for row in rows
        ]
        print_table(("TEAM", "VERSION", "DIGEST", "SIGNED BY", "SINCE"), shown)
        return
    for row in rows:
        click.echo(clean(f"{row['name']} {row['version']}  {row['active'] or 'down'}"))
        for key in ("since", "signer", "reference", "before"):
            if row[key]:
                click.echo(_shown(f"  {key:<10} {row[key]}"))
        if rollout := row["rollout"]:
            click.echo(
                _shown(f"  {'rollout':<10} {rollout['version']} {rollout['digest'][:19]}: {rollout['stage']}")
            )
            for digest in ("old", "new"):
                if rollout["figures"].get(digest, {}).get("calls"):
                    click.echo(_shown(f"  {'':<10} {digest}: {rollout['figures'][digest]['text']}"))
            if rollout["held_by"]:
                click.echo(_shown(f"  {'':<10} runs on the digest before: {', '.join(rollout['held_by'])}"))
        if row["problem"]:
            click.echo(_shown(f"  {'signature':<10} {row['problem']}; it runs on, and retinue up refuses it"))
        if budget := row["budget"]:
            click.echo(_shown(f"  {'budget':<10} {budget['text']}"))
        if row["is_unscheduled"]:
            click.echo(_shown(f"  {'schedules':<10} not added yet; the hub adds them"))
        for program in row["programs"]:
            click.echo(_shown(f"  {'program':<10} {program['name']}  {program['url'] or program['error']}"))
        if row["failed"]:
            failed = row["failed"]
            click.echo(
                _shown(f"  {'failed':<10} {failed['version']} {failed['digest'][:19]}: {failed['reason']}")
            )


def parse_steps(text: str | None) -> tuple[int, ...] | None:
    """The weights of ``--steps``; raises BadParameter unless they rise to 100."""
    if text is None:
        return None
    try:
        steps = tuple(int(part) for part in text.split(","))
    except ValueError:
        steps = ()
    if not steps or steps[-1] != WHOLE or steps[0] < 1 or list(steps) != sorted({*steps}):
        raise click.BadParameter("steps are whole numbers that rise to 100, such as 5,25,100")
    return steps


def ask_person(consent: Consent) -> bool:
    """Show what a team does, and ask whether it may run; exits with 2 where there is no terminal."""
    for line in consent.render():
        click.echo(_shown(line), err=True)
    if not sys.stdin.isatty():
        note(f"nobody can be asked: pass --yes with the digest, REF@{consent.digest}")
        raise click.exceptions.Exit(NOT_AGREED)
    return click.confirm("Run it?", default=False, err=True)


def _shown(line: str) -> str:
    """A line of columns without control characters."""
    indent = len(line) - len(line.lstrip())
    return " " * indent + "".join(character for character in line.lstrip() if character.isprintable())


async def _up(
    reference: str | None, back: str | None, options: UpOptions, hub_arguments: Sequence[str]
) -> StartedTeam:
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state, hub_arguments) as teams:
        if back is not None:
            with working("starting") as echo:
                return await teams.back(back, options, echo)
        return await teams.up(reference or "", options, ask_person, note)


def _describe_rollout(row: TeamRow) -> dict[str, Any]:
    """The rollout of a team for people and programs; {} where there is none."""
    from retinue.runtime.teams.comparison import render_figures
    from retinue.runtime.teams.rollout import read_rollout

    rollout = read_rollout(row)
    if rollout is None:
        return {}
    figures = {name: {**shown, "text": render_figures(shown)} for name, shown in rollout.figures.items()}
    return {
        "digest": rollout.new,
        "version": rollout.version,
        "stage": rollout.describe(),
        "weight": rollout.weight,
        "figures": figures,
        "held_by": list(rollout.held_by),
    }


def _describe_budget(spending: Mapping[str, Any]) -> dict[str, Any]:
    """The budget of a team for people and programs; {} for a team without one."""
    from retinue.runtime.teams.spending import render_spending

    return {**spending, "text": render_spending(spending)} if spending else {}


async def _list(name: str | None) -> list[dict[str, Any]]:
    from retinue.core.errors import InvalidSettingError
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        children = teams.read_children()
        rows = []
        for row in teams.list_rows():
            if name is not None and row.name != name:
                continue
            prefix = f"{row.name}@{(row.active or '')[7:19]}/"
            programs = [
                {
                    "name": news["name"] or child.removeprefix(prefix),
                    "url": news["url"],
                    "error": news["error"],
                }
                for child, news in children.items()
                if row.active and child.startswith(prefix)
            ]
            rows.append(
                {
                    "name": row.name,
                    "version": row.version,
                    "active": row.active,
                    "since": row.since,
                    "signer": row.signer,
                    "problem": teams.find_signer_problem(row),
                    "reference": row.reference,
                    "before": row.before,
                    "highest": row.highest,
                    "failed": dict(row.failed),
                    "rollout": _describe_rollout(row),
                    "budget": _describe_budget(teams.read_spending(row)),
                    "is_unscheduled": row.is_unscheduled,
                    "programs": programs,
                }
            )
        if name is not None and not rows:
            raise InvalidSettingError(
                "NAME", f"no team {name} was started here", remedy="retinue team lists them"
            )
        return rows
