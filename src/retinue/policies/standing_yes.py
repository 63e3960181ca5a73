"""Writes the yes of a person for similar calls as a policy, which it reads before it is stored.

The policy permits calls of the same caller to the same skill of the same version until a time. The arguments
are equal but for those that the person sets free, and there are no further ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from typing import Any

from retinue.approvals.records import Approval
from retinue.core.errors import InvalidParametersError, Problem
from retinue.policies.entities import SKILL, name_principal, normalize
from retinue.policies.reads import EntityId

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACES = 4
_LONG = 2**63


def draft_rule(approval: Approval, free: Collection[str], until: str, by: str) -> str:
    """The policy as text; ``until`` is a time such as 2026-11-27T12:00:00Z.

    Raises InvalidParametersError for arguments that cannot be compared, and for free ones that are not there.
    """
    request = approval.request
    unknown = sorted(set(free) - request.arguments.keys())
    if unknown:
        raise _refuse("free", f"the call has no argument {unknown[0]!r}")
    conditions = [f'context.now < datetime("{until}")', f"resource.version == {_text(request.version)}"]
    for name, value in sorted(request.arguments.items()):
        if not _NAME.fullmatch(name):
            raise _refuse("approval", f"a policy cannot name the argument {name!r}; answer each call")
        if name not in free:
            conditions.append(_compare(name, value))
    principal, skill = name_principal(request.caller), f"{request.agent}/{request.skill}"
    varies = f"; {', '.join(sorted(free))} may differ" if free else ""
    reason, names = f"calls like {approval.id}{varies}", " ".join(sorted(request.arguments))
    joined = " &&\n  ".join(conditions)
    return (
        f'@id("yes-{approval.id}") @effect("approved") @by({_text(by)})\n'
        f"@args({_text(names)}) @reason({_text(reason)})\n"
        f'permit(principal == {_entity(principal)}, action == Retinue::Action::"call",\n'
        f"  resource == {_entity(EntityId(SKILL, normalize(skill)))})\n"
        f"when {{\n  {joined}\n}};\n"
    )


def _compare(name: str, value: Any) -> str:
    """The condition that an argument is equal."""
    place = f"context.args.{name}"
    if value is None:
        return f"!(context.args has {name})"
    if isinstance(value, bool):
        literal = "true" if value else "false"
    elif isinstance(value, int) and -_LONG <= value < _LONG:
        literal = str(value)
    elif isinstance(value, float) and (exact := _decimal(value)) is not None:
        literal = f'decimal("{exact}")'
    elif isinstance(value, str):
        literal = _text(value)
    else:
        raise _refuse(
            "free", f"the argument {name} is no text, number or boolean; set it free, or answer each call"
        )
    return f"context.args has {name} && {place} == {literal}"


def _decimal(value: float) -> str | None:
    """A number with at least one and at most four places; None for others."""
    exact = Decimal(repr(value))
    if not exact.is_finite() or -exact.as_tuple().exponent > _PLACES or abs(exact) > 10**14:  # type: ignore[operator]
        return None
    return f"{exact:.{_PLACES}f}"


def _entity(entity: EntityId) -> str:
    return f"{entity.type}::{_text(entity.id)}"


def _text(text: str) -> str:
    """A string of Cedar."""
    escaped = "".join(map(_escape, text))
    return f'"{escaped}"'


def _escape(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def _refuse(field: str, problem: str) -> InvalidParametersError:
    return InvalidParametersError([Problem(field, problem)])
