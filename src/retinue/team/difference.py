"""The difference between two digests of a team by ability: what the second can do, reach and get.

A change is *wider* if it gives the team more: a program, a host, a secret or a receiver of one, a call, a
model. It is *breaking* if callers of a skill must change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from retinue.core.errors import RetinueError
from retinue.team.consent import list_env, list_hosts
from retinue.team.package import Team
from retinue.team.packages import LockedPackage, list_packages
from retinue.team.schema_change import find_breaks
from retinue.team.vendored import describe_vendored

Kind = Literal["added", "removed", "changed"]
_SIGNS: Mapping[str, str] = {"added": "+", "removed": "-", "changed": "~"}

SAME, DIFFERENT, WIDER = 0, 1, 3
"""The exit statuses of ``retinue diff``."""

_MAX_WORDS = 8_000
_MAX_SHOWN = 12
_WORD = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: its area, the name of what differs, and a text; ``details`` are further lines."""

    area: str
    name: str
    kind: Kind
    text: str
    is_wider: bool = False
    is_breaking: bool = False
    details: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The change as JSON."""
        row: dict[str, Any] = {"area": self.area, "name": self.name, "change": self.kind, "text": self.text}
        row |= {"wider": self.is_wider, "breaking": self.is_breaking}
        return row | ({"details": list(self.details)} if self.details else {})

    def render(self) -> list[str]:
        """The change as lines of text."""
        marks = "  WIDER" * self.is_wider + "  BREAKING" * self.is_breaking
        return [f"{_SIGNS[self.kind]} {self.area} {self.name}: {self.text}{marks}"] + [
            f"    {line}" for line in self.details
        ]


@dataclass(frozen=True, slots=True)
class TeamContent:
    """A team and its files by path."""

    team: Team
    files: Mapping[str, bytes]

    def text_of(self, path: str) -> str:
        """A file as text."""
        return self.files.get(path, b"").decode("utf-8", "replace")


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
        _compare_prompts,
        _compare_workflows,
        _compare_schedules,
        _compare_packages,
        _compare_code,
        _compare_rest,
    )
    return [change for compare in comparisons for change in compare(old, new)]


def exit_status(changes: Iterable[Change]) -> int:
    """0 for no change, 3 if one is wider, else 1."""
    changes = list(changes)
    if any(change.is_wider for change in changes):
        return WIDER
    return DIFFERENT if changes else SAME


def _compare_programs(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _programs(old.team), _programs(new.team)
    yield from _compare_names("program", before, after, lambda text: text, is_wider=True)
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
    before, after = dict.fromkeys(list_hosts(old.team), ""), dict.fromkeys(list_hosts(new.team), "")
    yield from _compare_names("host", before, after, lambda _: "is named", is_wider=True)


def _compare_secrets(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition.secrets, new.team.definition.secrets
    yield from _compare_names("secret", before, after, lambda text: text, is_wider=True)
    users_before, users_after = (
        old.team.definition.list_secret_users(),
        new.team.definition.list_secret_users(),
    )
    for name in sorted(before.keys() & after.keys()):
        receivers_before, receivers_after = {*users_before.get(name, ())}, {*users_after.get(name, ())}
        for receiver in sorted(receivers_after - receivers_before):
            yield Change("secret", name, "changed", f"{receiver} gets it, too", is_wider=True)
        for receiver in sorted(receivers_before - receivers_after):
            yield Change("secret", name, "changed", f"{receiver} no longer gets it")


def _compare_env(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = list_env(old.team), list_env(new.team)
    yield from _compare_names("env", before, after, str, is_wider=True)
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


def _compare_models(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = old.team.definition.llm, new.team.definition.llm
    yield from _compare_names("model", before, after, lambda table: str(table.model), is_wider=True)
    for name in sorted(before.keys() & after.keys()):
        rows_before, rows_after = (
            table.model_dump(mode="json", exclude={"env"}) for table in (before[name], after[name])
        )
        for key in sorted(rows_before):
            if rows_before[key] != rows_after[key]:
                is_limit = key.startswith(("max_cost", "max_tokens_per"))
                is_wider = is_limit and _is_more(rows_before[key], rows_after[key])
                text = f"{key} {rows_before[key]} → {rows_after[key]}"
                yield Change("model", name, "changed", text, is_wider=is_wider)
    limits = old.team.definition.budget.model_dump(), new.team.definition.budget.model_dump()
    for key, limit in limits[0].items():
        if limit != (other := limits[1][key]):
            text = f"{key} {limit} → {other}"
            yield Change("model", "budget of the team", "changed", text, is_wider=_is_more(limit, other))


def _is_more(before: float | None, after: float | None) -> bool:
    """Whether a limit permits more; None is no limit."""
    return before is not None and (after is None or after > before)


def _compare_skills(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _skills(old.team), _skills(new.team)
    for name in sorted(before.keys() - after.keys()):
        yield Change("skill", name, "removed", "is gone", is_breaking=True)
    for name in sorted(after.keys() - before.keys()):
        yield Change("skill", name, "added", after[name].description.split("\n")[0][:100] or "is new")
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
        yield Change("skill", name, "changed", text, is_breaking=bool(breaks), details=details[:_MAX_SHOWN])


def _skills(team: Team) -> dict[str, Any]:
    skills = {
        f"{locked.name}/{skill.id}": skill for locked in team.lock.agents.values() for skill in locked.skills
    }
    tools = {f"{name}/{tool.id}": tool for name, row in team.lock.imports.items() for tool in row.tools}
    return {**skills, **tools}


def _compare_prompts(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    for path, before, after in _changed_files(old, new, "prompts"):
        if before is None or after is None:
            continue  # a program, which is told as one
        tools_before, tools_after = _tools_of(before), _tools_of(after)
        for tool in sorted(tools_after - tools_before):
            yield Change("prompt", path, "changed", f"its model may call {tool}", is_wider=True)
        for tool in sorted(tools_before - tools_after):
            yield Change("prompt", path, "changed", f"its model may no longer call {tool}")
        words = compare_words(before, after)
        yield Change("prompt", path, "changed", _count_places(words), details=tuple(words[:_MAX_SHOWN]))


def _tools_of(text: str) -> set[str]:
    """The entries of ``tools`` in the front matter of an agent in Markdown; {} where it cannot be read."""
    from retinue.markdown.definition import parse_agent  # loads YAML

    try:
        return {*parse_agent(text, "prompt", name="prompt").think.tools}
    except RetinueError:
        return set()


def _compare_workflows(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before = {name: old.text_of(path) for name, path in old.team.workflows.items()}
    after = {name: new.text_of(path) for name, path in new.team.workflows.items()}
    known = {skill for text in before.values() for skill in _called_skills(_steps_of(text))}
    for name in sorted(before.keys() - after.keys()):
        yield Change("workflow", name, "removed", "is gone", is_breaking=True)
    for name in sorted(after.keys() - before.keys()):
        new_calls = sorted(_called_skills(_steps_of(after[name])) - known)
        text = f"is new; it calls {', '.join(new_calls)}" if new_calls else "is new"
        yield Change("workflow", name, "added", text, is_wider=bool(new_calls))
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield from _compare_steps(name, _steps_of(before[name]), _steps_of(after[name]))


def _compare_steps(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    new_calls = sorted(_called_skills(after) - _called_skills(before))
    for step in sorted(before.keys() - after.keys()):
        yield Change("workflow", name, "changed", f"the step {step} is gone")
    for step in after:
        if step not in before:
            yield Change("workflow", name, "changed", f"the step {step} is new")
        elif before[step] != after[step]:
            keys = sorted(
                key
                for key in before[step].keys() | after[step].keys()
                if before[step].get(key) != after[step].get(key)
            )
            details = tuple(
                f"{key}: {before[step].get(key)!s:.80} → {after[step].get(key)!s:.80}" for key in keys
            )
            yield Change(
                "workflow", name, "changed", f"the step {step} changes {', '.join(keys)}", details=details
            )
    if not new_calls and before == after:
        yield Change("workflow", name, "changed", "its input, output or text changes")
    for skill in new_calls:
        yield Change("workflow", name, "changed", f"it calls {skill}", is_wider=True)


def _steps_of(text: str) -> dict[str, Any]:
    """The steps of a workflow by id, those of branches too; {} for one that cannot be read."""
    from retinue.workflows.definitions.loading import load_definition  # loads YAML and CEL

    try:
        document = load_definition(text, source="workflow").to_json()
    except RetinueError:
        return {}
    steps: dict[str, Any] = {}

    def collect(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, Mapping):
            if isinstance(value.get("id"), str):
                steps[value["id"]] = value
            for inner in value.values():
                collect(inner)

    collect(document.get("steps", []))
    return steps


def _called_skills(steps: Mapping[str, Any]) -> set[str]:
    """The skills that steps call, with the agent where one is named."""
    calls = set()
    for step in steps.values():
        if isinstance(skill := step.get("skill"), str):
            agent = step.get("agent")
            calls.add(f"{agent}/{skill}" if isinstance(agent, str) else skill)
    return calls


def _count_places(words: Sequence[str]) -> str:
    return f"{len(words)} place{'s' * (len(words) != 1)}"


def _compare_schedules(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    before, after = _schedules_of(old.team), _schedules_of(new.team)
    yield from _compare_names("schedule", before, after, _describe_rule, is_wider=True)
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
                f"~ {name} {before[name].shown} → {after[name].shown}"
                for name in sorted(before.keys() & after.keys())
                if before[name] != after[name]
            ),
        ]
        if rows:
            text = f"{len(rows)} of {len(after)} packages differ"
            yield Change("packages", owner, "changed", text, details=tuple(rows[:_MAX_SHOWN]))


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
        for path, before, after in _changed_files(old, new, layer):
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
    for key in ("version", "requires", "data", "check", "description"):
        value_before, value_after = getattr(before, key), getattr(after, key)
        if value_before != value_after:
            text = "changes" if key == "check" else f"{value_before} → {value_after}"
            yield Change("team", key, "changed", text)
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


def _changed_files(
    old: TeamContent, new: TeamContent, layer: str
) -> Iterator[tuple[str, str | None, str | None]]:
    """The files of a layer that differ: path, text before and text after; None where there is none."""
    before = {row.path: row.sha256 for row in old.team.files if row.layer == layer}
    after = {row.path: row.sha256 for row in new.team.files if row.layer == layer}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            yield (
                path,
                old.text_of(path) if path in before else None,
                new.text_of(path) if path in after else None,
            )


def _compare_names(
    area: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    describe: Callable[[Any], str],
    *,
    is_wider: bool,
) -> Iterator[Change]:
    for name in sorted(before.keys() - after.keys()):
        yield Change(area, name, "removed", "is gone")
    for name in sorted(after.keys() - before.keys()):
        yield Change(area, name, "added", describe(after[name]) or "is new", is_wider=is_wider)


def compare_words(before: str, after: str) -> list[str]:
    """The places where two texts differ, each as one line with ``[-old-]`` and ``{+new+}``."""
    words_before, words_after = _WORD.findall(before), _WORD.findall(after)
    if len(words_before) + len(words_after) > _MAX_WORDS:
        return [f"{len(words_before):,} → {len(words_after):,} words"]
    places = []
    matcher = difflib.SequenceMatcher(None, words_before, words_after, autojunk=False)
    for tag, start, end, start_after, end_after in matcher.get_opcodes():
        if tag == "equal":
            continue
        gone, come = "".join(words_before[start:end]), "".join(words_after[start_after:end_after])
        context = "".join(words_before[max(0, start - 6) : start])
        following = "".join(words_before[end : end + 6])
        middle = (f"[-{gone.strip()}-]" if gone else "") + (f"{{+{come.strip()}+}}" if come else "")
        places.append(" ".join(f"{context}{middle}{following}".split()))
    return places
