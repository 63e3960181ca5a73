"""One turn of a conversation: the call, its run followed at the terminal, and the cancellation of both."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retinue.cli.chat.questions import describe_wait
from retinue.cli.chat.screen import TurnEnd
from retinue.client.run_handle import RunHandle
from retinue.core.errors import InvalidRequestError, LimitedError, RetinueError, UnknownRunError
from retinue.core.remote_faults import rebuild_error

if TYPE_CHECKING:
    from retinue.cli.chat.partner import Partner
    from retinue.cli.chat.questions import Questions
    from retinue.cli.chat.screen import Screen
    from retinue.client.hub_skills import HubSkills
    from retinue.client.updates import RunUpdate
    from retinue.core.budget import CallLimits
    from retinue.core.call import Outcome

_TURN_S = 25 * 3600.0
"""Longer than a question of a run waits for its answer."""

_LOOK_S = 0.05
_LONGEST_LOOK_S = 0.5
"""How long the start of a run is waited for between two looks."""

_LAST_EVENTS_S = 5.0


class Turns:
    """Takes the turns of one conversation; ``questions`` None leaves questions to other programs."""

    def __init__(
        self,
        hub: HubSkills,
        partner: Partner,
        session: str,
        screen: Screen,
        questions: Questions | None = None,
        budget: CallLimits | None = None,
    ) -> None:
        self._hub = hub
        self._partner = partner
        self._session = session
        self._screen = screen
        self._questions = questions
        self._budget = budget

    async def take(self, prompt: str) -> TurnEnd:
        """Let the partner answer a prompt; a cancelled task cancels the run, and ends the turn.

        Raises the error of a turn that failed.
        """
        run, began = uuid.uuid4().hex, time.monotonic()
        following = _Following(RunHandle(run, self._hub, True), self._screen, self._questions)
        await following.announce()
        calling = asyncio.create_task(self._call(prompt, run))
        watching = asyncio.create_task(following.go_on(calling))
        try:
            outcome = await calling
            if outcome.error is not None and following.is_running:
                # the hub or the agent was lost: the run goes on, and the same call picks it up
                await watching
                outcome = await self._call(prompt, run)
            else:
                await asyncio.wait((watching,), timeout=_LAST_EVENTS_S)
        except asyncio.CancelledError:
            calling.cancel()
            await asyncio.wait((calling,))
            usage = await self._cancel(run)
            return TurnEnd(run, "cancelled", usage=usage, duration_s=time.monotonic() - began)
        finally:
            for task in (calling, watching):
                task.cancel()
            await asyncio.gather(calling, watching, return_exceptions=True)
        return _read_end(run, outcome, self._partner, time.monotonic() - began)

    async def _call(self, prompt: str, run: str) -> Outcome:
        arguments = self._partner.write_arguments(prompt, run, self._session)
        options: dict[str, Any] = {} if self._budget is None else {"budget": self._budget}
        return await self._hub.client.ask(
            self._partner.skill, arguments, agent=self._partner.agent, timeout_s=_TURN_S, **options
        )

    async def _cancel(self, run: str) -> Mapping[str, Any] | None:
        """Cancel the run, also one that begins only now; returns what it has spent."""
        handle = RunHandle(run, self._hub)
        for is_last in (False, True):
            try:
                await handle.cancel()
                return (await handle.show()).get("usage")
            except InvalidRequestError:
                return None  # it has ended
            except UnknownRunError:
                if not is_last:
                    await asyncio.sleep(_LOOK_S)
            except RetinueError as error:
                self._screen.note(f"run {run} could not be cancelled: {error.message}")
                return None
        return None


class _Following:
    """Follows the run of one turn: shows its steps and texts, and has its questions answered."""

    def __init__(self, handle: RunHandle, screen: Screen, questions: Questions | None) -> None:
        self._handle = handle
        self._screen = screen
        self._questions = questions
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._has_begun = False
        self._has_ended = False

    @property
    def is_running(self) -> bool:
        """Whether the run has begun, and has not ended yet."""
        return self._has_begun and not self._has_ended

    async def announce(self) -> None:
        """Let the hub keep the texts of the run from the first one on; the run has not started yet."""
        with suppress(UnknownRunError):
            await self._follow()

    async def go_on(self, calling: asyncio.Task[Outcome]) -> None:
        """Follow the run to its end; ``calling`` starts it."""
        wait_s = _LOOK_S
        try:
            while not self._has_begun:
                was_called = calling.done()
                try:
                    await self._follow()
                except UnknownRunError:
                    if was_called:
                        return
                    await asyncio.sleep(wait_s)
                    wait_s = min(1.5 * wait_s, _LONGEST_LOOK_S)
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _follow(self) -> None:
        async for update in self._handle.events():
            self._has_begun = True
            self._take(update)
        self._has_ended = True

    def _take(self, update: RunUpdate) -> None:
        facts = update.facts
        if facts.get("kind") != "wait":
            self._screen.show(update)
        elif update.kind == "step_started":
            if self._questions is None:
                self._screen.note(describe_wait(self._handle.id, facts))
            else:
                asking = self._questions.answer(self._handle, update.step, facts)
                self._asking[update.step] = asyncio.create_task(asking)
        elif (task := self._asking.pop(update.step, None)) is not None:
            task.cancel()


def _read_end(run: str, outcome: Outcome, partner: Partner, duration_s: float) -> TurnEnd:
    """The end of a turn by the outcome of its call; raises its error."""
    if outcome.error is None:
        return TurnEnd(run, "done", partner.read_answer(outcome.value), outcome.usage, duration_s)
    error = rebuild_error(outcome.error)
    limited = _find_limit(error)
    if limited is None:
        raise error
    return TurnEnd(run, "limited", limited.answer, outcome.usage, duration_s, limited.remedy)


def _find_limit(error: RetinueError) -> LimitedError | None:
    """The limit that ended a turn; None for another error."""
    if isinstance(error, LimitedError):
        return error
    cause = error.data.get("cause") or {}
    return LimitedError.from_data(cause["data"]) if cause.get("type") == LimitedError.type else None
