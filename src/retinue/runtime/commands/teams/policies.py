"""Policies of a team: whether they are valid, what their cases expect, and what another digest permits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.core.errors import InvalidSettingError
from retinue.policies.entities import TeamScope
from retinue.runtime.loading.policy_files import check_library
from retinue.runtime.teams.policies import LAYER, scope_of
from retinue.runtime.teams.programs import FILES
from retinue.runtime.teams.store import TeamStore
from retinue.team.change import Change, TeamContent
from retinue.team.files import TeamFile
from retinue.team.package import Team

if TYPE_CHECKING:  # the engine of policies is imported where a team has some
    from retinue.policies.cases import Case
    from retinue.policies.policy_set import PolicySet

CASES = "policies/tests/"


def load_team_policies(scope: TeamScope, texts: Mapping[str, str]) -> PolicySet:
    """The policies in these texts, by path. Raises InvalidSettingError for one that a team cannot have."""
    from retinue.policies.policy_set import load_policies

    return load_policies(texts, teams=dict.fromkeys(texts, scope))


def check_team_policies(name: str, agents: Iterable[str], files: Sequence[TeamFile]) -> None:
    """Raise InvalidSettingError unless the policies among the files are valid and do what their cases say."""
    texts = {file.path: _decode(file.content) for file in files if _is_policy(file.path, file.layer)}
    if not texts:
        return
    _check_library(texts)
    from retinue.policies.cases import run_cases

    policies = load_team_policies(TeamScope(name, frozenset(agents)), texts)
    cases = _read_cases({file.path: _decode(file.content) for file in files if file.layer == LAYER})
    for result in run_cases(policies, cases):
        if result.problem:
            remedy = "correct the policy or the case"
            raise InvalidSettingError(f"policies: {result.case.title}", result.problem, remedy=remedy)


def check_installed_policies(store: TeamStore, team: Team) -> None:
    """Raise InvalidSettingError unless the policies of an installed team are valid on this machine."""
    folder = store.folder_of(team.name, team.digest) / FILES
    rows = [row for row in team.files if row.layer == LAYER]
    files = [TeamFile(row.path, row.layer, (folder / row.path).read_bytes()) for row in rows]
    check_team_policies(team.name, team.names, files)


def compare_policies(old: TeamContent, new: TeamContent) -> list[Change]:
    """What the policies of another digest do: by policy, and by the verdicts about the cases of both.

    A restriction that is gone or changed counts as wider, because the team may do more without it.
    """
    before, after = _texts_of(old), _texts_of(new)
    if before == after:
        return []
    _check_library({**before, **after})
    return list(_compare(old, new, before, after))


def _compare(
    old: TeamContent, new: TeamContent, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Change]:
    from retinue.policies.cases import decide_case

    old_set = load_team_policies(scope_of(old.team), _only_policies(before))
    new_set = load_team_policies(scope_of(new.team), _only_policies(after))
    olds, news = _describe(old_set), _describe(new_set)
    for policy in sorted(news.keys() - olds.keys()):
        yield Change("policy", policy, "added", news[policy][0])
    for policy in sorted(olds.keys() - news.keys()):
        yield Change("policy", policy, "removed", olds[policy][0], is_wider=True)
    for policy in sorted(olds.keys() & news.keys()):
        if olds[policy] != news[policy]:
            yield Change("policy", policy, "changed", "it decides otherwise", is_wider=True)
    cases = _read_cases(before)
    cases += [case for case in _read_cases(after) if case not in cases]
    for case in cases:
        first, second = decide_case(old_set, case).verdict, decide_case(new_set, case).verdict
        if first != second:
            is_wider = STRICTNESS.index(second) < STRICTNESS.index(first)
            yield Change("case", case.title, "changed", f"{first} → {second}", is_wider=is_wider)


STRICTNESS = ("allow", "redact", "limit", "approve", "deny")


def _describe(policies: PolicySet) -> dict[str, tuple[str, Any]]:
    """By id, the effect of each policy and everything that it decides by."""
    return {
        policy.id: (
            policy.effect + (" (watched)" if policy.is_watched else ""),
            (policy.body, policy.approvers, policy.expires_s, policy.limit, policy.redaction),
        )
        for policy in policies.policies
    }


def _texts_of(content: TeamContent) -> dict[str, str]:
    return {row.path: content.text_of(row.path) for row in content.team.files if row.layer == LAYER}


def _only_policies(texts: Mapping[str, str]) -> dict[str, str]:
    return {path: text for path, text in texts.items() if _is_policy(path, LAYER)}


def _is_policy(path: str, layer: str) -> bool:
    return layer == LAYER and path.endswith(".cedar")


def _read_cases(texts: Mapping[str, str]) -> list[Case]:
    """The cases of the files below ``policies/tests``. Raises InvalidSettingError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from retinue.policies.cases import parse_cases

    cases: list[Case] = []
    for path, text in sorted(texts.items()):
        if path.startswith(CASES):
            try:
                value = YAML(typ="safe", pure=True).load(StringIO(text))
            except YAMLError as error:
                raise InvalidSettingError(path, f"not YAML: {error}", remedy="correct the file") from error
            cases += parse_cases(path, value)
    return cases


def _check_library(texts: Mapping[str, str]) -> None:
    check_library([Path(path) for path in sorted(texts)])


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "replace")
