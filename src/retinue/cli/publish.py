"""``retinue publish``, ``pull`` and ``forget``: cards and workflows to and from a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.options import json_option, registry_option
from retinue.cli.output import note, print_json, warn
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.drivers.registry import Published
    from retinue.protocols.oci.artifacts import Artifact

CHOSEN = "An OCI registry (http://host:port) or a folder; else the one in the state folder."


@click.command()
@click.argument("target")
@click.option("--tag", default="v1", show_default=True, help="The tag to publish under.")
@click.option("--repository", metavar="R", help="Another repository than the name gives.")
@click.option("--url", metavar="URL", help="Where a Python agent answers; a card file has its own.")
@registry_option(CHOSEN)
@json_option
def publish(
    target: str, tag: str, repository: str | None, url: str | None, registry: str | None, as_json: bool
) -> None:
    """Publish an agent card or a workflow in a registry.

    TARGET is an agent card (.json), a workflow (.yaml), or an agent: file.py[:name], module:name or
    agent.json. Files are published byte for byte.
    """
    published = run_command(_publish(target, url, registry, tag=tag, repository=repository))
    if published.superseded_by is not None:
        warn(f"another publisher has given {published} a new meaning since: {published.superseded_by}")
    if as_json:
        print_json(
            {
                "registry": published.registry,
                "repository": published.repository,
                "tag": published.tag,
                "digest": published.digest,
            }
        )
    else:
        click.echo(f"{published}@{published.digest}")
        before = "" if published.replaced is None else f"; {published.tag} meant {published.replaced} before"
        note(f"published in {published.registry}{before}")


@click.command()
@click.argument("reference", metavar="REF")
@click.option("-o", "--output", metavar="FILE", help="Where to write; - is standard output.")
@click.option("--force", is_flag=True, help="Replace a file that stands there.")
@registry_option(f"{CHOSEN} REF may name one too.")
def pull(reference: str, output: str | None, force: bool, registry: str | None) -> None:
    """Fetch a card or a workflow out of a registry.

    REF is repository:tag or repository@digest, such as agents/plan:v1; without tag the newest
    version is taken. The content is checked against its digest and written under its own title.
    """
    from retinue.apps.catalog import write_content

    artifact, place = run_command(_pull(reference, registry))
    if output == "-":
        click.echo(artifact.content, nl=False)
        return
    path = write_content(artifact, output, force=force)
    click.echo(str(path))
    note(f"{len(artifact.content):,} bytes, {artifact.digest}, from {place}")


@click.command()
@click.argument("name", shell_complete=complete_agent)
@click.option("--repository", metavar="R", help="Another repository than the name gives.")
@registry_option(CHOSEN)
def forget(name: str, repository: str | None, registry: str | None) -> None:
    """Take an agent or a workflow out of a registry.

    NAME is the agent's, or workflows/NAME. All its tags go; the agent itself keeps running.
    """
    place, tags = run_command(_forget(name, repository, registry))
    click.echo(f"{place}: {', '.join(tags)} forgotten")


async def _publish(target: str, url: str | None, registry: str | None, **options: Any) -> Published:
    from retinue.apps.catalog import open_catalog
    from retinue.apps.publishable import read_target

    session = open_session()
    content = read_target(target, url=url)
    async with open_catalog(session.settings, session.state, registry) as catalog:
        return await catalog.publish(content, **options)


async def _pull(reference: str, registry: str | None) -> tuple[Artifact, str]:
    from retinue.apps.catalog import open_catalog

    session = open_session()
    async with open_catalog(session.settings, session.state, registry) as catalog:
        return await catalog.pull(reference)


async def _forget(name: str, repository: str | None, registry: str | None) -> tuple[str, tuple[str, ...]]:
    from retinue.apps.catalog import open_catalog

    session = open_session()
    async with open_catalog(session.settings, session.state, registry) as catalog:
        return await catalog.forget(name, repository=repository)
