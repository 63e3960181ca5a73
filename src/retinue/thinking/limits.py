"""The limits of a loop, what it has spent, and which limit ends it.

Requests are reserved before they are made: the prompt by its size, the answer by its limit of tokens. The
time is that of requests and calls. Waiting for a person, and the time in which a run is interrupted, do not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

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

ANSWER_TOKENS = 4_096
"""The room for an answer that a request reserves."""

LAST_ANSWER_TOKENS = 1_024
"""The room that each request leaves for the last answer, beside its prompt."""

_BYTES_A_TOKEN = 3
"""A careful estimate: most texts have four."""

_IMAGE_TOKENS = 1_600


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loop may use at most; ``dollars`` None = without limit."""

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
    """What a loop has used."""

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    time_s: float = 0.0
    dollars_a_token: float = 0.0

    def with_request(self, usage: Mapping[str, Any] | None, reserved: Reserve, *, unknown: int = 0) -> Spent:
        """After a request that was sent once with this usage, and ``unknown`` times without an answer.

        The reservation counts for each of these.
        """
        usage = usage or {}
        used = _count(usage)
        cost = float(usage.get("cost_usd") or 0.0)
        rate = max(self.dollars_a_token, cost / used if used else 0.0)
        lost = reserved.tokens * unknown
        return replace(
            self,
            turns=self.turns + 1,
            tokens=self.tokens + used + lost,
            dollars=self.dollars + cost + rate * lost,
            dollars_a_token=rate,
        )

    def with_calls(self, calls: int) -> Spent:
        return replace(self, calls=self.calls + calls)

    def with_time(self, seconds: float) -> Spent:
        return replace(self, time_s=self.time_s + seconds)

    def find_limit(self, limits: Limits, reserved: Reserve) -> LimitName | None:
        """The limit that the next request would exceed; None if it may be made.

        The limit of calls ends a loop only when the model asks for more of them (`room_for_calls`).
        """
        if self.turns >= limits.turns:
            return "turns"
        if self.room_for_answer(limits, reserved) < MIN_ANSWER_TOKENS:
            return "tokens"
        if limits.dollars is not None and self.dollars + self._cost_of_both(reserved) >= limits.dollars:
            return "dollars"
        return "time" if self.time_s >= limits.time_s else None

    def room_for_answer(self, limits: Limits, reserved: Reserve, *, is_last: bool = False) -> int:
        """How many tokens the next answer may have, so that the last one fits as well."""
        left = limits.tokens - self.tokens - reserved.prompt
        return left if is_last else left - reserved.prompt - LAST_ANSWER_TOKENS

    def may_answer(self, limits: Limits, reserved: Reserve) -> bool:
        """Whether there is room for a last answer."""
        if limits.dollars is not None and self.dollars >= limits.dollars:
            return False
        return self.room_for_answer(limits, reserved, is_last=True) >= MIN_ANSWER_TOKENS

    def _cost_of_both(self, reserved: Reserve) -> float:
        """What the next request and the last one may cost, at the price of those before."""
        tokens = 2 * reserved.prompt + MIN_ANSWER_TOKENS + LAST_ANSWER_TOKENS
        return tokens * self.dollars_a_token

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
            "tokens": self.tokens,
            "dollars": round(self.dollars, 6),
            "time_s": round(self.time_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a request may cost at most, in tokens."""

    prompt: int
    answer: int = ANSWER_TOKENS

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


def _count(usage: Mapping[str, Any]) -> int:
    return int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)


def estimate_tokens(value: Any) -> int:
    """About how many tokens a JSON value of a request has; images count the same whatever their size."""
    images = _count_media(value)
    text = orjson.dumps(value, default=dict)
    size = len(text) - sum(images)
    return size // _BYTES_A_TOKEN + _IMAGE_TOKENS * len(images)


def _count_media(value: Any) -> list[int]:
    """The lengths of the encoded images and files in a value."""
    found: list[int] = []
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if isinstance(item.get("data"), str) and "mime_type" in item:
                found.append(len(item["data"]))
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return found


def batch_time_s(durations_ms: Iterable[float | None], parallel: int) -> float:
    """How long calls took that were made together, at most ``parallel`` of them at once."""
    known = [duration or 0.0 for duration in durations_ms]
    return max([*known, sum(known) / parallel], default=0.0) / 1000
