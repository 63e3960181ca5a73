"""Divides what one call may still spend on models among its calls in flight.

The rules are those of ``budget``, with other shares: a skill calls a model with a long prompt, so that a
ninth of the rest would often be too little. A call in flight gets the rest but an eighth. Calls that begin at
once, as with ``asyncio.gather``, announce themselves first, and get equal shares of that.

A call that never reports what it spent keeps its share, because it may still be running.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from retinue.core.allowance import Allowance, Amount, narrow, to_dollars
from retinue.core.call import TraceContext, TraceExtension
from retinue.core.errors import BudgetSpentError
from retinue.core.usage import (
    SOURCES,
    Usage,
    add_usage,
    amount_of,
    cap_usage,
    read_usage,
    render_reserved,
    reserve_unknown,
)

if TYPE_CHECKING:
    from retinue.mesh.guard.trace_guard import AdmittedCall, TraceSigner

NOTHING = Amount()

_SPARE = 8
"""1/8 of the rest is kept back for calls that begin later, or for one that has to be repeated."""


class SpendingBudget:
    """The tokens and the money that one call may still spend.

    At any time, left + shares in flight + spent equals the whole allowance. ``left`` is below 0 where a call
    reports more than its share.
    """

    __slots__ = ("_waiting", "left")

    def __init__(self, allowance: Allowance) -> None:
        self.left = allowance
        self._waiting = 0

    async def count_siblings(self) -> int:
        """How many calls begin at once and have no share yet, including this one; `reserve` follows at once.

        Each takes its part of what those before it left, so that the shares are equal.
        """
        self._waiting += 1
        try:
            await asyncio.sleep(0)
            return self._waiting
        finally:
            self._waiting -= 1

    def reserve(self, siblings: int = 1) -> Allowance:
        """Take the share of one of several further calls that begin at once."""
        return self._take(share_of(self.left, siblings=siblings))

    def reserve_rest(self, *, spare: bool = False) -> Allowance:
        """Take all that is left, for a relayed call; with ``spare`` an eighth less."""
        return self._take(self.left.portion(_SPARE - 1, _SPARE) if spare else self.left.portion(1, 1))

    def reserve_nothing(self) -> Allowance:
        """The share of a call that spends nothing."""
        return self.left.portion(0, 1)

    def reserve_most(self, most: Allowance) -> Allowance:
        """Take a share of at most ``most``."""
        return self._take(share_of(self.left, most))

    def reserve_amount(self, amount: Amount, asked: str) -> Allowance:
        """Take exactly this amount for a request of ``asked``; raises BudgetSpentError."""
        if not self.left.covers(amount):
            raise refuse_spending(self.left, amount, asked)
        return self._take(
            Allowance(
                None if self.left.tokens is None else amount.tokens,
                None if self.left.microdollars is None else amount.microdollars,
            )
        )

    def settle(self, share: Allowance, usage: Usage | None, seen: Amount = NOTHING) -> Usage | None:
        """Return the unused part of a share; gives what counts as spent beside the usage, None for nothing.

        ``usage`` None = there is no answer, so that the whole share counts as spent. ``seen`` is what came
        back here as claims: at least that was spent.
        """
        unreported = reserve_unknown(usage, share)
        if seen != NOTHING and usage is not None:
            hidden = seen.less(amount_of(usage)).less(amount_of(unreported))
            unreported = add_usage(unreported, render_reserved(hidden, share))
        spent, reserved = amount_of(usage).plus(amount_of(unreported)), share.amount
        self.left = self.left.minus(
            Amount(spent.tokens - reserved.tokens, spent.microdollars - reserved.microdollars)
        )
        return unreported

    def _take(self, share: Allowance) -> Allowance:
        self.left = self.left.minus(share.amount)
        return share


class ModelSpending:
    """One request to a model that a skill makes itself: reserved before it, settled after it.

    It is a context manager, whose entry raises BudgetSpentError. Without `settle` the whole reservation
    counts as spent where the chain of calls has a limit. The usage is added to that of the call.
    """

    def __init__(self, admitted: AdmittedCall, most: Amount, asked: str) -> None:
        self._admitted = admitted
        self._most = most
        self._asked = asked
        self._share: Allowance | None = None
        self._is_settled = False

    def __enter__(self) -> Self:
        spending = self._admitted.spending
        if spending is not None:
            self._share = spending.reserve_amount(self._most, self._asked)
        return self

    def settle(self, usage: Usage) -> None:
        """Record what the request has spent; {} = nothing, as after a refusal by the provider."""
        self._is_settled = True
        self._end(read_usage(usage) or {})

    def __exit__(self, *_: object) -> None:
        if not self._is_settled:
            self._end(None)

    def _end(self, usage: Usage | None) -> None:
        admitted, unreported = self._admitted, None
        if self._share is not None and admitted.spending is not None:
            unreported = admitted.spending.settle(self._share, usage)
        admitted.usage = add_usage(add_usage(admitted.usage, usage or None), unreported)


def share_of(left: Allowance, most: Allowance | None = None, *, siblings: int = 1) -> Allowance:
    """The share of a call of what is left: at most ``most``, else the rest but an eighth for all siblings."""
    if most is not None:
        return left.portion(1, 1).narrowed(most)
    return left.portion(_SPARE - 1, _SPARE * siblings)


def limit_claim(extension: TraceExtension | None, limit: Allowance | None) -> TraceExtension | None:
    """The extension of a claim, which may only make a limit smaller; None if it has no field."""
    claimed = None if extension is None else extension.allowance
    others = {} if extension is None else extension.others
    allowance = narrow(claimed, limit)
    return TraceExtension(allowance, others) if others or allowance is not None else None


def without_others(trace: TraceContext) -> TraceExtension | None:
    """The extension of a claim without fields of a newer release, which would get a signature."""
    return None if trace.allowance is None else TraceExtension(trace.allowance)


def limit_new(trace: TraceContext, default: Allowance) -> TraceContext:
    """The trace of a new chain, with the default where it has no limit."""
    allowance = trace.allowance or Allowance()
    return trace.with_allowance(
        Allowance(
            default.tokens if allowance.tokens is None else allowance.tokens,
            default.microdollars if allowance.microdollars is None else allowance.microdollars,
        )
    )


def count_unclaimed(traces: Sequence[TraceContext], claimed: Amount) -> Allowance | None:
    """The amount that calls in flight may still spend, less claims that came back; None without a limit."""
    tokens, microdollars = 0, 0
    limits_tokens = limits_money = True
    for trace in traces:
        allowance = trace.allowance or Allowance()
        limits_tokens = limits_tokens and allowance.tokens is not None
        limits_money = limits_money and allowance.microdollars is not None
        tokens, microdollars = tokens + allowance.amount.tokens, microdollars + allowance.amount.microdollars
    if not (limits_tokens or limits_money):
        return None
    return Allowance(
        max(tokens - claimed.tokens, 0) if limits_tokens else None,
        max(microdollars - claimed.microdollars, 0) if limits_money else None,
    )


def seal_usage(usage: Usage, request_mac: str, signer: TraceSigner) -> Usage:
    """The usage with the signature of a process of the mesh."""
    plain = read_usage(usage) or {}
    return {**plain, "mac": signer.sign_usage(plain, request_mac)}


def deduct_usage(trace: TraceContext, usage: Usage) -> TraceContext:
    """The trace of the next message of the same call, after the messages before it have spent this."""
    allowance = trace.allowance
    return trace if allowance is None else trace.with_allowance(allowance.minus(amount_of(usage)))


def accept_usage(usage: Usage | None, sent: TraceContext, signer: TraceSigner | None) -> Usage | None:
    """The usage that a reply reports, without its signature.

    ``sent`` is the trace of the request. Where it limits the spending and the mesh has not signed the report,
    that counts as at most the share which the call was given. Sources count only where the mesh has signed.
    """
    if usage is None:
        return None
    plain = {key: value for key, value in usage.items() if key != "mac"}
    share = sent.allowance
    if share is None and SOURCES not in plain:
        return plain
    mac = usage.get("mac")
    if mac and sent.mac and signer is not None:
        expected = signer.sign_usage(plain, sent.mac)
        if hmac.compare_digest(expected.encode(), mac.encode()):
            return plain
    plain.pop(SOURCES, None)
    return plain if share is None else cap_usage(plain, share)


def refuse_spending(left: Allowance, amount: Amount, asked: str) -> BudgetSpentError:
    """The error of a request of ``asked`` that could spend more than the chain has left."""
    if left.tokens is not None and amount.tokens > left.tokens:
        need, rest = (f"{max(tokens, 0):,} tokens" for tokens in (amount.tokens, left.tokens))
        return BudgetSpentError.of_chain("tokens", asked, need, rest, "trace.tokens")
    parts = (amount.microdollars, left.microdollars or 0)
    need, rest = (f"${to_dollars(max(part, 0)):,.6f}" for part in parts)
    return BudgetSpentError.of_chain("money", asked, need, rest, "trace.dollars")
