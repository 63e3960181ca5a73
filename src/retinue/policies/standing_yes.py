"""Writes the yes of a person for similar calls as a policy, which it reads before it is stored.

The policy permits calls of the same caller to the same skill of the same version until a time. The arguments
are equal but for those that the person sets free, and there are no further ones. Arguments whose names are no
identifiers of Cedar are written as texts, such as ``context.args["to-whom"]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from decimal import Decimal
from typing import Any

from retinue.approvals.records import Approval
from retinue.core.errors import InvalidParametersError, InvalidSettingError, Problem
from retinue.policies.entities import SKILL, name_principal, normalize
from retinue.policies.policy_set import load_policies
from retinue.policies.reads import EntityId
from retinue.policies.values import MAX_BYTES

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"})
"""Words that Cedar does not take as the name of an attribute."""

_PLACES = 4
_LONG = 2**63


def draft_rule(approval: Approval, free: Collection[str], until: str, by: str) -> str:
    """The policy as text; ``until`` is a time such as 2026-11-27T12:00:00Z.

    Raises InvalidParametersError for a question that no policy answers, for arguments that cannot be
    compared, and for free ones that are not there.
    """
    request = approval.request
    if problem := request.why_no_rule:
        raise _refuse("approval", f"no policy can answer calls like {approval.id}: {problem}")
    unknown = sorted(set(free) - request.arguments.keys())
    if unknown:
        raise _refuse("free", f"the call has no argument {unknown[0]!r}")
    conditions = [f'context.now < datetime("{until}")', f"resource.version == {_text(request.version)}"]
    conditions += [
        _compare(name, value) for name, value in sorted(request.arguments.items()) if name not in free
    ]
    principal, skill = name_principal(request.caller), f"{request.agent}/{request.skill}"
    varies = f"; {', '.join(sorted(free))} may differ" if free else ""
    reason, names = f"calls like {approval.id}{varies}", _list_names(sorted(request.arguments))
    joined = " &&\n  ".join(conditions)
    text = (
        f'@id("yes-{approval.id}") @effect("approved") @by({_text(by)})\n'
        f"@args({_text(names)}) @reason({_text(reason)})\n"
        f'permit(principal == {_entity(principal)}, action == Retinue::Action::"call",\n'
        f"  resource == {_entity(EntityId(SKILL, normalize(skill)))})\n"
        f"when {{\n  {joined}\n}};\n"
    )
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refuse("free", f"the policy would have over {MAX_BYTES:,} bytes; set long arguments free")
    try:
        # a policy that is not valid would keep all others from being loaded
        load_policies({f"yes-{approval.id}.cedar": text})
    except InvalidSettingError as error:
        problem = f"a policy cannot name the arguments ({error.message}); set some free, or answer each call"
        raise _refuse("approval", problem) from None
    return text


def _list_names(names: list[str]) -> str:
    """The names for ``@args``: with spaces between, or as JSON where one is no identifier."""
    is_plain = all(_NAME.fullmatch(name) for name in names)
    return " ".join(names) if is_plain else json.dumps(names, ensure_ascii=False)


def _compare(name: str, value: Any) -> str:
    """The condition that an argument is equal."""
    attribute, place = name, f"context.args.{name}"
    if not _NAME.fullmatch(name) or name in _KEYWORDS:
        attribute, place = _text(name), f"context.args[{_text(name)}]"
    if value is None:
        return f"!(context.args has {attribute})"
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
    return f"context.args has {attribute} && {place} == {literal}"


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
