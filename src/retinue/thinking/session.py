"""The history of a session: what a caller asked in earlier runs, and what it was answered.

A run with a session begins with this history. It holds prompts and answers, and not what the model read or
called in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import orjson

MAX_TEXT_BYTES = 16_000
"""A longer prompt or answer is kept up to this size."""

MAX_HISTORY_BYTES = 64_000
"""A larger history loses its oldest exchanges, if it was not condensed before."""


def session_key(rights: Sequence[str], place: Sequence[str], session: str) -> str:
    """The key of a session: of one caller with its rights, one step of one workflow, and the caller's id."""
    return sha256(orjson.dumps([list(rights), list(place), session])).hexdigest()


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was asked in a run, and answered; ``run`` names the run and its step."""

    run: str
    prompt: str
    answer: str

    @property
    def size_bytes(self) -> int:
        """The bytes of its texts."""
        return _count(self.prompt) + _count(self.answer)


@dataclass(frozen=True, slots=True)
class History:
    """The exchanges of a session, oldest first; ``summary`` condenses those before them."""

    exchanges: tuple[Exchange, ...] = ()
    summary: str = ""

    def __bool__(self) -> bool:
        return bool(self.exchanges or self.summary)

    @property
    def size_bytes(self) -> int:
        """The bytes of all texts."""
        return _count(self.summary) + sum(exchange.size_bytes for exchange in self.exchanges)

    def with_exchange(self, run: str, prompt: str, answer: str) -> History:
        """The history with one more exchange, or with another answer of a run that it knows."""
        new = Exchange(run, _shorten(prompt), _shorten(answer))
        if any(exchange.run == run for exchange in self.exchanges):
            exchanges = tuple(new if exchange.run == run else exchange for exchange in self.exchanges)
            return History(exchanges, self.summary)
        return History((*self.exchanges, new), self.summary).within(MAX_HISTORY_BYTES)

    def condensed(self, old: Collection[Exchange], summary: str) -> History:
        """The history with a summary in place of these exchanges and of the summary before."""
        runs = {exchange.run for exchange in old}
        exchanges = tuple(exchange for exchange in self.exchanges if exchange.run not in runs)
        return History(exchanges, summary)

    def within(self, max_bytes: int) -> History:
        """The history without its oldest exchanges, until it has no more bytes; the last one stays."""
        exchanges = list(self.exchanges)
        size_bytes = self.size_bytes
        while len(exchanges) > 1 and size_bytes > max_bytes:
            size_bytes -= exchanges.pop(0).size_bytes
        return History(tuple(exchanges), self.summary)

    def to_json(self) -> dict[str, Any]:
        return {"summary": self.summary, "exchanges": [asdict(exchange) for exchange in self.exchanges]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> History:
        """The history that `to_json` wrote; None is an empty one."""
        if stored is None:
            return cls()
        return cls(tuple(Exchange(**row) for row in stored["exchanges"]), stored["summary"])


def _shorten(text: str) -> str:
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return f"{encoded[:MAX_TEXT_BYTES].decode('utf-8', 'ignore')}\n[cut: {len(encoded):,} bytes in all]"


def _count(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
