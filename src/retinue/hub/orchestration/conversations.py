"""Named conversations: the next request's prompts include the earlier requests and answers (L-35)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from retinue.core.json_values import text_of
from retinue.core.text import fence

Json = dict[str, Any]
ReadSession = Callable[[str], Json | None]
"""Reads the JSON value under a name; raises StateError."""
WriteSession = Callable[[str, Json], None]
"""Keeps a JSON value under a name; raises StateError."""

MAX_TURNS = 50
MAX_TOLD_CHARACTERS = 40_000
"""Characters of earlier turns in a prompt; the latest are kept."""

MAX_ANSWER_CHARACTERS = 20_000
"""Characters of one answer that are kept."""


@dataclass
class NamedConversations:
    """The conversations of one state, which ``read`` and ``write`` keep between processes."""

    read: ReadSession
    write: WriteSession

    def __post_init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, name: str) -> asyncio.Lock:
        """The lock that requests of one conversation take, so that each sees the answer before it."""
        return self._turns.setdefault(name, asyncio.Lock())

    def render(self, name: str, *, before: str | None = None) -> str:
        """The earlier turns as a text for a prompt; "" for a new conversation.

        ``before`` is the id of a run: a run that is picked up gets the turns before it again.
        """
        shown: list[str] = []
        left = MAX_TOLD_CHARACTERS
        for turn in reversed(_until(self._list_turns(name), before)):
            text = f"Asked: {turn['prompt']}\nAnswered: {turn['answer']}"
            left -= len(text)
            if left < 0:
                break
            shown.append(text)
        return fence("earlier requests of this conversation", "\n\n".join(reversed(shown))) if shown else ""

    def add(self, name: str, prompt: str, answer: Any, *, run: str | None = None) -> None:
        """Keep one more turn; that of a run which was picked up is kept once."""
        turns = self._list_turns(name)
        if run is not None and any(turn.get("run") == run for turn in turns):
            return
        text = text_of(answer)
        if len(text) > MAX_ANSWER_CHARACTERS:
            text = f"{text[:MAX_ANSWER_CHARACTERS]}\n[cut: {len(text):,} characters]"
        turn: Json = {"prompt": prompt, "answer": text, "at": time.time()}
        if run is not None:
            turn["run"] = run
        self.write(name, {"turns": [*turns, turn][-MAX_TURNS:]})

    def _list_turns(self, name: str) -> list[Json]:
        kept = self.read(name)
        return [] if kept is None else list(kept["turns"])


def _until(turns: list[Json], run: str | None) -> list[Json]:
    places = [place for place, turn in enumerate(turns) if run is not None and turn.get("run") == run]
    return turns[: places[0]] if places else turns
