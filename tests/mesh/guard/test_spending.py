"""The tokens and the money of a chain of calls: divided, returned, never spent twice."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.allowance import Allowance, Amount
from retinue.core.call import TraceContext, TraceExtension
from retinue.core.errors import BudgetSpentError, GuardError
from retinue.core.usage import Usage, add_usage, amount_of
from retinue.mesh.guard.spending import SpendingBudget, accept_usage
from retinue.mesh.guard.trace_guard import AdmittedCall, GuardSettings, OutgoingCall, TraceGuard, new_trace
from retinue.web.codec.trace import parse_trace_headers, render_trace_headers
from retinue.web.mesh_tokens import MeshSigner
from tests.mesh.scripted import make_call
from tests.requirements import requirement

_times = itertools.count()
SIGNER = MeshSigner(b"the key of one mesh", clock=lambda: 1_000 + next(_times) / 1_000)
"""No two messages are signed in the same millisecond, so that none counts as sent twice."""


def guard(**options: Any) -> TraceGuard:
    return TraceGuard(GuardSettings(**options), signer=SIGNER, clock=time.monotonic)


def limited(tokens: int | None = None, dollars: float | None = None, **fields: Any) -> TraceContext:
    return TraceContext("t", trusted=True, extension=TraceExtension(Allowance.of(tokens, dollars)), **fields)


def enter(trace: TraceContext, here: TraceGuard | None = None) -> AdmittedCall:
    return (here or guard()).enter(make_call("work", trace=trace, agent="b"), "b")


def received(trace: TraceContext) -> TraceContext:
    found = parse_trace_headers({name.lower(): text for name, text in render_trace_headers(trace).items()})
    assert found is not None
    return found


# one budget


@given(
    st.integers(0, 10_000),
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "rest", "most", "amount", "settle", "lose"]), st.integers(0, 3_000)
        )
    ),
)
def test_what_is_left_in_flight_and_spent_is_always_what_was_given(
    tokens: int, deeds: list[tuple[str, int]]
) -> None:
    budget = SpendingBudget(Allowance(tokens, None))
    in_flight: list[Allowance] = []
    spent = Amount()
    for deed, number in deeds:
        if deed == "reserve":
            in_flight.append(budget.reserve(number % 4 + 1))
        elif deed == "rest":
            in_flight.append(budget.reserve_rest(spare=number % 2 == 0))
        elif deed == "most":
            in_flight.append(budget.reserve_most(Allowance(number, number)))
        elif deed == "amount":
            try:
                in_flight.append(budget.reserve_amount(Amount(number, 0), "m"))
            except BudgetSpentError:
                assert number > (budget.left.tokens or 0)
        elif in_flight:
            share = in_flight.pop(number % len(in_flight))
            usage = None if deed == "lose" else {"output_tokens": number}
            spent = spent.plus(amount_of(usage)).plus(amount_of(budget.settle(share, usage)))
        assert (budget.left.tokens or 0) + sum(
            part.tokens or 0 for part in in_flight
        ) + spent.tokens == tokens
        assert all((part.tokens or 0) >= 0 for part in in_flight)


async def test_calls_that_begin_at_once_get_equal_shares_and_one_alone_gets_nearly_all() -> None:
    async def reserve(budget: SpendingBudget) -> int:
        return budget.reserve(await budget.count_siblings()).tokens or 0

    assert await reserve(SpendingBudget(Allowance(800, None))) == 700
    budget = SpendingBudget(Allowance(8_000, None))
    shares = await asyncio.gather(*(reserve(budget) for _ in range(4)))
    assert min(shares) >= 1_700
    assert max(shares) < 1.3 * min(shares)


async def test_a_call_that_is_cancelled_while_it_waits_for_its_siblings_is_none() -> None:
    budget = SpendingBudget(Allowance(800, None))
    waiting = asyncio.create_task(budget.count_siblings())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await budget.count_siblings() == 1


def test_a_refusal_names_what_is_left_the_setting_and_the_remedy() -> None:
    with pytest.raises(BudgetSpentError) as caught:
        SpendingBudget(Allowance(1_000, None)).reserve_amount(Amount(1_500, 9), "claude")
    assert caught.value.message == (
        "Budget spent: this chain of calls has 1,000 tokens left, "
        "and the request of claude needs 1,500 tokens"
    )
    assert caught.value.data["setting"] == "trace.tokens"
    assert "trace.tokens" in caught.value.remedy
    with pytest.raises(BudgetSpentError, match=r"has \$0\.000010 left.* needs \$0\.000020") as caught:
        SpendingBudget(Allowance(None, 10)).reserve_amount(Amount(5, 20), "claude")
    assert (caught.value.what, caught.value.data["setting"]) == ("money", "trace.dollars")


# calls of one process


@requirement("S-14")
def test_a_further_call_gets_a_share_and_returns_what_it_did_not_spend() -> None:
    admitted = enter(limited(8_000, 0.8))
    with admitted.further_call() as outgoing:
        assert outgoing.trace.allowance == Allowance(7_000, 700_000)
        outgoing.record_usage(0, {"input_tokens": 100, "output_tokens": 50, "cost_usd": 0.3})
    assert admitted.spending is not None
    assert admitted.spending.left == Allowance(7_850, 500_000)
    assert admitted.usage == {
        "input_tokens": 100,
        "output_tokens": 50,
        "cost_usd": 0.3,
        "further": {"input_tokens": 100, "output_tokens": 50, "cost_usd": 0.3},
    }


def test_a_call_without_an_answer_keeps_its_share_and_that_is_reported() -> None:
    admitted = enter(limited(8_000))
    with admitted.further_call():
        pass
    assert admitted.spending is not None
    assert admitted.spending.left == Allowance(1_000, None)
    assert admitted.usage == {"reserved_tokens": 7_000}


@pytest.mark.parametrize("failed", [True, False])
def test_a_forwarded_call_is_counted_once_whether_it_fails_or_not(failed: bool) -> None:
    """Its usage comes with its answer, and only the guard knows that of an attempt that failed."""
    admitted = enter(limited(8_000))

    def forward() -> None:
        with admitted.forward() as outgoing:
            assert outgoing.trace.allowance == Allowance(8_000, None)
            outgoing.record_reply(0, {"input_tokens": 100})
            if failed:
                raise ValueError("boom")

    if failed:
        with pytest.raises(ValueError, match="boom"):
            forward()
    else:
        forward()
    assert admitted.spending is not None
    assert admitted.spending.left == Allowance(7_900, None)
    assert admitted.usage == ({"input_tokens": 100} if failed else None)


def test_one_question_of_many_may_spend_nothing() -> None:
    assert enter(limited(8_000)).relay_one_of_many(3).trace.allowance == Allowance(0, None)


def test_a_limit_of_one_call_holds_in_a_chain_without_limits_too() -> None:
    admitted = enter(TraceContext("t", trusted=True))
    assert admitted.further_call(most=Allowance(50, None)).trace.allowance == Allowance(50, None)
    assert admitted.further_call().trace.allowance is None
    assert enter(limited(40)).further_call(most=Allowance(50, 7)).trace.allowance == Allowance(40, 7)


def test_without_limits_the_usage_of_further_calls_is_summed_all_the_same() -> None:
    admitted = enter(new_trace())
    for _ in range(2):
        with admitted.further_call() as outgoing:
            assert outgoing.trace.extension is None
            outgoing.record_usage(0, {"input_tokens": 5, "model": "m"})
    assert admitted.usage == {"input_tokens": 10, "model": "m", "further": {"input_tokens": 10}}
    assert admitted.spending is None


# what a process believes


def test_a_new_chain_gets_the_limits_of_the_settings_where_it_has_none() -> None:
    default = guard(allowance=Allowance(900, 70))
    for trace, believed in (
        (TraceContext(""), Allowance(900, 70)),
        (new_trace(), Allowance(900, 70)),
        (TraceContext("t", 1), Allowance(900, 70)),
        (TraceContext("t", 1, extension=TraceExtension(Allowance(10**6, 5))), Allowance(900, 5)),
        (limited(10**6), Allowance(10**6, 70)),
        (limited(10**6, depth=2), Allowance(10**6, None)),
        (TraceContext("t", 2, trusted=True), None),
    ):
        assert enter(trace, default).trace.allowance == believed


@requirement("S-17")
def test_a_claim_that_comes_back_lives_from_what_own_calls_in_flight_were_given() -> None:
    here = guard()
    admitted = enter(limited(8_000), here)
    with admitted.further_call() as outgoing:
        claim = enter(TraceContext("t", calls_left=1, extension=TraceExtension(Allowance(10**9, None))), here)
        assert claim.trace.allowance == outgoing.trace.allowance
        other = enter(TraceContext("t", calls_left=1), here)
        assert other.trace.allowance == Allowance(0, None), "nothing is left for it"
        assert claim.spending is not None
        claim.spending.settle(claim.spending.reserve_amount(Amount(500, 0), "m"), {"output_tokens": 300})
        here.leave(claim)
        assert enter(TraceContext("t", calls_left=1), here).trace.allowance == Allowance(6_700, None)
        outgoing.record_usage(0, {"output_tokens": 10})
    assert admitted.spending is not None
    assert admitted.spending.left.tokens is not None
    assert admitted.spending.left.tokens <= 7_700, "what came back unannounced was spent all the same"


def test_a_claim_takes_no_unknown_field_under_a_signature() -> None:
    fields = {"joules_left": 7}
    claim = TraceContext("t", 1, extension=TraceExtension(Allowance(80, None), fields))
    assert enter(claim).forward().trace.extension == claim.extension
    assert enter(claim).further_call().trace.extension == TraceExtension(Allowance(70, None))
    signed = enter(
        received(
            SIGNER.sign(
                TraceContext("t", 1, trusted=True, extension=TraceExtension(None, fields)), "b", "work"
            )
        )
    )
    assert signed.trace.trusted
    assert signed.further_call().trace.extension == TraceExtension(None, fields)


@requirement("S-17")
def test_a_stranger_reports_at_most_its_share_and_a_process_of_the_mesh_what_it_spent() -> None:
    sent = SIGNER.sign(limited(100), "b", "work")
    usage = {"output_tokens": 300, "model": "m"}
    sealed = enter(received(sent)).seal(usage)
    assert accept_usage(sealed, sent, SIGNER) == usage
    assert accept_usage(usage, sent, SIGNER) == {"output_tokens": 100, "model": "m"}
    assert accept_usage({**sealed, "mac": "ä"}, sent, SIGNER) == {"output_tokens": 100, "model": "m"}
    assert accept_usage(sealed, SIGNER.sign(limited(100), "c", "work"), SIGNER) == {
        "output_tokens": 100,
        "model": "m",
    }
    assert accept_usage(usage, TraceContext("t"), None) == usage
    assert enter(new_trace()).seal(usage) == usage


# a tree of calls


@dataclass
class Node:
    """One call of a tree: what it asks of its model, the calls that it makes, and how it ends."""

    requests: list[Amount]
    children: list[Node] = field(default_factory=list)
    at_once: bool = False
    end: Literal["answers", "is lost"] = "answers"
    forwards: bool = False


requests = st.lists(st.builds(Amount, st.integers(0, 400), st.integers(0, 400)), max_size=2)
ends = st.sampled_from(["answers", "answers", "answers", "is lost"])
nodes = st.recursive(
    st.builds(Node, requests, end=ends),
    lambda inner: st.builds(Node, requests, st.lists(inner, max_size=4), st.booleans(), ends, st.booleans()),
    max_leaves=12,
)


class Tree:
    """Runs a tree of calls, each in a process of its own, with signed messages between them."""

    def __init__(self) -> None:
        self.spent = Amount()

    def call(self, node: Node, sent: TraceContext) -> Usage | None:
        """The usage that the call reports; None without an answer."""
        here = guard(max_depth=64)
        admitted = enter(received(sent), here)
        own = self._ask_model(node, admitted)
        with ExitStack() as stack:
            calls: list[tuple[Node, OutgoingCall]] = []
            for place, child in enumerate(node.children if node.at_once else ()):
                with suppress(BudgetSpentError):
                    outgoing = admitted.further_call(siblings=len(node.children) - place)
                    calls.append((child, stack.enter_context(outgoing)))
            for child, outgoing in calls:
                self._converse(child, outgoing)
        for child in () if node.at_once else node.children:
            with suppress(GuardError):
                outgoing = admitted.forward() if node.forwards else admitted.further_call()
                with outgoing:
                    answer = self._converse(child, outgoing)
                own = add_usage(own, answer) if node.forwards else own
        here.leave(admitted)
        usage = add_usage(own, admitted.usage) or {}
        assert admitted.spending is not None
        assert admitted.spending.left == admitted.trace.allowance.minus(amount_of(usage))  # type: ignore[union-attr]
        return None if node.end == "is lost" else admitted.seal(usage)

    def _converse(self, child: Node, outgoing: OutgoingCall) -> Usage | None:
        sent = SIGNER.sign(outgoing.trace, "b", "work")
        usage = self.call(child, sent)
        if usage is None:
            return None
        return outgoing.record_reply(0, usage, sent, SIGNER)

    def _ask_model(self, node: Node, admitted: AdmittedCall) -> Usage | None:
        usage: Usage | None = None
        assert admitted.spending is not None
        for amount in node.requests:
            try:
                share = admitted.spending.reserve_amount(amount, "m")
            except BudgetSpentError:
                continue
            used = Amount(amount.tokens // 2, amount.microdollars // 2)
            self.spent = self.spent.plus(used)
            used_usage = {"output_tokens": used.tokens, "cost_usd": used.microdollars / 10**6}
            usage = add_usage(add_usage(usage, used_usage), admitted.spending.settle(share, used_usage))
        return usage


@requirement("S-14")
@settings(max_examples=300)
@given(nodes, st.builds(Allowance, st.integers(0, 2_000), st.integers(0, 2_000)))
def test_no_tree_of_calls_spends_more_than_it_was_given_and_the_count_is_exact(
    root: Node, allowance: Allowance
) -> None:
    """Whatever fails: what is reported at the root is at least what was spent, and within the limit."""
    tree = Tree()
    root = replace(root, end="answers")
    trace = TraceContext("t", trusted=True, extension=TraceExtension(allowance))
    usage = tree.call(root, SIGNER.sign(trace, "b", "work"))
    assert allowance.covers(tree.spent)
    counted = amount_of(usage)
    assert allowance.covers(counted)
    assert counted.tokens >= tree.spent.tokens
    assert counted.microdollars >= tree.spent.microdollars
    reserved = (usage or {}).get("reserved_tokens", 0), (usage or {}).get("reserved_usd", 0)
    if reserved == (0, 0):
        assert counted == tree.spent
