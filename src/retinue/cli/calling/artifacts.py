"""``retinue artifacts``: list, save, fetch, show and delete the files that agents and people pass on."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.artifacts.client import HubArtifacts
    from retinue.runtime.commands.artifacts import OwnArtifacts

_PIECE_BYTES = 1024 * 1024
_SHOWN_DIGITS = 12

_all_option = click.option(
    "--all", "everyone", is_flag=True, help="Those of everyone; needs the state's token."
)


@click.group(invoke_without_command=True)
@_all_option
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Newest first.")
@hub_option
@json_option
@click.pass_context
def artifacts(ctx: click.Context, everyone: bool, limit: int, hub: str | None, as_json: bool) -> None:
    """List, save, fetch, show and delete artifacts: files that agents and people pass on by links.

    Without a subcommand, lists those that you have saved, newest first. ARTIFACT is a link, such as
    artifact:sha256:…, or the first digits of a digest in the list.
    """
    if ctx.invoked_subcommand is not None:
        return
    reply = _run(hub, lambda store: store.list_all(everyone=everyone, limit=limit))
    if as_json:
        print_json(reply)
        return
    rows = reply["artifacts"]
    if not rows:
        note("no artifacts; save one: retinue artifacts put FILE")
        return
    print_table(
        ("DIGEST", "SIZE", "TYPE", "NAME", "SAVED", "BY"),
        [
            (
                row["artifact"][7 : 7 + _SHOWN_DIGITS],
                _render_size(row["size"]),
                row["media_type"],
                row["name"],
                _render_time(row["saved_at"] or row["stored_at"]),
                row["callers"],
            )
            for row in rows
        ],
        cut="NAME",
    )
    more = reply["count"] - len(rows)
    taken = f"{_render_size(reply['bytes'])} of {_render_size(reply['quota_bytes'])}"
    note(f"{_count(reply['count'])}, {taken}" + (f"; {more:,} are not shown: --limit" if more > 0 else ""))


@artifacts.command()
@click.argument("file", type=click.Path(allow_dash=True, path_type=str))
@click.option("--type", "media_type", metavar="TYPE", help="Media type; default: that of the file's name.")
@click.option("--name", metavar="NAME", help="File name for readers; default: that of FILE.")
@hub_option
@json_option
def put(file: str, media_type: str | None, name: str | None, hub: str | None, as_json: bool) -> None:
    """Save FILE, or standard input for "-", and print its link."""
    content: Any = _read_input() if file == "-" else Path(file)
    artifact = _run(hub, lambda store: store.save(content, media_type, name=name))
    if as_json:
        print_json(artifact.to_json())
    else:
        click.echo(artifact.link)


@artifacts.command()
@click.argument("artifact")
@click.argument("path", default=".", type=click.Path(allow_dash=True, path_type=str))
@hub_option
def get(artifact: str, path: str, hub: str | None) -> None:
    """Write ARTIFACT to a file or into a folder, or to standard output for "-".

    In a folder the file has the name of the artifact, and replaces no other.
    """

    async def fetch(store: HubArtifacts | OwnArtifacts) -> None:
        from retinue.mesh.artifacts import Artifact

        digest = await _find_digest(store, artifact)
        if path != "-":
            note(f"saved {await store.export(Artifact(digest), path)}")
            return
        found = await store.find(digest)
        async with found.open() as pieces:
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    _run(hub, fetch)


@artifacts.command()
@click.argument("artifact")
@hub_option
@json_option
def show(artifact: str, hub: str | None, as_json: bool) -> None:
    """Show the size, type and name of ARTIFACT, who saved it, and whether a run holds it."""

    async def ask(store: HubArtifacts | OwnArtifacts) -> dict[str, Any]:
        return await store.show(await _find_digest(store, artifact))

    row = _run(hub, ask)
    if as_json:
        print_json(row)
        return
    facts = (
        ("link", f"artifact:{row['artifact']}"),
        ("size", f"{row['size']:,} bytes"),
        ("type", row["media_type"]),
        ("name", row["name"]),
        ("saved", None if row["saved_at"] is None else _render_time(row["saved_at"])),
        ("by", row["callers"]),
        ("held", "by a run" if row["is_held_by_run"] else "by no run"),
    )
    print_table(("FIELD", "VALUE"), [fact for fact in facts if fact[1]])


@artifacts.command()
@click.argument("artifact")
@_all_option
@hub_option
@json_option
def delete(artifact: str, everyone: bool, hub: str | None, as_json: bool) -> None:
    """Delete ARTIFACT, unless a run or another caller still holds it."""

    async def end(store: HubArtifacts | OwnArtifacts) -> dict[str, Any]:
        digest = await _find_digest(store, artifact)
        return {"artifact": digest, "deleted": await store.delete(digest, everyone=everyone)}

    reply = _run(hub, end)
    if as_json:
        print_json(reply)
    elif reply["deleted"]:
        click.echo(f"deleted artifact:{reply['artifact']}")
    else:
        note("your hold has ended; a run or another caller still holds the artifact")


@artifacts.command()
@hub_option
@json_option
def gc(hub: str | None, as_json: bool) -> None:
    """Delete what nothing has held for artifacts.keep_days; a hub does so every hour."""
    reply = _run(hub, lambda store: store.collect())
    if as_json:
        print_json(reply)
    else:
        click.echo(f"deleted {_count(reply['count'])}, {_render_size(reply['bytes'])}")


def _run(hub: str | None, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """What ``work`` returns for the artifacts of the hub, or of the state folder."""

    async def run() -> Any:
        from retinue.runtime.commands.artifacts import open_artifacts

        session = open_session()
        async with open_artifacts(session.settings, session.state, session.choose_hub(hub)) as store:
            return await work(store)

    return run_command(run())


async def _find_digest(store: HubArtifacts | OwnArtifacts, text: str) -> str:
    """The digest of a link, or of the one listed artifact that begins with these digits.

    Raises InvalidRequestError, UnknownArtifactError and AmbiguousNameError.
    """
    from retinue.core.artifact_links import parse_digest
    from retinue.core.errors import AmbiguousNameError, UnknownArtifactError

    digits = text.removeprefix("artifact:").removeprefix("sha256:")
    if not (4 <= len(digits) < 64 and all(digit in "0123456789abcdef" for digit in digits)):
        return parse_digest(text)
    from retinue.core.errors import NotAllowedError

    try:
        listed = await store.list_all(everyone=True, limit=1000)
    except NotAllowedError:
        listed = await store.list_all(limit=1000)
    matching = [row["artifact"] for row in listed["artifacts"] if row["artifact"][7:].startswith(digits)]
    if len(matching) > 1:
        raise AmbiguousNameError(digits, matching)
    if not matching:
        remedy = "list them: retinue artifacts --all; or give the whole digest"
        raise UnknownArtifactError(digits, remedy=remedy)
    return str(matching[0])


async def _read_input() -> AsyncIterator[bytes]:
    import asyncio

    while piece := await asyncio.to_thread(sys.stdin.buffer.read, _PIECE_BYTES):
        yield piece


def _render_size(size_bytes: int) -> str:
    size, units = float(size_bytes), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if size < 1000 or unit == units[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _count(number: int) -> str:
    return f"{number:,} artifact{'' if number == 1 else 's'}"


def _render_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
