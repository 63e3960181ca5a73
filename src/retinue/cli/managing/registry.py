"""``retinue publish``, ``pull``, ``forget`` and ``mirror``: move cards and workflows between registries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.options import json_option, registry_option, weight_option
from retinue.cli.output import clean, note, print_json, warn, working
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.oci.mirror import MirrorReport
    from retinue.oci.registry import Published
    from retinue.runtime.commands.publishing import Pulled

REGISTRY_HELP = "An OCI registry (http://host:port) or a folder; else the one in the state folder."


@click.command()
@click.argument("target")
@click.option("--tag", help="Tag to publish under; default: v and the major version, such as v1.")
@weight_option
@click.option("--repository", metavar="R", help="Repository; default: derived from the name.")
@click.option("--url", metavar="URL", help="URL of a Python agent; a card file names its own.")
@registry_option(REGISTRY_HELP)
@json_option
def publish(
    target: str,
    tag: str | None,
    weight: int | None,
    repository: str | None,
    url: str | None,
    registry: str | None,
    as_json: bool,
) -> None:
    """Publish an agent card, a workflow, an agent in Markdown or policies.

    TARGET is an agent card (.json), a workflow (.yaml), an agent in Markdown (.md), whose file becomes
    prompts/NAME, policies (.cedar), which become policies/NAME, a team with its signatures (.tar of retinue
    pack --output), or another agent: file.py[:name], module:name or agent.json. Files are published byte for
    byte. Each major version of an agent has a tag of its own, so that versions stay published side by side.
    """
    if target.partition("@")[0].endswith(".tar"):
        run_command(_publish_team(target, registry, as_json))
        return
    published = run_command(_publish(target, url, registry, weight, tag=tag, repository=repository))
    if published.superseded_by is not None:
        warn(f"another publisher has moved {published} to {published.superseded_by} since")
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
        before = "" if published.replaced is None else f"; {published.tag} was {published.replaced} before"
        note(f"published in {published.registry}{before}")


@click.command()
@click.argument("reference", metavar="REF")
@click.option("-o", "--output", metavar="FILE", help="Output file; - for standard output.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@registry_option(f"{REGISTRY_HELP} REF may name one too.")
def pull(reference: str, output: str | None, force: bool, registry: str | None) -> None:
    """Fetch an agent card, a workflow, an agent in Markdown or policies.

    REF is repository:tag or repository@digest, such as agents/plan:v1; without a tag, the newest version.
    The content is verified against its digest, and that of agents against its signature, too. It is written
    under its own title. Policies that a trusted key has signed are kept in the state folder instead, where
    they apply, if the set is valid with them. A team (teams/NAME) is written with its signatures, as one OCI
    layout NAME.tar.
    """
    from retinue.runtime.commands.publishing import install_policies, write_content

    if reference.removeprefix("oci://").startswith("teams/") or "/teams/" in reference:
        if registry is not None and "://" not in registry:
            raise click.UsageError("--registry of a team is a URL; a folder needs no pull, but a mirror")
        place = "" if registry is None else registry.rstrip("/") + "/"
        run_command(_pull_team(place + reference, output, force))
        return
    pulled = run_command(_pull(reference, registry))
    artifact, place, verdict = pulled.artifact, pulled.registry, pulled.verdict
    if artifact.form == "policy" and output is None:
        session = open_session()
        stored = install_policies(pulled, reference, session.settings, session.state)
        click.echo(clean(str(stored)))
        note(f"in force within a second, signed by {clean(verdict.owner)}, {artifact.digest}, from {place}")
        return
    if verdict.state in ("invalid", "unknown_key"):
        warn(f"{reference}: {verdict.reason}")
    if output == "-":
        click.echo(artifact.content, nl=False)
        return
    path = write_content(artifact, output, force=force)
    click.echo(str(path))
    signed = f", signed by {clean(verdict.owner)}" if verdict.state == "valid" else ""
    note(f"{len(artifact.content):,} bytes, {artifact.digest}, from {place}{signed}")


@click.command()
@click.argument("name", shell_complete=complete_agent)
@click.option("--repository", metavar="R", help="Repository; default: derived from the name.")
@registry_option(REGISTRY_HELP)
def forget(name: str, repository: str | None, registry: str | None) -> None:
    """Remove an agent or a workflow from a registry.

    NAME is the agent's name, workflows/NAME or prompts/NAME. Removes all tags, and with NAME@TAG only that
    one; a running agent keeps running. A hub on a KOI network releases the name for other nodes.
    """
    place, tags = run_command(_forget(name, repository, registry))
    click.echo(
        f"{place}: {', '.join(tags)} removed" if tags else f"{place}: name released on the KOI network"
    )


async def _publish(
    target: str, url: str | None, registry: str | None, weight: int | None, **options: Any
) -> Published:
    from retinue.cli.findings import warn_of_findings
    from retinue.runtime.commands.publishing import open_catalog
    from retinue.runtime.loading.publishables import WorkflowText, read_target

    session = open_session()
    content = read_target(target, url=url, weight=weight)
    async with open_catalog(session.settings, session.state, registry) as catalog:
        replaced = await catalog.find_replaced_agent(content, **options)
        published = await catalog.publish(content, **options)
        if isinstance(content, WorkflowText):
            await warn_of_findings(session, target, content.content.decode())
        if replaced is not None:
            warn(
                f"{content.name} answers at {clean(replaced)}, and its card was replaced by this one: "
                "it is not listed any more; give one of the two another name or another major version"
            )
        if other := await catalog.find_other_agent(content):
            warn(
                f"at the url of this card another agent answers: {clean(other)}; publish it with its own url"
            )
        return published


async def _publish_team(file: str, registry: str | None, as_json: bool) -> None:
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        published = await teams.publish(file, registry)
    if as_json:
        print_json({"team": published.team.name, "digest": published.team.digest, "place": published.place})
    else:
        click.echo(published.team.digest)
        note(f"published in {published.place}")


async def _pull_team(reference: str, output: str | None, force: bool) -> None:
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        pulled = await teams.pull(reference)
        path = Path(output or f"{pulled.team.name}.tar")
        await teams.save(pulled, path, force=force)
    click.echo(str(path))
    note(
        f"{pulled.team.name} {pulled.team.version}, {pulled.team.digest}, {len(pulled.signatures)} signatures"
    )


async def _pull(reference: str, registry: str | None) -> Pulled:
    from retinue.runtime.commands.publishing import open_catalog

    session = open_session()
    async with open_catalog(session.settings, session.state, registry) as catalog:
        return await catalog.pull(reference)


async def _forget(name: str, repository: str | None, registry: str | None) -> tuple[str, tuple[str, ...]]:
    from retinue.runtime.commands.publishing import open_catalog

    session = open_session()
    async with open_catalog(session.settings, session.state, registry) as catalog:
        return await catalog.forget(name, repository=repository)


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--repository", "repositories", metavar="R", multiple=True, help="Only this repository; repeatable."
)
@json_option
def mirror(source: str, target: str, repositories: tuple[str, ...], as_json: bool) -> int:
    """Copy agents and workflows to another registry.

    FROM and TO are OCI registries (http://host:port) or folders. Tags are copied byte for byte
    and keep their digests. Existing content is skipped and nothing is deleted. The exit status is 1 if
    anything could not be copied.
    """
    report = run_command(_mirror(source, target, repositories))
    if as_json:
        print_json(
            {
                "source": report.source,
                "target": report.target,
                "copied": [
                    {"repository": artifact.repository, "tag": artifact.tag, "digest": artifact.digest}
                    for artifact in report.copied
                ],
                "unchanged": report.unchanged,
                "failed": [
                    {"reference": name, "type": error.type, "error": error.message}
                    for name, error in sorted(report.failed.items())
                ],
            }
        )
    else:
        for artifact in report.copied:
            click.echo(clean(f"{artifact}@{artifact.digest}"))
        for name, error in sorted(report.failed.items()):
            warn(f"{name}: {error.message}")
        counts = f"{len(report.copied)} copied, {report.unchanged} already present"
        note(f"{counts}, {len(report.failed)} failed" if report.failed else counts)
    return 1 if report.failed else 0


def _check_folder(place: str, path: str) -> None:
    """Reject a folder that does not exist; otherwise an empty registry would be copied silently."""
    from retinue.core.errors import InvalidSettingError

    if "://" not in place and not Path(place).is_dir():
        raise InvalidSettingError("FROM", f"no folder {path}", remedy="check the path")


async def _mirror(source: str, target: str, repositories: tuple[str, ...]) -> MirrorReport:
    from retinue.runtime.commands.publishing import check_location, mirror_registries

    session = open_session()
    place = check_location(source)
    _check_folder(place, source)
    with working(f"copying to {check_location(target).rpartition('@')[2]}"):
        return await mirror_registries(
            session.settings,
            session.state,
            place,
            check_location(target),
            repositories=repositories,
        )
