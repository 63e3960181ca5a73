"""The budget that a caller gives one call: further calls, and tokens and US dollars for models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.allowance import Allowance
from retinue.core.errors import InvalidParametersError, Problem

CallLimits = int | Mapping[str, float]
"""A budget: the number of further calls, or ``{"calls": …, "tokens": …, "dollars": …}`` with any of these."""

_KEYS = ("calls", "tokens", "dollars")
_TOO_MANY = 10**12


def read_budget(budget: CallLimits | None) -> tuple[int | None, Allowance | None]:
    """The further calls of a budget, and what it allows to spend; None = no limit.

    Raises InvalidParametersError for a limit that is no number of 0 or more, and for an unknown key.
    """
    if budget is None:
        return None, None
    if not isinstance(budget, Mapping):
        if not _is_limit(budget, is_whole=True):
            problem = f"budget is {repr(budget)[:40]}, and not a number of calls"
            raise InvalidParametersError([Problem("budget", problem)])
        return budget, None
    limits: Mapping[str, Any] = budget
    problems = [
        Problem(f"budget.{key}", f"budget has {str(key)[:40]!r}, and knows only {', '.join(_KEYS)}")
        for key in limits
        if key not in _KEYS
    ]
    for key in _KEYS:
        if not _is_limit(limits.get(key), is_whole=key != "dollars"):
            shown = repr(limits[key])[:40]
            problems.append(
                Problem(f"budget.{key}", f"budget.{key} is {shown}, and not a number of 0 or more")
            )
    if problems:
        raise InvalidParametersError(problems)
    return limits.get("calls"), Allowance.of(limits.get("tokens"), limits.get("dollars"))


def _is_limit(limit: Any, *, is_whole: bool) -> bool:
    if limit is None:
        return True
    if isinstance(limit, bool) or not isinstance(limit, int if is_whole else int | float):
        return False
    return bool(0 <= limit < _TOO_MANY)
