"""Suggests the narrowest set of policies that permits the calls that were made.

Each permit is for one skill and one caller, or for a group whose members are named and have all used the
skill. The set is for ``policy.default = "deny"``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from retinue.core.errors import InvalidSettingError
from retinue.policies.entities import GROUP, Groups, name_principal
from retinue.policies.history.past_calls import PastCall, SkillKey
from retinue.policies.history.replay import KnownSkill
from retinue.policies.policy_set import MAX_POLICIES
from retinue.policies.reads import EntityId

_WILDCARDS = frozenset("*?[")


@dataclass(slots=True)
class _Use:
    calls: int = 0
    last_at: datetime | None = None

    def add(self, calls: int, at: datetime | None) -> None:
        self.calls += calls
        if at is not None and (self.last_at is None or at > self.last_at):
            self.last_at = at


@dataclass(slots=True, eq=False)
class Usage:
    """Who has used which skill; calls that were denied do not count.

    ``gone`` are used skills that no listing has now, for which no permit is written.
    """

    skills: Mapping[SkillKey, KnownSkill]
    _uses: dict[EntityId, dict[str, _Use]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)

    def add(self, call: PastCall) -> None:
        if call.is_refused:
            return
        known = self.skills.get(call.key)
        if known is None:
            name = f"{call.key.agent}/{call.key.skill}"
            self.gone[name] = self.gone.get(name, 0) + 1
            return
        users = self._uses.setdefault(known.resource.id, {})
        for caller in {call.caller, call.through} - {""}:
            users.setdefault(caller, _Use()).add(1, call.began_at)

    def render(self, groups: Groups, since: datetime) -> str:
        """The set as Cedar; raises InvalidSettingError for one with too many policies."""
        permits = [
            (skill, principal, use)
            for skill, users in sorted(self._uses.items())
            for principal, use in _by_group(users, groups)
        ]
        if len(permits) > MAX_POLICIES:
            raise InvalidSettingError(
                "--since",
                f"the calls need {len(permits):,} permits, and a set has at most {MAX_POLICIES:,}",
                remedy="choose a shorter time, or write policies for groups and agents by hand",
            )
        calls = sum(use.calls for users in self._uses.values() for use in users.values())
        lines = [
            f"// The skills that were used since {since.isoformat(timespec='minutes')}: {calls:,} calls.",
            '// These permits count with policy.default = "deny", which denies everything else.',
        ]
        lines += [
            f"// Not permitted, because no agent has it now: {_comment(name)} ({count:,} calls)"
            for name, count in sorted(self.gone.items())
        ]
        lines += [_render_permit(number, *permit) for number, permit in enumerate(permits, 1)]
        return "\n".join(lines) + "\n"


def _by_group(users: Mapping[str, _Use], groups: Groups) -> Iterable[tuple[EntityId, _Use]]:
    """The users with those of a group together, if it has named members only, and all of them are users."""
    left = dict(users)
    for name, members in sorted(groups.items()):
        if len(members) > 1 and _is_named(members) and left.keys() >= set(members):
            use = _Use()
            for member in set(members):
                part = left.pop(member)
                use.add(part.calls, part.last_at)
            yield EntityId(GROUP, name), use
    for caller, use in sorted(left.items()):
        yield name_principal(caller), use


def _is_named(members: Collection[str]) -> bool:
    return all(_WILDCARDS.isdisjoint(member) for member in members)


def _render_permit(number: int, skill: EntityId, principal: EntityId, use: _Use) -> str:
    last = "" if use.last_at is None else f", the last one {use.last_at.isoformat(timespec='minutes')}"
    is_in = "in" if principal.type == GROUP else "=="
    return (
        f"\n// {use.calls:,} call{'s' * (use.calls != 1)}{last}\n"
        f'@id("used-{number}")\n'
        f'permit(principal {is_in} {_quote(principal)}, action in Retinue::Action::"use", '
        f"resource == {_quote(skill)});"
    )


def _quote(entity: EntityId) -> str:
    """The entity as Cedar; its escapes are those of JSON, besides that of other than ASCII letters."""
    return f"{entity.type}::{json.dumps(entity.id, ensure_ascii=False)}"


def _comment(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
