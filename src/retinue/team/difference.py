"""The difference between two digests of a team by ability: what the second can do, reach and get.

A change is *wider* if it gives the team more: a program, a host, a secret or a receiver of one, a call, a
model. It is *breaking* if callers of a skill must change.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from retinue.team.change import (
    MAX_SHOWN,
    Change,
    Kind,
    TeamContent,
    changed_files,
    compare_names,
    compare_words,
    is_more,
)
from retinue.team.consent import list_env, list_hosts
from retinue.team.definition import RolloutTable
from retinue.team.flow_change import compare_prompts, compare_workflows
from retinue.team.package import Team
from retinue.team.packages import LockedPackage, list_packages
from retinue.team.schema_change import find_breaks
from retinue.team.vendored import describe_vendored

SAME, DIFFERENT, WIDER = 0, 1, 3
"""The exit statuses of ``retinue diff``."""


def compare_teams(old: TeamContent, new: TeamContent) -> list[Change]:
    """The differences from ``old`` to ``new``, in the order of areas; [] for equal digests."""
    if old.team.digest == new.team.digest:
        return []
    comparisons: tuple[Callable[[TeamContent, TeamContent], Iterable[Change]], ...] = (
        _compare_programs,
        _compare_hosts,
        _compare_secrets,
        _compare_env,
        _compare_access,
        _compare_models,
        _compare_skills,
        compare_prompts,
        compare_workflows,
        _compare_schedules,
        _compare_packages,
        _compare_code,
        _compare_rest,
    )
    return [change for compare in comparisons for change in compare(old, new)]


def name_rest(old: Team, new: Team) -> list[Change]:
    """The change of digests that differ in nothing that `compare_teams` compares; [] for equal digests."""
    if old.digest == new.digest:
        return []
    before, after = ({row.path: row for row in team.files} for team in (old, new))
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    text = f"{', '.join(paths[:MAX_SHOWN])} differ" if paths else "the lock, or the manifest, differs"
    more = f", and {len(paths) - MAX_SHOWN} more" if len(paths) > MAX_SHOWN else ""
    return [Change("files", "of the digest", "changed", text + more)]


def exit_status(changes: Iterable[Change]) -> int:
    """0 for no change, 3 if one is wider, else 1."""
    changes = list(changes)
    if any(change.is_wider for change in changes):
        return WIDER
    return DIFFERENT if changes else SAME


def _compare_programs(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _programs(old.team), _programs(new.team)
    yield from compare_names("program", before, after, lambda text: text, is_wider=True)
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            text = f"{before[name]} → {after[name]}"
            is_other = before[name].rpartition("@")[0] != after[name].rpartition("@")[0]
            yield Change("program", name, "changed", text, is_wider=is_other)


def _programs(team: Team) -> dict[str, str]:
    paths = {agent.target: agent.path for agent in team.definition.agents}
    agents = {
        locked.name: f"agent {paths.get(target, target)}" for target, locked in team.lock.agents.items()
    }
    imports = {}
    for name, table in team.definition.imports.items():
        if table.package is not None:
            imports[name] = f"MCP server {table.package.replace('==', '@')}"
    return {**agents, **imports}


def _compare_hosts(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = (dict.fromkeys(list_hosts(one.team, one.files), "") for one in (old, new))
    yield from compare_names("host", before, after, lambda _: "is named", is_wider=True)


def _compare_secrets(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition.secrets, new.team.definition.secrets
    yield from compare_names("secret", before, after, lambda text: text, is_wider=True)
    users_before, users_after = (
        old.team.definition.list_secret_users(),
        new.team.definition.list_secret_users(),
    )
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield Change("secret", name, "changed", f"{before[name]} → {after[name]}")
        receivers_before, receivers_after = {*users_before.get(name, ())}, {*users_after.get(name, ())}
        for receiver in sorted(receivers_after - receivers_before):
            yield Change("secret", name, "changed", f"{receiver} gets it, too", is_wider=True)
        for receiver in sorted(receivers_before - receivers_after):
            yield Change("secret", name, "changed", f"{receiver} no longer gets it")


def _compare_env(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = list_env(old.team), list_env(new.team)
    yield from compare_names("env", before, after, str, is_wider=True)
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield Change("env", name, "changed", f"{before[name]} → {after[name]}", is_wider=True)


def _compare_access(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition.access, new.team.definition.access
    for name in sorted(before.keys() | after.keys()):
        for verb, key in (("may call", "send"), ("may be called by", "receive")):
            entries_before = getattr(before.get(name), key, None)
            entries_after = getattr(after.get(name), key, None)
            if entries_before == entries_after:
                continue
            if entries_after is None:
                yield Change("access", name, "removed", f"{verb} everybody: the list is gone", is_wider=True)
            elif entries_before is None:
                yield Change("access", name, "added", f"{verb} only {', '.join(entries_after) or 'nobody'}")
            else:
                for entry in sorted({*entries_after} - {*entries_before}):
                    yield Change("access", name, "added", f"{verb} {entry}", is_wider=True)
                for entry in sorted({*entries_before} - {*entries_after}):
                    yield Change("access", name, "removed", f"{verb} {entry}")


_OTHER_MODEL = frozenset({"provider", "model", "base_url", "api_key_env"})
"""The keys that say which model answers, and with whose key."""


def _compare_models(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition.llm, new.team.definition.llm
    yield from compare_names("model", before, after, lambda table: str(table.model), is_wider=True)
    for name in sorted(before.keys() & after.keys()):
        rows_before, rows_after = (
            table.model_dump(mode="json", exclude={"env"}) for table in (before[name], after[name])
        )
        for key in sorted(rows_before):
            if rows_before[key] != rows_after[key]:
                is_limit = key.startswith(("max_cost", "max_tokens_per"))
                is_wider = is_limit and is_more(rows_before[key], rows_after[key])
                is_wider = is_wider or key in _OTHER_MODEL
                text = f"{key} {rows_before[key]} → {rows_after[key]}"
                yield Change("model", name, "changed", text, is_wider=is_wider)
    limits = old.team.definition.budget.model_dump(), new.team.definition.budget.model_dump()
    for key, limit in limits[0].items():
        if limit != (other := limits[1][key]):
            text = f"{key} {limit} → {other}"
            yield Change("model", "budget of the team", "changed", text, is_wider=is_more(limit, other))


def _compare_skills(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _skills(old.team), _skills(new.team)
    for name in sorted(before.keys() - after.keys()):
        yield Change("skill", name, "removed", "is gone", is_breaking=True)
    for name in sorted(after.keys() - before.keys()):
        text = after[name].description.split("\n")[0][:100] or "is new"
        # an agent offers its own code; what an import offers is done by others
        is_tool = name.partition("/")[0] in new.team.definition.imports
        yield Change("skill", name, "added", text, is_wider=is_tool)
    for name in sorted(before.keys() & after.keys()):
        one, other = before[name], after[name]
        if one == other:
            continue
        breaks = find_breaks(one.input_schema, other.input_schema, is_input=True)
        breaks += find_breaks(one.output_schema, other.output_schema, is_input=False)
        is_schema = (one.input_schema, one.output_schema) != (other.input_schema, other.output_schema)
        text = "its schemas change" if is_schema else "its description changes"
        details = tuple(breaks)
        if one.description != other.description:
            details = (*details, *compare_words(one.description, other.description))
        yield Change("skill", name, "changed", text, is_breaking=bool(breaks), details=details[:MAX_SHOWN])


def _skills(team: Team) -> dict[str, Any]:
    skills = {
        f"{locked.name}/{skill.id}": skill for locked in team.lock.agents.values() for skill in locked.skills
    }
    tools = {f"{name}/{tool.id}": tool for name, row in team.lock.imports.items() for tool in row.tools}
    return {**skills, **tools}


def _describe_rollout(before: RolloutTable, after: RolloutTable) -> str:
    one, other = before.model_dump(mode="json"), after.model_dump(mode="json")
    return ", ".join(f"{key} {one[key]} → {other[key]}" for key in one if one[key] != other[key])


def _compare_schedules(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _schedules_of(old.team), _schedules_of(new.team)
    yield from compare_names("schedule", before, after, _describe_rule, is_wider=True)
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            text = f"{_describe_rule(before[name])} → {_describe_rule(after[name])}"
            yield Change("schedule", name, "changed", text)


def _schedules_of(team: Team) -> dict[str, dict[str, Any]]:
    return {
        schedule.name_in(team.name): {"workflow": schedule.workflow, **schedule.rule}
        for schedule in team.definition.schedules
    }


def _describe_rule(rule: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in rule.items())


def _compare_packages(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    for owner, lock_before, lock_after in _locks(old, new):
        before, after = _read_packages(old, lock_before), _read_packages(new, lock_after)
        rows = [
            *(f"- {name} {before[name].shown}" for name in sorted(before.keys() - after.keys())),
            *(f"+ {name} {after[name].shown}" for name in sorted(after.keys() - before.keys())),
            *(
                _describe_package(name, before[name], after[name])
                for name in sorted(before.keys() & after.keys())
                if before[name] != after[name]
            ),
        ]
        if rows:
            text = f"{len(rows)} of {len(after)} packages differ"
            yield Change("packages", owner, "changed", text, details=tuple(rows[:MAX_SHOWN]))


def _describe_package(name: str, before: LockedPackage, after: LockedPackage) -> str:
    if before.shown == after.shown:
        return f"~ {name} {after.shown}: its files have other hashes or addresses"
    return f"~ {name} {before.shown} → {after.shown}"


def _read_packages(content: TeamContent, path: str | None) -> dict[str, LockedPackage]:
    """The packages of a lock by name, with the licences that ``team.lock`` has of them."""
    packages = list_packages(path, content.files.get(path or "", b""))
    licences = content.team.lock.licences.get(path or "", {})
    return {
        name: replace(row, licence=row.licence or licences.get(name, "")) for name, row in packages.items()
    }


def _locks(old: TeamContent, new: TeamContent) -> Iterator[tuple[str, str | None, str | None]]:
    """Each owner of a lock file with the path before and after."""

    def paths(team: Team) -> dict[str, str | None]:
        agents = {locked.name: locked.lock for locked in team.lock.agents.values()}
        return {**agents, **{name: locked.lock for name, locked in team.lock.imports.items()}}

    before, after = paths(old.team), paths(new.team)
    for owner in sorted(before.keys() | after.keys()):
        yield owner, before.get(owner), after.get(owner)


def _compare_code(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    for layer in ("agents", "documents"):
        area = "code" if layer == "agents" else "document"
        for path, before, after in changed_files(old, new, layer):
            if path.endswith("pylock.toml"):
                continue
            if before is None or after is None:
                kind: Kind = "added" if before is None else "removed"
                yield Change(area, path, kind, f"{len((after or before or '').splitlines())} lines")
                continue
            lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
            plus, minus = (sum(line.startswith(sign) for line in lines) for sign in "+-")
            yield Change(area, path, "changed", f"+{plus} -{minus} lines")


def _compare_rest(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition, new.team.definition
    for key in ("name", "version", "requires", "data", "check", "rollout", "description"):
        value_before, value_after = getattr(before, key), getattr(after, key)
        if value_before != value_after:
            text = f"{value_before} → {value_after}"
            if key == "rollout":
                text = _describe_rollout(value_before, value_after)
            yield Change("team", key, "changed", "changes" if key == "check" else text)
    for name in sorted(before.imports.keys() & after.imports.keys()):
        one, other = before.imports[name], after.imports[name]
        is_other = one.model_copy(update={"env": {}}) != other.model_copy(update={"env": {}})
        if is_other and one.package == other.package:
            yield Change("import", name, "changed", "its arguments or addresses change", is_wider=True)
    targets = {agent.target: agent for agent in before.agents}
    for agent in after.agents:
        former = targets.get(agent.target, agent)
        if agent.port != former.port:
            text = f"port {former.port or 'any'} → {agent.port or 'any'}"
            yield Change("agent", agent.target, "changed", text)
    vendored_before, vendored_after = describe_vendored(old.team.files), describe_vendored(new.team.files)
    if vendored_before != vendored_after:
        text = f"{vendored_before or 'none'} → {vendored_after or 'none'}"
        yield Change("packages", "in the digest", "changed", text)
    if old.team.size_bytes != new.team.size_bytes:
        text = f"{old.team.size_bytes:,} → {new.team.size_bytes:,} bytes"
        yield Change("team", "size", "changed", text)
