"""``retinue record-team`` and ``replay-team``: record calls of a team, and play them against a digest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json
from retinue.cli.session import open_session, run_command
from retinue.cli.teams.running import NOT_AGREED, ask_person

if TYPE_CHECKING:
    from retinue.runtime.commands.teams.replaying import Replay
    from retinue.team.trace import TeamTrace


@click.command("record-team")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the trace, such as traces/FRIDAY.json of the team's folder.",
)
@click.option(
    "--for", "for_s", metavar="S", default=60.0, type=click.FloatRange(0.1, 86_400), help="Seconds; 60."
)
@click.option(
    "--calls", metavar="N", default=500, type=click.IntRange(1, 500), help="End after N calls; 500."
)
@click.option("--yes", "is_agreed", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
def record_team(
    name: str, output: Path, for_s: float, calls: int, is_agreed: bool, force: bool, as_json: bool
) -> None:
    """Record the calls that you make to a running team, and the runs of its workflows that you start.

    The trace has the arguments and results of these calls, and the replies of models in them, for retinue
    replay-team. It has no calls of others, and no run that has not ended when the recording ends. Keys,
    numbers of cards and accounts, mail addresses, phone numbers and the values of the team's secrets are
    masked. Only you can read the file. Read it before you pack it.
    """
    trace = run_command(_record(name, output, for_s, calls, is_agreed, force))
    masked = sum(bool(call.masked) for call in trace.calls)
    if as_json:
        counts = {"calls": len(trace.calls), "masked": masked, "completions": len(trace.completions)}
        print_json({"file": str(output), "team": trace.team, **counts, "omitted": trace.omitted})
        return
    click.echo(clean(str(output)))
    note(
        f"calls {len(trace.calls)} ({masked} with masked parts), replies of models {len(trace.completions)}, "
        f"left out {trace.omitted}"
    )


async def _record(
    name: str, output: Path, for_s: float, calls: int, is_agreed: bool, force: bool
) -> TeamTrace:
    from retinue.runtime.commands.client import open_client
    from retinue.runtime.commands.teams.packing import refuse_existing
    from retinue.runtime.commands.teams.recording import RecordOptions, find_running, record_calls
    from retinue.storage.files import replace_file, storage_errors
    from retinue.team.trace import render_trace

    session = open_session()
    team = find_running(session.state, name)
    refuse_existing(output, force=force)
    if not is_agreed:
        _ask_to_record(name, output, for_s)
    async with open_client(session.settings, session.state) as client:
        trace = await record_calls(session.state, client, team, RecordOptions(for_s, calls), note)
    with storage_errors(output):
        replace_file(output, render_trace(trace), mode=0o600)
    return trace


def _ask_to_record(name: str, output: Path, for_s: float) -> None:
    """Show what is recorded and ask; exits with 2 where there is no terminal."""
    note(f"records for {for_s:g} s the calls that the owner of this state makes to the agents of {name},")
    note("  and the runs of its workflows that the owner starts:")
    note("  arguments, results, and the replies of models; no calls of others")
    note("  keys, cards, accounts, mail addresses, phone numbers and secrets of the team are masked")
    note(f"  into {output}, which only you can read")
    if not sys.stdin.isatty():
        note("nobody can be asked: pass --yes")
        raise click.exceptions.Exit(NOT_AGREED)
    if not click.confirm("Record?", default=False, err=True):
        raise click.exceptions.Exit(NOT_AGREED)


@click.command("replay-team")
@click.argument("reference", metavar="REF")
@click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A trace of retinue record-team; default: the traces of the digest.",
)
@click.option("--yes", "is_agreed", is_flag=True, help="Do not ask; REF must end with @sha256:…")
@json_option
def replay_team(reference: str, trace_file: Path | None, is_agreed: bool, as_json: bool) -> int:
    """Play recorded calls against a digest of a team, and show what it answers differently.

    REF is one of retinue up. Its programs run on a hub of their own over an empty state. Its models are
    replaced by the recorded replies, and its imports at addresses are left out, so nothing asks a model. Its
    programs get no secret. They are not confined. Exits with 0 if no answer differs and some are equal, else
    with 1. A call whose model is asked something else than in the trace, or whose arguments are masked, is
    counted as one that cannot be told.
    """
    replay = run_command(_replay(reference, trace_file, is_agreed))
    if as_json:
        print_json(replay.as_json())
        return replay.status
    from retinue.team.replay import count_verdicts

    for call in replay.calls:
        if call.verdict != "equal":
            for line in call.render():
                click.echo("".join(character for character in line if character.isprintable()))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in count_verdicts(replay.calls).items())
    click.echo(f"{len(replay.calls)} calls: {counts}")
    note(clean(f"recorded with {replay.trace.version}, played with {replay.team.name} {replay.team.version}"))
    return replay.status


async def _replay(reference: str, trace_file: Path | None, is_agreed: bool) -> Replay:
    from retinue.runtime.commands.teams.replaying import replay_team

    session = open_session()
    return await replay_team(
        reference, trace_file, session.settings, session.state, is_agreed=is_agreed, ask=ask_person, echo=note
    )
