"""One completion: request, answer, the port of the back-ends, retries, and removal of keys.

The retries of the vendors' libraries are off: `complete_with_retries` is the only policy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from retinue.core.call import Part
from retinue.core.errors import BusyError, ModelError
from retinue.core.text import hide_tokens
from retinue.thinking.completion import CompletionReply, CompletionRequest
from retinue.thinking.prompt_size import estimate_conversation, estimate_tokens

OnText = Callable[[str], Awaitable[None]]
"""Receives the text of an answer piece by piece, as it comes."""

MAX_ANSWER_BYTES = 16 * 1024**2
"""A larger answer, or output of a program, is not read to its end."""

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0

_log = structlog.get_logger("retinue.llm")


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    """One request to a model: the instructions of its role, the task, and a limit of the answer in tokens.

    With ``conversation`` the request is that conversation with its tools, and both texts are empty. Only a
    vendor's API takes one.
    """

    instructions: str
    task: str
    max_tokens: int
    conversation: CompletionRequest | None = None

    @property
    def most_tokens(self) -> int:
        """At most so many tokens has the prompt, but for unusual texts."""
        if self.conversation is not None:
            return estimate_conversation(self.conversation)
        return estimate_tokens(len(self.instructions.encode()) + len(self.task.encode()))


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a call; ``cost_usd`` None = unknown. ``is_estimated`` where the back-end reports none.

    ``input_tokens`` counts all tokens of the prompt: those that the provider read from its cache
    (``cached_tokens``), those that it wrote into it (``cache_write_tokens``), and the others.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    is_estimated: bool = False
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        known = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(known) if known else None,
            self.is_estimated or other.is_estimated,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def as_json(self, model: str) -> dict[str, Any]:
        """The usage as it is reported with a result."""
        rendered: dict[str, Any] = {
            "model": model,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        if self.cached_tokens:
            rendered["cached_tokens"] = self.cached_tokens
        if self.cost_usd is not None:
            rendered["cost_usd"] = round(self.cost_usd, 6)
        return {**rendered, "estimated": True} if self.is_estimated else rendered


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An answer; ``model`` is the name that the back-end gives itself, ``is_cut`` a limit that ended it.

    ``completion`` is the reply to a conversation, ``parts`` the images that the model made with it.
    """

    text: str
    usage: Usage
    model: str
    is_cut: bool = False
    completion: CompletionReply | None = None
    parts: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()


OnUsage = Callable[[Usage], None]
"""Receives the usage that the provider reports of an attempt that fails."""


def ignore_usage(usage: Usage) -> None:
    """An ``on_usage`` that ignores it."""


class Model(Protocol):
    """A language model behind one back-end; a call is one attempt, without retries."""

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        """The answer to one prompt; ``on_text`` receives it while it is written.

        An attempt that fails, or is cancelled, calls ``on_usage`` if the provider has reported its usage, or
        if a part of its answer has come. A refusal of a conversation is a reply, that of a text an error.
        Raises ModelError, BusyError for a rate limit, and CallTimedOutError. Cancellation ends the request.
        """


async def ignore_text(piece: str) -> None:
    """An ``on_text`` that ignores the pieces."""


async def complete_with_retries(
    model: Model,
    prompt: ModelPrompt,
    on_text: OnText,
    *,
    retries: int,
    deadline: float | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ModelReply:
    """The answer of ``model``, after at most ``retries`` further attempts.

    An attempt is repeated after a rate limit, a server error or a lost connection: after the time that the
    provider named, else after 1, 2, 4 … seconds. A wait that would outlast ``deadline`` is not begun;
    ``deadline`` is a time of the event loop. Raises the error of the last attempt.
    """
    wait_s = FIRST_WAIT_S
    for left in range(retries, -1, -1):
        try:
            return await model.complete(prompt, on_text)
        except (BusyError, ModelError) as error:
            if not left or (pause_s := _find_pause(error, wait_s)) is None:
                raise
            now = asyncio.get_running_loop().time()
            if deadline is not None and now + pause_s >= deadline:
                raise
            _log.info("model call repeated", error=error.type, after_s=round(pause_s, 3), left=left)
            await sleep(pause_s)
            wait_s *= 2
    raise AssertionError("the last attempt returns or raises")


def _find_pause(error: BusyError | ModelError, wait_s: float) -> float | None:
    """The seconds to wait before the next attempt; None for an error that another attempt repeats."""
    if isinstance(error, ModelError) and error.reason != "unavailable":
        return None
    asked_s = error.retry_after_s
    pause_s = asked_s or wait_s
    return pause_s if pause_s <= LONGEST_WAIT_S else None


HIDDEN = "[key]"
MAX_CHARACTERS = 500
"""The limit for a text of a foreign program."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VENDORS_KEYS = re.compile(r"\b(?:sk|rk|pk)-[\w-]{16,}|\b(?:gsk_|xai-|hf_)\w{16,}|\bAIza[\w-]{30,}")
"""Keys that this process does not know: a program may have one in its own configuration."""


class Redactor:
    """Replaces known keys and what looks like a key or a token, removes colours, and shortens the text."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = sorted((key for key in keys if key), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        text = _COLOURS.sub("", text)
        for key in self._keys:
            text = text.replace(key, HIDDEN)
        text = hide_tokens(_VENDORS_KEYS.sub(HIDDEN, text))
        return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
