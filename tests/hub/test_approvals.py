"""Who sees and who answers the calls that wait for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.approvals.records import Approval, ApprovalRequest, ApprovalStore, MemoryApprovals
from retinue.core.call import Principal
from retinue.core.errors import (
    InsufficientScopeError,
    InvalidRequestError,
    StateError,
    UnknownApprovalError,
)
from retinue.hub.approvals.book import SIMILAR_COMMENT, ApprovalBook
from retinue.runtime.parts.runs import save_yes
from retinue.web.security import LOCAL_TOKEN, OWNER_TOKEN

ANN = Principal("token:ann", "token", frozenset({"exposed", "mesh"}))
BOSS = replace(ANN, id="token:boss", scopes=ANN.scopes | {"approves"})
REQUEST = ApprovalRequest("token:ann", "files", "1.0.0", "write_file", {"path": "a"})


@pytest.fixture
def store() -> MemoryApprovals:
    return MemoryApprovals()


@pytest.fixture
def book(store: MemoryApprovals) -> ApprovalBook:
    async def open_store() -> ApprovalStore:
        return store

    return ApprovalBook(open_store)


async def test_a_caller_sees_its_own_calls_and_an_approver_all(
    book: ApprovalBook, store: MemoryApprovals
) -> None:
    own = await store.ask(REQUEST, expires_s=60)
    other = await store.ask(replace(REQUEST, caller="token:bob"), expires_s=60)
    assert [row["approval"] for row in await book.list_all(ANN, "open")] == [own.id]
    assert {row["approval"] for row in await book.list_all(BOSS, None)} == {own.id, other.id}
    with pytest.raises(UnknownApprovalError):
        await book.show(ANN, other.id)


@pytest.mark.parametrize("principal", [ANN, LOCAL_TOKEN])
async def test_a_caller_without_the_scope_answers_nothing_even_its_own_call(
    book: ApprovalBook, store: MemoryApprovals, principal: Principal
) -> None:
    own = await store.ask(REQUEST, expires_s=60)
    with pytest.raises(InsufficientScopeError, match="scope approves"):
        await book.answer(principal, own.id, "yes", "", depth=0)
    assert (await book.show(ANN, own.id))["state"] == "open"


async def test_an_agent_that_acts_for_an_approver_answers_nothing(
    book: ApprovalBook, store: MemoryApprovals
) -> None:
    own = await store.ask(REQUEST, expires_s=60)
    with pytest.raises(InsufficientScopeError, match="not through an agent"):
        await book.answer(BOSS, own.id, "yes", "", depth=1)


@pytest.mark.parametrize(("principal", "by"), [(BOSS, "token:boss"), (OWNER_TOKEN, "owner")])
async def test_an_answer_tells_who_gave_it(
    book: ApprovalBook, store: MemoryApprovals, principal: Principal, by: str
) -> None:
    own = await store.ask(REQUEST, expires_s=60)
    answered = await book.answer(principal, own.id, "no", "not today", depth=0)
    assert (answered["state"], answered["by"], answered["comment"]) == ("denied", by, "not today")


@pytest.mark.parametrize(
    ("approvers", "caller", "may"),
    [
        ((), "token:ann", True),
        ((), "token:boss", False),
        ((("caller",),), "token:boss", True),
        ((("token:b*", "token:x"),), "token:ann", True),
        ((("token:b*",), ("token:x",)), "token:ann", False),
        ((("owner",),), "token:ann", False),
    ],
)
async def test_a_policy_says_who_answers_and_the_owner_always_may(
    book: ApprovalBook, store: MemoryApprovals, approvers: tuple[tuple[str, ...], ...], caller: str, may: bool
) -> None:
    request = replace(REQUEST, caller=caller, approvers=approvers, terms="policies sha256:x")
    for principal, is_allowed in ((BOSS, may), (OWNER_TOKEN, True)):
        own = await store.ask(replace(request, arguments={"for": principal.id}), expires_s=60)
        if not is_allowed:
            with pytest.raises(InsufficientScopeError, match=f"approval {own.id} is"):
                await book.answer(principal, own.id, "no", "", depth=0)
            continue
        assert (await book.answer(principal, own.id, "no", "", depth=0))["state"] == "denied"
    stored = await store.find(own.id)
    assert stored is not None
    assert Approval.from_json(stored.to_json()) == stored


class Rules:
    """The policies that say yes to similar calls; ``act`` is done before one is stored."""

    def __init__(self, store: MemoryApprovals, act: Callable[[str], Awaitable[object]] | None = None) -> None:
        self.stored: dict[str, str] = {}
        self._act = act

        async def open_store() -> ApprovalStore:
            return store

        self.book = ApprovalBook(open_store, save_rule=self._save, remove_rule=self._remove)

    async def _save(self, approval_id: str, text: str) -> None:
        if self._act is not None:
            await self._act(approval_id)
        self.stored[approval_id] = text

    async def _remove(self, approval_id: str) -> None:
        del self.stored[approval_id]

    async def approve(self, approval_id: str, principal: Principal = BOSS) -> dict[str, Any]:
        asked: dict[str, Any] = {"free": (), "until": "", "depth": 0}
        draft = await self.book.approve_similar(principal, approval_id, rule="", **asked)
        asked["until"] = draft["until"]
        return await self.book.approve_similar(principal, approval_id, rule=draft["rule"], **asked)


OF_POLICY = replace(REQUEST, terms="policies sha256:x, listing y")


async def test_a_yes_for_similar_calls_is_said_when_its_policy_is_stored(store: MemoryApprovals) -> None:
    rules = Rules(store)
    own = await store.ask(OF_POLICY, expires_s=60)
    assert (await rules.approve(own.id))["state"] == "approved"
    assert list(rules.stored) == [own.id]


async def test_a_policy_that_is_not_stored_says_no_yes(store: MemoryApprovals) -> None:
    async def fail(approval_id: str) -> None:
        raise StateError("no space left")

    own = await store.ask(OF_POLICY, expires_s=60)
    with pytest.raises(StateError):
        await Rules(store, fail).approve(own.id)
    assert [each.state for each in await store.list_all()] == ["open"]


async def test_a_question_that_somebody_else_answers_meanwhile_leaves_no_policy(
    store: MemoryApprovals,
) -> None:
    rules = Rules(store, lambda approval_id: store.answer(approval_id, "no", "token:other"))
    own = await store.ask(OF_POLICY, expires_s=60)
    with pytest.raises(InvalidRequestError, match="denied already"):
        await rules.approve(own.id)
    assert rules.stored == {}


@pytest.mark.parametrize("second", [BOSS, replace(BOSS, id="token:chief")])
async def test_of_two_requests_for_similar_calls_one_is_told_yes_and_its_policy_stays(
    store: MemoryApprovals, second: Principal
) -> None:
    rules = Rules(store, lambda approval_id: asyncio.sleep(0))
    own = await store.ask(OF_POLICY, expires_s=60)
    clicks = await asyncio.gather(
        rules.approve(own.id), rules.approve(own.id, second), return_exceptions=True
    )
    (answered,) = [click for click in clicks if isinstance(click, dict)]
    (refused,) = [click for click in clicks if isinstance(click, InvalidRequestError)]
    assert (answered["state"], str(refused)) == ("approved", f"approval {own.id} is approved already")
    assert rules.stored == {own.id: answered["rule"]}


async def test_a_yes_for_similar_calls_in_another_process_keeps_its_policy(store: MemoryApprovals) -> None:
    rules = Rules(store, lambda approval_id: store.answer(approval_id, "yes", "token:boss", SIMILAR_COMMENT))
    own = await store.ask(OF_POLICY, expires_s=60)
    with pytest.raises(InvalidRequestError, match="approved already"):
        await rules.approve(own.id)
    assert list(rules.stored) == [own.id]


async def test_a_client_that_disconnects_leaves_no_policy_without_an_answer(store: MemoryApprovals) -> None:
    is_saving, may_save = asyncio.Event(), asyncio.Event()

    async def wait(approval_id: str) -> None:
        is_saving.set()
        await may_save.wait()

    rules = Rules(store, wait)
    own = await store.ask(OF_POLICY, expires_s=60)
    click = asyncio.create_task(rules.approve(own.id))
    await is_saving.wait()
    click.cancel()
    with pytest.raises(asyncio.CancelledError):
        await click
    may_save.set()
    async with asyncio.timeout(60):
        while (await rules.book.show(BOSS, own.id))["state"] == "open":
            await asyncio.sleep(0)
    assert list(rules.stored) == [own.id]


async def test_the_file_of_a_yes_is_not_replaced_by_another_yes(tmp_path: Path) -> None:
    await save_yes(tmp_path, "a1", "// one")
    await save_yes(tmp_path, "a1", "// one")
    with pytest.raises(InvalidRequestError, match="another yes"):
        await save_yes(tmp_path, "a1", "// two")
    assert (tmp_path / "policies" / "yes-a1.cedar").read_text() == "// one"


async def test_similar_calls_of_a_guards_question_are_refused_with_the_reason(store: MemoryApprovals) -> None:
    rules = Rules(store)
    own = await store.ask(replace(OF_POLICY, terms="policies of guards, listing y"), expires_s=60)
    with pytest.raises(InvalidRequestError, match="a guard asks, and a policy does not answer guards"):
        await rules.approve(own.id)
    assert "by_policy" not in await rules.book.show(BOSS, own.id)
