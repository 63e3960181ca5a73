"""What a back-end is asked and what it answers; the port that every back-end implements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

OnText = Callable[[str], Awaitable[None]]
"""Receives the text of an answer piece by piece, as it comes."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to a model: the instructions of its role, the task, and a limit of the answer in tokens."""

    instructions: str
    task: str
    max_tokens: int

    @property
    def size_bytes(self) -> int:
        return len(self.instructions.encode()) + len(self.task.encode())


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call used; ``cost_usd`` None = unknown. ``is_estimated`` where the back-end told nothing."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    is_estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        known = [one for one in (self.cost_usd, other.cost_usd) if one is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(known) if known else None,
            self.is_estimated or other.is_estimated,
        )

    def as_json(self, model: str) -> dict[str, Any]:
        """The usage as it is reported with a result."""
        told: dict[str, Any] = {
            "model": model,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        if self.cost_usd is not None:
            told["cost_usd"] = round(self.cost_usd, 6)
        return {**told, "estimated": True} if self.is_estimated else told


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer; ``model`` is the name that the back-end gives itself, ``is_cut`` a limit that ended it."""

    text: str
    usage: Usage
    model: str
    is_cut: bool = False


class Model(Protocol):
    """A language model behind one back-end; a call is one attempt, without retries."""

    async def complete(self, prompt: Prompt, on_text: OnText) -> Completion:
        """The answer to one prompt; ``on_text`` receives it while it is written.

        Raises ModelError, BusyError for a rate limit, and CallTimedOutError. Cancellation ends the request.
        """


async def ignore_text(piece: str) -> None:
    """An ``on_text`` that ignores the pieces."""
