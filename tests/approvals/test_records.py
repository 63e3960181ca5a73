"""An answer counts for one call, once, until it expires: in memory and in both databases."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.approvals.records import Approval, ApprovalRequest, ApprovalStore, MemoryApprovals
from retinue.core.errors import InvalidParametersError, InvalidRequestError, UnknownApprovalError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.signals import SignalTable
from tests.workflows.implementations import make_database

REQUEST = ApprovalRequest("token:ann", "files", "1.0.0", "write_file", {"path": "a"})


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[ApprovalStore]:
    """Each kind of store; Postgres has the same statements and runs in the tests of crashes."""
    if request.param == "memory":
        yield MemoryApprovals(clock)
        return
    shutil.copy(await make_database(), tmp_path / "runs.db")
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    yield ApprovalTable(database, SignalTable(database), clock)
    database.close()


async def test_a_yes_is_used_once_and_only_for_its_call(store: ApprovalStore) -> None:
    approval = await store.ask(REQUEST, expires_s=60)
    await store.answer(approval.id, "yes", "owner")
    other = replace(REQUEST, arguments={"path": "b"}).digest()
    assert not await store.use(approval.id, other)
    assert await store.use(approval.id, REQUEST.digest())
    assert not await store.use(approval.id, REQUEST.digest())


async def test_the_step_that_used_a_yes_may_use_it_again_after_a_crash(store: ApprovalStore) -> None:
    approval = await store.ask(REQUEST, expires_s=60)
    await store.answer(approval.id, "yes", "owner")
    assert await store.use(approval.id, REQUEST.digest(), "run/step")
    assert await store.use(approval.id, REQUEST.digest(), "run/step")
    assert not await store.use(approval.id, REQUEST.digest(), "run/other")


async def test_a_yes_that_came_too_late_or_was_not_used_in_time_does_not_count(
    store: ApprovalStore, clock: Clock
) -> None:
    unanswered = await store.ask(REQUEST, expires_s=60)
    clock.now += 60
    with pytest.raises(InvalidRequestError, match="is expired already"):
        await store.answer(unanswered.id, "yes", "owner")
    answered = await store.ask(REQUEST, expires_s=60)
    assert answered.id != unanswered.id
    await store.answer(answered.id, "yes", "owner")
    clock.now += 60
    assert not await store.use(answered.id, REQUEST.digest())


async def test_equal_calls_of_one_caller_share_an_open_question(store: ApprovalStore) -> None:
    first = await store.ask(REQUEST, expires_s=60)
    assert (await store.ask(REQUEST, expires_s=60)).id == first.id
    assert (await store.ask(replace(REQUEST, caller="token:bob"), expires_s=60)).id != first.id


async def test_a_no_answers_equal_calls_until_the_question_would_have_expired(
    store: ApprovalStore, clock: Clock
) -> None:
    asked = await store.ask(REQUEST, expires_s=60)
    await store.answer(asked.id, "no", "owner", "too much")
    clock.now += 59
    again = await store.ask(REQUEST, expires_s=60)
    assert (again.id, again.state, again.comment) == (asked.id, "denied", "too much")
    clock.now += 1
    anew = await store.ask(REQUEST, expires_s=60)
    assert (anew.id != asked.id, anew.state) == (True, "open")


async def test_an_answer_is_final(store: ApprovalStore) -> None:
    approval = await store.ask(REQUEST, expires_s=60)
    await store.answer(approval.id, "no", "owner", "no need")
    with pytest.raises(InvalidRequestError, match="is denied already"):
        await store.answer(approval.id, "yes", "owner")
    with pytest.raises(UnknownApprovalError):
        await store.answer("none", "yes", "owner")


@pytest.mark.parametrize(
    "change",
    [
        lambda request: replace(request, caller="token:bob"),
        lambda request: replace(request, scopes=frozenset({"mesh"})),
        lambda request: replace(request, agent="other"),
        lambda request: replace(request, version="1.0.1"),
        lambda request: replace(request, skill="delete_file"),
        lambda request: replace(request, arguments={"path": "a", "more": None}),
        lambda request: replace(request, terms="policies"),
        lambda request: replace(request, through="clerk"),
    ],
)
def test_each_fact_of_a_call_changes_its_digest(change: Callable[[ApprovalRequest], ApprovalRequest]) -> None:
    assert change(REQUEST).digest() != REQUEST.digest()


def test_the_order_of_keys_does_not_change_the_digest() -> None:
    one = replace(REQUEST, arguments={"a": 1, "b": 2})
    assert one.digest() == replace(REQUEST, arguments={"b": 2, "a": 1}).digest()


def test_arguments_without_a_canonical_form_cannot_be_approved() -> None:
    with pytest.raises(InvalidParametersError, match="canonical form"):
        replace(REQUEST, arguments={"n": 2**60}).digest()


def test_the_stored_form_keeps_everything() -> None:
    request = replace(REQUEST, through="clerk")
    approval = replace(Approval.ask(request, 1.0, 2.0), state="denied", by="owner", comment="no")
    assert Approval.from_json(approval.to_json()) == approval


async def test_the_answer_reaches_a_waiting_run_as_a_signal(tmp_path: Path) -> None:
    shutil.copy(await make_database(), tmp_path / "runs.db")
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    signals = SignalTable(database)
    store = ApprovalTable(database, signals)
    approval = await store.ask(replace(REQUEST, run="night"), expires_s=60, approval_id="night-1")
    await store.answer(approval.id, "no", "owner", "too late")
    value = await signals.take("night", "approval/night-1", "step", 5.0)
    assert value == {"verdict": "no", "by": "owner", "comment": "too late"}
    database.close()


async def test_a_question_with_an_id_is_found_again_in_any_state(store: ApprovalStore) -> None:
    first = await store.ask(REQUEST, expires_s=60, approval_id="run-1")
    await store.answer(first.id, "no", "owner")
    assert (await store.ask(REQUEST, expires_s=60, approval_id="run-1")).state == "denied"
    assert [each.id for each in await store.list_all(state="denied")] == ["run-1"]
