"""Who reaches which runs: one rule before every skill that starts, reads, stops or repeats one.

A run calls with the rights that it was started with, and shows what it was answered. So whoever has fewer
rights does not see it, and could not let it go on; a run sees the whole mesh, so whoever sees a part of
it has none.
"""

from __future__ import annotations

from collections.abc import Callable

from retinue.core.call import Principal
from retinue.core.errors import NotAllowedError, UnknownRunError
from retinue.mesh.visibility import covers
from retinue.workflows.run_records import RunRecord
from retinue.workflows.runs import Runs

_WITHIN_A_PROCESS = frozenset({"private"})
"""A right that no run has: it may go on in another process."""


def check_unlimited(principal: Principal) -> None:
    """Refuse whoever sees some agents only; raises NotAllowedError."""
    if principal.agents:
        raise NotAllowedError(
            "whoever is limited to some agents runs no workflows", remedy="call their skills one by one"
        )


def reaches(scopes: frozenset[str], record: RunRecord) -> bool:
    """Whether these scopes hold every right that the run was started with."""
    return covers(scopes, frozenset(record.request.ambient.get("scopes", ())) - _WITHIN_A_PROCESS)


def reach_of(principal: Principal) -> Callable[[RunRecord], bool]:
    """Which runs this caller reaches; raises NotAllowedError where it is none."""
    check_unlimited(principal)
    return lambda record: reaches(principal.scopes, record)


async def get_reached(runs: Runs, run_id: str, principal: Principal) -> RunRecord:
    """A run that the caller reaches; raises NotAllowedError, and UnknownRunError as if it were not there."""
    is_reached = reach_of(principal)
    record = await runs.get(run_id)
    if not is_reached(record):
        raise UnknownRunError(run_id)
    return record
