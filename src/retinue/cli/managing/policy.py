"""``retinue policy``: check, test and explain the policies of this mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.managing.policy_history import default_option, read_drafts, replay, suggest
from retinue.cli.managing.policy_profiles import add, mode, profiles, remove
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import ask_hub, open_session
from retinue.core.errors import InvalidParametersError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.policies.policy_set import Default, PolicySet
    from retinue.runtime.loading.policy_files import PolicyFiles


_SHOWN = 40
"""Characters of an argument in a table."""


@click.group()
def policy() -> None:
    """Check, test and explain the policies of this mesh."""


@policy.command()
@click.argument("paths", nargs=-1, metavar="[FILE]…", type=click.Path(exists=True, path_type=Path))
@default_option
@click.option("--offline", is_flag=True, help="Do not compare with the skills of the mesh.")
@hub_option
@json_option
def check(
    paths: tuple[Path, ...], default: Default | None, offline: bool, hub: str | None, as_json: bool
) -> None:
    """Check the files of policies: syntax, types, and names that the mesh does not have.

    FILE are files *.cedar or folders that are not in force; default: the policies in force, with those of the
    teams that run. Exits with 2 for files that are not valid, and with 1 if they do not fit the mesh.
    """
    texts, policies = _load_checked(paths, default)
    findings: list[dict[str, str]] = []
    if not offline:
        groups = {name: list(globs) for name, globs in policies.groups.items()}
        request = {
            "files": texts,
            "groups": groups,
            "default": policies.default,
            "with_teams": not paths,
        }
        reply = ask_hub("check_policies", request, hub, as_owner=True)
        findings = reply["findings"]
    if as_json:
        print_json({"policies": len(policies.policies), "digest": policies.digest, "findings": findings})
    else:
        if findings:
            rows = [(clean(finding["policy"]), clean(finding["problem"])) for finding in findings]
            print_table(("POLICY", "PROBLEM"), rows)
        count = len(policies.policies)
        valid = "1 policy is valid" if count == 1 else f"{count} policies are valid"
        note(f"{valid} ({policies.digest[:19]}…)")
    if findings:
        raise click.exceptions.Exit(1)


@policy.command("test")
@click.argument("cases", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def run_tests(cases: tuple[Path, ...], as_json: bool) -> None:
    """Run the cases of policies: policies/tests/*.yaml, or the files CASES. No mesh is needed.

    Exits with 1 if a case is decided otherwise than it expects.
    """
    from retinue.runtime.loading.policy_files import check_library, read_yaml

    check_library((), "retinue policy test")
    from retinue.policies.cases import parse_cases, run_cases

    files, policies = _load()
    case_files = list(cases) or files.list_cases()
    rows = [
        {"file": str(file), "case": result.case.title, "problem": result.problem}
        for file in case_files
        for result in run_cases(policies, parse_cases(str(file), read_yaml(file)))
    ]
    failed = [row for row in rows if row["problem"]]
    if as_json:
        print_json({"cases": rows})
    else:
        if failed:
            shown = [(row["file"], clean(row["case"]), clean(row["problem"])) for row in failed]
            print_table(("FILE", "CASE", "PROBLEM"), shown)
        note(f"{len(rows) - len(failed)} of {len(rows)} cases pass")
    if failed:
        raise click.exceptions.Exit(1)


@policy.command()
@click.argument("skill")
@click.argument("arguments", default="{}")
@click.option("--as", "caller", metavar="ID", help="The caller, such as token:alice. Default: yourself.")
@hub_option
@json_option
def explain(skill: str, arguments: str, caller: str | None, hub: str | None, as_json: bool) -> None:
    """Show what the policies decide about a call of SKILL, or AGENT/SKILL, without making it.

    ARGUMENTS is a JSON object.
    """
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidParametersError([Problem("ARGUMENTS", f"not JSON: {error}")]) from None
    agent, _, name = skill.rpartition("/")
    request: dict[str, Any] = {"skill": name, "arguments": read}
    request |= {"agent": agent} if agent else {}
    request |= {"caller": caller} if caller is not None else {}
    reply = ask_hub("explain_policies", request, hub, as_owner=True)
    if as_json:
        print_json(reply)
        return
    watched = " (watched: nothing is denied)" if reply["mode"] == "watch" else ""
    note(f"{reply['agent']}/{reply['skill']} by {reply['caller']}: {reply['verdict']}{watched}")
    if reply.get("scopes_assumed"):
        note(f"the scopes of {reply['caller']} are not known here; assumed: {', '.join(reply['scopes'])}")
    if reply.get("problem"):
        note(f"because the policies cannot be evaluated: {reply['problem']}")
    rows = [
        (
            clean(row["id"]),
            row["effect"],
            "decides" if row["decides"] else "watched" if row["watched"] else "–",
            clean(", ".join(_render_read(name, row["values"]) for name in row["reads"]) or "–"),
            clean(row["reason"] or "–"),
            clean(row["file"]),
        )
        for row in reply["concerned"]
    ]
    if without := reply.get("without"):
        by = f" by {clean(', '.join(without['policies']))}" if without["policies"] else ""
        note(f"without {clean(', '.join(reply['policies']))}: {without['verdict']}{by}")
    if rows:
        print_table(("POLICY", "EFFECT", "HERE", "READS", "REASON", "FILE"), rows)
    else:
        note("no policy concerns this skill")


def _render_read(name: str, values: Mapping[str, Any]) -> str:
    """What a policy reads; an argument with its value in the call."""
    path = name.removeprefix("args.")
    if path == name or path not in values:
        return name
    text = json.dumps(values[path], ensure_ascii=False)
    return f"{name}={text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}"


def _load_checked(paths: tuple[Path, ...], default: Default | None) -> tuple[Mapping[str, str], PolicySet]:
    from retinue.runtime.loading.policy_files import check_library

    check_library(paths, "retinue policy check")
    from retinue.policies.policy_set import load_policies

    if paths:
        draft, in_force = read_drafts(paths)
        texts, groups = draft.files, draft.groups
        return texts, load_policies(texts, groups=groups, default=default or in_force)
    files, policies = _load(default)
    return files.read_texts(), policies


policy.add_command(replay)
policy.add_command(suggest)
for command in (profiles, add, remove, mode):
    policy.add_command(command)


def _load(default: Default | None = None) -> tuple[PolicyFiles, PolicySet]:
    """The policies in force, with those of teams; with another ``policy.default`` if there is one."""
    from retinue.runtime.loading.policy_files import PolicyFiles

    session = open_session()
    table = session.settings.policy
    if default is not None:
        table = table.model_copy(update={"default": default})
    files = PolicyFiles.of(session.state.root, table)
    return files, files.load_all(table)
