"""The rule by which a caller may access a run."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.errors import NotAllowedError, UnknownRunError
from retinue.hub.runs import accessible_runs, get_accessible_run, may_access, reject_limited
from retinue.testing.memory_runs import MemoryRuns
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.runs.records import Origin, RunRecord, RunRequest

LIMITED = Principal("token:x", "token", LOCAL_TOKEN.scopes, ("bench-*",))


def run_with(*rights: str) -> RunRecord:
    return RunRecord("r", RunRequest("w", {}, None, Origin(frozenset(rights))), "done", 0.0)


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
    assert may_access(frozenset(scopes), run_with(*rights)) is reached


async def test_a_limited_caller_is_refused_before_anything_is_looked_up() -> None:
    runs = MemoryRuns(lambda context, request: None)  # type: ignore[arg-type, return-value]
    for ask in (reject_limited, accessible_runs):
        with pytest.raises(NotAllowedError):
            ask(LIMITED)
    with pytest.raises(NotAllowedError):
        await get_accessible_run(runs, "never", LIMITED)


async def test_a_run_beyond_ones_rights_is_as_one_that_is_not_there() -> None:
    async def body(context: object, request: RunRequest) -> None:
        return None

    runs = MemoryRuns(body)
    await runs.start(RunRequest("w", {}, None, Origin(frozenset({"mesh", "runs_code"}))), run_id="r")
    with pytest.raises(UnknownRunError) as hidden:
        await get_accessible_run(runs, "r", ANONYMOUS)
    with pytest.raises(UnknownRunError) as missing:
        await get_accessible_run(runs, "s", ANONYMOUS)
    assert (hidden.value.message, missing.value.message) == ("Unknown run: r", "Unknown run: s")
    assert (await get_accessible_run(runs, "r", LOCAL_TOKEN)).id == "r"
    await runs.aclose()
