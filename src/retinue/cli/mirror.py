"""``retinue mirror``: from one registry into another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, note, print_json, warn, working
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.apps.mirroring import MirrorReport


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--repository", "repositories", metavar="R", multiple=True, help="Only this one; may be repeated."
)
@json_option
def mirror(source: str, target: str, repositories: tuple[str, ...], as_json: bool) -> int:
    """Copy agents and workflows into another registry.

    FROM and TO are OCI registries (http://host:port) or folders. Every tag is copied byte for byte, so
    that its digest stays what it is; what is there already is left alone, and nothing is deleted. The
    exit status is 1 when something could not be copied.
    """
    report = run_command(_mirror(source, target, repositories))
    if as_json:
        print_json(
            {
                "source": report.source,
                "target": report.target,
                "copied": [
                    {"repository": one.repository, "tag": one.tag, "digest": one.digest}
                    for one in report.copied
                ],
                "unchanged": report.unchanged,
                "failed": [
                    {"reference": name, "type": error.type, "error": error.message}
                    for name, error in sorted(report.failed.items())
                ],
            }
        )
    else:
        for one in report.copied:
            click.echo(clean(f"{one}@{one.digest}"))
        for name, error in sorted(report.failed.items()):
            warn(f"{name}: {error.message}")
        counts = f"{len(report.copied)} copied, {report.unchanged} there already"
        note(f"{counts}, {len(report.failed)} failed" if report.failed else counts)
    return 1 if report.failed else 0


def _check_folder(place: str, given: str) -> None:
    """Refuse a folder that is not there: an empty registry would be copied, and nobody would hear of it."""
    from retinue.core.errors import InvalidSettingError

    if "://" not in place and not Path(place).is_dir():
        raise InvalidSettingError("FROM", f"no folder {given}", remedy="check the path")


async def _mirror(source: str, target: str, repositories: tuple[str, ...]) -> MirrorReport:
    from retinue.apps.catalog import check_location
    from retinue.apps.mirroring import mirror_registries

    session = open_session()
    place = check_location(source)
    _check_folder(place, source)
    with working(f"copying into {check_location(target).rpartition('@')[2]}"):
        return await mirror_registries(
            session.settings,
            session.state,
            place,
            check_location(target),
            repositories=repositories,
        )
