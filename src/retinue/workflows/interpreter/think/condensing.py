"""Condenses older turns of a step ``think``, and an old history of its session, by requests to its model.

Each is a recorded step ``/condense-1`` below the path of the step, so that a resumed run sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.allowance import Allowance
from retinue.thinking.completion import CompletionRequest
from retinue.thinking.condensing import (
    Window,
    condense_without_model,
    find_cut,
    find_old_exchanges,
    render_summary,
    request_summary,
    write_history,
    write_transcript,
)
from retinue.thinking.conversation import Conversation
from retinue.thinking.limits import MIN_ANSWER_TOKENS, Spent
from retinue.thinking.prompt_size import estimate_conversation
from retinue.thinking.session import History
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import Retry
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.think.model import ModelTurn, ask_model

_UNUSABLE = ("too_long", "refused", "empty", "malformed")
"""Reasons of a failed request after which the end of the transcript stands in place of a summary."""


@dataclass(slots=True)
class Condenser:
    """Condenses for one loop. ``made`` = how often it did; ``is_forced`` = the model refused the last prompt
    as too long.
    """

    frame: Frame
    path: str
    retry: Retry | None
    window: Window
    made: int = 0
    is_forced: bool = False

    def use(self, model: Choice) -> None:
        """Take over the window of the model that is asked from now on."""
        known = model.context_window
        self.window = Window(
            self.window.tokens if known is None else known, self.window.compact_at, known is not None
        )

    def shrink(self, tokens: int) -> bool:
        """Take a prompt of so many tokens as too long for the model; False if it was condensed in vain."""
        if self.is_forced:
            return False
        self.window, self.is_forced = self.window.shrunk_to(tokens), True
        return True

    async def condense_history(
        self, history: History, model: Choice, spent: Spent, left: Allowance, left_s: float
    ) -> tuple[History, ModelTurn | None]:
        """The history with a summary in place of its older exchanges, and the request for it.

        A short history stays as it is, and one whose summary the budget does not permit.
        """
        old = find_old_exchanges(history, self.window)
        if not old:
            return history, None
        transcript = write_history(replace(history, exchanges=old), self.window.transcript_bytes)
        request = request_summary("A conversation that goes on.", transcript, self.window)
        if not spent.may_condense(
            left, estimate_conversation(request), self.window.summary_tokens, MIN_ANSWER_TOKENS
        ):
            return history, None
        facts = {"condenses": f"{len(old)} exchanges of the session", "bytes": history.size_bytes}
        turn = await self._ask(request, model, spent, left, left_s, facts)
        summary = self._read(turn, transcript)
        return (history if summary is None else history.condensed(old, summary)), turn

    async def condense_turns(
        self, talk: Conversation, tokens: int, model: Choice, spent: Spent, left: Allowance, left_s: float
    ) -> ModelTurn | None:
        """Put a summary in place of older turns, if a prompt with so many tokens is too long for the window.

        Gives the request, if one was made.
        """
        if not self.is_forced and tokens <= self.window.full_tokens:
            return None
        cut = find_cut(talk.messages, talk.first, self.window)
        if cut <= talk.first:
            return None
        transcript = write_transcript(talk.messages[talk.first : cut], self.window.transcript_bytes)
        request = request_summary(talk.plan.prompt, transcript, self.window)
        prompt_tokens = estimate_conversation(request)
        if not spent.may_condense(left, prompt_tokens, self.window.summary_tokens, tokens // 2):
            return None
        facts = {"condenses": f"{cut - talk.first} messages", "prompt_tokens": tokens}
        turn = await self._ask(request, model, spent, left, left_s, facts)
        summary = self._read(turn, transcript)
        if summary is not None:
            talk.condense(cut, render_summary(summary))
            self.is_forced = False
        return turn

    async def _ask(
        self,
        request: CompletionRequest,
        model: Choice,
        spent: Spent,
        left: Allowance,
        left_s: float,
        facts: Mapping[str, Any],
    ) -> ModelTurn:
        self.made += 1
        most = spent.reserve(left, estimate_conversation(request), self.window.summary_tokens)
        return await ask_model(
            self.frame,
            model,
            request.to_json(),
            f"{self.path}/condense-{self.made}",
            retry=self.retry,
            most=most,
            left_s=left_s,
            is_replaceable=False,
            shown={**facts, **self.window.describe()},
        )

    def _read(self, turn: ModelTurn, transcript: str) -> str | None:
        """The summary of a request; None where the request failed for a reason that concerns the loop."""
        if turn.reply is not None and turn.reply.text.strip() and turn.reply.finish != "refused":
            return turn.reply.text.strip()
        if turn.failure is not None and not is_unusable(turn):
            return None
        return condense_without_model(transcript, self.window)


def is_unusable(turn: ModelTurn) -> bool:
    """Whether a request for a summary failed in a way that the loop goes on without one."""
    cause = {} if turn.failure is None else turn.failure.cause
    return (cause.get("data") or {}).get("reason") in _UNUSABLE
