"""A run followed live from a client: each step told as it ends, the output at the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from retinue.apps.client import Client
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    ExecutionFailedError,
    RetinueError,
    StepFailedError,
)

_WAIT_S = 20.0


class Follower:
    """Starts runs and follows them; ``say`` hears one line for each step that begins or ends.

    A run that this process began, or let go on, and no longer follows is cancelled, so that nobody
    works for nobody.
    """

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._failed: Mapping[str, Any] | None = None
        """The failure that came last, held back: where the run ends with it, its error says it all."""

    async def run(
        self,
        workflow: str | Mapping[str, Any],
        given: Any,
        run_id: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Any:
        """The output of the run; raises StepFailedError with the step, its agent and the cause."""
        # chosen here, so that a run whose start was never answered can be cancelled as well
        run = uuid.uuid4().hex if run_id is None else run_id
        asked = {"workflow": workflow, "input": given, "run": run}
        return await self._own(run, self._client.get("start_run", asked | _given(overrides=overrides)))

    async def resume(self, run: str) -> Any:
        """Let a cancelled run go on; its output, as `run`."""
        return await self._own(run, self._client.get("resume_run", {"run": run}))

    async def rerun(self, run: str, from_step: str) -> Any:
        """Run again from a step on, as a new run; its output, as `run`."""
        new = uuid.uuid4().hex
        asked = {"run": run, "from_step": from_step, "new_run": new}
        return await self._own(new, self._client.get("rerun_run", asked))

    async def follow(self, run: str, after: int = 0) -> Any:
        """The output of a run that goes on whether it is followed or not, as `run`."""
        while True:
            asked = {"run": run, "after": after, "wait_s": _WAIT_S}
            try:
                reply = await self._client.get("follow_run", asked, timeout_s=_WAIT_S + 40)
            except AgentUnreachableError:
                self._say(f"run {run} is kept, and goes on with the next hub or worker")
                raise
            for event in reply["events"]:
                self._tell(event, run)
            after = reply["next"]
            if reply["done"]:
                self._tell_failed(run, whole=reply["status"] != "failed")
                for line in describe_effects(reply.get("effects")):
                    self._say(line)
                return _result(run, reply)

    def _tell(self, event: Mapping[str, Any], run: str) -> None:
        if line := describe(event, run):
            self._tell_failed(run, whole=True)
            if event.get("error"):
                self._failed = event
            else:
                self._say(line)

    def _tell_failed(self, run: str, *, whole: bool) -> None:
        """Say the failure that was held back, with its message or only that there was one."""
        if self._failed is not None and (line := describe(self._failed, run, whole=whole)):
            self._say(line)
        self._failed = None

    async def _own(self, run: str, beginning: Awaitable[Mapping[str, Any]]) -> Any:
        try:
            began = await beginning
            if choice := began.get("choice"):
                self._say(f"  chosen: {choice['workflow']}, since {choice['because']}")
            return await self.follow(run, began.get("after", 0))
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(run))
            raise

    async def _cancel(self, run: str) -> None:
        try:
            reply = await self._client.get("cancel_run", {"run": run}, timeout_s=5)
        except RetinueError as error:
            self._say(f"run {run} could not be cancelled: {error.message}")
            return
        self._say(f"cancelled; go on with: retinue resume {run}")
        for line in describe_effects(reply.get("effects")):
            self._say(line)


def describe(event: Mapping[str, Any], run: str = "", *, whole: bool = True) -> str | None:
    """One line for a call that began or ended, or for a wait; None for what nobody needs to see.

    Without ``whole`` the line of a failure leaves its message out.
    """
    kind = event.get("kind")
    if kind == "wait" and event["event"] == "step_started":
        asked = event.get("message") or f"waits for {event['topic']}"
        return f"  {event['step']:<18} {asked} — answer: retinue signal {run} {event['topic']} VALUE"
    if kind not in ("call", "undo", "review"):
        return None
    if event["event"] == "step_finished":
        seconds = float(event.get("duration_ms") or 0) / 1000
        error = event.get("error")
        failed = f"failed: {error['message']}" if error and whole else "failed"
        end = failed if error else f"{seconds:6.1f} s"
    else:
        end = "     …"
    return f"  {event['step']:<18} {event.get('skill') or '-':<16} {event.get('agent') or '-':<14} {end}"


def describe_effects(effects: Mapping[str, Any] | None) -> list[str]:
    """What a cancelled run had done already, one line for each call."""
    lines = []
    for word, said in (("done", "done before"), ("unknown", "may have run")):
        calls = (effects or {}).get(word, ())
        lines += [f"  {said}: {one['step']} ({one['skill']} at {one['agent']})" for one in calls]
    return lines


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}


def _result(run: str, reply: Mapping[str, Any]) -> Any:
    if reply["status"] == "done":
        return reply.get("output")
    if reply["status"] == "cancelled":
        raise CallCancelledError(f"run {run}")
    error = reply.get("error") or {}
    if error.get("type") == StepFailedError.type:
        raise StepFailedError.from_data(error["data"])
    raise ExecutionFailedError(
        str(error.get("message", "no reason given")), remedy=str(error.get("remedy", ""))
    )
