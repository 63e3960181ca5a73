"""The limits of a loop, what it has spent, and which limit ends it.

Tokens and money are those of all requests and of the calls that they cause. They are counted by the budget
of the run, which holds what the chain of calls has left as well. A request is made only if it and a last
answer fit. The time is that of requests and calls. Waiting for a person, and the time in which a run is
interrupted, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from retinue.core.allowance import Allowance, Amount, to_dollars, to_microdollars

LimitName = Literal["turns", "calls", "tokens", "dollars", "time", "repeats"]
"""What may end a loop; ``repeats`` = the model made one call again and again."""

FIELDS: Mapping[LimitName, str] = {
    "turns": "turns",
    "calls": "calls",
    "tokens": "tokens",
    "dollars": "dollars",
    "time": "time_s",
    "repeats": "repeats",
}
"""The field of `Limits` for each limit; ``repeats`` has none."""

MIN_ANSWER_TOKENS = 256
"""A request with less room for its answer is not worth making."""

ANSWER_TOKENS = 8_192
"""The longest answer that a request asks for, because an interrupted one counts with it."""

LAST_ANSWER_TOKENS = 1_024
"""The room that each request leaves for the last answer, beside its prompt."""

_ANSWER_PRICE = 5
"""A token of an answer is taken to cost so many times one of a prompt, as at most vendors."""

_MARGIN = 1.25
"""For what requests before do not tell, such as a prompt that is not in the cache any more."""


_NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a loop; ``dollars`` None = without limit."""

    turns: int = 20
    calls: int = 60
    tokens: int = 200_000
    dollars: float | None = None
    time_s: float = 600.0

    def extended(self, more: Mapping[str, Any]) -> Limits:
        """The limits with other values for some of them."""
        return replace(self, **more)


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of a loop; ``microdollars_a_token`` = the highest price of a prompt's token so far."""

    turns: int = 0
    calls: int = 0
    amount: Amount = _NOTHING
    time_s: float = 0.0
    microdollars_a_token: float = 0.0

    def with_request(self, usage: Mapping[str, Any] | None, *, turns: int = 1) -> Spent:
        """After a request that reports this usage; one that condenses is no turn."""
        usage = usage or {}
        weight = int(usage.get("input_tokens") or 0) + _ANSWER_PRICE * int(usage.get("output_tokens") or 0)
        cost = to_microdollars(float(usage.get("cost_usd") or 0.0))
        price = max(self.microdollars_a_token, cost / weight if weight else 0.0)
        return replace(self, turns=self.turns + turns, microdollars_a_token=price)

    def with_higher_price(self) -> Spent:
        """After a request was refused because its share of the money was too small."""
        return replace(self, microdollars_a_token=2 * self.microdollars_a_token)

    def with_calls(self, calls: int) -> Spent:
        return replace(self, calls=self.calls + calls)

    def with_time(self, seconds: float) -> Spent:
        return replace(self, time_s=self.time_s + seconds)

    def with_amount(self, amount: Amount) -> Spent:
        """With what the budget counts as spent on models."""
        return replace(self, amount=amount)

    def find_limit(self, limits: Limits, left: Allowance, prompt_tokens: int) -> LimitName | None:
        """The limit that the next request would exceed; None if it may be made.

        ``left`` is what may still be spent. The limit of calls ends a loop only when the model asks for more
        of them (`room_for_calls`).
        """
        if self.turns >= limits.turns:
            return "turns"
        if _room(left, prompt_tokens) < MIN_ANSWER_TOKENS:
            return "tokens"
        both = self._cost(2 * prompt_tokens, MIN_ANSWER_TOKENS + LAST_ANSWER_TOKENS)
        if left.microdollars is not None and left.microdollars <= both:
            return "dollars"
        return "time" if self.time_s >= limits.time_s else None

    def ask_for(self, left: Allowance, prompt_tokens: int, *, is_last: bool = False) -> tuple[int, Allowance]:
        """The longest answer of the next request, and what it may spend with its prompt."""
        answer = max(1, min(ANSWER_TOKENS, _room(left, prompt_tokens, is_last=is_last)))
        return answer, self.reserve(left, prompt_tokens, answer)

    def reserve(self, left: Allowance, prompt_tokens: int, answer_tokens: int) -> Allowance:
        """The amount that a request may spend whose answer has at most so many tokens."""
        money = None
        if left.microdollars is not None and self.microdollars_a_token:
            money = self._cost(prompt_tokens, answer_tokens)
        return Allowance(prompt_tokens + answer_tokens, money)

    def may_condense(
        self, left: Allowance, prompt_tokens: int, answer_tokens: int, later_tokens: int
    ) -> bool:
        """Whether a summary fits, and a request and a last one with ``later_tokens`` of prompt after it."""
        rest = Allowance(
            None if left.tokens is None else left.tokens - prompt_tokens - answer_tokens,
            None
            if left.microdollars is None
            else left.microdollars - self._cost(prompt_tokens, answer_tokens),
        )
        both = self._cost(2 * later_tokens, MIN_ANSWER_TOKENS + LAST_ANSWER_TOKENS)
        has_money = rest.microdollars is None or rest.microdollars > both
        return has_money and _room(rest, later_tokens) >= MIN_ANSWER_TOKENS

    def may_answer(self, left: Allowance, prompt_tokens: int) -> bool:
        """Whether there is room for a last answer."""
        least = self._cost(prompt_tokens, MIN_ANSWER_TOKENS)
        if left.microdollars is not None and left.microdollars <= least:
            return False
        return _room(left, prompt_tokens, is_last=True) >= MIN_ANSWER_TOKENS

    def has_more(self, left: Allowance, most: Allowance) -> bool:
        """Whether a request that might spend ``most`` money can be made once more with a larger share."""
        if left.microdollars is None or most.microdollars is None:
            return False
        return most.microdollars < left.microdollars

    def _cost(self, prompt_tokens: int, answer_tokens: int) -> int:
        """The cost of a request in millionths of a dollar, by the prices of earlier ones."""
        weight = prompt_tokens + _ANSWER_PRICE * answer_tokens
        return round(weight * self.microdollars_a_token * _MARGIN)

    def room_for_calls(self, limits: Limits) -> int:
        """How many further calls may be made."""
        return max(0, limits.calls - self.calls)

    def seconds_left(self, limits: Limits) -> float:
        """How long further requests and calls may take."""
        return max(0.0, limits.time_s - self.time_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "calls": self.calls,
            "tokens": self.amount.tokens,
            "dollars": to_dollars(self.amount.microdollars),
            "time_s": round(self.time_s, 3),
        }


def _room(left: Allowance, prompt_tokens: int, *, is_last: bool = False) -> int:
    """How many tokens the next answer may have, so that the last one fits as well."""
    if left.tokens is None:
        return ANSWER_TOKENS
    room = left.tokens - prompt_tokens
    return room if is_last else room - prompt_tokens - LAST_ANSWER_TOKENS


def batch_time_s(durations_ms: Iterable[float | None], parallel: int) -> float:
    """How long calls took that were made together, at most ``parallel`` of them at once."""
    known = [duration or 0.0 for duration in durations_ms]
    return max([*known, sum(known) / parallel], default=0.0) / 1000
