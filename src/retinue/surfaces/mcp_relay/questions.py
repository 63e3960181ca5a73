"""Questions that an agent asks a client through the relay: while one is open, the clock of its call stands.

The question and its answer are messages that pass like any other; here it is only known that one is open,
so that a person may take longer than a program (`mesh.patience`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from retinue.mesh.channel import Channel, NullChannel
from retinue.surfaces.mcp_relay.sessions import Session


class OpenQuestions(NullChannel):
    """The channel of one relayed call: a question of its is open until the session brings the answer."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._waiting: set[asyncio.Task[Any]] = set()

    def opened(self, channel: Channel, question_id: str | int) -> None:
        """Note a question that has gone to the client; ``channel`` is this one, as the call sees it."""
        if self._session is not None:
            task = asyncio.create_task(channel.elicit("", {}, key=key_of(question_id)))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        assert self._session is not None
        assert key is not None
        answered = self._session.questions.setdefault(key, asyncio.Event())
        try:
            await answered.wait()
        finally:
            self._session.questions.pop(key, None)

    def end(self) -> None:
        """The call is over, answered or not."""
        for task in self._waiting:
            task.cancel()


def key_of(question_id: str | int) -> str:
    """One key per id; 1 and "1" are two."""
    return repr(question_id)
