"""The amounts that a chain of calls may still spend on models: tokens and money, as exact integers.

Money is counted in millionths of a US dollar, so that sums and differences lose nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

MICRO = 1_000_000
"""Millionths in one US dollar."""

MAX_TOKENS = 10**12
MAX_DOLLARS = 10**6
"""Larger limits count as these."""


def to_microdollars(dollars: float) -> int:
    """Dollars as millionths, rounded up unless the rest is an inexact digit of the float."""
    return math.ceil(round(dollars * MICRO, 3))


def to_dollars(microdollars: int) -> float:
    """Millionths as dollars."""
    return microdollars / MICRO


class Amount(NamedTuple):
    """Tokens and money that were spent or are reserved."""

    tokens: int = 0
    microdollars: int = 0

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(self.tokens + other.tokens, self.microdollars + other.microdollars)

    def less(self, other: Amount) -> Amount:
        """The difference, not below 0."""
        return Amount(max(self.tokens - other.tokens, 0), max(self.microdollars - other.microdollars, 0))

    def at_most(self, other: Amount) -> Amount:
        """The smaller of both, for tokens and for money."""
        return Amount(min(self.tokens, other.tokens), min(self.microdollars, other.microdollars))


class Allowance(NamedTuple):
    """What may still be spent; None = no limit. A number below 0 = more than that was spent."""

    tokens: int | None = None
    microdollars: int | None = None

    @classmethod
    def of(cls, tokens: int | None = None, dollars: float | None = None) -> Self | None:
        """The allowance with these limits; None without any."""
        if tokens is None and dollars is None:
            return None
        return cls(
            None if tokens is None else min(max(tokens, 0), MAX_TOKENS),
            # down, because a limit must not grow
            None if dollars is None else math.floor(round(min(max(dollars, 0), MAX_DOLLARS) * MICRO, 3)),
        )

    @property
    def dollars(self) -> float | None:
        """The money in US dollars."""
        return None if self.microdollars is None else to_dollars(self.microdollars)

    def narrowed(self, other: Allowance | None) -> Allowance:
        """The smaller of both limits, for tokens and for money."""
        if other is None:
            return self
        return Allowance(_smaller(self.tokens, other.tokens), _smaller(self.microdollars, other.microdollars))

    def minus(self, amount: Amount) -> Allowance:
        """The rest after the amount was spent."""
        return Allowance(
            None if self.tokens is None else self.tokens - amount.tokens,
            None if self.microdollars is None else self.microdollars - amount.microdollars,
        )

    def portion(self, numerator: int, denominator: int) -> Allowance:
        """A fraction of what is left, rounded down and not below 0."""
        return Allowance(
            None if self.tokens is None else max(self.tokens, 0) * numerator // denominator,
            None if self.microdollars is None else max(self.microdollars, 0) * numerator // denominator,
        )

    def covers(self, amount: Amount) -> bool:
        """Whether the amount may still be spent."""
        return (self.tokens is None or amount.tokens <= self.tokens) and (
            self.microdollars is None or amount.microdollars <= self.microdollars
        )

    @property
    def amount(self) -> Amount:
        """All that may still be spent where there is a limit."""
        return Amount(max(self.tokens or 0, 0), max(self.microdollars or 0, 0))


def narrow(first: Allowance | None, other: Allowance | None) -> Allowance | None:
    """The smaller of both limits; None where neither limits anything."""
    return other if first is None else first.narrowed(other)


def _smaller(first: int | None, other: int | None) -> int | None:
    if first is None or other is None:
        return other if first is None else first
    return min(first, other)
