"""Conversations as a state machine, against a model that keeps everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from retinue.messages.codec.envelope import Envelope, new_envelope
from retinue.messages.codec.performatives import CLOSED, CODONS, PERFORMATIVES
from retinue.messages.conversations import Conversations
from tests.requirements import requirement

OWNERS = st.sampled_from(["", "eddy"])
REPLIES = sorted(name for name, one in PERFORMATIVES.items() if one.is_reply)
KEEP = 12


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opening(performative: str, reply_with: str | None = None) -> Envelope:
    message = new_envelope(performative, {}, sender="jules", receiver="eddy")
    return replace(message, reply_with=reply_with)


class ConversationMachine(RuleBasedStateMachine):
    """Begins, answers and forgets; ``model`` holds the state of what is open."""

    begun: Bundle[Any] = Bundle("begun")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.conversations = Conversations(keep=KEEP, ttl_s=100.0, clock=self.clock)
        self.model: dict[tuple[str, str], tuple[str, str]] = {}

    @rule(target=begun, performative=st.sampled_from(sorted(CODONS)), owner=OWNERS, named=st.booleans())
    def begin(self, performative: str, owner: str, named: bool) -> Any:
        message = opening(performative, f"token {len(self.model)} {self.clock.now}" if named else None)
        self.conversations.begin(message, owner)
        self.clock.now += 1.0
        self.model[owner, message.message_id] = (performative, "open")
        return owner, message

    @rule(one=begun, reply=st.sampled_from(REPLIES), by_token=st.booleans())
    def answer(self, one: Any, reply: str, by_token: bool) -> None:
        owner, message = one
        reference = message.reply_with if by_token and message.reply_with else message.message_id
        known = self.conversations.find(reference, owner) is not None
        performative, state = self.model[owner, message.message_id]
        after = CODONS[performative].states.get(state, {}).get(reply)
        taken = self.conversations.take(reference, reply, owner)
        # the model forgets nothing, the conversations may have dropped the oldest
        assert (taken is not None) == (known and after is not None)
        if taken is not None and after is not None:
            assert taken.state == after
            self.model[owner, message.message_id] = (performative, after)
            if after == CLOSED:
                assert self.conversations.find(reference, owner) is None

    @rule(one=begun, reply=st.sampled_from(REPLIES))
    def answer_of_another(self, one: Any, reply: str) -> None:
        _, message = one
        assert self.conversations.take(message.message_id, reply, "mallory") is None
        assert self.conversations.take("never said", reply) is None

    @rule(one=consumes(begun))
    def forget(self, one: Any) -> None:
        owner, message = one
        if (found := self.conversations.find(message.message_id, owner)) is not None:
            self.conversations.forget(found)
        assert self.conversations.find(message.message_id, owner) is None
        assert self.conversations.find(message.reply_with, owner) is None

    @rule()
    def wait(self) -> None:
        self.clock.now += 101.0
        assert self.conversations.find("anything") is None
        assert len(self.conversations) == 0

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.conversations) <= KEEP


@requirement("W-24")
def test_every_sequence_of_messages_keeps_the_rules() -> None:
    run_state_machine_as_test(
        ConversationMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )
