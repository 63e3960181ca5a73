"""The rule by which a caller may access a run."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.errors import NotAllowedError, UnknownRunError
from retinue.hub.run_access import RunAccess, reject_limited
from retinue.mesh.permissions import Access, AccessRule
from retinue.testing.memory_runs import MemoryRuns
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.runs.records import Origin, RunRecord, RunRequest

LIMITED = Principal("token:x", "token", LOCAL_TOKEN.scopes, ("bench-*",))


async def body(context: object, request: RunRequest) -> None:
    return None


RUNS = MemoryRuns(body)
VIP_ONLY = Access({"secret-agent": AccessRule(receive=("token:vip",))})


def run_with(*rights: str, caller: str = "run") -> RunRecord:
    return RunRecord("r", RunRequest("w", {}, None, Origin(frozenset(rights), caller)), "done", 0.0)


@pytest.mark.parametrize(
    ("scopes", "rights", "reached"),
    [
        ({"exposed"}, ("exposed",), True),
        ({"exposed"}, ("exposed", "mesh"), False),
        ({"mesh"}, ("exposed", "mesh"), True),
        ({"exposed", "mesh"}, ("exposed", "mesh", "runs_code"), False),
        ({"exposed", "runs_code"}, ("exposed", "mesh"), False),
        (LOCAL_TOKEN.scopes, tuple(LOCAL.scopes), True),
        ({"exposed"}, (), True),
    ],
)
def test_a_run_is_reached_with_all_of_its_rights(
    scopes: set[str], rights: tuple[str, ...], reached: bool
) -> None:
    """What a command started without a hub is reached through one, though that has no private right."""
    caller = Principal("token:x", "token", frozenset(scopes))
    assert RunAccess(RUNS, Access()).may_access(caller, run_with(*rights)) is reached


async def test_a_limited_caller_is_refused_before_anything_is_looked_up() -> None:
    access = RunAccess(RUNS, Access())
    for ask in (reject_limited, access.filter):
        with pytest.raises(NotAllowedError):
            ask(LIMITED)
    with pytest.raises(NotAllowedError):
        await access.get("never", LIMITED)


async def test_a_run_beyond_ones_rights_is_as_one_that_is_not_there() -> None:
    runs = MemoryRuns(body)
    access = RunAccess(runs, Access())
    await runs.start(RunRequest("w", {}, None, Origin(frozenset({"mesh", "runs_code"}))), run_id="r")
    with pytest.raises(UnknownRunError) as hidden:
        await access.get("r", ANONYMOUS)
    with pytest.raises(UnknownRunError) as missing:
        await access.get("s", ANONYMOUS)
    assert (hidden.value.message, missing.value.message) == ("Unknown run: r", "Unknown run: s")
    assert (await access.get("r", LOCAL_TOKEN)).id == "r"
    await runs.aclose()


@pytest.mark.parametrize(
    ("reader", "starter", "reached"),
    [
        ("token:vip", "token:ci", True),
        ("token:ci", "token:vip", False),
        ("token:ci", "token:other", True),
        ("token:vip", "token:vip", True),
        ("local", "token:vip", False),
    ],
)
def test_a_run_is_reached_by_who_sees_all_agents_that_it_sees(
    reader: str, starter: str, reached: bool
) -> None:
    """Its steps name the agents, and show what they were given and gave."""
    caller = Principal(reader, "token", LOCAL_TOKEN.scopes)
    assert RunAccess(RUNS, VIP_ONLY).may_access(caller, run_with("mesh", caller=starter)) is reached


def test_an_id_belongs_to_the_rights_of_who_chose_it() -> None:
    """Whoever has the same rights names it alike; it is stored apart from that of other rights."""
    callers = [
        Principal("token:ci", "token", frozenset(scopes))
        for scopes in ({"exposed"}, {"mesh"}, {"exposed", "runs_code"}, {"mesh", "runs_code"})
    ]
    stored = set()
    for access in (RunAccess(RUNS, Access()), RunAccess(RUNS, VIP_ONLY)):
        ids = {access.stored_id("r", caller) for caller in callers}
        assert len(ids) == len(callers)
        stored |= ids
        for caller in callers:
            assert access.shown_id(access.stored_id("r", caller), caller) == "r"
            assert access.shown_id(access.stored_id("r", caller) + "/a#1", caller) == "r/a#1"
    assert len(stored) == 2 * len(callers)
    assert RunAccess(RUNS, Access()).stored_id("r", LOCAL_TOKEN) == "r"
